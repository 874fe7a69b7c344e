// The arguments of the selective scan, as the Python side fills them in, and what forward and backward share.
//
// D channels, L length, N states, G groups.  Lanes run along the states of one channel: a vector of W states,
// nv = ceil(N / W) vectors per channel.  Time is cut into tiles; a thread's task is a range of channels of one batch
// item, for all tiles.  Complex quantities are pairs of vectors.

#pragma once

#include <cstdlib>
#include <memory>
#include <new>

#include "exact.h"
#include "tiles.h"

// Field by field the ctypes structure of cpu_scan.py.  "small" tensors are contiguous and of the arithmetic's type.
struct Arguments {
    int64_t batch, channels, length, states;
    int64_t is_double, is_complex, zoh, softplus;
    int64_t threads, channels_per_task, tile;
    int64_t groups_B, groups_C;                        // 0: constant (B is then only in bias)
    Tensor u, delta, y;
    Tensor B, C;                                       // variable
    void *A, *bias, *constant_C, *D, *delta_bias;      // small: (D, N) or (D,); all but A may be null
    void *initial, *last, *checkpoints;                // (batch, D, N) small, or null; (tiles, batch, D, nv, 1 or 2, W), or null
    const uint8_t* reset;                              // (batch, L) or null
    int64_t reset_batch, reset_time;
    // backward
    Tensor grad_y, grad_u, grad_delta;                 // grad_y.data may be null
    Tensor grad_B, grad_C;                             // (slots, B, G, N, L): one slot for every task that meets a group
    int64_t slot_B, slot_C;                            // stride from slot to slot
    void *grad_last, *grad_initial;                    // (batch, D, N) small; grad_last may be null
    void *grad_A, *grad_bias, *grad_constant_C;        // (batch, D, N), one per batch item; the last two may be null
    void *grad_D, *grad_delta_bias;                    // (batch, D)
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

// How far delta A goes in a tile, for W entries of A: all is near enough to 0 for the vectors' arithmetic as it is; far,
// with its ends guarded; or somewhere beyond what that reaches (and double, always).
enum class Reach { NEAR, FAR, BEYOND };

// What the discretization needs to know of W entries of A.
template <class L, bool Complex>
struct Diagonal {
    using V = typename L::V;
    using T = typename L::Scalar;
    V re, im, rate, turn, turn_rest;  // see Exponential and Rotation
    V inverse_re, inverse_im;         // 1 / A
    V square_re, square_im;           // 1 / A^2
    T near = INFINITY;                // |delta| up to which all is near
    T lower = 0, upper = INFINITY;    // of |delta|, between which the vectors' arithmetic is right

    Diagonal() {}
    Diagonal(const T* A, int count, bool zoh) {  // count <= W entries; 0 in the other lanes
        constexpr bool narrow = sizeof(T) == 4;
        // In float, a smaller |A| is taken for `tiny`: A_bar and B_bar move by less than a rounding error if delta is
        // below 500, and 1 / A^2 is a number.
        const double tiny = 1e-10;
        double smallest = INFINITY, largest = 0, decay = 0;
        re = im = rate = turn = turn_rest = inverse_re = inverse_im = square_re = square_im = V{};
        for (int j = 0; j < count; ++j) {
            double a = A[Complex ? 2 * j : j], b = Complex ? A[2 * j + 1] : 0;
            re[j] = a, im[j] = b;
            largest = std::max({largest, std::fabs(a), std::fabs(b)}), decay = std::max(decay, std::fabs(a));
            if (std::isnan(a + b)) largest = NAN;
            if (narrow && zoh) {
                if (std::hypot(a, b) < tiny) a = tiny, b = 0, upper = 500;
                smallest = std::min(smallest, std::hypot(a, b));
            }
            const double turns = b * 0.318309886183790672;
            rate[j] = a * 1.4426950408889634;
            turn[j] = turns * (1 - 0x1p-18);
            turn_rest[j] = turns - turn[j];
            // read only under zoh, and not where A is 0
            const Complex128 inverse_A = inverse({a, b}), square = times(inverse_A, inverse_A);
            inverse_re[j] = inverse_A.real(), inverse_im[j] = inverse_A.imag();
            square_re[j] = square.real(), square_im[j] = square.imag();
        }
        if constexpr (narrow) {
            near = Elementary<L>::LARGE / largest;
            if (Complex) near = std::min<double>(near, 1 / decay);  // 1 + (e^z - 1) is right to a rounding error or two
            upper = std::min<double>(upper, Elementary<L>::REACH / largest);
            if (zoh) {
                lower = 1e-18 / smallest;        // (delta A)^2 is a normal number, and
                if (!(largest < 1e18)) upper = 0;  // 1 / A^2 is one
            }
        }
    }

    // Of deltas between these sizes.
    Reach reach(T smallest_delta, T largest_delta) const {
        if (sizeof(T) == 8 || !(lower <= smallest_delta && largest_delta <= upper)) return Reach::BEYOND;
        return largest_delta <= near ? Reach::NEAR : Reach::FAR;
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

// A_bar, B_bar and, for the gradient of A under zoh, the slope d B_bar / dA = (delta A_bar - B_bar) / A.
template <class V>
struct Step {
    V A_re, A_im, B_re, B_im, slope_re, slope_im;
};

template <class L, bool Complex, bool Zoh, bool Derivative>
__attribute__((noinline)) Step<typename L::V> discretize_exactly(const Diagonal<L, Complex>& a, typename L::Scalar delta) {
    Step<typename L::V> out{};
    for (int j = 0; j < L::W; ++j) {
        const Complex128 A(a.re[j], Complex ? a.im[j] : 0);
        // a float's inverse is taken again: where A is tiny it is that of another A
        const Complex128 inverse_A = !Zoh ? 0 : sizeof(delta) == 8 ? Complex128(a.inverse_re[j], a.inverse_im[j]) : inverse(A);
        const ExactStep step(delta, A, inverse_A, Zoh, Derivative);
        out.A_re[j] = step.A_bar.real(), out.A_im[j] = step.A_bar.imag();
        out.B_re[j] = step.B_bar.real(), out.B_im[j] = step.B_bar.imag();
        out.slope_re[j] = step.slope.real(), out.slope_im[j] = step.slope.imag();
    }
    return out;
}

template <class L, bool Complex, bool Zoh, bool Derivative, Reach R>
INLINE Step<typename L::V> discretize(const Diagonal<L, Complex>& a, typename L::Scalar delta) {
    using V = typename L::V;
    using E = Elementary<L>;
    if constexpr (R == Reach::BEYOND) {
        return discretize_exactly<L, Complex, Zoh, Derivative>(a, delta);
    } else {
        const V step = splat<V>(delta);
        const auto e = E::template exponential<R == Reach::FAR>(a.rate, a.re, step);
        Step<V> out{};
        if constexpr (!Complex) {
            out.A_re = e.value;
            if constexpr (Zoh) out.B_re = e.minus_1 * a.inverse_re;
            // near 0 delta A_bar and B_bar cancel; elsewhere the others do
            if constexpr (Zoh && Derivative)
                out.slope_re = e.near ? step * out.B_re - e.minus_z * a.square_re : (step * e.value - out.B_re) * a.inverse_re;
        } else {
            const auto r = E::rotation(a.turn, a.turn_rest, a.im, step);
            const V im = e.value * r.sin, minus_1 = e.minus_1 * r.cos + r.cos_minus_1;
            // 1 + (e^z - 1) is rounded once; e^re(z) cos(im(z)) would be three times, and a state remembers it for long.
            out.A_re = 1 + minus_1, out.A_im = im;
            // What has decayed is not computed as a difference of ones.
            if constexpr (R == Reach::FAR) out.A_re = e.value < 0.5f ? e.value * r.cos : out.A_re;
            if constexpr (Zoh) {
                out.B_re = minus_1 * a.inverse_re - im * a.inverse_im;
                out.B_im = minus_1 * a.inverse_im + im * a.inverse_re;
            }
            if constexpr (Zoh && Derivative) {
                const V M_re = e.minus_z + e.value * r.cos_minus_1, M_im = e.minus_1 * r.sin + r.sin_minus_b;
                out.slope_re = step * out.B_re - (M_re * a.square_re - M_im * a.square_im);
                out.slope_im = step * out.B_im - (M_re * a.square_im + M_im * a.square_re);
                if constexpr (R == Reach::FAR) {
                    const V re = step * out.A_re - out.B_re, im = step * out.A_im - out.B_im;
                    const auto near = e.near & r.near;
                    out.slope_re = near ? out.slope_re : re * a.inverse_re - im * a.inverse_im;
                    out.slope_im = near ? out.slope_im : re * a.inverse_im + im * a.inverse_re;
                }
            }
        }
        return out;
    }
}

// Calls f with a Reach as its type.
template <class L, class F>
INLINE void with_reach(Reach reach, F f) {
    if constexpr (sizeof(typename L::Scalar) == 4) {
        if (reach == Reach::NEAR) return f(std::integral_constant<Reach, Reach::NEAR>());
        if (reach == Reach::FAR) return f(std::integral_constant<Reach, Reach::FAR>());
    }
    f(std::integral_constant<Reach, Reach::BEYOND>());
}

// The same for the steps of a tile, kept for several uses.
template <class L, bool Complex, bool Zoh, bool Derivative, Reach R>
void discretize(const Diagonal<L, Complex>& a, const typename L::Scalar* delta, int steps, Step<typename L::V>* out) {
    for (int k = 0; k < steps; ++k) {
        const auto s = discretize<L, Complex, Zoh, Derivative, R>(a, delta[k]);
        out[k].A_re = s.A_re;
        if constexpr (Complex) out[k].A_im = s.A_im;
        if constexpr (Zoh) out[k].B_re = s.B_re;
        if constexpr (Zoh && Complex) out[k].B_im = s.B_im;
        if constexpr (Zoh && Derivative) out[k].slope_re = s.slope_re;
        if constexpr (Zoh && Derivative && Complex) out[k].slope_im = s.slope_im;
    }
}
