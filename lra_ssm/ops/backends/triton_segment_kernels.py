"""The Triton scan's kernels between segments: what joins them, and what a segment passes back in time.

Shapes and what a kernel is compiled for: as in triton_kernels.py.
"""

# The bodies are Triton's language, not Python's: its tensors and tuples have no types that mypy could check.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from lra_ssm.ops.backends.triton_discretization import discretized, frequencies, largest_delta, multiply
from lra_ssm.ops.backends.triton_kernels import effective_delta, load_inputs, load_per_channel, transition
from lra_ssm.ops.backends.triton_steps import (
    COMPLEX_STEPS,
    CONSTANT,
    REAL_STEPS,
    coefficient,
    drop,
    last_step,
    load_A,
    load_pairs,
    load_planes,
    load_resets,
    locate,
    split4,
    split_matrix,
    steps_mask,
    store_planes,
)


@triton.jit(do_not_specialize=["batch", "segments"])
def join_kernel(
    summary, first, starts, batch, plane, segments, BLOCK: tl.constexpr, COMPLEX: tl.constexpr, REVERSE: tl.constexpr
):
    """What enters every segment: first, a state (batch, W, N, D), for the segment in front, then
    starts[s+1] = ends[s] + decays[s] starts[s], without the second term where segment s dropped what was before it.

    Backward in time for REVERSE.  Four segments are read before the first is stored, so that their loads overlap.
    plane: N D.
    """
    W: tl.constexpr = 2 if COMPLEX else 1
    blocks = tl.cdiv(plane, BLOCK)
    b, inside = tl.program_id(0) // blocks, tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    mask = inside < plane
    x_re, x_im = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    if first is not None:
        x_re, x_im = load_planes(first, tl.cast(b, tl.int64) * (W * plane) + inside, plane, mask, COMPLEX)
    for s0 in range(0, segments, 4):
        loaded = ()
        for i in tl.static_range(4):
            s = segments - 1 - s0 - i if REVERSE else s0 + i
            exists = s0 + i + tl.arange(0, 1) < segments
            here = mask & exists
            tile = tl.cast(s * batch + b, tl.int64) * (W * plane) + inside
            end_re, end_im = load_planes(summary.ends, tile, plane, here, COMPLEX)
            decay_re, decay_im = load_planes(summary.decays, tile, plane, here, COMPLEX)
            cut = here
            if summary.dropped is not None:
                cut = tl.load(summary.dropped + s * batch + b + tl.arange(0, 1), mask=exists, other=0) != 0
            loaded = loaded + ((tile, here, end_re, end_im, decay_re, decay_im, cut),)
        for i in tl.static_range(4):
            tile, here, end_re, end_im, decay_re, decay_im, cut = loaded[i]
            store_planes(starts, tile, plane, here, x_re, x_im, COMPLEX)
            if summary.dropped is not None:
                x_re = tl.where(cut, 0.0, x_re)
                if COMPLEX:
                    x_im = tl.where(cut, 0.0, x_im)
            x_re, x_im = multiply(decay_re, decay_im, x_re, x_im, COMPLEX)
            x_re += end_re
            if COMPLEX:
                x_im += end_im


@triton.jit(do_not_specialize=["batch"])
def adjoint_kernel(
    delta, A, C, delta_bias, reset, grad_y, summary, batch, length, channels, unit, segment_length,
    BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, COMPLEX: tl.constexpr, SOFTPLUS: tl.constexpr, ZOH: tl.constexpr,
    SHARED_A: tl.constexpr, EVEN: tl.constexpr, WHOLE: tl.constexpr, states: tl.constexpr,
):  # fmt: skip
    """One segment of g, backward in time from zero: what it passes to the state before it, and as in `scan_kernel`
    by how much it shrinks what came from behind, and whether a reset cuts that off."""
    W: tl.constexpr = 2 if COMPLEX else 1
    TIME_INVARIANT: tl.constexpr = delta.step is None
    C_FORM: tl.constexpr = CONSTANT if C.step is None else REAL_STEPS if C.part is None else COMPLEX_STEPS
    b, block, segment, d0, channel_mask = locate(batch, channels, unit, BLOCK_D, EVEN)
    n, d = tl.arange(0, BLOCK_N)[:, None], (d0 + tl.arange(0, BLOCK_D))[None, :]
    mask = (n < states) & channel_mask[None, :]
    plane = states * channels
    tile = tl.cast(segment * batch + b, tl.int64) * (W * plane) + n * channels + d
    A_re, A_im = load_A(A, d * states + n, n, mask, states, SHARED_A, COMPLEX)
    if TIME_INVARIANT:
        step_size = tl.load(delta.data + d, mask=channel_mask[None, :], other=0.0)
        # No name twice: a loop below that assigned another shape to it would not compile.
        A_re, A_im, no_B_re, no_B_im, no_hold_re, no_hold_im = discretized(
            step_size, A_re, A_im, A_re, A_im, COMPLEX, ZOH
        )
    rates = frequencies(A_re, A_im, COMPLEX)
    most = largest_delta(rates) if (ZOH or COMPLEX) and not TIME_INVARIANT else None
    C_re, C_im = A_re, A_im
    if C_FORM == CONSTANT:
        C_re, C_im = load_pairs(C.data, d * states + n, mask, COMPLEX)
    g_re, g_im = tl.zeros((BLOCK_N, BLOCK_D), tl.float32), tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    decay_re, decay_im = g_re + 1.0, g_im
    total_delta = tl.zeros((BLOCK_D,), tl.float32)
    any_reset = tl.zeros((1,), tl.int32)
    bias = load_per_channel(delta_bias, d0, channel_mask, BLOCK_D)

    last_t = last_step(length, WHOLE)
    begin = segment * segment_length
    groups = tl.cdiv(tl.minimum(segment_length, length - begin), 4)
    for j in range(0, groups):
        t0 = begin + (groups - 1 - j) * 4
        tile_mask = steps_mask(t0, last_t, channel_mask)
        grad_tile, delta_tile, no_B, C_tile = load_inputs(
            grad_y, delta, None, C, b, d0, t0, last_t, channel_mask, BLOCK_D, BLOCK_N, states, CONSTANT, C_FORM,
            SOFTPLUS, TIME_INVARIANT)  # fmt: skip
        now_delta, _ = effective_delta(delta_tile, bias, tile_mask, most, SOFTPLUS, delta_bias is not None,
                                       TIME_INVARIANT)  # fmt: skip
        deltas, grads = split4(now_delta), split4(2.0 * grad_tile if COMPLEX else grad_tile)
        Cs_re, Cs_im, resets = deltas, deltas, deltas
        if C_FORM != CONSTANT:
            Cs_re, Cs_im = split_matrix(C_tile, C_FORM)
        if reset is not None:
            resets = load_resets(reset, b, t0, last_t)
        for i in tl.static_range(3, -1, -1):
            c_re, c_im = coefficient(Cs_re[i], Cs_im[i], C_re, C_im, C_FORM, False)
            A_bar_re, A_bar_im = transition(deltas[i][None, :], A_re, A_im, rates, COMPLEX, TIME_INVARIANT)
            g_re += c_re * grads[i][None, :]
            if COMPLEX:
                if C_FORM != REAL_STEPS:
                    g_im += c_im * grads[i][None, :]
                g_re, g_im = multiply(A_bar_re, A_bar_im, g_re, g_im, COMPLEX)
                decay_re, decay_im = multiply(decay_re, decay_im, A_bar_re, A_bar_im, COMPLEX)
            else:
                g_re *= A_bar_re
                if TIME_INVARIANT:
                    decay_re *= A_bar_re
                else:
                    total_delta += deltas[i]
            if reset is not None:
                g_re, g_im = drop(g_re, g_im, resets[i], COMPLEX)
                any_reset = any_reset | resets[i].to(tl.int32)
    if not COMPLEX and not TIME_INVARIANT:
        decay_re = tl.exp(total_delta[None, :] * A_re)
    store_planes(summary.ends, tile, plane, mask, g_re, g_im, COMPLEX)
    store_planes(summary.decays, tile, plane, mask, decay_re, decay_im, COMPLEX)
    if reset is not None:
        tl.store(summary.dropped + segment * batch + b + tl.arange(0, 1), any_reset)
