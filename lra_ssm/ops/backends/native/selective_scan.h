// The arguments of the selective scan, as the Python side fills them in, and what forward and backward share.
//
// B batch, D channels, L length, N states, G groups.  Lanes run along the states of one channel: a vector of W states,
// nv = ceil(N / W) vectors per channel.  Time is cut into tiles; a thread's task is a range of channels of one batch
// item, for all tiles.  Complex quantities are pairs of vectors.

#pragma once

#include <cstdlib>
#include <memory>

#include "tiles.h"

// Field by field the ctypes structure of cpu_scan.py.  "small" tensors are contiguous and of the arithmetic's type.
struct Arguments {
    int64_t batch, channels, length, states;
    int64_t is_double, is_complex, zoh, softplus;
    int64_t threads, channels_per_task, tile;
    int64_t groups_B, groups_C;                        // 0: constant (B then stands in bias alone)
    Tensor u, delta, z, y;                             // z.data may be null
    Tensor B, C;                                       // variable
    void *A, *bias, *constant_C, *D, *delta_bias;      // small: (D, N) or (D,); all but A may be null
    void *initial, *last, *checkpoints;                // (B, D, N) small, or null; (tiles, B, D, nv, 1 or 2, W), or null
    const uint8_t* reset;                              // (B, L) or null
    int64_t reset_batch, reset_time;
    // backward
    Tensor grad_y, grad_u, grad_delta, grad_z;         // grad_y.data may be null
    Tensor grad_B, grad_C;                             // (slots, B, G, N, L): one slot for every task that meets a group
    int64_t slot_B, slot_C;                            // stride from slot to slot
    void *grad_last, *grad_initial;                    // (B, D, N) small; grad_last may be null
    void *grad_A, *grad_bias, *grad_constant_C;        // (B, D, N), one per batch item; the last two may be null
    void *grad_D, *grad_delta_bias;                    // (B, D)
};

constexpr int CHANNELS = 16;  // of one pass through a tile: rows of u, delta, ... are loaded for so many at once

constexpr int64_t SLACK = 1 << 14;  // for what Workspace puts between up to 40 arrays

// Aligned memory that one thread cuts into arrays.
class Workspace {
public:
    explicit Workspace(size_t size) : memory(static_cast<char*>(std::aligned_alloc(64, (size + 63) / 64 * 64)), std::free) {
        if (!memory) throw std::bad_alloc();
        next = memory.get();
    }
    template <class X>
    X* take(int64_t count) {
        X* result = reinterpret_cast<X*>(next);
        next += (count * sizeof(X) + 63) / 64 * 64 + 5 * 64;  // rows of a power of two would all meet in the same cache sets
        return result;
    }

private:
    std::unique_ptr<char, decltype(&std::free)> memory;
    char* next;
};

// What the discretization needs to know of W entries of A.
template <class L, bool Complex>
struct Diagonal {
    using V = typename L::V;
    V re, im, rate, turn, turn_rest, inverse_re, inverse_im;  // see Exponential and Rotation; inverse = 1 / A

    Diagonal() {}
    Diagonal(const typename L::Scalar* A, int count, bool zoh) {  // count <= W entries; 0 in the other lanes
        using T = typename L::Scalar;
        // Below this |A| it is taken for `tiny`: A_bar and B_bar move by less than a rounding error, 1 / A^2 stays finite.
        const double tiny = sizeof(T) == 4 ? 1e-10 : 1e-100;
        for (int j = 0; j < L::W; ++j) {
            double a = j < count ? A[Complex ? 2 * j : j] : 0, b = Complex && j < count ? A[2 * j + 1] : 0;
            if (zoh && std::hypot(a, b) < tiny) a = tiny, b = 0;
            const double square = a * a + b * b, turns = b * 0.636619772367581343;
            re[j] = a, im[j] = b;
            rate[j] = a * 1.4426950408889634;
            turn[j] = turns, turn_rest[j] = turns - static_cast<T>(turns);
            inverse_re[j] = a / square, inverse_im[j] = -b / square;  // read under zoh alone, where A is not 0
        }
    }

    typename L::Scalar largest() const {
        typename L::Scalar m = 0;
        for (int j = 0; j < L::W; ++j) m = std::max({m, std::abs(re[j]), std::abs(im[j])});
        return m;
    }
};

// Lane vector v, re or im (part), of row `row` of a small (rows, N) tensor; 0 beyond N, and if there is no tensor.
template <class L, int parts>
typename L::V unpack(const void* data, int64_t row, int64_t N, int64_t v, int part) {
    typename L::V x{};
    if (!data) return x;
    const auto* from = static_cast<const typename L::Scalar*>(data) + (row * N + v * L::W) * parts + part;
    for (int j = 0; j < std::min<int64_t>(N - v * L::W, L::W); ++j) x[j] = from[j * parts];
    return x;
}

// The inverse, from (parts) vectors; conjugated if so asked.
template <class L, int parts>
void pack(void* data, int64_t row, int64_t N, int64_t v, const typename L::V* x, bool conjugate) {
    if (!data) return;
    auto* to = static_cast<typename L::Scalar*>(data) + (row * N + v * L::W) * parts;
    for (int j = 0; j < std::min<int64_t>(N - v * L::W, L::W); ++j)
        for (int p = 0; p < parts; ++p) to[j * parts + p] = conjugate && p ? -x[p][j] : x[p][j];
}

// What all tasks share, by channel and lane vector.
template <class L, bool Complex>
struct Constants {
    const Diagonal<L, Complex>* diagonals;  // (D, nv)
    const typename L::V *bias, *C;          // (D, nv, parts); 0 where there is none
};

// A_bar, B_bar and, for the gradient of A under zoh, Y = z (e^z - 1) - (e^z - 1 - z), z = delta A, so that
// d B_bar / dA = (delta A_bar - B_bar) / A = Y / A^2 without the cancellation of the middle form.
template <class V>
struct Step {
    V A_re, A_im, B_re, B_im, Y_re, Y_im;
};

template <class L, bool Complex, bool Zoh, bool Derivative, bool Guard>
INLINE Step<typename L::V> discretize(const Diagonal<L, Complex>& a, typename L::Scalar delta) {
    using V = typename L::V;
    using E = Elementary<L>;
    const V step = splat<V>(delta);
    const auto e = E::template exponential<Guard>(a.rate, a.re, step);
    Step<V> out{};
    if constexpr (!Complex) {
        out.A_re = e.value;
        if constexpr (Zoh) out.B_re = e.minus_1 * a.inverse_re;
        if constexpr (Zoh && Derivative) out.Y_re = step * a.re * e.minus_1 - e.minus_z;
    } else {
        const auto r = E::template rotation<Guard>(a.turn, a.turn_rest, a.im, step);
        const V im = e.value * r.sin, minus_1 = e.minus_1 * r.cos + r.cos_minus_1;
        // 1 + (e^z - 1) is rounded once; e^re(z) cos(im(z)) would be three times, and a state remembers it for long.
        out.A_re = 1 + minus_1, out.A_im = im;
        if constexpr (Zoh) {
            out.B_re = minus_1 * a.inverse_re - im * a.inverse_im;
            out.B_im = minus_1 * a.inverse_im + im * a.inverse_re;
            if constexpr (Derivative) {
                const V re_z = step * a.re, im_z = step * a.im;
                out.Y_re = re_z * minus_1 - im_z * im - (e.minus_z + e.value * r.cos_minus_1);
                out.Y_im = re_z * im + im_z * minus_1 - (e.minus_1 * r.sin + r.sin_minus_b);
            }
        }
    }
    return out;
}

// The same for a tile, kept for several uses.
template <class L>
struct Coefficients {
    using V = typename L::V;
    V *A_re, *A_im, *B_re, *B_im, *Y_re, *Y_im;  // (steps,) each

    template <bool Complex, bool Zoh, bool Derivative, bool Guard>
    void fill(const Diagonal<L, Complex>& a, const typename L::Scalar* delta, int steps) const {
        const Coefficients out = *this;
        for (int k = 0; k < steps; ++k) {
            const auto s = discretize<L, Complex, Zoh, Derivative, Guard>(a, delta[k]);
            out.A_re[k] = s.A_re;
            if constexpr (Complex) out.A_im[k] = s.A_im;
            if constexpr (Zoh) out.B_re[k] = s.B_re;
            if constexpr (Zoh && Complex) out.B_im[k] = s.B_im;
            if constexpr (Zoh && Derivative) out.Y_re[k] = s.Y_re;
            if constexpr (Zoh && Derivative && Complex) out.Y_im[k] = s.Y_im;
        }
    }
};
