"""What the Triton scan's kernels are made of: where a program works, tiles of four steps, arithmetic on real pairs.

Shapes in a program: channel tiles (BLOCK_D, 4), four steps of u or the like; state tiles (BLOCK_N, BLOCK_D), channels
last, so that lanes lie along channels and the sum over states stays within a thread, or nearly so; steps (BLOCK_D,) or
(BLOCK_N,).  Padded states and channels hold zeros, and so does delta at padded steps: they leave every sum and the
state as they are.  (D channels, N states, W = 2 for complex A, else 1.)

Time goes in fours because four float32 steps are the 16 bytes that a thread reads at once.  A complex tensor is a pair
of real ones; with real A the imaginary half is a stand-in that nothing depends on and the compiler removes.
"""

# The bodies are Triton's language, not Python's: its tensors and tuples have no types that mypy could check.
# mypy: ignore-errors

from __future__ import annotations

import math

import triton
import triton.language as tl

CONSTANT = tl.constexpr(0)  # forms of B and C: (D, N); real per step; complex per step
REAL_STEPS = tl.constexpr(1)
COMPLEX_STEPS = tl.constexpr(2)
LOG2_E = tl.constexpr(1.4426950408889634)
LOG2_E_FLOAT = tl.constexpr(1.4426950216293335)  # and what a float32 leaves of it
LOG2_E_REST = tl.constexpr(1.9259629911e-08)
LN_2 = tl.constexpr(0.6931471805599453)
# Taylor coefficients of (exp(z) - 1)/z and of its derivative
PHI1 = tl.constexpr(tuple(1 / math.factorial(k + 1) for k in range(16)))
PHI1_SLOPE = tl.constexpr(tuple((k + 1) / math.factorial(k + 2) for k in range(14)))
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def split4(x):
    """(M, 4) -> four (M,)."""
    even, odd = tl.split(tl.reshape(x, (x.shape[0], 2, 2)))
    x0, x2 = tl.split(even)
    x1, x3 = tl.split(odd)
    return x0, x1, x2, x3


@triton.jit
def join4(x0, x1, x2, x3):
    """Four (M,) -> (M, 4)."""
    return tl.reshape(tl.join(tl.join(x0, x2), tl.join(x1, x3)), (x0.shape[0], 4))


@triton.jit
def sum_channels(x, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, HALVINGS: tl.constexpr):
    """(BLOCK_N, BLOCK_D) -> (BLOCK_N,), by adding one half of the channels to the other.

    Each halving moves a channel bit from the lanes into a thread and a state bit back, so that BLOCK_D - 1 exchanges
    do what a butterfly per state does in log2(BLOCK_D) times as many.
    """
    for i in tl.static_range(HALVINGS):
        low, high = tl.split(tl.permute(tl.reshape(x, (BLOCK_N, 2, BLOCK_D >> (i + 1))), (0, 2, 1)))
        x = low + high
    return tl.reshape(x, (BLOCK_N,))


@triton.jit
def locate(batch, channels, unit, BLOCK_D: tl.constexpr):
    """(batch item, block of channels, segment, its first channel, which of its channels exist) of this program.

    A block never crosses a multiple of `unit`, so that all its channels are in one group of B and one of C.
    """
    per_unit = tl.cdiv(unit, BLOCK_D)
    blocks = (channels // unit) * per_unit
    program = tl.program_id(0)
    block = program % blocks
    inside = (block % per_unit) * BLOCK_D
    d0 = (block // per_unit) * unit + inside
    return (program // blocks) % batch, block, program // (blocks * batch), d0, inside + tl.arange(0, BLOCK_D) < unit


@triton.jit
def channel_pointers(x, strides, b, d0, t0, BLOCK_D: tl.constexpr):
    """Pointers (BLOCK_D, 4) into x (batch, D, L); 64 bits where an offset may need them."""
    base = x + tl.cast(b, tl.int64) * strides[0] + tl.cast(d0, tl.int64) * strides[1]
    base += tl.cast(t0, tl.int64) * strides[2]
    return base + tl.arange(0, BLOCK_D)[:, None] * strides[1] + tl.arange(0, 4)[None, :] * strides[2]


@triton.jit
def load_channels(x, strides, b, d0, t0, mask, BLOCK_D: tl.constexpr, TYPE: tl.constexpr):
    """Four steps of x (batch, D, L) in the arithmetic's dtype, (BLOCK_D, 4).

    bfloat16 and float16 are widened by assembly: above a conversion that it knows, the compiler moves the spreading of
    a tile over all lanes, and every lane then computes every softplus, which doubles the instructions of a step.
    """
    x = tl.load(channel_pointers(x, strides, b, d0, t0, BLOCK_D), mask=mask, other=0.0)
    if x.dtype == TYPE or TYPE == tl.float64 or INTERPRETED:
        return x.to(TYPE)
    elif x.dtype == tl.bfloat16:
        return tl.inline_asm_elementwise("cvt.f32.bf16 $0, $1;", "=f,h", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        return tl.inline_asm_elementwise("cvt.f32.f16 $0, $1;", "=f,h", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def load_matrix(
    x, strides, b, group, t0, length, states, BLOCK_N: tl.constexpr, FORM: tl.constexpr, TYPE: tl.constexpr
):
    """Four steps of a variable B or C (batch, G, N, L[, 2]) as four re (BLOCK_N,) and four im."""
    n, t = tl.arange(0, BLOCK_N)[:, None], tl.arange(0, 4)[None, :]
    base = x + tl.cast(b, tl.int64) * strides[0] + tl.cast(group, tl.int64) * strides[1]
    pointers = base + tl.cast(t0, tl.int64) * strides[3] + n * strides[2] + t * strides[3]
    mask = (n < states) & (t0 + t < length)
    if FORM == COMPLEX_STEPS:
        pointers = pointers[:, :, None] + tl.arange(0, 2)[None, None, :] * strides[4]
        re, im = tl.split(tl.load(pointers, mask=mask[:, :, None], other=0.0).to(TYPE))
        return split4(re), split4(im)
    else:
        re = tl.load(pointers, mask=mask, other=0.0).to(TYPE)
        return split4(re), split4(tl.zeros_like(re))


@triton.jit
def load_matrix_step(x, strides, b, group, t, length, states, tile_re, tile_im, BLOCK_N: tl.constexpr,
                     FORM: tl.constexpr, BIAS: tl.constexpr, TYPE: tl.constexpr):  # fmt: skip
    """`coefficient` for step t alone, read where it is needed: four steps of it are registers that backward lacks."""
    if FORM == CONSTANT:
        return tile_re, tile_im
    else:
        n = tl.arange(0, BLOCK_N)
        base = x + tl.cast(b, tl.int64) * strides[0] + tl.cast(group, tl.int64) * strides[1]
        pointers = base + tl.cast(t, tl.int64) * strides[3] + n * strides[2]
        mask = (n < states) & (t + n * 0 < length)
        if FORM == COMPLEX_STEPS:
            pointers = pointers[:, None] + tl.arange(0, 2)[None, :] * strides[4]
            re, im = tl.split(tl.load(pointers, mask=mask[:, None], other=0.0).to(TYPE))
        else:
            re = tl.load(pointers, mask=mask, other=0.0).to(TYPE)
            im = tl.zeros_like(re)
        if BIAS:
            return re[:, None] + tile_re, im[:, None] + tile_im
        else:
            return re[:, None], im[:, None]


@triton.jit
def coefficient(steps_re, steps_im, tile_re, tile_im, i: tl.constexpr, FORM: tl.constexpr, BIAS: tl.constexpr):
    """B or C at step i: the constant tile, the step's vector, or vector plus bias."""
    if FORM == CONSTANT:
        return tile_re, tile_im
    elif BIAS:
        return steps_re[i][:, None] + tile_re, steps_im[i][:, None] + tile_im
    else:
        return steps_re[i][:, None], steps_im[i][:, None]


@triton.jit
def load_resets(reset, strides, b, t0, length):
    """Four steps of the reset (batch, L, as bytes), each (1,)."""
    t = tl.arange(0, 4)
    base = reset + tl.cast(b, tl.int64) * strides[0] + tl.cast(t0, tl.int64) * strides[1]
    return split4(tl.load(base + t * strides[1], mask=t0 + t < length, other=0)[None, :])


@triton.jit
def drop(re, im, reset, COMPLEX: tl.constexpr):
    """Zero where reset (1,) is set.  Selected, not multiplied: inf and nan are dropped too."""
    gone = (reset != 0)[:, None]
    if COMPLEX:
        im = tl.where(gone, 0.0, im)
    return tl.where(gone, 0.0, re), im


@triton.jit
def load_pairs(x, index, mask, COMPLEX: tl.constexpr):
    """(re, im) at index of a contiguous tensor (..., W)."""
    if COMPLEX:
        return tl.load(x + 2 * index, mask=mask, other=0.0), tl.load(x + 2 * index + 1, mask=mask, other=0.0)
    else:
        re = tl.load(x + index, mask=mask, other=0.0)
        return re, re


@triton.jit
def store_pairs(x, index, mask, re, im, COMPLEX: tl.constexpr):
    if COMPLEX:
        tl.store(x + 2 * index, re, mask=mask)
        tl.store(x + 2 * index + 1, im, mask=mask)
    else:
        tl.store(x + index, re, mask=mask)


@triton.jit
def load_planes(x, tile, plane, mask, COMPLEX: tl.constexpr):
    """(re, im) from two planes, `plane` elements apart, of a tensor (..., W, N, D), where channels are contiguous."""
    re = tl.load(x + tile, mask=mask, other=0.0)
    if COMPLEX:
        return re, tl.load(x + plane + tile, mask=mask, other=0.0)
    else:
        return re, re


@triton.jit
def store_planes(x, tile, plane, mask, re, im, COMPLEX: tl.constexpr):
    tl.store(x + tile, re, mask=mask)
    if COMPLEX:
        tl.store(x + plane + tile, im, mask=mask)


@triton.jit
def multiply(a_re, a_im, b_re, b_im, COMPLEX: tl.constexpr):
    if COMPLEX:
        return a_re * b_re - a_im * b_im, a_re * b_im + a_im * b_re
    else:
        return a_re * b_re, a_im


@triton.jit
def power_of_2(x):
    """2^x.  In float32 the hardware's instruction, whose results below 1e-38 are 0: tl.exp2 would give those too, for
    twice the instructions in what is the innermost arithmetic of the scan.  The interpreter knows no assembly.
    """
    if x.dtype == tl.float64 or INTERPRETED:
        return tl.exp2(x)
    else:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def softplus(x):
    """log(1 + exp(x)), linear above 20.  log1p(e) = 2 artanh(e/(2 + e)) keeps its digits where e = exp(-|x|) is small,
    unlike log(1 + e); the series converges by 1/9 per term."""
    TERMS: tl.constexpr = 17 if x.dtype == tl.float64 else 8
    below = -tl.abs(x)
    e = tl.exp(below)
    if x.dtype != tl.float64:
        # exp(x) = 2^t with t = x log2(e): what rounding took from t is given back, or a step of 1e-3 would be off by
        # several rounding errors, which the state multiplies by its frequency at every step.
        t = below * LOG2_E
        rest = tl.fma(below, LOG2_E_FLOAT, -t) + below * LOG2_E_REST
        e = power_of_2(t)
        e += e * (rest * LN_2)
    s = e / (2.0 + e)
    square = s * s
    total = tl.zeros_like(x) + 1.0 / (2 * TERMS - 1)
    for k in tl.static_range(TERMS - 2, -1, -1):
        total = total * square + 1.0 / (2 * k + 1)
    return tl.where(x > 20.0, x, tl.maximum(x, 0.0) + 2.0 * s * total)


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def expm1(x):
    """exp(x) - 1, by its series where that cancels."""
    TERMS: tl.constexpr = 16 if x.dtype == tl.float64 else 9
    near = tl.abs(x) < 0.5
    z = tl.where(near, x, 0.0)
    total = tl.zeros_like(x) + PHI1[TERMS - 1]
    for k in tl.static_range(TERMS - 2, -1, -1):
        total = total * z + PHI1[k]
    return tl.where(near, z * total, power_of_2(x * LOG2_E) - 1.0)


@triton.jit
def sine_cosine(x):
    """(sin x, cos x).  In float32 both from one reduction by multiples of pi/2, to a rounding error or two up to
    thousands of radians: the library's functions would do it twice, and bring their code for huge arguments, which
    lives in local memory, once for each state and step.  Beyond millions of radians the result is bounded, no more.
    """
    if x.dtype == tl.float64:
        return tl.sin(x), tl.cos(x)
    else:
        shifted = x * 0.6366197723675814 + 12582912.0  # 1.5 2^23: the sum is rounded to an integer, in the low bits
        quadrant = shifted.to(tl.int32, bitcast=True)
        k = shifted - 12582912.0
        # pi/2 in three pieces, the first two short, so that k times them is exact without fused multiply-add too
        r = tl.fma(k, -1.5703125, x)
        r = tl.fma(k, -0.0004837512969970703, r)
        r = tl.fma(k, -7.549789954891882e-08, r)
        r = tl.minimum(tl.maximum(r, -0.79), 0.79)
        z = r * r  # polynomials by interpolation at Chebyshev points of z on [0, (pi/4)^2], errors below 2e-8
        sine = ((-0.00019587248971220106 * z + 0.008332745172083378) * z - 0.166666641831398) * z * r + r
        cosine = (2.4547298380639404e-05 * z - 0.0013888300163671374) * z + 0.0416666641831398
        cosine = cosine * (z * z) + (1.0 - 0.5 * z)
        swap = (quadrant & 1) != 0
        s, c = tl.where(swap, cosine, sine), tl.where(swap, sine, cosine)
        return tl.where((quadrant & 2) != 0, -s, s), tl.where(((quadrant + 1) & 2) != 0, -c, c)


@triton.jit
def exponential(delta, A_re, A_im, COMPLEX: tl.constexpr):
    """A_bar = exp(delta A)."""
    size = power_of_2((delta * LOG2_E) * A_re)  # delta is one number for all states of a channel
    if COMPLEX:
        sine, cosine = sine_cosine(delta * A_im)
        return size * cosine, size * sine
    else:
        return size, A_im


@triton.jit
def zero_order_hold(delta, A_re, A_im, inverse_re, inverse_im, COMPLEX: tl.constexpr):
    """(A_bar, B_bar) = (exp(delta A), A^-1 (exp(delta A) - 1)), A from `away_from_zero`.

    Complex exp(a + ib) - 1 without cancellation: expm1(a) - 2 exp(a) sin(b/2)^2 + 2i exp(a) sin(b/2) cos(b/2).
    """
    minus_1 = expm1(delta * A_re)
    if COMPLEX:
        sine, cosine = sine_cosine(delta * (0.5 * A_im))
        scaled = 2.0 * (minus_1 + 1.0) * sine
        re, im = minus_1 - scaled * sine, scaled * cosine
        B_bar_re, B_bar_im = multiply(re, im, inverse_re, inverse_im, COMPLEX)
        return re + 1.0, im, B_bar_re, B_bar_im
    else:
        return minus_1 + 1.0, A_im, minus_1 * inverse_re, A_im


@triton.jit
def away_from_zero(A_re, A_im, COMPLEX: tl.constexpr):
    """(A, 1/A) with |A| < tiny replaced by tiny: A_bar and B_bar move by less than a rounding error."""
    TINY: tl.constexpr = 1e-100 if A_re.dtype == tl.float64 else 1e-15  # its square must not underflow
    if COMPLEX:
        zero = tl.maximum(tl.abs(A_re), tl.abs(A_im)) < TINY
        A_re, A_im = tl.where(zero, TINY, A_re), tl.where(zero, 0.0, A_im)
        square = A_re * A_re + A_im * A_im
        return A_re, A_im, A_re / square, -A_im / square
    else:
        A_re = tl.where(tl.abs(A_re) < TINY, TINY, A_re)
        return A_re, A_im, 1.0 / A_re, A_im


@triton.jit
def discretized(delta, A_re, A_im, B_re, B_im, COMPLEX: tl.constexpr, ZOH: tl.constexpr):
    """(A_bar, B_bar B, B_bar), once for all steps; B_bar is real, and its imaginary half a stand-in, for euler."""
    if ZOH:
        A_re, A_im, inverse_re, inverse_im = away_from_zero(A_re, A_im, COMPLEX)
        A_re, A_im, hold_re, hold_im = zero_order_hold(delta, A_re, A_im, inverse_re, inverse_im, COMPLEX)
        B_re, B_im = multiply(hold_re, hold_im, B_re, B_im, COMPLEX)
        return A_re, A_im, B_re, B_im, hold_re, hold_im
    else:
        A_re, A_im = exponential(delta, A_re, A_im, COMPLEX)
        return A_re, A_im, delta * B_re, delta * B_im, delta + 0.0 * A_re, 0.0 * A_im


@triton.jit
def zoh_derivative(delta, A_re, A_im, inverse_re, inverse_im, A_bar_re, A_bar_im, B_bar_re, B_bar_im,
                   COMPLEX: tl.constexpr):  # fmt: skip
    """dB_bar/dA = (delta A_bar - B_bar)/A; where that cancels, delta^2 phi1'(delta A) by its series."""
    TERMS: tl.constexpr = 14 if delta.dtype == tl.float64 else 7
    z_re, z_im = delta * A_re, delta * A_im
    if COMPLEX:
        near = tl.maximum(tl.abs(z_re), tl.abs(z_im)) < 0.25
    else:
        near = tl.abs(z_re) < 0.25
    z_re, z_im = tl.where(near, z_re, 0.0), tl.where(near, z_im, 0.0)
    re, im = tl.zeros_like(z_re) + PHI1_SLOPE[TERMS - 1], tl.zeros_like(z_im)
    for k in tl.static_range(TERMS - 2, -1, -1):
        re, im = multiply(re, im, z_re, z_im, COMPLEX)
        re += PHI1_SLOPE[k]
    square = delta * delta
    far_re, far_im = multiply(delta * A_bar_re - B_bar_re, delta * A_bar_im - B_bar_im, inverse_re, inverse_im, COMPLEX)
    return tl.where(near, square * re, far_re), tl.where(near, square * im, far_im)
