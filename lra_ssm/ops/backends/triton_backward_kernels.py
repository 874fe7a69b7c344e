"""The Triton scan's kernel for gradients.

Shapes: as in triton_kernels.py; further the partial sums of gradients, in the arithmetic's dtype: of a variable B or C
(batch, blocks, L, N[, 2]), over the channels of one block; of A, B_bias and constant B, C (segments, batch, W, N, D),
and of D and delta_bias (segments, batch, D), over the steps of one segment; scratch (programs, CHUNK/4, W, BLOCK_N,
BLOCK_D). Each is written once, by one program, so that gradients do not depend on who comes first.

g_t is the conjugated gradient of the state x_t.  Every formula of the scan is holomorphic but for the final real part,
so conj(grad x) = f'(x) conj(grad f(x)) needs no conjugate inside; what is stored is conjugated once, at the end.
"""

# The bodies are Triton's language, not Python's: its tensors and tuples have no types that mypy could check.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from lra_ssm.ops.backends.triton_discretization import (
    frequencies,
    hold_slope,
    largest_delta,
    multiply,
    near_limit,
    sigmoid,
    undiscretized,
)
from lra_ssm.ops.backends.triton_kernels import effective_delta, load_inputs, load_per_channel, load_system, step
from lra_ssm.ops.backends.triton_steps import (
    COMPLEX_STEPS,
    CONSTANT,
    REAL_STEPS,
    coefficient,
    drop,
    fetch_matrix,
    input_coefficient,
    join4,
    last_step,
    load_A,
    load_channels,
    load_matrix_step,
    load_pairs,
    load_planes,
    load_resets,
    locate,
    matrix_pointers,
    split4,
    split_matrix,
    steps_mask,
    store_channels,
    store_pairs,
    store_planes,
    sum_channels,
    sum_states,
)


@triton.jit
def store_matrix_gradient(partial, tile, t0, last_t, states, steps_re, steps_im, FORM: tl.constexpr,
                          BLOCK_N: tl.constexpr):  # fmt: skip
    """Store four steps of a variable B's or C's gradient, (BLOCK_N,) each, conjugated; tile: numbers, or pairs of
    them, before its channels' first step."""
    n, t = tl.arange(0, BLOCK_N)[:, None], tl.arange(0, 4)[None, :]
    mask = (n < states) & (t0 + t <= last_t)
    begin = tile + tl.cast(t0, tl.int64) * states
    re = join4(steps_re[0], steps_re[1], steps_re[2], steps_re[3])
    if FORM == COMPLEX_STEPS:
        im = -join4(steps_im[0], steps_im[1], steps_im[2], steps_im[3])
        offsets = (t * states + n)[:, :, None] * 2 + tl.arange(0, 2)[None, None, :]
        tl.store(partial + 2 * begin + offsets, tl.join(re, im), mask=mask[:, :, None])
    else:
        tl.store(partial + begin + t * states + n, re, mask=mask)


@triton.jit(do_not_specialize=["batch"])
def gradient_kernel(
    u, delta, A, B, C, D, delta_bias, B_bias, reset, grad_y, carries, checkpoints, scratch,
    grad_u, grad_delta, grad_initial, sums,
    batch, length, channels, unit, segment_length,
    CHUNK: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, COMPLEX: tl.constexpr, ZOH: tl.constexpr,
    SOFTPLUS: tl.constexpr, SHARED_A: tl.constexpr, EVEN: tl.constexpr, WHOLE: tl.constexpr, states: tl.constexpr,
):  # fmt: skip
    """Compute all gradients of one segment, chunk by chunk backward in time.

    A chunk is walked forward from its checkpoint, storing the state before every fourth step in scratch; then four
    steps at a time backward: their states and A_bar are computed once more and stay in registers.
    """
    W: tl.constexpr = 2 if COMPLEX else 1
    TIME_INVARIANT: tl.constexpr = delta.step is None
    STEPWISE_ZOH: tl.constexpr = ZOH and not TIME_INVARIANT
    B_FORM: tl.constexpr = CONSTANT if B.step is None else REAL_STEPS if B.part is None else COMPLEX_STEPS
    C_FORM: tl.constexpr = CONSTANT if C.step is None else REAL_STEPS if C.part is None else COMPLEX_STEPS
    b, block, segment, d0, channel_mask = locate(batch, channels, unit, BLOCK_D, EVEN)
    n, d = tl.arange(0, BLOCK_N)[:, None], (d0 + tl.arange(0, BLOCK_D))[None, :]
    mask = (n < states) & channel_mask[None, :]
    plane = states * channels
    tile = tl.cast(segment * batch + b, tl.int64) * (W * plane) + n * channels + d
    state_offsets = d * states + n
    local = n * BLOCK_D + tl.arange(0, BLOCK_D)[None, :]  # in a tile of scratch
    TILE: tl.constexpr = BLOCK_N * BLOCK_D
    scratch += tl.cast(tl.program_id(0), tl.int64) * ((CHUNK // 4 + 1) * W * TILE)
    blocks = channels // unit * tl.cdiv(unit, BLOCK_D)
    vectors = tl.cast(b * blocks + block, tl.int64) * length * states  # where grad_B and grad_C of the block begin

    A_re, A_im, inverse_re, inverse_im, B_re, B_im = load_system(
        A, B, B_bias, delta, n, d, mask, channel_mask, states, B_FORM, COMPLEX, ZOH, TIME_INVARIANT,
        SHARED_A)  # fmt: skip
    # A constant B, or its bias, as it is: behind the states in scratch, for want of registers.
    aside = scratch + CHUNK // 4 * W * TILE
    if STEPWISE_ZOH and B_FORM == CONSTANT:
        whole_re, whole_im = load_pairs(B.data, state_offsets, mask, COMPLEX)
        store_planes(aside, local, TILE, mask, whole_re, whole_im, COMPLEX)
    elif STEPWISE_ZOH and B_bias is not None:
        whole_re, whole_im = load_pairs(B_bias, state_offsets, mask, COMPLEX)
        store_planes(aside, local, TILE, mask, whole_re, whole_im, COMPLEX)
    C_re, C_im = A_re, A_im
    rates = frequencies(A_re, A_im, COMPLEX)
    most = largest_delta(rates) if (ZOH or COMPLEX) and not TIME_INVARIANT else None
    if STEPWISE_ZOH:
        near_below = near_limit(A_re, A_im, COMPLEX)
        square_re, square_im = multiply(A_re, A_im, A_re, A_im, COMPLEX)
    if C_FORM == CONSTANT:
        C_re, C_im = load_pairs(C.data, state_offsets, mask, COMPLEX)
    skip = load_per_channel(D, d0, channel_mask, BLOCK_D)
    bias = load_per_channel(delta_bias, d0, channel_mask, BLOCK_D)

    B_steps, C_steps = B.data, C.data
    if B_FORM != CONSTANT:
        B_steps = matrix_pointers(B, b, d0, BLOCK_N, B_FORM)
    if C_FORM != CONSTANT:
        C_steps = matrix_pointers(C, b, d0, BLOCK_N, C_FORM)

    zero = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    g_re, g_im = zero, zero
    if carries is not None:
        g_re, g_im = load_planes(carries, tile, plane, mask, COMPLEX)
    sum_A_re, sum_A_im, sum_B_re, sum_B_im, sum_C_re, sum_C_im = zero, zero, zero, zero, zero, zero
    sum_D, sum_bias = tl.zeros((BLOCK_D,), tl.float32), tl.zeros((BLOCK_D,), tl.float32)

    last_t = last_step(length, WHOLE)
    begin = segment * segment_length
    end = tl.minimum(begin + segment_length, length)
    chunks = tl.cdiv(end - begin, CHUNK)
    for k in range(0, chunks):
        chunk_begin = begin + (chunks - 1 - k) * CHUNK
        groups = tl.cdiv(tl.minimum(chunk_begin + CHUNK, end) - chunk_begin, 4)
        index = tl.cast(chunk_begin // CHUNK * batch + b, tl.int64) * (W * plane)
        x_re, x_im = load_planes(checkpoints, index + n * channels + d, plane, mask, COMPLEX)
        store_planes(scratch, local, TILE, mask, x_re, x_im, COMPLEX)
        u_tile, delta_tile, B_tile, no_C = load_inputs(
            u, delta, B, None, b, d0, chunk_begin, last_t, channel_mask, BLOCK_D, BLOCK_N, states, B_FORM,
            CONSTANT, SOFTPLUS, TIME_INVARIANT)  # fmt: skip
        for j in range(1, groups):
            t0 = chunk_begin + (j - 1) * 4
            now_delta, _ = effective_delta(delta_tile, bias, steps_mask(t0, last_t, channel_mask), most, SOFTPLUS,
                                           delta_bias is not None, TIME_INVARIANT)  # fmt: skip
            us, deltas = split4(u_tile), split4(now_delta)
            Bs_re, Bs_im, resets = us, us, us
            if B_FORM != CONSTANT:
                Bs_re, Bs_im = split_matrix(B_tile, B_FORM)
            if reset is not None:
                resets = load_resets(reset, b, t0, last_t)
            u_tile, delta_tile, B_tile, no_C = load_inputs(  # of the next four, as forward does it
                u, delta, B, None, b, d0, t0 + 4, last_t, channel_mask, BLOCK_D, BLOCK_N, states, B_FORM,
                CONSTANT, SOFTPLUS, TIME_INVARIANT)  # fmt: skip
            for i in tl.static_range(4):
                if reset is not None:
                    x_re, x_im = drop(x_re, x_im, resets[i], COMPLEX)
                full_re, full_im = input_coefficient(Bs_re[i], Bs_im[i], B_re, B_im, inverse_re, inverse_im, B_FORM,
                                                     B_bias is not None, STEPWISE_ZOH, COMPLEX)  # fmt: skip
                x_re, x_im, _, _ = step(x_re, x_im, us[i][None, :], deltas[i][None, :], A_re, A_im, rates, full_re,
                                        full_im, COMPLEX, STEPWISE_ZOH, TIME_INVARIANT)  # fmt: skip
            store_planes(scratch + j * (W * TILE), local, TILE, mask, x_re, x_im, COMPLEX)
        tl.debug_barrier()  # a tile may be read by other threads than wrote it
        for j in range(0, groups):
            group = groups - 1 - j
            t0 = chunk_begin + group * 4
            tile_mask = steps_mask(t0, last_t, channel_mask)
            u_tile, delta_tile, B_tile, no_C = load_inputs(
                u, delta, B, None, b, d0, t0, last_t, channel_mask, BLOCK_D, BLOCK_N, states, B_FORM, CONSTANT,
                SOFTPLUS, TIME_INVARIANT)  # fmt: skip
            grad_tile = load_channels(grad_y, b, d0, t0, tile_mask, BLOCK_D)
            x_re, x_im = load_planes(scratch + group * (W * TILE), local, TILE, mask, COMPLEX)
            if C_FORM != CONSTANT:
                fetch_matrix(C, b, d0, t0, last_t, states, BLOCK_N)
            now_delta, raw_delta = effective_delta(delta_tile, bias, tile_mask, most, SOFTPLUS,
                                                   delta_bias is not None, TIME_INVARIANT)  # fmt: skip
            us, deltas, grads = split4(u_tile), split4(now_delta), split4(2.0 * grad_tile if COMPLEX else grad_tile)
            Bs_re, Bs_im, resets = us, us, us
            if B_FORM != CONSTANT:
                Bs_re, Bs_im = split_matrix(B_tile, B_FORM)
            if reset is not None:
                resets = load_resets(reset, b, t0, last_t)

            # Forward: states before each step and A_bar, or A_bar - 1; what needs only the states is used up at once.
            before, Cs_grad_re, Cs_grad_im = (), (), ()
            for i in tl.static_range(4):
                if reset is not None:
                    x_re, x_im = drop(x_re, x_im, resets[i], COMPLEX)
                full_re, full_im = input_coefficient(Bs_re[i], Bs_im[i], B_re, B_im, inverse_re, inverse_im, B_FORM,
                                                     B_bias is not None, STEPWISE_ZOH, COMPLEX)  # fmt: skip
                old_re, old_im = x_re, x_im
                x_re, x_im, A_bar_re, A_bar_im = step(x_re, x_im, us[i][None, :], deltas[i][None, :], A_re, A_im, rates,
                                                      full_re, full_im, COMPLEX, STEPWISE_ZOH,
                                                      TIME_INVARIANT)  # fmt: skip
                before = before + ((old_re, old_im, A_bar_re, A_bar_im),)
                grad_i = grads[i][None, :]
                if C_FORM == CONSTANT:
                    sum_C_re += x_re * grad_i
                    if COMPLEX:
                        sum_C_im += x_im * grad_i
                else:
                    Cs_grad_re = Cs_grad_re + (sum_channels(x_re * grad_i, BLOCK_N, BLOCK_D),)
                    if C_FORM == COMPLEX_STEPS:
                        Cs_grad_im = Cs_grad_im + (sum_channels(x_im * grad_i, BLOCK_N, BLOCK_D),)
            if C_FORM != CONSTANT:
                store_matrix_gradient(sums.C, vectors, t0, last_t, states, Cs_grad_re, Cs_grad_im, C_FORM, BLOCK_N)

            # Backward.
            us_grad, deltas_grad, Bs_grad_re, Bs_grad_im = (), (), (), ()
            four_re, four_im = zero, zero  # A's of these steps: summed first, they are rounded less
            for i in tl.static_range(3, -1, -1):
                old_re, old_im, A_bar_re, A_bar_im = before[i]
                if i == 0 and STEPWISE_ZOH:  # read once more: registers that the other steps lack
                    old_re, old_im = load_planes(scratch + group * (W * TILE), local, TILE, mask, COMPLEX)
                    if reset is not None:
                        old_re, old_im = drop(old_re, old_im, resets[i], COMPLEX)
                full_re, full_im, c_re, c_im = B_re, B_im, C_re, C_im
                if B_FORM != CONSTANT:
                    full_re, full_im = load_matrix_step(B_steps, B.step, t0, i, last_t, states, BLOCK_N, B_FORM)
                if C_FORM != CONSTANT:
                    c_re, c_im = load_matrix_step(C_steps, C.step, t0, i, last_t, states, BLOCK_N, C_FORM)
                vector_re, vector_im = full_re, full_im
                full_re, full_im = input_coefficient(full_re, full_im, B_re, B_im, inverse_re, inverse_im, B_FORM,
                                                     B_bias is not None, STEPWISE_ZOH, COMPLEX)  # fmt: skip
                c_re, c_im = coefficient(c_re, c_im, C_re, C_im, C_FORM, False)
                u_i, delta_i, grad_i = us[i][None, :], deltas[i][None, :], grads[i][None, :]
                g_re += c_re * grad_i
                if COMPLEX and C_FORM != REAL_STEPS:
                    g_im += c_im * grad_i
                if STEPWISE_ZOH:  # m = A_bar - 1, and w = B u / A: x + m (x + w)
                    mg_re, mg_im = multiply(A_bar_re, A_bar_im, g_re, g_im, COMPLEX)
                    back_re, back_im = g_re + mg_re, g_im + mg_im  # to the state before
                    # delta's: A back (x + w); A's: delta back (x + w) - m g w / A. Where w cancels, or is a detour:
                    # A back x + back B u; delta back x and the rest by its series.
                    near = tl.abs(delta_i) < near_below
                    far_u = tl.where(near, 0.0, u_i)
                    sum_re, sum_im = old_re + full_re * far_u, old_im + full_im * far_u
                    decay_re, decay_im = multiply(back_re, back_im, sum_re, sum_im, COMPLEX)
                    g_delta_re, _ = multiply(decay_re, decay_im, A_re, A_im, COMPLEX)
                    near_u = tl.where(near, u_i, 0.0)
                    if B_FORM != CONSTANT:
                        direct_re, _ = multiply(back_re, back_im, vector_re[:, None], vector_im[:, None], COMPLEX)
                        g_delta_re += direct_re * near_u
                    if B_FORM == CONSTANT or B_bias is not None:
                        whole_re, whole_im = load_planes(aside, local, TILE, mask, COMPLEX)
                        direct_re, _ = multiply(back_re, back_im, whole_re, whole_im, COMPLEX)
                        g_delta_re += direct_re * near_u
                    four_re += decay_re * delta_i
                    held_re, _ = multiply(mg_re, mg_im, full_re, full_im, COMPLEX)
                    deltas_grad, us_grad = (g_delta_re,) + deltas_grad, (held_re,) + us_grad
                    slope_re, slope_im = hold_slope(delta_i, A_re, A_im, square_re, square_im, COMPLEX)
                    slope_re, slope_im = tl.where(near, slope_re, -1.0) * u_i, tl.where(near, slope_im, 0.0) * u_i
                    rest_re, rest_im = multiply(mg_re, mg_im, slope_re, slope_im, COMPLEX)
                    rest_re, rest_im = multiply(rest_re, rest_im, inverse_re, inverse_im, COMPLEX)
                    # B's is m g u / A, or, where that is rounded more often, delta back u - slope m g u / A.
                    grad_B_re, grad_B_im = back_re * (near_u * delta_i) - rest_re, rest_im
                    four_re += rest_re * full_re
                    if COMPLEX:
                        four_im += decay_im * delta_i
                        four_re -= rest_im * full_im
                        four_im = (four_im + rest_re * full_im) + rest_im * full_re
                        grad_B_im = back_im * (near_u * delta_i) - rest_im
                else:
                    g_B_re, g_B_im = multiply(g_re, g_im, full_re, full_im, COMPLEX)
                    back_re, back_im = multiply(A_bar_re, A_bar_im, g_re, g_im, COMPLEX)
                    # grad A_bar times A_bar; its part of grad A is delta times that, of grad delta A times that
                    if TIME_INVARIANT:  # there A is A_bar
                        decay_re, decay_im = multiply(g_re, g_im, old_re, old_im, COMPLEX)
                    else:
                        decay_re, decay_im = multiply(back_re, back_im, old_re, old_im, COMPLEX)
                    inner = tl.sum(g_B_re, axis=0)
                    g_delta_re, _ = multiply(decay_re, decay_im, A_re, A_im, COMPLEX)
                    deltas_grad = (tl.sum(g_delta_re, axis=0) + us[i] * inner,) + deltas_grad
                    us_grad = (deltas[i] * inner,) + us_grad
                    sum_A_re += decay_re * delta_i
                    grad_B_re, grad_B_im = g_re * (u_i * delta_i), g_im
                    if COMPLEX:
                        sum_A_im += decay_im * delta_i
                        grad_B_im = g_im * (u_i * delta_i)
                if B_FORM == CONSTANT or B_bias is not None:
                    sum_B_re += grad_B_re
                    if COMPLEX:
                        sum_B_im += grad_B_im
                if B_FORM != CONSTANT:
                    step_re, step_im = sum_channels(grad_B_re, BLOCK_N, BLOCK_D), grad_B_im
                    if B_FORM == COMPLEX_STEPS:
                        step_im = sum_channels(grad_B_im, BLOCK_N, BLOCK_D)
                    Bs_grad_re, Bs_grad_im = (step_re,) + Bs_grad_re, (step_im,) + Bs_grad_im
                g_re = back_re
                if COMPLEX:
                    g_im = back_im
                if reset is not None:
                    g_re, g_im = drop(g_re, g_im, resets[i], COMPLEX)
            if STEPWISE_ZOH:
                sum_A_re += four_re
                if COMPLEX:
                    sum_A_im += four_im
            if B_FORM != CONSTANT:
                store_matrix_gradient(sums.B, vectors, t0, last_t, states, Bs_grad_re, Bs_grad_im, B_FORM, BLOCK_N)
            if STEPWISE_ZOH:
                u_grad_tile = sum_states(us_grad, BLOCK_N, BLOCK_D, COMPLEX)
                delta_grad_tile = sum_states(deltas_grad, BLOCK_N, BLOCK_D, COMPLEX)
            else:
                u_grad_tile = join4(us_grad[0], us_grad[1], us_grad[2], us_grad[3])
                delta_grad_tile = join4(deltas_grad[0], deltas_grad[1], deltas_grad[2], deltas_grad[3])
            if D is not None:
                u_grad_tile += skip[:, None] * grad_tile
                sum_D += tl.sum(grad_tile * u_tile, axis=1)
            if SOFTPLUS:
                delta_grad_tile *= tl.where(raw_delta > 20.0, 1.0, sigmoid(raw_delta))
            if delta_bias is not None:
                # masked: past the end the last state's gradient passes through it
                sum_bias += tl.sum(tl.where(tile_mask, delta_grad_tile, 0.0), axis=1)
            store_channels(grad_u, b, d0, t0, tile_mask, u_grad_tile, BLOCK_D)
            if not TIME_INVARIANT:
                store_channels(grad_delta, b, d0, t0, tile_mask, delta_grad_tile, BLOCK_D)
        tl.debug_barrier()  # the next chunk writes scratch again

    per_channel = tl.cast(segment * batch + b, tl.int64) * channels + d0 + tl.arange(0, BLOCK_D)
    if TIME_INVARIANT:
        step_size = tl.load(delta.data + d, mask=channel_mask[None, :], other=0.0)
        A_re, A_im = load_A(A, state_offsets, n, mask, states, SHARED_A, COMPLEX)
        B_re, B_im = load_pairs(B.data, state_offsets, mask, COMPLEX)
        sum_A_re, sum_A_im, sum_B_re, sum_B_im, sum_delta = undiscretized(
            step_size, A_re, A_im, B_re, B_im, sum_A_re, sum_A_im, sum_B_re, sum_B_im, COMPLEX, ZOH)  # fmt: skip
        tl.store(grad_delta.data + per_channel, sum_delta, mask=channel_mask)
    store_planes(sums.A, tile, plane, mask, sum_A_re, -sum_A_im, COMPLEX)
    if B_FORM == CONSTANT:
        store_planes(sums.B, tile, plane, mask, sum_B_re, -sum_B_im, COMPLEX)
    elif B_bias is not None:
        store_planes(sums.B_bias, tile, plane, mask, sum_B_re, -sum_B_im, COMPLEX)
    if C_FORM == CONSTANT:
        store_planes(sums.C, tile, plane, mask, sum_C_re, -sum_C_im, COMPLEX)
    if D is not None:
        tl.store(sums.D + per_channel, sum_D, mask=channel_mask)
    if delta_bias is not None:
        tl.store(sums.delta_bias + per_channel, sum_bias, mask=channel_mask)
    if grad_initial is not None and segment == 0:
        store_pairs(grad_initial, tl.cast(b, tl.int64) * plane + state_offsets, mask, g_re, -g_im, COMPLEX)
