"""The Triton scan's kernel, and what it shares with those that go back in time.

Shapes: u, delta, y (batch, D, L); A, B_bias and constant B, C (D, N, W); variable B, C (batch, G, N, L[, 2]);
initial and last state (batch, D, N, W); the kernels' own buffers of states have channels last: checkpoints
(chunks, batch, W, N, D), starts and ends (segments, batch, W, N, D).  (D channels, L length, N states, G groups, W = 2
for complex A, else 1.)

A program takes one batch item, BLOCK_D channels and a segment of the length, and walks through it with the state in
registers.  See triton_steps.py for the tiles.

What varies in time is a `Steps` or a `Matrix` of triton_call.py, a tensor and its strides.  What a kernel is compiled
for: whether B and C vary, and are complex; TIME_INVARIANT, delta (D,) is one for all steps, and A and B are discretized
first; SHARED_A, A (N, W) is one for all channels; EVEN, blocks of channels, WHOLE, groups of four steps have no gaps,
and need no masks.  STEPWISE_ZOH: zero-order hold, step by step.  The arithmetic is float32.
"""

# The bodies are Triton's language, not Python's: its tensors and tuples have no types that mypy could check.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from lra_ssm.ops.backends.triton_discretization import (
    away_from_zero,
    discretized,
    exp_minus_1,
    exponential,
    frequencies,
    largest_delta,
    multiply,
    softplus,
)
from lra_ssm.ops.backends.triton_steps import (
    COMPLEX_STEPS,
    CONSTANT,
    REAL_STEPS,
    coefficient,
    drop,
    input_coefficient,
    last_step,
    load_A,
    load_channels,
    load_matrix,
    load_pairs,
    load_planes,
    load_resets,
    locate,
    split4,
    split_matrix,
    steps_mask,
    store_channels,
    store_pairs,
    store_planes,
    sum_states,
)


@triton.jit
def load_system(A, B, B_bias, delta, n, d, mask, channel_mask, states, B_FORM: tl.constexpr, COMPLEX: tl.constexpr,
                ZOH: tl.constexpr, TIME_INVARIANT: tl.constexpr, SHARED_A: tl.constexpr):  # fmt: skip
    """Tiles (BLOCK_N, BLOCK_D) of A, 1/A and constant B or B's bias, re and im each; B is over A for zero-order hold.

    TIME_INVARIANT: of A_bar and B_bar B.  1/A for euler, and B where there is none, are stand-ins.
    """
    state_offsets = d * states + n  # in (D, N)
    # Before A: the compiler gives a state the layout of what is read last, and e^(delta A) has A's.
    if B_FORM == CONSTANT:
        B_re, B_im = load_pairs(B.data, state_offsets, mask, COMPLEX)
    elif B_bias is not None:
        B_re, B_im = load_pairs(B_bias, state_offsets, mask, COMPLEX)
    A_re, A_im = load_A(A, state_offsets, n, mask, states, SHARED_A, COMPLEX)
    inverse_re, inverse_im = A_re, A_im
    if ZOH:
        A_re, A_im, inverse_re, inverse_im = away_from_zero(A_re, A_im, COMPLEX)
    if B_FORM != CONSTANT and B_bias is None:
        B_re, B_im = A_re, A_im
    if TIME_INVARIANT:
        step_size = tl.load(delta.data + d, mask=channel_mask[None, :], other=0.0)
        A_re, A_im, B_re, B_im, _, _ = discretized(step_size, A_re, A_im, B_re, B_im, COMPLEX, ZOH)
    elif ZOH and (B_FORM == CONSTANT or B_bias is not None):
        B_re, B_im = multiply(B_re, B_im, inverse_re, inverse_im, COMPLEX)
    return A_re, A_im, inverse_re, inverse_im, B_re, B_im


@triton.jit
def load_per_channel(x, d0, channel_mask, BLOCK_D: tl.constexpr):
    """Load D or delta_bias, (BLOCK_D,), or zeros."""
    if x is not None:
        return tl.load(x + d0 + tl.arange(0, BLOCK_D), mask=channel_mask, other=0.0)
    else:
        return tl.zeros((BLOCK_D,), tl.float32)


@triton.jit
def effective_delta(raw, bias, mask, most, SOFTPLUS: tl.constexpr, BIAS: tl.constexpr, TIME_INVARIANT: tl.constexpr):
    """(delta, delta before softplus) of four steps, (BLOCK_D, 4); delta is 0 at steps and channels beyond the end, 1 at
    the others of a discretized system, and within `most`, from `largest_delta`, where that is not None."""
    if TIME_INVARIANT:
        raw = tl.where(mask, 1.0, 0.0).to(raw.dtype)
    if BIAS:
        raw += bias[:, None]
    value = softplus(raw) if SOFTPLUS else raw
    if len(raw.shape) == 3:  # copies
        raw, value = tl.max(raw, axis=0), tl.max(value, axis=0)
    if most is not None:
        value = tl.minimum(value, most[:, None], propagate_nan=tl.PropagateNan.ALL)
        if not SOFTPLUS:
            value = tl.maximum(value, -most[:, None], propagate_nan=tl.PropagateNan.ALL)
    return tl.where(mask, value, 0.0), raw


@triton.jit
def load_inputs(
    u, delta, B, C, b, d0, t0, last_t, channel_mask, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
    states: tl.constexpr, B_FORM: tl.constexpr, C_FORM: tl.constexpr, SOFTPLUS: tl.constexpr,
    TIME_INVARIANT: tl.constexpr,
):  # fmt: skip
    """(u or y's gradient, delta, B, C) of four steps as they are; a stand-in for what is None or does not vary.

    All loads start before the first is waited for: on a GPU that wait takes longer than the computation.
    """
    # A tile smaller than a warp is spread over it, four steps a lane, before softplus; copies make it one a lane.
    COPIES: tl.constexpr = 8 // BLOCK_D if SOFTPLUS and BLOCK_D < 8 else 1
    mask = steps_mask(t0, last_t, channel_mask)
    if not TIME_INVARIANT:
        delta_tile = load_channels(delta, b, d0, t0, mask, BLOCK_D, COPIES)
    u_tile = load_channels(u, b, d0, t0, mask, BLOCK_D)
    if TIME_INVARIANT:
        delta_tile = u_tile
    B_tile, C_tile = u_tile, u_tile
    if B_FORM != CONSTANT:
        B_tile = load_matrix(B, b, d0, t0, last_t, states, BLOCK_N, B_FORM)
    if C_FORM != CONSTANT:
        C_tile = load_matrix(C, b, d0, t0, last_t, states, BLOCK_N, C_FORM)
    return u_tile, delta_tile, B_tile, C_tile


@triton.jit
def transition(delta, A_re, A_im, rates, COMPLEX: tl.constexpr, TIME_INVARIANT: tl.constexpr):
    """Return A_bar of a step; A itself of a discretized system, and 1 beyond the end."""
    if TIME_INVARIANT:
        return tl.where(delta != 0, A_re, 1.0), tl.where(delta != 0, A_im, 0.0)
    else:
        return exponential(delta, A_re, A_im, rates, COMPLEX)


@triton.jit
def step(x_re, x_im, u, delta, A_re, A_im, rates, B_re, B_im, COMPLEX: tl.constexpr, STEPWISE_ZOH: tl.constexpr,
         TIME_INVARIANT: tl.constexpr):  # fmt: skip
    """(the state after one step, A_bar); u and delta (1, BLOCK_D), rates from `frequencies`.

    STEPWISE_ZOH: x + m (x + w), with m = exp(delta A) - 1 in place of A_bar and w = B u / A; B is over A already.  Of
    the real part, which y sums, the product is made first: where delta A is small, each sum with x rounds it.
    TIME_INVARIANT: A and B are discretized, and delta is 1, or 0 beyond the end.
    """
    if STEPWISE_ZOH:
        m_re, m_im = exp_minus_1(delta, A_im, rates, COMPLEX)
        if COMPLEX:
            sum_re, sum_im = x_re + B_re * u, x_im + B_im * u
            x_re += m_re * sum_re - m_im * sum_im
            x_im = (x_im + m_re * sum_im) + m_im * sum_re
        else:
            x_re += m_re * (x_re + B_re * u)
        return x_re, x_im, m_re, m_im
    else:
        A_bar_re, A_bar_im = transition(delta, A_re, A_im, rates, COMPLEX, TIME_INVARIANT)
        v_re, v_im = B_re * (delta * u), B_im * (delta * u)
        if COMPLEX:
            old_re = x_re
            x_re = A_bar_re * old_re - A_bar_im * x_im + v_re
            x_im = A_bar_re * x_im + A_bar_im * old_re + v_im
        else:
            x_re = A_bar_re * x_re + v_re
        return x_re, x_im, A_bar_re, A_bar_im


@triton.jit(do_not_specialize=["batch"])
def scan_kernel(
    u, delta, A, B, C, D, delta_bias, B_bias, reset, starts, y, last, checkpoints, summary,
    batch, length, channels, unit, segment_length,
    CHUNK: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, COMPLEX: tl.constexpr, ZOH: tl.constexpr,
    SOFTPLUS: tl.constexpr, SHARED_A: tl.constexpr, EVEN: tl.constexpr, WHOLE: tl.constexpr, states: tl.constexpr,
):  # fmt: skip
    """Run one segment of the scan.

    With summary, and without y: from zero, storing where it ends, by how much it shrinks what was before it (decays),
    and whether a reset cuts that off (dropped).  With y: from starts, or from zero where there are none, storing y, the
    last state, and, for backward, the state before every CHUNK steps.
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
    state_offsets = d * states + n  # in (D, N)

    x_re, x_im = tl.zeros((BLOCK_N, BLOCK_D), tl.float32), tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    if starts is not None:  # before A, see `load_system`
        x_re, x_im = load_planes(starts, tile, plane, mask, COMPLEX)
    A_re, A_im, inverse_re, inverse_im, B_re, B_im = load_system(
        A, B, B_bias, delta, n, d, mask, channel_mask, states, B_FORM, COMPLEX, ZOH, TIME_INVARIANT,
        SHARED_A)  # fmt: skip
    rates = frequencies(A_re, A_im, COMPLEX)
    most = largest_delta(rates) if (ZOH or COMPLEX) and not TIME_INVARIANT else None
    C_re, C_im = A_re, A_im
    if C_FORM == CONSTANT and y is not None:
        C_re, C_im = load_pairs(C.data, state_offsets, mask, COMPLEX)
    skip = load_per_channel(D, d0, channel_mask, BLOCK_D)
    bias = load_per_channel(delta_bias, d0, channel_mask, BLOCK_D)

    decay_re, decay_im = tl.zeros_like(x_re) + 1.0, tl.zeros_like(x_re)
    total_delta = tl.zeros((BLOCK_D,), tl.float32)
    any_reset = tl.zeros((1,), tl.int32)

    last_t = last_step(length, WHOLE)
    begin = segment * segment_length
    end = tl.minimum(begin + segment_length, length)
    last_group = begin + (tl.cdiv(end - begin, 4) - 1) * 4
    # Four steps are read while the four before them are computed.
    u_tile, delta_tile, B_tile, C_tile = load_inputs(
        u, delta, B, C, b, d0, begin, last_t, channel_mask, BLOCK_D, BLOCK_N, states, B_FORM, C_FORM, SOFTPLUS,
        TIME_INVARIANT)  # fmt: skip
    for chunk_begin in range(begin, end, CHUNK):
        if checkpoints is not None:
            index = tl.cast(chunk_begin // CHUNK * batch + b, tl.int64) * (W * plane)
            store_planes(checkpoints, index + n * channels + d, plane, mask, x_re, x_im, COMPLEX)
        for t0 in range(chunk_begin, tl.minimum(chunk_begin + CHUNK, end), 4):
            tile_mask = steps_mask(t0, last_t, channel_mask)
            now_u = u_tile
            now_delta, _ = effective_delta(delta_tile, bias, tile_mask, most, SOFTPLUS, delta_bias is not None,
                                           TIME_INVARIANT)  # fmt: skip
            us, deltas = split4(u_tile), split4(now_delta)
            Bs_re, Bs_im, Cs_re, Cs_im, resets = us, us, us, us, us
            if B_FORM != CONSTANT:
                Bs_re, Bs_im = split_matrix(B_tile, B_FORM)
            if C_FORM != CONSTANT:
                Cs_re, Cs_im = split_matrix(C_tile, C_FORM)
            if reset is not None:
                resets = load_resets(reset, b, t0, last_t)
            t1 = tl.minimum(t0 + 4, last_group)
            u_tile, delta_tile, B_tile, C_tile = load_inputs(
                u, delta, B, C, b, d0, t1, last_t, channel_mask, BLOCK_D, BLOCK_N, states, B_FORM, C_FORM, SOFTPLUS,
                TIME_INVARIANT)  # fmt: skip
            ys = ()
            for i in tl.static_range(4):
                if reset is not None:
                    x_re, x_im = drop(x_re, x_im, resets[i], COMPLEX)
                full_re, full_im = input_coefficient(Bs_re[i], Bs_im[i], B_re, B_im, inverse_re, inverse_im, B_FORM,
                                                     B_bias is not None, STEPWISE_ZOH, COMPLEX)  # fmt: skip
                x_re, x_im, A_bar_re, A_bar_im = step(x_re, x_im, us[i][None, :], deltas[i][None, :], A_re, A_im, rates,
                                                      full_re, full_im, COMPLEX, STEPWISE_ZOH,
                                                      TIME_INVARIANT)  # fmt: skip
                if y is not None:
                    c_re, c_im = coefficient(Cs_re[i], Cs_im[i], C_re, C_im, C_FORM, False)
                    if COMPLEX and C_FORM != REAL_STEPS:
                        ys = ys + (c_re * x_re - c_im * x_im,)
                    else:
                        ys = ys + (c_re * x_re,)
                else:
                    if COMPLEX and STEPWISE_ZOH:
                        more_re, more_im = multiply(decay_re, decay_im, A_bar_re, A_bar_im, COMPLEX)
                        decay_re, decay_im = decay_re + more_re, decay_im + more_im
                    elif COMPLEX or TIME_INVARIANT:
                        decay_re, decay_im = multiply(decay_re, decay_im, A_bar_re, A_bar_im, COMPLEX)
                    else:
                        total_delta += deltas[i]
                    if reset is not None:
                        any_reset = any_reset | resets[i].to(tl.int32)
            if y is not None:
                y_tile = sum_states(ys, BLOCK_N, BLOCK_D, COMPLEX)
                if COMPLEX:
                    y_tile *= 2.0
                if D is not None:
                    y_tile += skip[:, None] * now_u
                store_channels(y, b, d0, t0, tile_mask, y_tile, BLOCK_D)
    if y is None:
        # For complex A the product of the steps' factors: a phase delta A summed first would carry the sum's rounding.
        if not COMPLEX and not TIME_INVARIANT:
            decay_re = tl.exp(total_delta[None, :] * A_re)
        store_planes(summary.ends, tile, plane, mask, x_re, x_im, COMPLEX)
        store_planes(summary.decays, tile, plane, mask, decay_re, decay_im, COMPLEX)
        if reset is not None:  # every block of channels stores the same
            tl.store(summary.dropped + segment * batch + b + tl.arange(0, 1), any_reset)
    elif end == length:
        store_pairs(last, tl.cast(b, tl.int64) * plane + state_offsets, mask, x_re, x_im, COMPLEX)
