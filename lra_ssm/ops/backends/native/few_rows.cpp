// y = x W^T for a few rows of x.

#include "one_position.h"

// Field by field the ctypes structure of cpu_pieces.py; all contiguous, float.
struct FewRowsArguments {
    int64_t rows, columns, outputs, threads;
    const float *x, *weight;  // (rows, columns), (outputs, columns)
    float* y;                 // (rows, outputs)
};

extern "C" void few_rows(const FewRowsArguments* g) {
#pragma omp parallel num_threads(g->threads) if (g->threads > 1)
    few_rows_of(g->rows, g->x, g->weight, g->y, g->columns, g->outputs);
}
