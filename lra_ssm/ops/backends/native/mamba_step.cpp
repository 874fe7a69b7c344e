// One position of a whole Mamba block with S6, float, for a few rows: norm, projections, convolution, scan, gate, residual.
// A call of only one of them costs as much as its arithmetic in a small model.

#include <vector>

#include "one_position.h"

// Field by field the ctypes structure of cpu_pieces.py; all contiguous.  (M model channels, E inner channels, W taps.)
struct MambaStepArguments {
    int64_t rows, channels, inner, states, rank, taps, threads;
    double epsilon;
    const float *x, *norm, *in_proj;                    // (rows, M), (M), (2E, M)
    const float *conv_weight, *conv_bias;               // (E, W), (E) or null
    const float *delta_down, *delta_up, *delta_bias;    // (R, E), (E, R), (E)
    const float *A_log, *B, *C, *D, *out_proj;          // (E, N), A = -e^A_log, (N, E), (N, E), (E), (M, E)
    const float *window, *state;                        // the last W - 1 inputs (rows, E, W - 1), (rows, E, N)
    float *y, *window_after, *state_after;              // (rows, M), as window and state
};

namespace {

using L = Float;
using V = L::V;

void normalize(const MambaStepArguments& g, float* out) {
    const int64_t M = g.channels;
    for (int64_t r = 0; r < g.rows; ++r) {
        const float* x = g.x + r * M;
        V squares{};
        vectors<L>(M, [&](int64_t i, int n) {
            const V v = read<L>(x + i, n);
            squares += v * v;
        });
        const float scale = static_cast<float>(1 / std::sqrt(sum<L>(squares) / static_cast<double>(M) + g.epsilon));
        vectors<L>(M, [&](int64_t i, int n) {
            write<L>(out + r * M + i, read<L>(x + i, n) * scale * read<L>(g.norm + i, n), n);
        });
    }
}

// v = SiLU(convolution of u) for n <= L::W channels of a row from e on; their windows move on.
INLINE void convolve(const MambaStepArguments& g, int64_t row, int64_t e, int n, const float* u, float* v) {
    const int64_t W = g.taps, past = W - 1;
    for (int j = 0; j < n; ++j) {
        const float *weight = g.conv_weight + (e + j) * W, *window = g.window + (row * g.inner + e + j) * past;
        float *after = g.window_after + (row * g.inner + e + j) * past, total = g.conv_bias ? g.conv_bias[e + j] : 0;
        for (int64_t w = 0; w < past; ++w) {
            total += weight[w] * window[w];
            after[w] = w + 1 < past ? window[w + 1] : u[j];
        }
        v[j] = total + weight[past] * u[j];
    }
    write<L>(v, SiLU<L>(read<L>(v, n)).value, n);
}

// v = SiLU(z) (scan of v) for n <= L::W channels of a row from e on.
INLINE void scan(const MambaStepArguments& g, int64_t row, int64_t e, int n, const float* delta, const float* B,
                 const float* C, const float* z, float* v) {
    const int64_t N = g.states;
    const V steps = softplus<L>(read<L>(delta, n) + read<L>(g.delta_bias + e, n));
    V y{};
    for (int j = 0; j < n; ++j) {
        const int64_t at = (row * g.inner + e + j) * N;
        const auto A = [&](int64_t i, int count) {
            const V log = read<L>(g.A_log + (e + j) * N + i, count);
            return -Elementary<L>::exponential<true>(log * Elementary<L>::LOG2E, log, splat<V>(1.0f)).value;
        };
        y[j] = selective_channel(v[j], steps[j], A, B, C, g.state + at, g.state_after + at, N);
    }
    write<L>(v, (y + read<L>(g.D + e, n) * read<L>(v, n)) * SiLU<L>(read<L>(z, n)).value, n);
}

// All threads go through this together.
void step(const MambaStepArguments& g, float* memory) {
    const int64_t rows = g.rows, M = g.channels, E = g.inner, N = g.states, R = g.rank, chunks = (E + L::W - 1) / L::W;
    float *normed = memory, *uz = normed + rows * M, *v = uz + rows * 2 * E, *delta = v + rows * E;
    float *low = delta + rows * E, *B = low + rows * R, *C = B + rows * N;
    const auto channels = [&](int64_t chunk, auto f) {  // f(row, first channel, how many)
        const int64_t e = chunk % chunks * L::W;
        f(chunk / chunks, e, static_cast<int>(std::min<int64_t>(L::W, E - e)));
    };
#pragma omp single
    normalize(g, normed);
    few_rows_of(rows, normed, g.in_proj, uz, M, 2 * E);
#pragma omp barrier
#pragma omp for schedule(static)
    for (int64_t k = 0; k < rows * chunks; ++k)
        channels(k, [&](int64_t r, int64_t e, int n) { convolve(g, r, e, n, uz + r * 2 * E + e, v + r * E + e); });
    few_rows_of(rows, v, g.delta_down, low, E, R);
    few_rows_of(rows, v, g.B, B, E, N);
    few_rows_of(rows, v, g.C, C, E, N);
#pragma omp barrier
    few_rows_of(rows, low, g.delta_up, delta, R, E);
#pragma omp barrier
#pragma omp for schedule(static)
    for (int64_t k = 0; k < rows * chunks; ++k)
        channels(k, [&](int64_t r, int64_t e, int n) {
            scan(g, r, e, n, delta + r * E + e, B + r * N, C + r * N, uz + (r * 2 + 1) * E + e, v + r * E + e);
        });
    few_rows_of(rows, v, g.out_proj, g.y, E, M);
#pragma omp barrier
#pragma omp single
    for (int64_t i = 0; i < rows * M; ++i) g.y[i] += g.x[i];
}

}  // namespace

extern "C" void mamba_step(const MambaStepArguments* g) {
    std::vector<float> memory(g->rows * (g->channels + 4 * g->inner + g->rank + 2 * g->states));
#pragma omp parallel num_threads(g->threads) if (g->threads > 1)
    step(*g, memory.data());
}
