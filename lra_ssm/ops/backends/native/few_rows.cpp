// y = x W^T for a few rows of x, as one step of a recurrence has: W is read once, as fast as memory gives it.  (A matrix
// product's blocks are made for many rows, and reach half of that.)

#include "streams.h"

// Field by field the ctypes structure of cpu_pieces.py; all contiguous, float.
struct FewRowsArguments {
    int64_t rows, columns, outputs, is_double, threads;
    const float *x, *weight;  // (rows, columns), (outputs, columns)
    float* y;                 // (rows, outputs)
};

namespace {

using L = Float;
using V = L::V;

// K outputs of all R rows from `first` on: R K <= W sums, which end in the lanes of one vector
template <int R, int K>
INLINE void some(const FewRowsArguments& g, int64_t first) {
    const int64_t n = g.columns;
    V total[L::W] = {};
    vectors<L>(n, [&](int64_t i, int count) {
        V x[R];
        for (int r = 0; r < R; ++r) x[r] = read<L>(g.x + r * n + i, count);
        for (int k = 0; k < K; ++k) {
            const V w = read<L>(g.weight + (first + k) * n + i, count);
            for (int r = 0; r < R; ++r) total[k * R + r] += w * x[r];
        }
    });
    const V all = sums<L>(total);
    for (int k = 0; k < K; ++k)
        for (int r = 0; r < R; ++r) g.y[r * g.outputs + first + k] = all[k * R + r];
}

template <int R>
void run(const FewRowsArguments& g) {
    constexpr int K = R == 1 ? 8 : R <= 4 ? L::W / 4 : L::W / 8;
    const int64_t groups = g.outputs / K;
#pragma omp parallel for num_threads(g.threads) schedule(static) if (g.threads > 1)
    for (int64_t k = 0; k < groups; ++k) some<R, K>(g, k * K);
    for (int64_t o = groups * K; o < g.outputs; ++o) some<R, 1>(g, o);
}

}  // namespace

extern "C" void few_rows(const FewRowsArguments* g) {
    switch (g->rows) {
        case 1: return run<1>(*g);
        case 2: return run<2>(*g);
        case 3: return run<3>(*g);
        case 4: return run<4>(*g);
        case 5: return run<5>(*g);
        case 6: return run<6>(*g);
        case 7: return run<7>(*g);
        case 8: return run<8>(*g);
    }
}
