// Rows of numbers that lie next to each other, a vector of W at a time, and the activations made of them.

#pragma once

#include "simd.h"

template <class L, class S>
INLINE typename L::V read(const S* from, int count = L::W) {  // 0 beyond count
    if (count == L::W) return __builtin_convertvector(load<typename Lanes<S, L::W>::V>(from), typename L::V);
    typename L::V x{};
    for (int j = 0; j < count; ++j) x[j] = from[j];
    return x;
}

template <class L, class S>
INLINE void write(S* to, typename L::V x, int count = L::W) {
    if (count == L::W) return store(to, __builtin_convertvector(x, typename Lanes<S, L::W>::V));
    for (int j = 0; j < count; ++j) to[j] = static_cast<S>(x[j]);
}

// f(first, count) for every vector of a row of n numbers; the compiler sees that all but the last are whole.
template <class L, class F>
INLINE void vectors(int64_t n, F f) {
    int64_t i = 0;
    for (; i + L::W <= n; i += L::W) f(i, L::W);
    if (i < n) f(i, static_cast<int>(n - i));
}

template <class L>
struct SiLU {
    typename L::V value, slope;
    explicit SiLU(typename L::V x) {
        const auto s = sigmoid<L>(x);
        value = x * s;
        slope = s * (1 + x * (1 - s));
    }
};

// Sums of many rows: what was added lately stands apart, so that the rounding error grows with the root of their number.
constexpr int LATELY = 128;

using Float = Lanes<float, WIDEST>;
using Double = Lanes<double, WIDEST / 2>;
