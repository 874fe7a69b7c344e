"""Discretization in Triton: e^(delta A), zero-order hold and their gradients, and the arithmetic they are made of.

Complex numbers are pairs of real ones; with real A the imaginary half is a stand-in that nothing depends on and the
compiler removes.  A (BLOCK_N, BLOCK_D), or of all channels (BLOCK_N, 1); delta (1, BLOCK_D), of one step.
"""

# The bodies are Triton's language, not Python's: its tensors and tuples have no types that mypy could check.
# mypy: ignore-errors

from __future__ import annotations

import math

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2_FLOAT = tl.constexpr(0.6931471824645996)  # and what a float32 leaves of it
LN_2_REST = tl.constexpr(-1.904654299957768e-09)
ONE_TURN = tl.constexpr(1 / (2 * math.pi))
MOST = tl.constexpr(1 - 2**-18)  # of a frequency, in the first of its two parts: see `frequencies`
ROUNDING = tl.constexpr(12582912.0)  # 1.5 2^23: a float32 sum with it is rounded to an integer
# Taylor coefficients in z^2 of z exp(z)/(exp(z) - 1) - 1 - z/2: Bernoulli's numbers over (2k)!
HOLD_SLOPE = tl.constexpr((1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000))
# and in s^2 of 2 artanh(s)/s: those of the smallest error up to 1/9, 8e-9
ARTANH = tl.constexpr((2.0, 0.6666631698608398, 0.40024852752685547, 0.2796141803264618, 0.2817465662956238))
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def multiply(a_re, a_im, b_re, b_im, COMPLEX: tl.constexpr):
    if COMPLEX:
        return a_re * b_re - a_im * b_im, a_re * b_im + a_im * b_re
    else:
        return a_re * b_re, a_im


@triton.jit
def power_of_2(x, MINUS: tl.constexpr = False):
    """2^x, or 2^-x, of a float32, by the hardware's instruction, whose results below 1e-38 are 0: tl.exp2 would give
    those too, for twice the instructions in what is the innermost arithmetic of the scan.  The interpreter knows no
    assembly."""
    if INTERPRETED:
        return tl.exp2(-x if MINUS else x)
    elif MINUS:
        return tl.inline_asm_elementwise(
            "neg.f32 $0, $1; ex2.approx.ftz.f32 $0, $0;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def divide(x, y):
    """Return x / y, to two rounding errors for y up to 2^126: without the code for greater ones."""
    if INTERPRETED:
        return x / y
    else:
        return tl.inline_asm_elementwise(
            "div.approx.ftz.f32 $0, $1, $2;", "=f,f,f", [x, y], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def softplus(x):
    """Return log(1 + exp(x)).  log1p(e) = 2 artanh(e/(2 + e)) keeps its digits where e = exp(-|x|) is small, unlike
    log(1 + e)."""
    # exp(-size) = 2^t: what rounding took from t is given back, or a step of 1e-3 would be off by several rounding
    # errors, which the state multiplies by its frequency at every step.
    size = tl.minimum(tl.abs(x), 128.0, propagate_nan=tl.PropagateNan.ALL)
    t = size * -LOG2_E
    e = power_of_2(t)
    e -= e * (tl.fma(t, LN_2_FLOAT, size) + t * LN_2_REST)
    s = divide(e, 2.0 + e)
    square = s * s
    total = tl.zeros_like(x) + ARTANH[4]
    for k in tl.static_range(3, -1, -1):
        total = total * square + ARTANH[k]
    return tl.maximum(x, 0.0) + s * total


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def frequencies(A_re, A_im, COMPLEX: tl.constexpr):
    """Return what exponentials of delta A need from A, once for all steps: Re A log2(e), and Im A / 2 pi in two parts.

    The second part is 2^-18 of the first, enough to show in a sum with it: so the remainder of a step's
    phase is rounded up and down at random.  What the nearest float32 leaves would mostly be lost, and the rounding of
    one frequency add up over the thousands of steps that a state remembers.
    """
    if COMPLEX:
        turns = A_im.to(tl.float64) * ONE_TURN
        turn = (turns * MOST).to(tl.float32)
        return (A_re.to(tl.float64) * LOG2_E).to(tl.float32), turn, (turns - turn.to(tl.float64)).to(tl.float32)
    else:
        return A_re * LOG2_E, A_im, A_im


@triton.jit
def largest_delta(rates):
    """By channel, (BLOCK_D or 1,), a |delta| up to which delta A is reduced rightly: 2^13 turns, 2^21 halvings.  A
    larger one counts as that, so that what is computed stays bounded."""
    rate, turn, _ = rates
    return 2097152.0 / (tl.max(tl.abs(rate) + 256.0 * tl.abs(turn), axis=0) + 1e-30)


@triton.jit
def half_turn(r):
    """Return (sin, cos) of pi r, r in [-1/2, 1/2].

    The hardware's sine and cosine (errors up to 4e-7) made ListOps' step with B2S6 no faster on an H200.
    """
    # Polynomials in r^2 with pi in two parts and float32 coefficients, which were chosen so that the errors of the
    # angle and of the sum of squares cancel in the mean over [0, r], for every r: what is left of them adds up over
    # the steps that a state remembers
    z = r * r
    sine = (0.0779813751578331 * z - 0.598444938659668) * z + 2.550100564956665
    sine = (sine * z - 5.16771125793457) * z - 8.742278000372485e-08
    cosine = (-0.02396378107368946 * z + 0.23468375205993652) * z - 1.335161566734314
    cosine = ((cosine * z + 4.0587053298950195) * z - 4.934802055358887) * z + 1.0
    return tl.fma(r, 3.1415927410125732, sine * r), cosine


@triton.jit
def half_angle(delta, turn, turn_rest):
    """(sin, cos) of delta Im A / 2, or both with the other sign, to a rounding error: products of the two are wanted.

    The angle is taken in turns and what is whole of it is left out: a fused multiply-add does that without rounding
    the angle first.  So there is one range for all angles, and neither quadrants nor signs to choose.  (Up to
    `largest_delta`; the library's functions bring their code for huge arguments, which lives in local memory.)
    """
    minus_whole = ROUNDING - tl.fma(delta, turn, ROUNDING)
    return half_turn(tl.fma(delta, turn_rest, tl.fma(delta, turn, minus_whole)))


@triton.jit
def exponential(delta, A_re, A_im, rates, COMPLEX: tl.constexpr):
    """A_bar = exp(delta A), A (BLOCK_N, BLOCK_D) or, of all channels, (BLOCK_N, 1); rates from `frequencies`."""
    rate, turn, turn_rest = rates
    if COMPLEX:
        size = power_of_2(delta * rate)
        sine, cosine = half_angle(delta, turn, turn_rest)
        scaled = size * (2.0 * sine)
        return size - scaled * sine, scaled * cosine
    else:
        return power_of_2((delta * LOG2_E) * A_re), A_im  # delta is one number for all states of a channel


@triton.jit
def complex_exp_minus_1(minus_1, sine, cosine):
    """exp(a + ib) - 1 without cancellation from exp(a) - 1 and sin and cos of b/2:
    exp(a) - 1 - 2 exp(a) sin(b/2)^2 + 2i exp(a) sin(b/2) cos(b/2)."""
    twice = 2.0 * sine
    scaled = twice + minus_1 * twice
    return minus_1 - scaled * sine, scaled * cosine


@triton.jit
def exp_minus_1(delta, A_im, rates, COMPLEX: tl.constexpr):
    """Return m = exp(delta A) - 1, rates from `frequencies`."""
    rate, turn, turn_rest = rates
    minus_whole = ROUNDING - tl.fma(delta, rate, ROUNDING)
    r = tl.fma(delta, rate, minus_whole)
    size = power_of_2(minus_whole, MINUS=True)
    p = (0.00015403495003095752 * r + 0.0013390735412070708) * r + 0.0096182375490820524  # of 2^r - 1, below 2e-8
    p = ((p * r + 0.055503574338003549) * r + 0.24022649794622444) * r + 0.69314718792664121
    minus_1 = size * (p * r) + (size - 1.0)
    if COMPLEX:
        sine, cosine = half_angle(delta, turn, turn_rest)
        return complex_exp_minus_1(minus_1, sine, cosine)
    else:
        return minus_1, A_im


@triton.jit
def zero_order_hold(delta, A_re, A_im, inverse_re, inverse_im, COMPLEX: tl.constexpr):
    """Return (A_bar, B_bar) = (exp(delta A), A^-1 (exp(delta A) - 1)), A from `away_from_zero`."""
    m_re, m_im = exp_minus_1(delta, A_im, frequencies(A_re, A_im, COMPLEX), COMPLEX)
    B_bar_re, B_bar_im = multiply(m_re, m_im, inverse_re, inverse_im, COMPLEX)
    return m_re + 1.0, m_im, B_bar_re, B_bar_im


@triton.jit
def away_from_zero(A_re, A_im, COMPLEX: tl.constexpr):
    """(A, 1/A) with |A| < tiny replaced by tiny: A_bar and B_bar move by less than a rounding error."""
    TINY: tl.constexpr = 1e-15  # its square must not underflow
    if COMPLEX:
        zero = tl.maximum(tl.abs(A_re), tl.abs(A_im)) < TINY
        A_re, A_im = tl.where(zero, TINY, A_re), tl.where(zero, 0.0, A_im)
        re, im = A_re.to(tl.float64), A_im.to(tl.float64)  # rounded once: all steps share this error
        square = re * re + im * im
        return A_re, A_im, (re / square).to(A_re.dtype), (-im / square).to(A_re.dtype)
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
def hold_slope(delta, A_re, A_im, square_re, square_im, COMPLEX: tl.constexpr, TERMS: tl.constexpr = 2):
    """A (dB_bar/dA) / B_bar = z (1 + m)/m - 1 for small z = delta A, m = exp(z) - 1: z/2 + z^2/12 - z^4/720 + ...; two
    terms are right to 4e-7 with both parts of z at 1/4, six to a float64's digits."""
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
                   COMPLEX: tl.constexpr, TERMS: tl.constexpr = 2):  # fmt: skip
    """Return dB_bar/dA = (delta A_bar - B_bar)/A."""
    square_re, square_im = multiply(A_re, A_im, A_re, A_im, COMPLEX)
    re, im = hold_slope(delta, A_re, A_im, square_re, square_im, COMPLEX, TERMS)
    re, im = multiply(re, im, B_bar_re, B_bar_im, COMPLEX)
    near = tl.abs(delta) < near_limit(A_re, A_im, COMPLEX)
    re = tl.where(near, re, delta * A_bar_re - B_bar_re)
    im = tl.where(near, im, delta * A_bar_im - B_bar_im)
    return multiply(re, im, inverse_re, inverse_im, COMPLEX)


@triton.jit
def undiscretized(delta, A_re, A_im, B_re, B_im, of_A_re, of_A_im, of_B_re, of_B_im, COMPLEX: tl.constexpr,
                  ZOH: tl.constexpr):  # fmt: skip
    """Return the gradients of A, B (conjugated, as all) and delta (BLOCK_D,) from those of A_bar and of B_bar B."""
    A_bar_re, A_bar_im, _, _, hold_re, hold_im = discretized(delta, A_re, A_im, B_re, B_im, COMPLEX, ZOH)
    of_hold_re, of_hold_im = multiply(of_B_re, of_B_im, B_re, B_im, COMPLEX)
    of_B_re, of_B_im = multiply(of_B_re, of_B_im, hold_re, hold_im, COMPLEX)
    of_z_re, of_z_im = multiply(of_A_re, of_A_im, A_bar_re, A_bar_im, COMPLEX)
    of_delta, _ = multiply(of_z_re, of_z_im, A_re, A_im, COMPLEX)
    of_A_re, of_A_im = delta * of_z_re, delta * of_z_im
    if ZOH:
        A_re, A_im, inverse_re, inverse_im = away_from_zero(A_re, A_im, COMPLEX)
        slope_re, slope_im = zoh_derivative(delta, A_re, A_im, inverse_re, inverse_im, A_bar_re, A_bar_im, hold_re,
                                            hold_im, COMPLEX)  # fmt: skip
        slope_re, slope_im = multiply(of_hold_re, of_hold_im, slope_re, slope_im, COMPLEX)
        of_A_re, of_A_im = of_A_re + slope_re, of_A_im + slope_im
        of_hold_re, _ = multiply(of_hold_re, of_hold_im, A_bar_re, A_bar_im, COMPLEX)
    return of_A_re, of_A_im, of_B_re, of_B_im, tl.sum(of_delta + of_hold_re, axis=0)
