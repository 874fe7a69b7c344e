"""The kernels of the depthwise convolution; see `triton_depthwise.py`, which calls them.

Shapes: u, y (batch, D, L); weight (D, W); bias (D,); initial (batch, D, W-1); reset (batch, L). Times before 0 are
initial's: its last entry is time -1.

A program takes BLOCK_D channels of a segment of the length and walks through it, with the W-1 inputs before a step in
registers, the latest first: those of an earlier document are zeros there. Vectors are (BLOCK_D,), times (1,).
"""

from __future__ import annotations

# The bodies are Triton's language, not Python's: its tensors and tuples have no types that mypy could check.
# mypy: ignore-errors
import triton
import triton.language as tl

from lra_ssm.ops.backends.triton_discretization import LN_2_FLOAT, LN_2_REST, LOG2_E, power_of_2


@triton.jit
def sigmoid(x):
    """1 / (1 + e^-x), to a rounding or two: what rounding takes from the exponent is given back."""
    if x.dtype == tl.float64:
        return 1.0 / (1.0 + tl.exp(-x))
    else:
        x = tl.maximum(x, -80.0, propagate_nan=tl.PropagateNan.ALL)
        t = x * -LOG2_E
        e = power_of_2(t)
        e -= e * (tl.fma(t, LN_2_FLOAT, x) + t * LN_2_REST)
        return tl.div_rn(1.0, 1.0 + e)


@triton.jit
def input_at(u, u_strides, initial, initial_strides, b, d, s, channel_mask, length, W: tl.constexpr,
             TYPE: tl.constexpr):  # fmt: skip
    """Return the input at time s, zero outside the sequence."""
    at = b * u_strides[0] + d * u_strides[1] + tl.cast(s, tl.int64) * u_strides[2]
    x = tl.load(u + at, mask=channel_mask & (s >= 0) & (s < length), other=0.0).to(TYPE)
    if initial is not None:
        at = b * initial_strides[0] + d * initial_strides[1] + (s + W - 1) * initial_strides[2]
        x += tl.load(initial + at, mask=channel_mask & (s < 0) & (s > -W), other=0.0).to(TYPE)
    return x


@triton.jit
def starts_at(reset, strides, b, s, length):
    """Return whether a document starts at time s."""
    return (
        tl.load(reset + b * strides[0] + tl.cast(s, tl.int64) * strides[1], mask=(s >= 0) & (s < length), other=0) != 0
    )


@triton.jit
def inputs_before(u, u_strides, initial, initial_strides, reset, reset_strides, b, d, s, channel_mask, length,
                  W: tl.constexpr, TYPE: tl.constexpr):  # fmt: skip
    """Return the inputs at s-1, ..., s-(W-1), zeros before the start of the document."""
    crossed = s < s
    before = ()
    for j in tl.static_range(1, W):
        x = input_at(u, u_strides, initial, initial_strides, b, d, s - j, channel_mask, length, W, TYPE)
        if reset is not None:
            x = tl.where(crossed, 0.0, x)
            crossed = crossed | starts_at(reset, reset_strides, b, s - j, length)
        before = before + (x,)
    return before


@triton.jit
def load_taps(weight, bias, d, channel_mask, W: tl.constexpr, TYPE: tl.constexpr):
    """Return the weights of the inputs at s, s-1, ..., and the bias."""
    taps = ()
    for j in tl.static_range(W):
        taps = taps + (tl.load(weight + d * W + W - 1 - j, mask=channel_mask, other=0.0).to(TYPE),)
    offset = tl.zeros(d.shape, TYPE)
    if bias is not None:
        offset = tl.load(bias + d, mask=channel_mask, other=0.0).to(TYPE)
    return taps, offset


@triton.jit
def drop_earlier_document(before, crossed, W: tl.constexpr):
    """Return the inputs before a step, zeros if a document starts with it."""
    inputs = ()
    for j in tl.static_range(W - 1):
        inputs = inputs + (tl.where(crossed, 0.0, before[j]),)
    return inputs


@triton.jit
def shift_in(x, before, W: tl.constexpr):
    """Return x followed by the inputs before it, without the last."""
    inputs = ()
    for j in tl.static_range(W - 1):
        if j == 0:
            inputs = inputs + (x,)
        else:
            inputs = inputs + (before[j - 1],)
    return inputs


@triton.jit
def convolved(x, before, taps, offset, W: tl.constexpr):
    total = offset + taps[0] * x
    for j in tl.static_range(1, W):
        total += taps[j] * before[j - 1]
    return total


@triton.jit
def place(channels, segments, SEGMENT: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return the batch item, segment, first step and channels of this program."""
    program, blocks = tl.program_id(0), tl.cdiv(channels, BLOCK_D)
    b, rest = tl.cast(program // (blocks * segments), tl.int64), program % (blocks * segments)
    d = rest % blocks * BLOCK_D + tl.arange(0, BLOCK_D)
    return b, rest // blocks, rest // blocks * SEGMENT, d, d < channels


@triton.jit(do_not_specialize=["segments"])
def convolution_kernel(
    u, weight, bias, initial, reset, y, u_strides, initial_strides, reset_strides, y_strides, length, channels,
    segments, SEGMENT: tl.constexpr, BLOCK_D: tl.constexpr, W: tl.constexpr, SILU: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    b, segment, begin, d, channel_mask = place(channels, segments, SEGMENT, BLOCK_D)
    taps, offset = load_taps(weight, bias, d, channel_mask, W, TYPE)
    before = inputs_before(u, u_strides, initial, initial_strides, reset, reset_strides, b, d,
                           begin + tl.arange(0, 1), channel_mask, length, W, TYPE)  # fmt: skip
    end = tl.minimum(begin + SEGMENT, length)
    for t0 in range(begin, end, 4):
        for i in tl.static_range(4):
            t = t0 + i + tl.arange(0, 1)
            x = input_at(u, u_strides, initial, initial_strides, b, d, t, channel_mask, length, W, TYPE)
            if reset is not None:
                before = drop_earlier_document(before, starts_at(reset, reset_strides, b, t, length), W)
            total = convolved(x, before, taps, offset, W)
            before = shift_in(x, before, W)
            if SILU:
                total *= sigmoid(total)
            at = b * y_strides[0] + d * y_strides[1] + tl.cast(t, tl.int64) * y_strides[2]
            tl.store(y + at, total, mask=channel_mask & (t < end))


@triton.jit(do_not_specialize=["segments"])
def convolution_gradient_kernel(
    u, weight, bias, initial, reset, grad_y, grad_u, grad_taps, grad_initial, u_strides, initial_strides, reset_strides,
    grad_y_strides, grad_u_strides, length, channels, segments, SEGMENT: tl.constexpr, BLOCK_D: tl.constexpr,
    TAPS: tl.constexpr, W: tl.constexpr, SILU: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """grad_u; this segment's part of the gradients of the taps, followed by the bias's (batch, segments, D, TAPS);
    and in the first segment grad_initial (batch, D, W-1).

    An input has its gradient W-1 steps later, so that a program walks as far beyond its segment; till then the sums of
    the last W-1 inputs are in registers, and whether a document has started since, as 0 or 1.
    """
    b, segment, begin, d, channel_mask = place(channels, segments, SEGMENT, BLOCK_D)
    taps, offset = load_taps(weight, bias, d, channel_mask, W, TYPE)
    before = inputs_before(u, u_strides, initial, initial_strides, reset, reset_strides, b, d,
                           begin + tl.arange(0, 1), channel_mask, length, W, TYPE)  # fmt: skip
    zero = tl.zeros((BLOCK_D,), TYPE)
    waiting, since, of_taps, of_bias = (), (), (), zero
    for j in tl.static_range(W):
        of_taps = of_taps + (zero,)
        if j > 0:
            waiting, since = waiting + (zero,), since + (tl.zeros((1,), tl.int32),)
    end = tl.minimum(begin + SEGMENT, length)
    for t0 in range(begin, end + W - 1, 4):
        for i in tl.static_range(4):
            t = t0 + i + tl.arange(0, 1)
            x = input_at(u, u_strides, initial, initial_strides, b, d, t, channel_mask, length, W, TYPE)
            if reset is not None:
                starts = starts_at(reset, reset_strides, b, t, length)
                before = drop_earlier_document(before, starts, W)
                flags = ()
                for j in tl.static_range(W - 1):
                    flags = flags + (since[j] | starts.to(tl.int32),)
                since = flags
            mask = channel_mask & (t < length)
            at = b * grad_y_strides[0] + d * grad_y_strides[1] + tl.cast(t, tl.int64) * grad_y_strides[2]
            grad = tl.load(grad_y + at, mask=mask, other=0.0).to(TYPE)
            if SILU:
                total = convolved(x, before, taps, offset, W)
                gate = sigmoid(total)
                grad = tl.where(mask, grad * gate * (1.0 + total * (1.0 - gate)), 0.0)
            segment_grad = tl.where(t < end, grad, 0.0)
            of_bias += segment_grad
            sums = (of_taps[0] + segment_grad * x,)
            input_grads = (taps[0] * grad,)  # the gradients of the inputs at t, t-1, ..., as far as they are known
            for j in tl.static_range(1, W):
                sums = sums + (of_taps[j] + segment_grad * before[j - 1],)
                contribution = taps[j] * grad
                if reset is not None:
                    contribution = tl.where(since[j - 1] != 0, 0.0, contribution)
                input_grads = input_grads + (waiting[j - 1] + contribution,)
            of_taps = sums
            done = t - (W - 1)
            at = b * grad_u_strides[0] + d * grad_u_strides[1] + tl.cast(done, tl.int64) * grad_u_strides[2]
            tl.store(grad_u + at, input_grads[W - 1], mask=channel_mask & (done >= begin) & (done < end))
            if grad_initial is not None:  # times before 0: only the first segment
                at = (b * channels + d) * (W - 1) + t
                tl.store(grad_initial + at, input_grads[W - 1], mask=channel_mask & (done + begin * W < 0))
            before, since = shift_in(x, before, W), shift_in(tl.zeros((1,), tl.int32), since, W)
            later = ()
            for j in tl.static_range(W - 1):
                later = later + (input_grads[j],)
            waiting = later
    at = ((b * segments + segment) * channels + d) * TAPS
    for j in tl.static_range(W):
        tl.store(grad_taps + at + W - 1 - j, of_taps[j], mask=channel_mask)
    tl.store(grad_taps + at + W, of_bias, mask=channel_mask)
