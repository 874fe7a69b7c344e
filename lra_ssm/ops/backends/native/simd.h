// Vectors of W lanes in the portable extension of GCC and Clang: AVX-512, AVX2, SSE or NEON, whatever -march gives.
//
// Compiled with -ffp-contract=fast: a * b + c is one fused multiply-add, which the range reductions below rely on.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#ifdef _OPENMP
#include <omp.h>
#endif

#if defined(__x86_64__) && !defined(__FMA__)
#error "this processor has no fused multiply-add, which the range reductions below rely on"
#endif

#define INLINE static inline __attribute__((always_inline))

// floats in the widest vectors of the machine that pay
#ifdef __AVX512F__
constexpr int WIDEST = 16;
#else
constexpr int WIDEST = 8;
#endif

template <class T, int W_>
struct Lanes {
    using Scalar = T;
    using Integer = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
    static constexpr int W = W_;
    typedef T V __attribute__((vector_size(W_ * sizeof(T))));
    typedef Integer I __attribute__((vector_size(W_ * sizeof(T))));
};

template <class To, class From>
INLINE To bits(From x) {
    static_assert(sizeof(To) == sizeof(From));
    To y;
    std::memcpy(&y, &x, sizeof(y));
    return y;
}

template <class V, class T>
INLINE V load(const T* from) {  // from any address
    V x;
    std::memcpy(&x, from, sizeof(x));
    return x;
}

template <class V, class T>
INLINE void store(T* to, V x) {
    std::memcpy(to, &x, sizeof(x));
}

template <class V, class T>
INLINE V splat(T x) {
    return x - V{};  // x - 0 is x for every x and costs nothing; x + 0 is not, for -0
}

// ---- sums over lanes and transposition, W vectors at a time ----------------------------------------------------------

template <class L, int... J>
INLINE typename L::V pick(typename L::V a, typename L::V b, std::integer_sequence<int, J...>) {
#if defined(__clang__) || __GNUC__ >= 12
    return __builtin_shufflevector(a, b, J...);
#else
    return __builtin_shuffle(a, b, typename L::I{J...});
#endif
}

// Of blocks of S lanes, the even (Odd = 0) or odd (Odd = 1) ones of a and of b, alternating: a0 b0 a2 b2 or a1 b1 a3 b3.
template <class L, int S, int Odd, int... J>
INLINE typename L::V blocks(typename L::V a, typename L::V b, std::integer_sequence<int, J...>) {
    return pick<L>(a, b, std::integer_sequence<int, ((J & S) ? L::W + J - S : J) + Odd * S...>());
}

template <class L, int S, int Odd>
INLINE typename L::V blocks(typename L::V a, typename L::V b) {
    return blocks<L, S, Odd>(a, b, std::make_integer_sequence<int, L::W>());
}

// Lane j of the result is the sum over the lanes of p[j], j = 0 .. Count-1: 2 shuffles and 1 addition a vector.
template <class L, int Count = L::W>
INLINE typename L::V sums(const typename L::V* p) {
    if constexpr (Count == 1) {
        return *p;
    } else {
        constexpr int Half = Count / 2, S = L::W / Count;
        typename L::V q[Half];
        for (int i = 0; i < Half; ++i)
            q[i] = blocks<L, S, 0>(p[2 * i], p[2 * i + 1]) + blocks<L, S, 1>(p[2 * i], p[2 * i + 1]);
        return sums<L, Half>(q);
    }
}

template <class L, int S = 1>
INLINE void transpose(typename L::V* rows) {  // rows[i] lane j <-> rows[j] lane i
    if constexpr (S < L::W) {
        for (int i = 0; i < L::W; ++i)
            if (!(i & S)) {
                const auto even = blocks<L, S, 0>(rows[i], rows[i + S]), odd = blocks<L, S, 1>(rows[i], rows[i + S]);
                rows[i] = even, rows[i + S] = odd;
            }
        transpose<L, 2 * S>(rows);
    }
}

template <class L>
INLINE typename L::Scalar sum(typename L::V x) {
    typename L::Scalar total = 0;
    for (int j = 0; j < L::W; ++j) total += x[j];
    return total;
}

// ---- elementary functions --------------------------------------------------------------------------------------------

template <class L>
struct Exponential {  // of a real z = step * a
    typename L::V value;    // e^z
    typename L::V minus_1;  // e^z - 1
    typename L::V minus_z;  // e^z - 1 - z
    typename L::I near;     // z is near 0
};

template <class L>
struct Rotation {  // by an angle b = step * a
    typename L::V sin, cos;
    typename L::V cos_minus_1;
    typename L::V sin_minus_b;
    typename L::I near;  // b is near 0
};

template <class L>
struct Elementary;

// float: reduced arguments and polynomials (fitted for this file), minimax but for the sine, whose errors cancel in the
// mean over an interval; all within two rounding errors.
template <int W>
struct Elementary<Lanes<float, W>> {
    using L = Lanes<float, W>;
    using V = typename L::V;
    using I = typename L::I;

    static constexpr float LOG2E = 1.44269504088896341f, LN2 = 0.693147180559945309f;
    static constexpr float ROUND = 12582912.0f;  // 1.5 * 2^23: added and subtracted, it rounds to an integer
    static constexpr float LARGE = 80.0f;        // |z| up to which e^z is normal and no Guard is needed
    static constexpr float REACH = 2.5e4f;       // |z| up to which the reductions are right, with Guard

    // z = step * a is given as step * rate with rate = a log2(e), rounded as a is; the product never is.  Guard: e^z is 0
    // where it would be below 2^-126 and infinite above 2^127.5 (numbers that are not normal cost ten times the time).
    template <bool Guard>
    INLINE Exponential<L> exponential(V rate, V a, V step) {
        const V shifted = step * rate + ROUND, k = shifted - ROUND, r = step * rate - k;
        const V P = polynomial(r), q = r * (LN2 + r * P);  // 2^r - 1
        const V two_k = power_of_two(shifted);
        Exponential<L> e{two_k * q + two_k, two_k * q + (two_k - 1.0f), V{}, k == 0.0f};
        e.minus_z = e.near ? r * r * P : e.minus_1 - step * a;
        if constexpr (Guard) {
            const V t = k + r, infinity = splat<V>(INFINITY);
            e.value = t < -126.0f ? V{} : t >= 127.5f ? infinity : e.value;
            e.minus_1 = t < -126.0f ? splat<V>(-1.0f) : t >= 127.5f ? infinity : e.minus_1;
        }
        return e;
    }

    INLINE V power_of_two(V shifted) { return bits<V>((bits<I>(shifted) << 23) + 0x3F800000); }

    INLINE V polynomial(V r) {  // P of 2^r - 1 = r ln 2 + r^2 P(r), |r| <= 1/2
        const V upper = 9.61852631e-03f + r * (1.33901615e-03f + r * 1.53211544e-04f);
        return 2.40226475e-01f + r * (5.55036225e-02f + r * upper);
    }

    // b = step * a is given in half turns as step * (turn + turn_rest), a product that is never rounded: the remainder is
    // right for up to 2^13 of them. turn_rest is 2^-18 of turn, enough to show in the sum with it: so that is rounded up
    // and down at random. What the nearest float leaves would mostly be lost, and the rounding of one frequency add up
    // over a memory of thousands of steps.
    INLINE Rotation<L> rotation(V turn, V turn_rest, V a, V step) {
        const V shifted = step * turn + ROUND, k = shifted - ROUND;
        V r = step * turn - k;
        r = step * turn_rest + r;
        const V v = r * r;
        const V S = v * (-5.16771126f + v * (2.55010056f + v * (-0.59844494f + v * 0.077981375f)));
        const V sine = r * 3.14159274f + r * (S - 8.74227766e-08f);  // pi in two parts
        const V rest_upper = 4.0587053f + v * (-1.3351616f + v * (0.23468375f + v * -0.023963781f));
        const V cosine_rest = v * (-4.9348021f + v * rest_upper);
        const I odd = bits<I>(shifted) << 31;
        Rotation<L> out;
        out.sin = bits<V>(bits<I>(sine) ^ odd);
        out.cos = bits<V>(bits<I>(1.0f + cosine_rest) ^ odd);
        out.cos_minus_1 = odd < 0 ? out.cos - 1.0f : cosine_rest;
        out.near = k == 0.0f;
        out.sin_minus_b = out.near ? r * S : out.sin - step * a;
        return out;
    }

    // log(1 + x), 0 <= x <= 1: 2 artanh(s), s = x / (2 + x)
    INLINE V log1p(V x) {
        const V s = x / (2.0f + x), v = s * s;
        return s * (2.0f + v * (0.66666676f + v * (0.39998878f + v * (0.28616885f + v * (0.21427658f + v * 0.24300934f)))));
    }

    INLINE V exp_of_negative(V x) {  // e^x, x <= 0, to a rounding error of e^x however small; 0 below 2^-126
        const V shifted = x * LOG2E + ROUND, k = shifted - ROUND;
        const V r = x * 1.92596299e-8f + (x * LOG2E - k);
        const V e = power_of_two(shifted);
        return x < -87.3f ? V{} : e * (r * (LN2 + r * polynomial(r))) + e;
    }
};

// double: the standard library, lane by lane (this is the precision of tests, not of training)
template <int W>
struct Elementary<Lanes<double, W>> {
    using V = typename Lanes<double, W>::V;

    INLINE V log1p(V x) {
        for (int j = 0; j < W; ++j) x[j] = std::log1p(x[j]);
        return x;
    }

    INLINE V exp_of_negative(V x) {
        for (int j = 0; j < W; ++j) x[j] = std::exp(x[j]);
        return x;
    }
};

template <class L>
INLINE typename L::V softplus(typename L::V x) {  // linear above 20, as mamba-ssm and PyTorch have it
    using V = typename L::V;
    const V minus_abs = x < 0 ? x : -x;
    const V y = (x < 0 ? V{} : x) + Elementary<L>::log1p(Elementary<L>::exp_of_negative(minus_abs));
    return x > 20 ? x : y;
}

template <class L>
INLINE typename L::V sigmoid(typename L::V x) {
    using V = typename L::V;
    const V e = Elementary<L>::exp_of_negative(x < 0 ? x : -x);
    const V upper = 1 / (1 + e);
    return x < 0 ? e * upper : upper;
}
