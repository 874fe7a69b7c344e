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
PI = tl.constexpr(math.pi)
ONE_TURN = tl.constexpr(1 / (2 * math.pi))
ONE_TURN_FLOAT = tl.constexpr(0.15915493667125702)  # and what a float32 leaves of it
ONE_TURN_REST = tl.constexpr(6.42063831673e-09)
ROUNDING = tl.constexpr(12582912.0)  # 1.5 2^23: a float32 sum with it is rounded to an integer
# The hardware's sine and cosine, for angles up to pi/2 here: errors up to 4e-7 by CUDA's guide, where ours are up to
# 1.5e-7. Off until they are measured on a device.
FAST_SINE = tl.constexpr(False)
# Taylor coefficients of (exp(z) - 1)/z; in z^2, of z exp(z)/(exp(z) - 1) - 1 - z/2: Bernoulli's numbers over (2k)!
PHI1 = tl.constexpr(tuple(1 / math.factorial(k + 1) for k in range(16)))
HOLD_SLOPE = tl.constexpr((1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000))
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
        low, high = tl.split(tl.reshape(x, (BLOCK_N, BLOCK_D >> (i + 1), 2)))
        x = low + high
    return tl.reshape(x, (BLOCK_N,))


@triton.jit
def sum_states(xs, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, HALVINGS: tl.constexpr, COMPLEX: tl.constexpr):
    """Four (BLOCK_N, BLOCK_D) -> (BLOCK_D, 4).  For complex A all at once, state bits moving from the lanes into a
    thread; for real A, where a program has twice the states, that would be registers too many."""
    if COMPLEX:
        x = tl.join(tl.join(xs[0], xs[2]), tl.join(xs[1], xs[3]))
        for i in tl.static_range(HALVINGS):
            x = tl.reshape(x, (2, BLOCK_N >> (i + 1), BLOCK_D * 4))
            low, high = tl.split(tl.permute(x, (1, 2, 0)))
            x = low + high
        return tl.reshape(x, (BLOCK_D, 4))
    else:
        return join4(tl.sum(xs[0], axis=0), tl.sum(xs[1], axis=0), tl.sum(xs[2], axis=0), tl.sum(xs[3], axis=0))


@triton.jit
def locate(batch, channels, unit, BLOCK_D: tl.constexpr, EVEN: tl.constexpr):
    """(batch item, block of channels, segment, its first channel, which of its channels exist) of this program.

    A block never crosses a multiple of `unit`, so that all its channels are in one group of B and one of C.
    """
    per_unit = tl.cdiv(unit, BLOCK_D)
    blocks = (channels // unit) * per_unit
    program = tl.program_id(0)
    block = program % blocks
    inside = (block % per_unit) * BLOCK_D
    d0 = (block // per_unit) * unit + inside
    exists = tl.full((BLOCK_D,), True, tl.int1) if EVEN else inside + tl.arange(0, BLOCK_D) < unit
    return (program // blocks) % batch, block, program // (blocks * batch), d0, exists


@triton.jit
def last_step(length, WHOLE: tl.constexpr):
    """The last step, for masks; none where the length is of whole groups of four, and masks would cost for nothing."""
    if WHOLE:
        return 2147483647
    else:
        return length - 1


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
def load_matrix(x, strides, b, group, t0, last, states, BLOCK_N: tl.constexpr, FORM: tl.constexpr, TYPE: tl.constexpr):
    """Four steps of a variable B or C (batch, G, N, L[, 2]) as four re (BLOCK_N,) and four im."""
    n, t = tl.arange(0, BLOCK_N)[:, None], tl.arange(0, 4)[None, :]
    base = x + tl.cast(b, tl.int64) * strides[0] + tl.cast(group, tl.int64) * strides[1]
    pointers = base + tl.cast(t0, tl.int64) * strides[3] + n * strides[2] + t * strides[3]
    mask = (n < states) & (t0 + t <= last)
    if FORM == COMPLEX_STEPS:
        pointers = pointers[:, :, None] + tl.arange(0, 2)[None, None, :] * strides[4]
        re, im = tl.split(tl.load(pointers, mask=mask[:, :, None], other=0.0).to(TYPE))
        return split4(re), split4(im)
    else:
        re = tl.load(pointers, mask=mask, other=0.0).to(TYPE)
        return split4(re), split4(tl.zeros_like(re))


@triton.jit
def matrix_pointers(x, strides, b, group, BLOCK_N: tl.constexpr, FORM: tl.constexpr):
    """Where the states of a variable B or C are at step 0: (BLOCK_N,), or (BLOCK_N, 2) for re and im."""
    pointers = x + tl.cast(b, tl.int64) * strides[0] + tl.cast(group, tl.int64) * strides[1]
    pointers += tl.arange(0, BLOCK_N) * strides[2]
    if FORM == COMPLEX_STEPS:
        return pointers[:, None] + tl.arange(0, 2)[None, :] * strides[4]
    else:
        return pointers


@triton.jit
def load_matrix_step(pointers, stride, t, last, states, BLOCK_N: tl.constexpr, FORM: tl.constexpr,
                     TYPE: tl.constexpr):  # fmt: skip
    """(re, im) of step t alone of what `load_matrix` reads, where it is needed: four are registers that backward lacks.
    Beyond the end it is the last step's, which meets zeros alone."""
    offset = tl.cast(tl.minimum(t, last), tl.int64) * stride
    mask = tl.arange(0, BLOCK_N) < states
    if FORM == COMPLEX_STEPS:
        return tl.split(tl.load(pointers + offset, mask=mask[:, None], other=0.0).to(TYPE))
    else:
        re = tl.load(pointers + offset, mask=mask, other=0.0).to(TYPE)
        return re, tl.zeros_like(re)


@triton.jit
def coefficient(re, im, tile_re, tile_im, FORM: tl.constexpr, BIAS: tl.constexpr):
    """B or C at a step: the constant tile, the step's vector (BLOCK_N,), or the vector plus the bias, a tile."""
    if FORM == CONSTANT:
        return tile_re, tile_im
    elif BIAS:
        return re[:, None] + tile_re, im[:, None] + tile_im
    else:
        return re[:, None], im[:, None]


@triton.jit
def input_coefficient(re, im, tile_re, tile_im, inverse_re, inverse_im, FORM: tl.constexpr, BIAS: tl.constexpr,
                      HOLD: tl.constexpr, COMPLEX: tl.constexpr):  # fmt: skip
    """`coefficient` of B; for HOLD over A, which the tile is already. 1/A (BLOCK_N, BLOCK_D or, of all channels, 1)."""
    if not HOLD or FORM == CONSTANT:
        return coefficient(re, im, tile_re, tile_im, FORM, BIAS)
    else:
        re, im = re[:, None], im[:, None]
        over_re, over_im = re * inverse_re, re * inverse_im
        if BIAS and inverse_re.shape[1] > 1:  # added first, it costs no more than the product
            over_re, over_im = tile_re + re * inverse_re, tile_im + re * inverse_im
        if FORM == COMPLEX_STEPS:
            over_re, over_im = over_re - im * inverse_im, over_im + im * inverse_re
        if BIAS and inverse_re.shape[1] == 1:
            over_re, over_im = tile_re + over_re, tile_im + over_im
        return over_re, over_im


@triton.jit
def load_resets(reset, strides, b, t0, last):
    """Four steps of the reset (batch, L, as bytes), each (1,)."""
    t = tl.arange(0, 4)
    base = reset + tl.cast(b, tl.int64) * strides[0] + tl.cast(t0, tl.int64) * strides[1]
    return split4(tl.load(base + t * strides[1], mask=t0 + t <= last, other=0)[None, :])


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
def load_A(A, own, n, mask, states, TIED: tl.constexpr, COMPLEX: tl.constexpr):
    """A (D, N) as a tile (BLOCK_N, BLOCK_D); (N,), of all channels, as (BLOCK_N, 1)."""
    if TIED:
        return load_pairs(A, n, n < states, COMPLEX)
    else:
        return load_pairs(A, own, mask, COMPLEX)


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
def fast_sine_cosine(x):
    return (
        tl.inline_asm_elementwise("sin.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1),
        tl.inline_asm_elementwise("cos.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1),
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
    """exp(x) - 1 in float64, by its series where that cancels."""
    near = tl.abs(x) < 0.5
    z = tl.where(near, x, 0.0)
    total = tl.zeros_like(x) + PHI1[15]
    for k in tl.static_range(14, -1, -1):
        total = total * z + PHI1[k]
    return tl.where(near, z * total, tl.exp(x) - 1.0)


@triton.jit
def frequencies(A_re, A_im, COMPLEX: tl.constexpr):
    """What exponentials of delta A need of A, made once for all steps: Re A log2(e), and Im A / 2 pi in two parts, a
    float32 and what it leaves."""
    if COMPLEX and A_re.dtype != tl.float64:
        turn = A_im * ONE_TURN
        return A_re * LOG2_E, turn, tl.fma(A_im, ONE_TURN_FLOAT, -turn) + A_im * ONE_TURN_REST
    else:
        return A_re * LOG2_E, A_im, A_im


@triton.jit
def half_turn(r):
    """(sin, cos) of pi r, r in [-1/2, 1/2]."""
    if r.dtype == tl.float64:
        return tl.sin(r * PI), tl.cos(r * PI)
    elif FAST_SINE:
        return fast_sine_cosine(r * PI)
    else:
        # minimax in r^2 with float32 coefficients: rounded after the fit they would let the sum of the squares be
        # 1 + 4e-8, and the state grow by that at every step
        z = r * r
        sine = (0.07963868975639343 * z - 0.5993456840515137) * z + 2.5502572059631348
        sine = (sine * z - 5.167720317840576) * z + 3.1415927410125732
        cosine = (-0.02396378107368946 * z + 0.23468375205993652) * z - 1.335161566734314
        cosine = ((cosine * z + 4.0587053298950195) * z - 4.934802055358887) * z + 1.0
        return sine * r, cosine


@triton.jit
def half_angle(delta, A_im, turn, turn_rest):
    """(sin, cos) of delta Im A / 2, or both with the other sign, to a rounding error: products of the two are wanted.

    In float32 the angle is taken in turns and what is whole of it is left out: a fused multiply-add does that without
    rounding the angle first.  So there is one range for all angles, and neither quadrants nor signs to choose.  (Up to
    millions of turns; the library's functions bring their code for huge arguments, which lives in local memory.)
    """
    if A_im.dtype == tl.float64:
        return tl.sin(delta * (0.5 * A_im)), tl.cos(delta * (0.5 * A_im))
    else:
        whole = tl.fma(delta, turn, ROUNDING) - ROUNDING
        return half_turn(tl.fma(delta, turn_rest, tl.fma(delta, turn, -whole)))


@triton.jit
def exponential(delta, A_re, A_im, rates, COMPLEX: tl.constexpr):
    """A_bar = exp(delta A), A (BLOCK_N, BLOCK_D) or, of all channels, (BLOCK_N, 1); rates from `frequencies`."""
    rate, turn, turn_rest = rates
    if COMPLEX:
        size = power_of_2(delta * rate)
        sine, cosine = half_angle(delta, A_im, turn, turn_rest)
        scaled = (2.0 * size) * sine
        return size - scaled * sine, scaled * cosine
    else:
        return power_of_2((delta * LOG2_E) * A_re), A_im  # delta is one number for all states of a channel


@triton.jit
def exp_minus_1(delta, A_re, A_im, rates, COMPLEX: tl.constexpr):
    """m = exp(delta A) - 1, rates from `frequencies`.

    Complex exp(a + ib) - 1 without cancellation: expm1(a) - 2 exp(a) sin(b/2)^2 + 2i exp(a) sin(b/2) cos(b/2).
    """
    rate, turn, turn_rest = rates
    if A_re.dtype == tl.float64:
        minus_1 = expm1(delta * A_re)
    else:
        whole = tl.fma(delta, rate, ROUNDING) - ROUNDING
        r = tl.fma(delta, rate, -whole)
        size = power_of_2(whole)
        p = (0.00015403495003095752 * r + 0.0013390735412070708) * r + 0.0096182375490820524  # of 2^r - 1, below 2e-8
        p = ((p * r + 0.055503574338003549) * r + 0.24022649794622444) * r + 0.69314718792664121
        minus_1 = size * (p * r) + (size - 1.0)
    if COMPLEX:
        sine, cosine = half_angle(delta, A_im, turn, turn_rest)
        scaled = (2.0 * minus_1 + 2.0) * sine
        return minus_1 - scaled * sine, scaled * cosine
    else:
        return minus_1, A_im


@triton.jit
def zero_order_hold(delta, A_re, A_im, inverse_re, inverse_im, COMPLEX: tl.constexpr):
    """(A_bar, B_bar) = (exp(delta A), A^-1 (exp(delta A) - 1)), A from `away_from_zero`."""
    m_re, m_im = exp_minus_1(delta, A_re, A_im, frequencies(A_re, A_im, COMPLEX), COMPLEX)
    B_bar_re, B_bar_im = multiply(m_re, m_im, inverse_re, inverse_im, COMPLEX)
    return m_re + 1.0, m_im, B_bar_re, B_bar_im


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
        A_re, A_im = exponential(delta, A_re, A_im, frequencies(A_re, A_im, COMPLEX), COMPLEX)
        return A_re, A_im, delta * B_re, delta * B_im, delta + 0.0 * A_re, 0.0 * A_im


@triton.jit
def near_limit(A_re, A_im, COMPLEX: tl.constexpr):
    """The |delta| below which delta A_bar - B_bar would cancel, and `hold_slope` holds: |delta A| is about 1/4."""
    if COMPLEX:
        return 0.25 / tl.maximum(tl.abs(A_re), tl.abs(A_im))
    else:
        return 0.25 / tl.abs(A_re)


@triton.jit
def hold_slope(delta, A_re, A_im, square_re, square_im, COMPLEX: tl.constexpr):
    """A (dB_bar/dA) / B_bar = z (1 + m)/m - 1 for small z = delta A, m = exp(z) - 1: z/2 + z^2/12 - z^4/720 + ..."""
    TERMS: tl.constexpr = 6 if A_re.dtype == tl.float64 else 2
    square_re, square_im = (delta * delta) * square_re, (delta * delta) * square_im
    re, im = square_re * HOLD_SLOPE[TERMS - 1] + HOLD_SLOPE[TERMS - 2], square_im * HOLD_SLOPE[TERMS - 1]
    for k in tl.static_range(TERMS - 3, -1, -1):
        re, im = multiply(re, im, square_re, square_im, COMPLEX)
        re += HOLD_SLOPE[k]
    half = 0.5 * delta
    if COMPLEX:
        return (half * A_re + re * square_re) - im * square_im, (half * A_im + re * square_im) + im * square_re
    else:
        return half * A_re + re * square_re, A_im


@triton.jit
def zoh_derivative(delta, A_re, A_im, inverse_re, inverse_im, A_bar_re, A_bar_im, B_bar_re, B_bar_im,
                   COMPLEX: tl.constexpr):  # fmt: skip
    """dB_bar/dA = (delta A_bar - B_bar)/A."""
    square_re, square_im = multiply(A_re, A_im, A_re, A_im, COMPLEX)
    re, im = hold_slope(delta, A_re, A_im, square_re, square_im, COMPLEX)
    re, im = multiply(re, im, B_bar_re, B_bar_im, COMPLEX)
    near = tl.abs(delta) < near_limit(A_re, A_im, COMPLEX)
    re = tl.where(near, re, delta * A_bar_re - B_bar_re)
    im = tl.where(near, im, delta * A_bar_im - B_bar_im)
    return multiply(re, im, inverse_re, inverse_im, COMPLEX)
