// Passes of a block that look at one position at a time: y SiLU(z), and RMSNorm.  Each reads and writes memory once.

#include <vector>

#include "streams.h"

// Field by field the ctypes structures of cpu_pointwise.py.  Numbers of a row lie next to each other; row r of x begins
// at r * x_row, the others are contiguous.
struct GateArguments {
    int64_t rows, numbers, is_double, threads, y_row, z_row, grad_row;
    const void *y, *z, *grad;  // grad null: forward
    void *out, *grad_y, *grad_z;
};

struct NormArguments {
    int64_t rows, numbers, is_double, threads, parts, x_row, grad_row;
    double epsilon;
    const void *x, *weight, *grad;  // grad null: forward
    void *scale;                    // (rows): 1 / root mean square, which forward makes and backward takes
    void *out, *grad_weight;        // out: forward's result or x's gradient; grad_weight (parts, numbers)
};

namespace {

template <class L>
void gate(const GateArguments& g) {
    using T = typename L::Scalar;
#pragma omp parallel for num_threads(g.threads) schedule(static) if (g.threads > 1)
    for (int64_t r = 0; r < g.rows; ++r) {
        const T *y = static_cast<const T*>(g.y) + r * g.y_row, *z = static_cast<const T*>(g.z) + r * g.z_row;
        if (!g.grad) {
            T* out = static_cast<T*>(g.out) + r * g.numbers;
            vectors<L>(g.numbers, [&](int64_t i, int n) {
                write<L>(out + i, read<L>(y + i, n) * SiLU<L>(read<L>(z + i, n)).value, n);
            });
            continue;
        }
        const T* grad = static_cast<const T*>(g.grad) + r * g.grad_row;
        T *grad_y = static_cast<T*>(g.grad_y) + r * g.numbers, *grad_z = static_cast<T*>(g.grad_z) + r * g.numbers;
        vectors<L>(g.numbers, [&](int64_t i, int n) {
            const SiLU<L> s(read<L>(z + i, n));
            const auto slope = read<L>(grad + i, n);
            write<L>(grad_y + i, slope * s.value, n);
            write<L>(grad_z + i, slope * read<L>(y + i, n) * s.slope, n);
        });
    }
}

template <class L>
void norm(const NormArguments& g) {
    using T = typename L::Scalar;
    using V = typename L::V;
    const T* w = static_cast<const T*>(g.weight);
    const int64_t n = g.numbers, size = (g.rows + g.parts - 1) / g.parts;
#pragma omp parallel for num_threads(g.threads) schedule(static) if (g.threads > 1)
    for (int64_t part = 0; part < g.parts; ++part) {
        std::vector<T> lately(g.grad ? n : 0, T(0));
        T* total = g.grad ? static_cast<T*>(g.grad_weight) + part * n : nullptr;
        if (total) std::fill(total, total + n, T(0));
        const auto flush = [&] {
            for (int64_t i = 0; total && i < n; ++i) total[i] += lately[i], lately[i] = 0;
        };
        for (int64_t r = part * size, end = std::min(g.rows, r + size), k = 1; r < end; ++r, ++k) {
            const T* x = static_cast<const T*>(g.x) + r * g.x_row;
            T *out = static_cast<T*>(g.out) + r * n, &scale = static_cast<T*>(g.scale)[r];
            V sums{};
            if (!g.grad) {
                vectors<L>(n, [&](int64_t i, int c) {
                    const V v = read<L>(x + i, c);
                    sums += v * v;
                });
                scale = static_cast<T>(1 / std::sqrt(sum<L>(sums) / static_cast<double>(n) + g.epsilon));
                vectors<L>(n, [&](int64_t i, int c) { write<L>(out + i, read<L>(x + i, c) * scale * read<L>(w + i, c), c); });
                continue;
            }
            // y = w x s, s = (mean x^2 + epsilon)^-1/2: grad x = s (w g) - s^3 x mean(w g x)
            const T* grad = static_cast<const T*>(g.grad) + r * g.grad_row;
            vectors<L>(n, [&](int64_t i, int c) {
                const V gx = read<L>(grad + i, c) * read<L>(x + i, c);
                sums += gx * read<L>(w + i, c);
                write<L>(lately.data() + i, read<L>(lately.data() + i, c) + gx * scale, c);
            });
            const T along = sum<L>(sums) / static_cast<T>(n) * scale * scale * scale;
            vectors<L>(n, [&](int64_t i, int c) {
                write<L>(out + i, scale * read<L>(grad + i, c) * read<L>(w + i, c) - along * read<L>(x + i, c), c);
            });
            if (k % LATELY == 0) flush();
        }
        flush();
    }
}

}  // namespace

extern "C" void silu_gate(const GateArguments* g) { g->is_double ? gate<Double>(*g) : gate<Float>(*g); }
extern "C" void rms_norm(const NormArguments* g) { g->is_double ? norm<Double>(*g) : norm<Float>(*g); }
