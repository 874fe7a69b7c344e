// What one step of a recurrence is made of: y = x W^T for a few rows of x, and one channel of the selective scan.  Float.

#pragma once

#include "streams.h"

constexpr int MAX_ROWS = 8;

// K outputs of all R rows of y (R, outputs) from `first` on: R K <= W sums, which end in the lanes of one vector
template <int R, int K>
INLINE void products(const float* x, const float* weight, float* y, int64_t n, int64_t outputs, int64_t first) {
    using L = Float;
    L::V total[L::W] = {};
    vectors<L>(n, [&](int64_t i, int count) {
        L::V rows[R];
        for (int r = 0; r < R; ++r) rows[r] = read<L>(x + r * n + i, count);
        for (int k = 0; k < K; ++k) {
            const L::V w = read<L>(weight + (first + k) * n + i, count);
            for (int r = 0; r < R; ++r) total[k * R + r] += w * rows[r];
        }
    });
    const L::V all = sums<L>(total);
    for (int k = 0; k < K; ++k)
        for (int r = 0; r < R; ++r) y[r * outputs + first + k] = all[k * R + r];
}

// x W^T of x (R, n) and W (outputs, n): W is read once, as fast as memory gives it.  (A matrix product's blocks are made
// for many rows, and reach half of that.)  The threads of a parallel region share the work; none waits for the others.
template <int R>
void few_rows_of(const float* x, const float* weight, float* y, int64_t n, int64_t outputs) {
    constexpr int W = Float::W, K = R == 1 ? 8 : R <= 4 ? W / 4 : W / 8;
    const int64_t groups = (outputs + K - 1) / K;
#pragma omp for schedule(static) nowait
    for (int64_t k = 0; k < groups; ++k) {
        if ((k + 1) * K <= outputs)
            products<R, K>(x, weight, y, n, outputs, k * K);
        else
            for (int64_t o = k * K; o < outputs; ++o) products<R, 1>(x, weight, y, n, outputs, o);
    }
}

inline void few_rows_of(int64_t rows, const float* x, const float* weight, float* y, int64_t n, int64_t outputs) {
    switch (rows) {
        case 1: return few_rows_of<1>(x, weight, y, n, outputs);
        case 2: return few_rows_of<2>(x, weight, y, n, outputs);
        case 3: return few_rows_of<3>(x, weight, y, n, outputs);
        case 4: return few_rows_of<4>(x, weight, y, n, outputs);
        case 5: return few_rows_of<5>(x, weight, y, n, outputs);
        case 6: return few_rows_of<6>(x, weight, y, n, outputs);
        case 7: return few_rows_of<7>(x, weight, y, n, outputs);
        case 8: return few_rows_of<8>(x, weight, y, n, outputs);
    }
}

// One channel with a real A and Euler's rule: after = e^(delta A) before + delta u B; returns C after.  N numbers each;
// A(n, count) gives a vector of them.
template <class Eigenvalues>
INLINE float selective_channel(float u, float delta, Eigenvalues A, const float* B, const float* C, const float* before,
                               float* after, int64_t N) {
    using L = Float;
    L::V total{};
    vectors<L>(N, [&](int64_t n, int count) {
        const L::V a = A(n, count);
        const L::V A_bar = Elementary<L>::exponential<true>(a * Elementary<L>::LOG2E, a, splat<L::V>(delta)).value;
        const L::V x = A_bar * read<L>(before + n, count) + delta * u * read<L>(B + n, count);
        write<L>(after + n, x, count);
        total += x * read<L>(C + n, count);
    });
    return sum<L>(total);
}
