// One position of the selective scan for a real A, Euler's rule, float: state = e^(delta A) state + delta u B, y = C state.

#include "one_position.h"

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
    const int64_t D = g->channels, N = g->states;
#pragma omp parallel for num_threads(g->threads) schedule(static) if (g->threads > 1)
    for (int64_t row = 0; row < g->batch * D; ++row) {
        const int64_t b = row / D, d = row % D;
        const float delta = softplus<L>(splat<L::V>(g->delta[row] + g->delta_bias[d]))[0], u = g->u[row];
        const auto A = [&](int64_t n, int count) { return read<L>(g->A + d * N + n, count); };
        const float *B = g->B + b * N, *C = g->C + b * N, *state = g->state + row * N;
        g->y[row] = g->D[d] * u + selective_channel(u, delta, A, B, C, state, g->after + row * N, N);
    }
}
