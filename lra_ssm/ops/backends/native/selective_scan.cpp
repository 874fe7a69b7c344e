// The selective scan on a CPU: x_k = A_bar_k x_{k-1} + B_bar_k u_k, y_k = sum_n C_k x_k, forward and backward.
//
// The state of a channel stays in registers along a tile of time; forward keeps it at the start of every tile, backward
// walks the tiles in reverse and computes each again.  Gradients of complex quantities are carried conjugated, as every
// step but the final real part is holomorphic: no conjugate inside, one where a result is stored.

#include <vector>

#include "selective_scan.h"

namespace {

template <class T>
T* at(void* data, int64_t offset) {
    return data ? static_cast<T*>(data) + offset : nullptr;
}

// What a task needs besides the tensors; `Complex` has parts = 2 vectors where a real one has 1.
template <class L, bool Complex>
struct Task {
    using T = typename L::Scalar;
    using V = typename L::V;
    static constexpr int parts = Complex ? 2 : 1;

    const Arguments& a;
    const Diagonal<L, Complex>* diagonals;  // (D, nv)
    const V *bias, *constant_C;             // (D, nv, parts)
    const int N = a.states, nv = (N + L::W - 1) / L::W, size = a.tile;
    const int64_t per_B = a.groups_B ? a.channels / a.groups_B : a.channels;
    const int64_t per_C = a.groups_C ? a.channels / a.groups_C : a.channels;

    // this tile
    int64_t b = 0, t0 = 0;
    int steps = 0;
    int64_t group_B = -1, group_C = -1;  // whose tiles are loaded
    const uint8_t* reset = nullptr;      // (steps,), null where no step is one
    // rows (CHANNELS, size)
    T *u, *delta, *y, *raw_delta;
    T smallest_delta = 0, largest_delta = 0;  // in absolute value; below 1e-19 delta^2 is 0, as is its share of any gradient
    V *B, *C;               // (nv, size, parts)
    V* state;               // (channels_per_task, nv, parts)
    V* readout;             // (size): C x, of all states of a channel
    Step<V>* coefficients;  // (size)
    uint8_t* reset_tile;

    static int64_t bytes(const Arguments& a) {
        const int64_t nv = (a.states + L::W - 1) / L::W, rows = CHANNELS * a.tile * sizeof(T), tile = nv * a.tile * sizeof(V);
        return 4 * rows + 2 * parts * tile + a.channels_per_task * nv * parts * sizeof(V) + 7 * a.tile * sizeof(V) + a.tile + SLACK;
    }

    Task(const Arguments& arguments, const Constants<L, Complex>& constants, Workspace& w)
        : a(arguments), diagonals(constants.diagonals), bias(constants.bias), constant_C(constants.C) {
        for (T** row : {&u, &delta, &y, &raw_delta}) *row = w.take<T>(CHANNELS * size);
        for (V** tile : {&B, &C}) *tile = w.take<V>(nv * size * parts);
        state = w.take<V>(a.channels_per_task * nv * parts);
        readout = w.take<V>(size);
        coefficients = w.take<Step<V>>(size);
        reset_tile = w.take<uint8_t>(size);
        std::fill(B, B + nv * size * parts, V{});  // it stays so if B is constant
        std::fill(readout, readout + size, V{});
    }

    void start_tile(int64_t batch_item, int64_t tile) {
        b = batch_item, t0 = tile * size, group_B = group_C = -1;
        steps = std::min<int64_t>(size, a.length - t0);
        reset = nullptr;
        if (!a.reset) return;
        for (int k = 0; k < steps; ++k)
            if ((reset_tile[k] = a.reset[b * a.reset_batch + (t0 + k) * a.reset_time])) reset = reset_tile;
    }

    // The channels from d on, before `end`, whose B and C are one group's; loads their rows and those B and C.
    int load_channels(int64_t d, int64_t end) {
        const int64_t g_B = d / per_B, g_C = d / per_C;
        const int count = std::min({end - d, (g_B + 1) * per_B - d, (g_C + 1) * per_C - d, int64_t(CHANNELS)});
        if (g_B != group_B) {
            if (a.groups_B) load_states<L, parts>(B, size, a.B, b, g_B, N, t0, steps);
            group_B = g_B;
        }
        if (a.groups_C && g_C != group_C) {
            load_states<L, parts>(C, size, a.C, b, g_C, N, t0, steps);
            group_C = g_C;
        }
        load_rows<L>(u, size, a.u, b, d, count, t0, steps);
        load_rows<L>(raw_delta, size, a.delta, b, d, count, t0, steps);
        const int ahead = static_cast<int>(std::min<int64_t>(end - d - count, CHANNELS));
        for (const Tensor* x : {&a.u, &a.delta, &a.y, &a.grad_y, &a.grad_u, &a.grad_delta})
            prefetch_rows<T>(*x, b, d + count, ahead, t0, steps);
        V largest{}, smallest = splat<V>(T(INFINITY));
        for (int i = 0; i < count; ++i) {
            const T bias = a.delta_bias ? at<T>(a.delta_bias, d)[i] : T(0);
            for (int k = i * size; k < i * size + steps; k += L::W) {
                const V raw = load<V>(raw_delta + k) + bias, value = a.softplus ? softplus<L>(raw) : raw;
                store(raw_delta + k, raw), store(delta + k, value);
                const V size = value < 0 ? -value : value;
                largest = size > largest ? size : largest;
                smallest = (size < smallest) & (size > T(1e-19)) ? size : smallest;
            }
        }
        largest_delta = 0, smallest_delta = INFINITY;
        for (int j = 0; j < L::W; ++j) {
            largest_delta = std::max(largest_delta, largest[j]);
            smallest_delta = std::min(smallest_delta, smallest[j]);
        }
        return count;
    }

    Reach reach(const Diagonal<L, Complex>& A) const { return A.reach(smallest_delta, largest_delta); }

    T* checkpoint(int64_t tile, int64_t d) const {  // torch's memory, of which no alignment is asked
        return at<T>(a.checkpoints, ((tile * a.batch + b) * a.channels + d) * nv * parts * L::W);
    }

    // C for channel d and lane vector v, and how far it moves with a step: a tile's rows, or a constant.
    std::pair<const V*, int> C_of(int64_t d, int v) const {
        if (a.groups_C) return {C + v * size * parts, parts};
        return {constant_C + (d * nv + v) * parts, 0};
    }

    // The states of one channel and lane vector along the tile, from (state_re, state_im) on, and left there.  They are
    // kept in `states` (steps + 1, parts), or read out: readout[k] = C x, added up over v.  step(k) gives the
    // coefficients.
    template <bool Zoh, bool Keep, class F>
    INLINE void run(const Task& c, int64_t d, int i, int v, V& state_re, V& state_im, V* states, F step) {
        V x_re = state_re, x_im = state_im;  // registers: what is stored below might alias a reference
        const V* bias = c.bias + (d * c.nv + v) * parts;
        const V bias_re = bias[0], bias_im = Complex ? bias[1] : V{};
        const V* B = c.B + v * c.size * parts;
        const auto [C, C_step] = c.C_of(d, v);
        const T *u = c.u + i * c.size, *delta = c.delta + i * c.size;
        V* readout = c.readout;
        if constexpr (Keep) {
            states[0] = x_re;
            if constexpr (Complex) states[1] = x_im;
        }
        for (int k = 0; k < c.steps; ++k) {
            const Step<V>& q = step(k);
            if (c.reset && c.reset[k]) x_re = x_im = V{};
            const V b_re = B[parts * k] + bias_re;
            if constexpr (!Complex) {
                const V w = Zoh ? u[k] * q.B_re : splat<V>(u[k] * delta[k]);
                const V decayed = q.A_re * x_re;  // first: the product fused with the sum, on which the next step waits
                x_re = decayed + w * b_re;
                if constexpr (Keep) states[k + 1] = x_re;
                else readout[k] = (v ? readout[k] : V{}) + C[k * C_step] * x_re;
            } else {
                const V b_im = B[parts * k + 1] + bias_im;
                V w_re, w_im;
                if constexpr (Zoh) {
                    w_re = u[k] * (q.B_re * b_re - q.B_im * b_im);
                    w_im = u[k] * (q.B_re * b_im + q.B_im * b_re);
                } else {
                    w_re = u[k] * delta[k] * b_re, w_im = u[k] * delta[k] * b_im;
                }
                const V next = q.A_re * x_re + (w_re - q.A_im * x_im);
                x_im = q.A_re * x_im + (w_im + q.A_im * x_re);
                x_re = next;
                if constexpr (Keep) states[2 * k + 2] = x_re, states[2 * k + 3] = x_im;
                else readout[k] = (v ? readout[k] : V{}) + (C[k * C_step] * x_re - C[k * C_step + 1] * x_im);
            }
        }
        state_re = x_re, state_im = x_im;
    }

    // y = sum of readout + D u for one channel
    void read_out(int64_t d, int i, T* y) const {
        for (int k = 0; k < steps; k += L::W) {
            const V sum = sums<L>(readout + k) * T(parts);
            store(y + k, a.D ? sum + *at<T>(a.D, d) * load<V>(u + i * size + k) : sum);
        }
    }
};

template <class L, bool Complex, bool Zoh>
void forward(Task<L, Complex>& task, int64_t b, int64_t begin, int64_t end) {
    using T = typename L::Scalar;
    using V = typename L::V;
    constexpr int parts = Complex ? 2 : 1;
    const Arguments& a = task.a;
    const int nv = task.nv, size = task.size;
    for (int64_t d = begin; d < end; ++d)
        for (int v = 0; v < nv; ++v)
            for (int p = 0; p < parts; ++p) {
                task.state[((d - begin) * nv + v) * parts + p] = unpack<L, parts>(a.initial, b * a.channels + d, a.states, v, p);
            }
    for (int64_t tile = 0; tile * size < a.length; ++tile) {
        task.start_tile(b, tile);
        for (int64_t d = begin, count; d < end; d += count) {
            count = task.load_channels(d, end);
            for (int i = 0; i < count; ++i) {
                V* state = task.state + (d + i - begin) * nv * parts;
                if (a.checkpoints) std::memcpy(task.checkpoint(tile, d + i), state, nv * parts * sizeof(V));
                for (int v = 0; v < nv; ++v) {
                    const auto& A = task.diagonals[(d + i) * nv + v];
                    const T* delta = task.delta + i * size;
                    V x_re = state[v * parts], x_im = Complex ? state[v * parts + 1] : V{};
                    with_reach<L>(task.reach(A), [&](auto reach) {
                        task.template run<Zoh, false>(task, d + i, i, v, x_re, x_im, nullptr, [&](int k) {
                            return discretize<L, Complex, Zoh, false, decltype(reach)::value>(A, delta[k]);
                        });
                    });
                    state[v * parts] = x_re;
                    if (Complex) state[v * parts + 1] = x_im;
                }
                task.read_out(d + i, i, task.y + i * size);
            }
            store_rows<L>(a.y, b, d, count, task.t0, task.steps, task.y, size);
        }
    }
    for (int64_t d = begin; d < end; ++d)
        for (int v = 0; v < nv; ++v) {
            const V* state = task.state + ((d - begin) * nv + v) * parts;
            pack<L, parts>(a.last, b * a.channels + d, a.states, v, state, false);
        }
}

#include "selective_scan_backward.h"

// ---- threads and types -----------------------------------------------------------------------------------------------

template <class L, bool Complex, bool Zoh, bool Backward>
void run(const Arguments& a) {
    using Work = std::conditional_t<Backward, BackwardTask<L, Complex>, Task<L, Complex>>;
    constexpr int parts = Complex ? 2 : 1;
    const int nv = (a.states + L::W - 1) / L::W;
    const int64_t rows = a.channels * nv, ranges = (a.channels + a.channels_per_task - 1) / a.channels_per_task;
    const int threads = static_cast<int>(std::max<int64_t>(1, std::min(a.threads, ranges * a.batch)));
    using V = typename L::V;
    Workspace shared(rows * (sizeof(Diagonal<L, Complex>) + 2 * parts * sizeof(V)) + SLACK);
    auto* diagonals = shared.take<Diagonal<L, Complex>>(rows);
    V *bias = shared.take<V>(rows * parts), *C = shared.take<V>(rows * parts);
    std::vector<Workspace> own;  // made here: what is thrown among the threads would end the process
    own.reserve(threads);
    for (int i = 0; i < threads; ++i) own.emplace_back(Work::bytes(a));
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#ifdef _OPENMP
        const int id = omp_get_thread_num(), team = omp_get_num_threads();
#else
        const int id = 0, team = 1;
#endif
        for (int64_t i = id; i < rows; i += team) {
            const int64_t d = i / nv, v = i % nv, n = v * L::W;
            const auto* A = static_cast<const typename L::Scalar*>(a.A) + (d * a.states + n) * parts;
            diagonals[i] = Diagonal<L, Complex>(A, std::min<int64_t>(a.states - n, L::W), a.zoh);
            for (int p = 0; p < parts; ++p) {
                bias[i * parts + p] = unpack<L, parts>(a.bias, d, a.states, v, p);
                C[i * parts + p] = unpack<L, parts>(a.constant_C, d, a.states, v, p);
            }
        }
        Work task(a, {diagonals, bias, C}, own[id]);
#pragma omp barrier
#pragma omp for schedule(static)
        for (int64_t i = 0; i < a.batch * ranges; ++i) {
            const int64_t begin = i % ranges * a.channels_per_task, end = std::min(begin + a.channels_per_task, a.channels);
            if constexpr (Backward)
                backward<L, Complex, Zoh>(task, i / ranges, begin, end);
            else
                forward<L, Complex, Zoh>(task, i / ranges, begin, end);
        }
    }
}

template <class T, int W, bool Backward>
void dispatch(const Arguments& a) {
    using L = Lanes<T, W>;
    if (a.is_complex)
        a.zoh ? run<L, true, true, Backward>(a) : run<L, true, false, Backward>(a);
    else
        a.zoh ? run<L, false, true, Backward>(a) : run<L, false, false, Backward>(a);
}

// As many lanes as the states fill, up to the widest.
template <bool Backward>
int dispatch(const Arguments& a) {
    try {
        if (a.is_double)
            dispatch<double, WIDEST / 2, Backward>(a);
        else if (a.states * 2 <= WIDEST)
            dispatch<float, WIDEST / 2, Backward>(a);
        else
            dispatch<float, WIDEST, Backward>(a);
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

}  // namespace

// 0, or 1 if there was not enough memory for the threads' buffers.
extern "C" int selective_scan_forward(const Arguments* a) { return dispatch<false>(*a); }
extern "C" int selective_scan_backward(const Arguments* a) { return dispatch<true>(*a); }
// Lanes in a vector for so many states: the last dimension of `checkpoints`.
extern "C" int64_t lanes(int64_t is_double, int64_t states) {
    if (is_double) return WIDEST / 2;
    return states * 2 <= WIDEST ? WIDEST / 2 : WIDEST;
}
