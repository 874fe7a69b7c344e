// The gradients of one task; included by selective_scan.cpp after `Task`.

#pragma once

template <class L, bool Complex>
struct BackwardTask : Task<L, Complex> {
    using Base = Task<L, Complex>;
    using typename Base::T;
    using typename Base::V;
    using Base::a, Base::nv, Base::size, Base::N, Base::steps, Base::b, Base::t0, Base::parts;

    T *grad_y, *pull, *grad_u, *grad_delta;           // rows; pull is y's gradient, times 2 if complex
    V* states;                                        // (size + 1, parts)
    V *per_u, *per_delta;                             // (size), still to be summed over their lanes
    V *grad_B, *grad_C;                               // (nv, size, parts): conjugated gradients of one group
    V *sum_A, *sum_bias, *sum_C;                      // (channels_per_task, nv, parts): conjugated gradients
    int64_t held_B = -1, held_C = -1;                 // the groups that they are of

    static int64_t bytes(const Arguments& a) {
        const int64_t nv = (a.states + L::W - 1) / L::W, rows = CHANNELS * a.tile * sizeof(T), tile = nv * a.tile * sizeof(V);
        return Base::bytes(a) + 4 * rows + 2 * parts * tile + (parts * (a.tile + 1) + 2 * a.tile + 3 * a.channels_per_task * nv * parts) * sizeof(V) + SLACK;
    }

    BackwardTask(const Arguments& arguments, const Constants<L, Complex>& constants, Workspace& w) : Base(arguments, constants, w) {
        for (T** row : {&grad_y, &pull, &grad_u, &grad_delta}) *row = w.take<T>(CHANNELS * size);
        for (V** tile : {&grad_B, &grad_C}) *tile = w.take<V>(nv * size * parts);
        states = w.take<V>(parts * (size + 1));
        for (V** rows : {&sum_A, &sum_bias, &sum_C}) *rows = w.take<V>(a.channels_per_task * nv * parts);
        per_u = w.take<V>(size), per_delta = w.take<V>(size);
    }

    // Stores the tile of one of B's or C's groups, if it holds any, into the slot that this task has there.
    void flush(Tensor to, int64_t slot_stride, int64_t& group, int64_t per_group, int64_t begin, V* tile) {
        if (group < 0) return;
        const int64_t slot = begin / a.channels_per_task - group * per_group / a.channels_per_task;
        for (int k = 1; Complex && k < nv * size * parts; k += parts) tile[k] = -tile[k];
        to.data = static_cast<T*>(to.data) + slot * slot_stride;
        if (to.imag) to.imag = static_cast<T*>(to.imag) + slot * slot_stride;
        store_states<L, parts>(to, b, group, N, t0, steps, tile, size);
        group = -1;
    }
    void flush(int64_t begin) {
        flush(a.grad_B, a.slot_B, held_B, this->per_B, begin, grad_B);
        flush(a.grad_C, a.slot_C, held_C, this->per_C, begin, grad_C);
    }

    void hold_groups(int64_t begin) {
        if (a.groups_B && held_B != this->group_B) {
            flush(a.grad_B, a.slot_B, held_B, this->per_B, begin, grad_B);
            held_B = this->group_B;
            std::fill(grad_B, grad_B + nv * size * parts, V{});
        }
        if (a.groups_C && held_C != this->group_C) {
            flush(a.grad_C, a.slot_C, held_C, this->per_C, begin, grad_C);
            held_C = this->group_C;
            std::fill(grad_C, grad_C + nv * size * parts, V{});
        }
    }

    // Back through the tile for one channel and lane vector, from the conjugated gradient (next_re, next_im) of the
    // state after the tile to that of the state before it.
    template <bool Zoh>
    INLINE void pull_back(BackwardTask& c, int64_t d, int i, int v, int64_t row, const Diagonal<L, Complex>& A, V& end_re, V& end_im) {
        V next_re = end_re, next_im = end_im;  // registers, as in run
        const V* bias = c.bias + (d * c.nv + v) * parts;
        const V bias_re = bias[0], bias_im = Complex ? bias[1] : V{};
        const int tile = v * c.size * parts;
        const V* B = c.B + tile;
        const auto [C, C_step] = c.C_of(d, v);
        V *grad_B = c.grad_B + tile, *grad_C = c.grad_C + tile;
        V *per_u = c.per_u, *per_delta = c.per_delta;
        const V* x = c.states;
        const T *u = c.u + i * c.size, *delta = c.delta + i * c.size, *pull = c.pull + i * c.size;
        const bool variable_B = c.a.groups_B, variable_C = c.a.groups_C;
        V A_re{}, A_im{}, bias_grad_re{}, bias_grad_im{}, C_grad_re{}, C_grad_im{};
        for (int k = c.steps - 1; k >= 0; --k) {
            const bool dropped = c.reset && c.reset[k];
            const Step<V>& q = c.coefficients[k];
            const V b_re = B[parts * k] + bias_re;
            if constexpr (!Complex) {
                const V g = C[k * C_step] * pull[k] + next_re, for_C = x[k + 1] * pull[k];
                if (variable_C) grad_C[k] += for_C;
                else C_grad_re += for_C;
                const V decayed = g * q.A_re;
                next_re = dropped ? V{} : decayed;
                const V P = dropped ? V{} : decayed * x[k];
                A_re += P * delta[k];
                V for_B, for_u, for_delta = P * A.re;
                if constexpr (Zoh) {
                    const V M = g * q.B_re, b = b_re * u[k];
                    for_B = M * u[k], for_u = M * b_re;
                    for_delta += decayed * b;
                    A_re += g * b * q.slope_re;
                } else {
                    for_B = g * (u[k] * delta[k]), for_u = g * b_re;
                }
                bias_grad_re += for_B;
                if (variable_B) grad_B[k] += for_B;
                per_u[k] = (v ? per_u[k] : V{}) + for_u;
                per_delta[k] = (v ? per_delta[k] : V{}) + for_delta;
            } else {
                const V b_im = B[parts * k + 1] + bias_im;
                const V g_re = C[k * C_step] * pull[k] + next_re, g_im = C[k * C_step + 1] * pull[k] + next_im;
                const V for_C_re = x[2 * k + 2] * pull[k], for_C_im = x[2 * k + 3] * pull[k];
                if (variable_C) grad_C[2 * k] += for_C_re, grad_C[2 * k + 1] += for_C_im;
                else C_grad_re += for_C_re, C_grad_im += for_C_im;
                const V decayed_re = g_re * q.A_re - g_im * q.A_im, decayed_im = g_re * q.A_im + g_im * q.A_re;
                next_re = dropped ? V{} : decayed_re, next_im = dropped ? V{} : decayed_im;
                const V P_re = dropped ? V{} : decayed_re * x[2 * k] - decayed_im * x[2 * k + 1];
                const V P_im = dropped ? V{} : decayed_re * x[2 * k + 1] + decayed_im * x[2 * k];
                A_re += P_re * delta[k], A_im += P_im * delta[k];
                V for_B_re, for_B_im, for_u, for_delta = P_re * A.re - P_im * A.im;
                if constexpr (Zoh) {
                    const V M_re = g_re * q.B_re - g_im * q.B_im, M_im = g_re * q.B_im + g_im * q.B_re;
                    const V v_re = b_re * u[k], v_im = b_im * u[k];
                    const V Q_re = g_re * v_re - g_im * v_im, Q_im = g_re * v_im + g_im * v_re;
                    for_B_re = M_re * u[k], for_B_im = M_im * u[k];
                    for_u = M_re * b_re - M_im * b_im;
                    for_delta += decayed_re * v_re - decayed_im * v_im;
                    A_re += Q_re * q.slope_re - Q_im * q.slope_im, A_im += Q_re * q.slope_im + Q_im * q.slope_re;
                } else {
                    for_B_re = g_re * (u[k] * delta[k]), for_B_im = g_im * (u[k] * delta[k]);
                    for_u = g_re * b_re - g_im * b_im;
                }
                bias_grad_re += for_B_re, bias_grad_im += for_B_im;
                if (variable_B) grad_B[2 * k] += for_B_re, grad_B[2 * k + 1] += for_B_im;
                per_u[k] = (v ? per_u[k] : V{}) + for_u;
                per_delta[k] = (v ? per_delta[k] : V{}) + for_delta;
            }
        }
        end_re = next_re, end_im = next_im;
        c.sum_A[row] += A_re, c.sum_bias[row] += bias_grad_re, c.sum_C[row] += C_grad_re;
        if constexpr (Complex) c.sum_A[row + 1] += A_im, c.sum_bias[row + 1] += bias_grad_im, c.sum_C[row + 1] += C_grad_im;
    }

    // u's and delta's gradient of one channel, and its share of D's and delta_bias's.
    template <bool Zoh>
    void finish_channel(int64_t d, int i) {
        for (int k = steps; k % L::W; ++k) per_u[k] = per_delta[k] = V{};
        V for_D{}, for_bias{};
        for (int k = 0; k < steps; k += L::W) {
            const int j = i * size + k;
            const V S = sums<L>(per_u + k), u = load<V>(this->u + j), g = load<V>(grad_y + j);
            V for_delta = sums<L>(per_delta + k);
            V for_u = S;
            if constexpr (!Zoh) for_u *= load<V>(this->delta + j), for_delta += u * S;
            if (a.softplus) {
                const V raw = load<V>(this->raw_delta + j);
                for_delta = raw > 20 ? for_delta : for_delta * sigmoid<L>(raw);
            }
            store(grad_u + j, a.D ? for_u + *at<T>(a.D, d) * g : for_u), store(grad_delta + j, for_delta);
            for_D += g * u, for_bias += for_delta;
        }
        if (a.grad_D) at<T>(a.grad_D, b * a.channels + d)[0] += sum<L>(for_D);
        if (a.grad_delta_bias) at<T>(a.grad_delta_bias, b * a.channels + d)[0] += sum<L>(for_bias);
    }
};

template <class L, bool Complex, bool Zoh>
void backward(BackwardTask<L, Complex>& task, int64_t b, int64_t begin, int64_t end) {
    using T = typename L::Scalar;
    using V = typename L::V;
    constexpr int parts = Complex ? 2 : 1;
    const Arguments& a = task.a;
    const int nv = task.nv, size = task.size;
    const int64_t sums = (end - begin) * nv * parts;
    for (V* rows : {task.sum_A, task.sum_bias, task.sum_C}) std::fill(rows, rows + sums, V{});
    for (int64_t d = begin; d < end; ++d)
        for (int v = 0; v < nv; ++v)
            for (int p = 0; p < parts; ++p) {
                const V g = unpack<L, parts>(a.grad_last, b * a.channels + d, a.states, v, p);
                task.state[((d - begin) * nv + v) * parts + p] = p ? -g : g;
            }
    for (int64_t tile = (a.length - 1) / size; tile >= 0; --tile) {
        task.start_tile(b, tile);
        for (int64_t d = begin, count; d < end; d += count) {
            count = task.load_channels(d, end);
            task.hold_groups(begin);
            if (a.grad_y.data)
                load_rows<L>(task.grad_y, size, a.grad_y, b, d, count, task.t0, task.steps);
            else
                std::fill(task.grad_y, task.grad_y + count * size, 0);
            for (int i = 0; i < count; ++i) {
                for (int k = i * size; k < i * size + task.steps; k += L::W)
                    store(task.pull + k, load<V>(task.grad_y + k) * T(parts));
                const int64_t row = (d + i - begin) * nv * parts;
                V* next = task.state + row;
                const T* start = task.checkpoint(tile, d + i);
                for (int v = 0; v < nv; ++v) {
                    const auto& A = task.diagonals[(d + i) * nv + v];
                    const T* delta = task.delta + i * size;
                    with_reach<L>(task.reach(A), [&](auto reach) {
                        discretize<L, Complex, Zoh, true, decltype(reach)::value>(A, delta, task.steps, task.coefficients);
                    });
                    const auto step = [q = task.coefficients](int k) -> const Step<V>& { return q[k]; };
                    V x_re = load<V>(start + v * parts * L::W), x_im = Complex ? load<V>(start + (v * parts + 1) * L::W) : V{};
                    task.template run<Zoh, true>(task, d + i, i, v, x_re, x_im, task.states, step);
                    V unused{};
                    task.template pull_back<Zoh>(task, d + i, i, v, row + v * parts, A, next[v * parts], Complex ? next[v * parts + 1] : unused);
                }
                task.template finish_channel<Zoh>(d + i, i);
            }
            store_rows<L>(a.grad_u, b, d, count, task.t0, task.steps, task.grad_u, size);
            store_rows<L>(a.grad_delta, b, d, count, task.t0, task.steps, task.grad_delta, size);
        }
        task.flush(begin);
    }
    for (int64_t d = begin; d < end; ++d)
        for (int v = 0; v < nv; ++v) {
            const int64_t row = ((d - begin) * nv + v) * parts, to = b * a.channels + d;
            pack<L, parts>(a.grad_initial, to, a.states, v, task.state + row, true);
            pack<L, parts>(a.grad_A, to, a.states, v, task.sum_A + row, true);
            pack<L, parts>(a.grad_bias, to, a.states, v, task.sum_bias + row, true);
            pack<L, parts>(a.grad_constant_C, to, a.states, v, task.sum_C + row, true);
        }
}
