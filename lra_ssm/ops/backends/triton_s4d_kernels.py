"""The Triton kernels of S4D's convolution kernel and of its gradients; see `triton_s4d_kernel.py`, which calls them.

Shapes: delta (D,); A, B (D, N) and C (K, D, N) as re and im; out and grad (K, D, L). (K kernels, D channels, N
conjugate pairs, L length.)

Position l = i T + j stands in row i and column j of a matrix, and p^l = p^(i T) p^j: two small tables of powers and one
matrix product for every sum over states, or over positions.
"""

from __future__ import annotations

# The bodies are Triton's language, not Python's: its tensors and tuples have no types that mypy could check.
# mypy: ignore-errors
import math

import triton
import triton.language as tl

from lra_ssm.ops.backends.triton_discretization import (
    LOG2_E,
    away_from_zero,
    complex_exp_minus_1,
    half_turn,
    multiply,
    power_of_2,
    zoh_derivative,
)

PI = tl.constexpr(math.pi)
PHI1 = tl.constexpr(tuple(1 / math.factorial(k + 1) for k in range(16)))  # Taylor coefficients of (exp(z) - 1)/z


@triton.jit
def load_states(x, strides, k, d, n, mask):
    """Load (re, im) of x (K, D, N, 2) at states n, in double."""
    at = x + tl.cast(k, tl.int64) * strides[0] + tl.cast(d, tl.int64) * strides[1] + n * strides[2]
    re = tl.load(at, mask=mask, other=0.0).to(tl.float64)
    return re, tl.load(at + strides[3], mask=mask, other=0.0).to(tl.float64)


@triton.jit
def zero_order_hold(step, A_re, A_im):
    """Return (A, 1/A, A_bar, B_bar), re and im each, in double; A is kept away from zero."""
    A_re, A_im, inverse_re, inverse_im = away_from_zero(A_re, A_im, True)
    z = step * A_re
    near = tl.abs(z) < 0.5  # exp(z) - 1 would cancel
    small = tl.where(near, z, 0.0)
    series = tl.zeros_like(z) + PHI1[15]
    for k in tl.static_range(14, -1, -1):
        series = series * small + PHI1[k]
    half = step * (0.5 * A_im)
    m_re, m_im = complex_exp_minus_1(tl.where(near, small * series, tl.exp(z) - 1.0), tl.sin(half), tl.cos(half))
    hold_re, hold_im = multiply(m_re, m_im, inverse_re, inverse_im, True)
    return A_re, A_im, inverse_re, inverse_im, m_re + 1.0, m_im, hold_re, hold_im


@triton.jit
def powers(times, step, A_re, A_im, TYPE: tl.constexpr):
    """exp(times step A) as (re, im), each (times, N). What grows with time is kept in double: size and whole turns."""
    turns = times.to(tl.float64)[:, None] * (step * A_im / (2.0 * PI))[None, :]
    turns -= tl.floor(turns + 0.5)
    exponent = times.to(tl.float64)[:, None] * (step * A_re * LOG2_E)[None, :]
    if TYPE == tl.float64:
        size, sine, cosine = tl.exp2(exponent), tl.sin(turns * PI), tl.cos(turns * PI)
    else:
        size = power_of_2(exponent.to(TYPE))
        sine, cosine = half_turn(turns.to(TYPE))
    scaled = 2.0 * size * sine
    return size - scaled * sine, scaled * cosine


@triton.jit
def product(x, y, total, TYPE: tl.constexpr):
    """Return total + x y, never in TF32."""
    return tl.dot(x, y, total, input_precision="ieee", out_dtype=TYPE)


@triton.jit(do_not_specialize=["length", "rows"])
def s4d_kernel(
    delta, A, B, C, out, A_strides, B_strides, C_strides, channels, states, length, rows,
    BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_N: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Compute BLOCK_I rows of one kernel of one channel."""
    program = tl.program_id(0)
    k, d, i0 = program // (rows * channels), program // rows % channels, program % rows * BLOCK_I
    i, j = i0 + tl.arange(0, BLOCK_I), tl.arange(0, BLOCK_J)
    step = tl.load(delta + d).to(tl.float64)
    total = tl.zeros((BLOCK_I, BLOCK_J), TYPE)
    for n0 in range(0, states, BLOCK_N):
        n = n0 + tl.arange(0, BLOCK_N)
        mask = n < states
        A_re, A_im = load_states(A, A_strides, 0, d, n, mask)
        B_re, B_im = load_states(B, B_strides, 0, d, n, mask)
        C_re, C_im = load_states(C, C_strides, k, d, n, mask)
        A_re, A_im, _, _, _, _, re, im = zero_order_hold(step, A_re, A_im)
        re, im = multiply(re, im, B_re, B_im, True)
        re, im = multiply(re, im, C_re, C_im, True)
        re, im = (2.0 * re).to(TYPE)[None, :], (2.0 * im).to(TYPE)[None, :]
        high_re, high_im = powers(i * BLOCK_J, step, A_re, A_im, TYPE)
        high_re, high_im = multiply(high_re, high_im, re, im, True)
        low_re, low_im = powers(j, step, A_re, A_im, TYPE)
        total = product(high_re, tl.trans(low_re), total, TYPE)
        total = product(-high_im, tl.trans(low_im), total, TYPE)
    times = i[:, None] * BLOCK_J + j[None, :]
    at = (tl.cast(k, tl.int64) * channels + d) * length
    tl.store(out + at + times, total, mask=times < length)


@triton.jit
def store_states(x, k, channels, d, states, n, mask, re, im):
    at = x + 2 * ((tl.cast(k, tl.int64) * channels + d) * states + n)
    tl.store(at, re, mask=mask)
    tl.store(at + 1, im, mask=mask)


@triton.jit(do_not_specialize=["length"])
def s4d_gradient_kernel(
    delta, A, B, C, grad, grad_delta, grad_A, grad_B, grad_C, A_strides, B_strides, C_strides, channels, states,
    length, kernels, BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_N: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Compute all gradients of one channel.

    k_l = 2 Re sum_n w p^l has, in PyTorch's convention, the gradients 2 conj(sum_l g_l p^l) of w and
    2 conj(w sum_l g_l l p^l) of log p = delta A.
    """
    d = tl.program_id(0)
    j = tl.arange(0, BLOCK_J)
    step = tl.load(delta + d).to(tl.float64)
    of_step = tl.zeros((BLOCK_N,), tl.float64)
    for n0 in range(0, states, BLOCK_N):
        n = n0 + tl.arange(0, BLOCK_N)
        mask = n < states
        A_re, A_im = load_states(A, A_strides, 0, d, n, mask)
        B_re, B_im = load_states(B, B_strides, 0, d, n, mask)
        A_re, A_im, inverse_re, inverse_im, p_re, p_im, hold_re, hold_im = zero_order_hold(step, A_re, A_im)
        in_re, in_im = multiply(hold_re, hold_im, B_re, B_im, True)
        of_z_re, of_z_im = tl.zeros((BLOCK_N,), tl.float64), tl.zeros((BLOCK_N,), tl.float64)
        of_in_re, of_in_im = of_z_re, of_z_im
        # Powers beyond the last position are not computed: they may be infinite, and times 0 NaN.
        low_re, low_im = powers(tl.minimum(j, length - 1), step, A_re, A_im, TYPE)
        late_re, late_im = low_re * j[:, None].to(TYPE), low_im * j[:, None].to(TYPE)
        for k in range(kernels):
            sum_re, sum_im = tl.zeros((BLOCK_N,), TYPE), tl.zeros((BLOCK_N,), TYPE)
            timed_re, timed_im = sum_re, sum_im
            row = grad + (tl.cast(k, tl.int64) * channels + d) * length
            for start in range(0, length, BLOCK_I * BLOCK_J):
                begin = start + tl.arange(0, BLOCK_I) * BLOCK_J
                times = begin[:, None] + j[None, :]
                g = tl.load(row + times, mask=times < length, other=0.0).to(TYPE)
                zero = tl.zeros((BLOCK_I, BLOCK_N), TYPE)
                near_re, near_im = product(g, low_re, zero, TYPE), product(g, low_im, zero, TYPE)
                far = begin[:, None].to(TYPE)
                far_re = product(g, late_re, far * near_re, TYPE)
                far_im = product(g, late_im, far * near_im, TYPE)
                high_re, high_im = powers(tl.minimum(begin, length - 1), step, A_re, A_im, TYPE)
                near_re, near_im = multiply(near_re, near_im, high_re, high_im, True)
                far_re, far_im = multiply(far_re, far_im, high_re, high_im, True)
                sum_re += tl.sum(near_re, 0)
                sum_im += tl.sum(near_im, 0)
                timed_re += tl.sum(far_re, 0)
                timed_im += tl.sum(far_im, 0)
            C_re, C_im = load_states(C, C_strides, k, d, n, mask)
            of_w_re, of_w_im = 2.0 * sum_re.to(tl.float64), -2.0 * sum_im.to(tl.float64)
            re, im = multiply(of_w_re, of_w_im, in_re, -in_im, True)
            store_states(grad_C, k, channels, d, states, n, mask, re, im)
            re, im = multiply(of_w_re, of_w_im, C_re, -C_im, True)
            of_in_re += re
            of_in_im += im
            re, im = multiply(in_re, in_im, C_re, C_im, True)
            re, im = multiply(re, im, 2.0 * timed_re.to(tl.float64), 2.0 * timed_im.to(tl.float64), True)
            of_z_re += re
            of_z_im -= im
        re, im = multiply(of_in_re, of_in_im, hold_re, -hold_im, True)
        store_states(grad_B, 0, channels, d, states, n, mask, re, im)
        of_hold_re, of_hold_im = multiply(of_in_re, of_in_im, B_re, -B_im, True)
        re, im = zoh_derivative(step, A_re, A_im, inverse_re, inverse_im, p_re, p_im, hold_re, hold_im, True, 6)
        re, im = multiply(of_hold_re, of_hold_im, re, -im, True)
        store_states(grad_A, 0, channels, d, states, n, mask, re + step * of_z_re, im + step * of_z_im)
        of_step += of_z_re * A_re + of_z_im * A_im + of_hold_re * p_re + of_hold_im * p_im
    tl.store(grad_delta + d, tl.sum(of_step, 0))
