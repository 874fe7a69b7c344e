// One position of the selective scan for a real A, Euler's rule, float: state = e^(delta A) state + delta u B, y = C state.

#include "streams.h"

// Field by field the ctypes structure of cpu_pieces.py; all contiguous.
struct StepArguments {
    int64_t batch, channels, states, is_double, threads;
    const float *u, *delta, *delta_bias;  // (B, D), (B, D), (D)
    const float *A, *B, *C, *D;           // (D, N), (B, N), (B, N), (D)
    const float* state;                   // (B, D, N)
    float *y, *after;                     // (B, D), (B, D, N)
};

extern "C" void selective_step(const StepArguments* g) {
    using L = Float;
    using V = L::V;
    const int64_t D = g->channels, N = g->states;
#pragma omp parallel for num_threads(g->threads) schedule(static) if (g->threads > 1)
    for (int64_t row = 0; row < g->batch * D; ++row) {
        const int64_t b = row / D, d = row % D;
        const float delta = softplus<L>(splat<V>(g->delta[row] + g->delta_bias[d]))[0], u = g->u[row];
        V total{};
        vectors<L>(N, [&](int64_t n, int count) {
            const V A = read<L>(g->A + d * N + n, count);
            const V A_bar = Elementary<L>::exponential<true>(A * Elementary<L>::LOG2E, A, splat<V>(delta)).value;
            const V x = A_bar * read<L>(g->state + row * N + n, count) + delta * u * read<L>(g->B + b * N + n, count);
            write<L>(g->after + row * N + n, x, count);
            total += x * read<L>(g->C + b * N + n, count);
        });
        g->y[row] = sum<L>(total) + g->D[d] * u;
    }
}
