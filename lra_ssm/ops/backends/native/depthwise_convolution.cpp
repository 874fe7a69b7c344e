// Causal convolution along time with W <= 4 taps per channel, SiLU after it if so asked, and its gradients, in one pass
// over memory each way.  Channels lie next to each other: lanes run along them, and a tile of them goes through time.

#include <vector>

#include "streams.h"

// Field by field the ctypes structure of cpu_convolution.py.  (batch B, length L, channels D, taps W; lag j is the input
// j steps ago.)
struct ConvolutionArguments {
    int64_t batch, length, channels, taps, is_double, silu, threads, tile;
    int64_t u_batch, u_time, out_batch, out_time, grad_batch, grad_time;
    const void *u, *weight, *bias;  // (B, L, D), (W, D) by lag, (D); bias may be null
    const void* initial;            // (B, W-1, D), the inputs before step 0; may be null
    const bool* reset;              // (B, L); may be null
    const void* grad;               // null: forward
    void* out;                      // forward's result or u's gradient
    void *grad_weight, *grad_bias;  // (B, W, D), (B, D)
    void* grad_initial;             // (B, W-1, D), null if initial is
};

namespace {

constexpr int TILE = 256;

template <class L, int W, bool Silu>
struct Tile {
    using T = typename L::Scalar;
    using V = typename L::V;
    const ConvolutionArguments& g;
    const int64_t item, first, n;  // of the channels
    std::vector<uint8_t> reach;    // how far back each step sees

    Tile(const ConvolutionArguments& g, int64_t item, int64_t first, int64_t n)
        : g(g), item(item), first(first), n(n), reach(g.length) {
        int back = g.initial ? W - 1 : 0;
        for (int64_t t = 0; t < g.length; ++t) {
            if (g.reset && g.reset[item * g.length + t]) back = 0;
            reach[t] = static_cast<uint8_t>(back);
            back = std::min(back + 1, W - 1);
        }
    }

    const T* input(int64_t t) const {
        if (t >= 0) return static_cast<const T*>(g.u) + item * g.u_batch + t * g.u_time + first;
        return static_cast<const T*>(g.initial) + (item * (W - 1) + W - 1 + t) * g.channels + first;
    }
    const T* tap(int j) const { return static_cast<const T*>(g.weight) + j * g.channels + first; }

    // f(i, count, pre, in, lags): the sums over the taps at step t, the inputs that they see and how many there are, a
    // constant nearly always
    template <class F>
    INLINE void sums(const Tile& s, int64_t t, F f) {
        const T* bias = s.g.bias ? static_cast<const T*>(s.g.bias) + s.first : nullptr;
        const T *at[W], *w[W];
        const int back = s.reach[t];
        for (int j = 0; j <= back; ++j) at[j] = s.input(t - j);
        for (int j = 0; j < W; ++j) w[j] = s.tap(j);
        const auto visit = [&](auto lags) {
            vectors<L>(s.n, [&](int64_t i, int c) {
                V pre = bias ? read<L>(bias + i, c) : V{}, in[W];
                for (int j = 0; j < lags; ++j) {
                    in[j] = read<L>(at[j] + i, c);
                    pre += read<L>(w[j] + i, c) * in[j];
                }
                f(i, c, pre, in, lags);
            });
        };
        back == W - 1 ? visit(std::integral_constant<int, W>{}) : visit(back + 1);
    }

    void forward() const {
        for (int64_t t = 0; t < g.length; ++t) {
            T* out = static_cast<T*>(g.out) + item * g.out_batch + t * g.out_time + first;
            sums(*this, t, [&](int64_t i, int c, V pre, auto&, auto) {
                if constexpr (Silu) pre = SiLU<L>(pre).value;
                write<L>(out + i, pre, c);
            });
        }
    }

    // The gradient of the input at step t, of the slopes of the steps that see it.
    INLINE void input_gradient(const Tile& s, const T (*slopes)[TILE], int64_t t, T* out) {
        const T *from[W], *w[W];
        int count = 0;
        for (int j = 0; j < W; ++j)
            if (t + j >= 0 && t + j < s.g.length && s.reach[t + j] >= j) {
                from[count] = slopes[(t + j) % W];
                w[count++] = s.tap(j);
            }
        const auto visit = [&](auto lags) {
            vectors<L>(s.n, [&](int64_t i, int c) {
                V x{};
                for (int k = 0; k < lags; ++k) x += read<L>(w[k] + i, c) * read<L>(from[k] + i);
                write<L>(out + i, x, c);
            });
        };
        count == W ? visit(std::integral_constant<int, W>{}) : visit(count);
    }

    void backward() const {
        alignas(64) T slopes[W][TILE] = {};  // of the sums, of the last W steps, step t at t % W
        alignas(64) T lately[W + 1][TILE] = {}, total[W + 1][TILE] = {};  // of taps and bias
        const auto add = [&](T* to, V x) { write<L>(to, read<L>(to) + x); };
        for (int64_t t = g.length - 1; t >= 0; --t) {
            const T* grad = static_cast<const T*>(g.grad) + item * g.grad_batch + t * g.grad_time + first;
            sums(*this, t, [&](int64_t i, int c, V pre, const V(&in)[W], auto lags) {
                V slope = read<L>(grad + i, c);
                if constexpr (Silu) slope = slope * SiLU<L>(pre).slope;
                write<L>(slopes[t % W] + i, slope);
                add(lately[W] + i, slope);
                for (int j = 0; j < lags; ++j) add(lately[j] + i, slope * in[j]);
            });
            input_gradient(*this, slopes, t, static_cast<T*>(g.out) + item * g.out_batch + t * g.out_time + first);
            if (t % LATELY) continue;
            for (int j = 0; j <= W; ++j)
                for (int64_t i = 0; i < n; ++i) total[j][i] += lately[j][i], lately[j][i] = 0;
        }
        for (int64_t t = -1; g.initial && t > -W; --t)
            input_gradient(*this, slopes, t, static_cast<T*>(g.grad_initial) + (item * (W - 1) + W - 1 + t) * g.channels + first);
        for (int j = 0; j < W; ++j)
            std::copy_n(total[j], n, static_cast<T*>(g.grad_weight) + (item * W + j) * g.channels + first);
        std::copy_n(total[W], n, static_cast<T*>(g.grad_bias) + item * g.channels + first);
    }
};

template <class L, int W, bool Silu>
void run(const ConvolutionArguments& g) {
    const int64_t tiles = (g.channels + g.tile - 1) / g.tile;
#pragma omp parallel for num_threads(g.threads) schedule(static) if (g.threads > 1)
    for (int64_t task = 0; task < g.batch * tiles; ++task) {
        const int64_t first = task % tiles * g.tile;
        const Tile<L, W, Silu> tile(g, task / tiles, first, std::min(g.tile, g.channels - first));
        g.grad ? tile.backward() : tile.forward();
    }
}

template <class L, bool Silu>
void by_taps(const ConvolutionArguments& g) {
    switch (g.taps) {
        case 1: return run<L, 1, Silu>(g);
        case 2: return run<L, 2, Silu>(g);
        case 3: return run<L, 3, Silu>(g);
        case 4: return run<L, 4, Silu>(g);
    }
}

template <class L>
void dispatch(const ConvolutionArguments& g) {
    g.silu ? by_taps<L, true>(g) : by_taps<L, false>(g);
}

}  // namespace

extern "C" void depthwise_convolution(const ConvolutionArguments* g) {
    g->is_double ? dispatch<Double>(*g) : dispatch<Float>(*g);
}
