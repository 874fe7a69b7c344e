// The linear recurrence x_t = a x_{t-1} + b_t with a constant a, real or complex, and its gradients.
//
// A step's numbers lie next to each other: D of them, or 2D, re and im by turns, where complex.  Lanes run along them,
// so that time is a stream through memory, and a complex product is two multiply-adds and a swap of neighbours.  States
// are double whatever b is: only x is rounded, never what is carried on.

#include <vector>

#include "streams.h"

// Field by field the ctypes structure of cpu_linear_scan.py; all contiguous, the pointers null where there is none.
struct LinearArguments {
    int64_t batch, length, numbers, is_double, is_complex, threads;
    const double* a;              // (numbers)
    const void *b, *x, *grad_x;   // (B, L, numbers); x forward's result
    void* out;                    // (B, L, numbers): x, or the gradient of b
    const double* initial;        // (B, numbers)
    const double* grad_last;      // (B, numbers)
    double *grad_a, *grad_initial;  // (B, numbers)
    const bool* reset;            // (B, L)
};

namespace {

constexpr int W = WIDEST / 2;
using L = Lanes<double, W>;
using V = L::V;

template <int... J>
INLINE V swap(V x, std::integer_sequence<int, J...>) {  // neighbours: re and im
    return pick<L>(x, x, std::integer_sequence<int, (J ^ 1)...>());
}
INLINE V swap(V x) { return swap(x, std::make_integer_sequence<int, W>()); }

struct Factor {  // a of W numbers
    V same, cross;  // a x = same x + cross swap(x)
};

template <bool Complex>
std::vector<Factor> factors(const double* a, int64_t numbers) {
    std::vector<Factor> all((numbers + W - 1) / W, Factor{});
    for (int64_t i = 0; i < numbers; ++i) {
        Factor& f = all[i / W];
        f.same[i % W] = Complex ? a[i & ~int64_t(1)] : a[i];
        f.cross[i % W] = Complex ? (i % 2 ? a[i] : -a[i + 1]) : 0.0;
    }
    return all;
}

// Numbers from `first` on, `count` of them, of one batch item.
template <class T, bool Complex>
void forward(const LinearArguments& g, int64_t item, int64_t first, int64_t count) {
    const auto a = factors<Complex>(g.a + first, count);
    std::vector<V> state(a.size(), V{});
    const int64_t start = item * g.length * g.numbers + first;
    const bool* reset = g.reset ? g.reset + item * g.length : nullptr;
    const auto width = [&](size_t v) { return static_cast<int>(std::min<int64_t>(W, count - v * W)); };
    if (g.initial)
        for (size_t v = 0; v < a.size(); ++v) state[v] = read<L>(g.initial + item * g.numbers + first + v * W, width(v));
    for (int64_t t = 0; t < g.length; ++t) {
        if (reset && reset[t]) std::fill(state.begin(), state.end(), V{});
        const T* b = static_cast<const T*>(g.b) + start + t * g.numbers;
        T* x = static_cast<T*>(g.out) + start + t * g.numbers;
        for (size_t v = 0; v < a.size(); ++v) {
            V s = a[v].same * state[v] + read<L>(b + v * W, width(v));
            if constexpr (Complex) s += a[v].cross * swap(state[v]);
            write<L>(x + v * W, state[v] = s, width(v));
        }
    }
}

// From the end: g_t = grad x_t + conj(a) g_{t+1} is b_t's gradient, and conj(x_{t-1}) g_t is a's, summed.
template <class T, bool Complex>
void backward(const LinearArguments& g, int64_t item, int64_t first, int64_t count) {
    const auto a = factors<Complex>(g.a + first, count);
    std::vector<V> grad(a.size(), V{}), same(a.size(), V{}), cross(a.size(), V{});
    const int64_t start = item * g.length * g.numbers + first, row = item * g.numbers + first;
    const bool* reset = g.reset ? g.reset + item * g.length : nullptr;
    const auto width = [&](size_t v) { return static_cast<int>(std::min<int64_t>(W, count - v * W)); };
    const auto add = [&](size_t v, V before) {
        same[v] += before * grad[v];
        if constexpr (Complex) cross[v] += before * swap(grad[v]);
    };
    const auto pass = [&](size_t v) {
        V past = a[v].same * grad[v];
        if constexpr (Complex) past -= a[v].cross * swap(grad[v]);
        return past;
    };
    for (int64_t t = g.length - 1; t >= 0; --t) {
        const int64_t at = start + t * g.numbers;
        const bool last = t + 1 == g.length, kept = !last && !(reset && reset[t + 1]), begins = reset && reset[t];
        const T* before = t > 0 && !begins ? static_cast<const T*>(g.x) + at - g.numbers : nullptr;
        for (size_t v = 0; v < a.size(); ++v) {
            V now = kept ? pass(v) : V{};
            if (g.grad_x) now += read<L>(static_cast<const T*>(g.grad_x) + at + v * W, width(v));
            if (last && g.grad_last) now += read<L>(g.grad_last + row + v * W, width(v));
            grad[v] = now;
            write<L>(static_cast<T*>(g.out) + at + v * W, now, width(v));
            if (before) add(v, read<L>(before + v * W, width(v)));
        }
    }
    const bool reached = g.initial && g.length > 0 && !(reset && reset[0]);
    for (size_t v = 0; v < a.size(); ++v) {
        if (reached) {
            add(v, read<L>(g.initial + row + v * W, width(v)));
            write<L>(g.grad_initial + row + v * W, pass(v), width(v));
        }
        V total = same[v];
        if constexpr (Complex)  // conj(x) g = (x_re g_re + x_im g_im) + i (x_re g_im - x_im g_re)
            for (int i = 0; i < W; i += 2) total[i] = same[v][i] + same[v][i + 1], total[i + 1] = cross[v][i] - cross[v][i + 1];
        write<L>(g.grad_a + row + v * W, total, width(v));
    }
}

template <class T, bool Complex, bool Backward>
void run(const LinearArguments& g) {
    const int threads = static_cast<int>(std::max<int64_t>(1, g.threads));
    // Whole batch items, or parts of them where these would leave a thread idle.
    const int64_t vectors = (g.numbers + W - 1) / W;
    const int64_t parts = g.batch % threads ? std::min<int64_t>(threads, vectors) : 1;
    const int64_t size = (vectors + parts - 1) / parts * W;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t task = 0; task < g.batch * parts; ++task) {
        const int64_t item = task / parts, first = task % parts * size;
        const int64_t count = std::min(size, g.numbers - first);
        if (count <= 0) continue;
        if constexpr (Backward) {
            backward<T, Complex>(g, item, first, count);
        } else {
            forward<T, Complex>(g, item, first, count);
        }
    }
}

template <bool Backward>
void dispatch(const LinearArguments& g) {
    if (g.is_double) {
        g.is_complex ? run<double, true, Backward>(g) : run<double, false, Backward>(g);
    } else {
        g.is_complex ? run<float, true, Backward>(g) : run<float, false, Backward>(g);
    }
}

}  // namespace

extern "C" void linear_scan_forward(const LinearArguments* g) { dispatch<false>(*g); }
extern "C" void linear_scan_backward(const LinearArguments* g) { dispatch<true>(*g); }
