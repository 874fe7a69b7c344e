"""The kernels of the depthwise convolution; see `triton_depthwise.py`, which calls them.

Shapes: u, y (batch, D, L); weight (D, W); bias (D,); initial (batch, D, W-1); reset (batch, L). A tile is (BLOCK_D,
BLOCK_T). Times before 0 are initial's: its last entry is time -1.
"""

from __future__ import annotations

# The bodies are Triton's language, not Python's: its tensors and tuples have no types that mypy could check.
# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def inputs_at(u, u_strides, initial, initial_strides, b, d, s, channel_mask, length, W: tl.constexpr,
              TYPE: tl.constexpr):  # fmt: skip
    """The inputs at times s, zero where there are none."""
    mask = channel_mask[:, None] & (s >= 0)[None, :] & (s < length)[None, :]
    at = b * u_strides[0] + d[:, None] * u_strides[1] + tl.cast(s, tl.int64)[None, :] * u_strides[2]
    x = tl.load(u + at, mask=mask, other=0.0).to(TYPE)
    if initial is not None:
        mask = channel_mask[:, None] & (s < 0)[None, :] & (s > -W)[None, :]
        at = b * initial_strides[0] + d[:, None] * initial_strides[1] + (s + W - 1)[None, :] * initial_strides[2]
        x += tl.load(initial + at, mask=mask, other=0.0).to(TYPE)
    return x


@triton.jit
def starts_at(reset, strides, b, s, length):
    """Whether a document starts at times s."""
    at = b * strides[0] + tl.cast(s, tl.int64) * strides[1]
    return tl.load(reset + at, mask=(s >= 0) & (s < length), other=0) != 0


@triton.jit
def convolved_at(u, u_strides, initial, initial_strides, reset, reset_strides, weight, bias, b, d, s, channel_mask,
                 length, W: tl.constexpr, TYPE: tl.constexpr):  # fmt: skip
    """bias + sum over j < W of weight[:, W-1-j] u at s - j, as far as no document starts in between."""
    total = tl.zeros((d.shape[0], s.shape[0]), TYPE)
    if bias is not None:
        total += tl.load(bias + d, mask=channel_mask, other=0.0).to(TYPE)[:, None]
    crossed = s < s
    for j in tl.static_range(W):
        x = inputs_at(u, u_strides, initial, initial_strides, b, d, s - j, channel_mask, length, W, TYPE)
        if reset is not None:
            if j > 0:
                crossed = crossed | starts_at(reset, reset_strides, b, s - j + 1, length)
            x = tl.where(crossed[None, :], 0.0, x)
        total += tl.load(weight + d * W + W - 1 - j, mask=channel_mask, other=0.0).to(TYPE)[:, None] * x
    return total


@triton.jit
def place(channels, segments, BLOCK_D: tl.constexpr):
    """The batch item, block of channels and segment of this program, and its channels."""
    program, blocks = tl.program_id(0), tl.cdiv(channels, BLOCK_D)
    b, rest = tl.cast(program // (blocks * segments), tl.int64), program % (blocks * segments)
    d = rest // segments * BLOCK_D + tl.arange(0, BLOCK_D)
    return b, rest % segments, d, d < channels


@triton.jit(do_not_specialize=["segments"])
def convolution_kernel(
    u, weight, bias, initial, reset, y, u_strides, initial_strides, reset_strides, y_strides, length, channels,
    segments, SEGMENT: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_T: tl.constexpr, W: tl.constexpr, SILU: tl.constexpr,
    TYPE: tl.constexpr,
):  # fmt: skip
    b, segment, d, channel_mask = place(channels, segments, BLOCK_D)
    for t0 in range(segment * SEGMENT, tl.minimum(segment * SEGMENT + SEGMENT, length), BLOCK_T):
        t = t0 + tl.arange(0, BLOCK_T)
        total = convolved_at(u, u_strides, initial, initial_strides, reset, reset_strides, weight, bias, b, d, t,
                             channel_mask, length, W, TYPE)  # fmt: skip
        if SILU:
            total = total / (1.0 + tl.exp(-total))
        at = b * y_strides[0] + d[:, None] * y_strides[1] + tl.cast(t, tl.int64)[None, :] * y_strides[2]
        tl.store(y + at, total, mask=channel_mask[:, None] & (t < length)[None, :])


@triton.jit(do_not_specialize=["segments"])
def convolution_gradient_kernel(
    u, weight, bias, initial, reset, grad_y, grad_u, grad_taps, grad_initial, u_strides, initial_strides, reset_strides,
    grad_y_strides, grad_u_strides, length, channels, segments, SEGMENT: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_T: tl.constexpr, TAPS: tl.constexpr, W: tl.constexpr, SILU: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """grad_u; of the segment alone the gradients of the taps, and behind them the bias's (batch, segments, D, TAPS);
    and in the first segment grad_initial (batch, D, W-1)."""
    b, segment, d, channel_mask = place(channels, segments, BLOCK_D)
    tap = tl.arange(0, TAPS)[None, :]
    sums = tl.zeros((BLOCK_D, TAPS), TYPE)
    begin = segment * SEGMENT
    first = begin
    if grad_initial is not None:
        first = tl.where(segment == 0, begin - BLOCK_T, begin)
    for t0 in range(first, tl.minimum(begin + SEGMENT, length), BLOCK_T):
        t = t0 + tl.arange(0, BLOCK_T)
        slope = tl.zeros((BLOCK_D, BLOCK_T), TYPE)
        crossed = t < t
        for j in tl.static_range(W):
            s = t + j
            inside = channel_mask[:, None] & (s >= 0)[None, :] & (s < length)[None, :]
            at = b * grad_y_strides[0] + d[:, None] * grad_y_strides[1]
            at += tl.cast(s, tl.int64)[None, :] * grad_y_strides[2]
            grad = tl.load(grad_y + at, mask=inside, other=0.0).to(TYPE)
            if SILU:
                total = convolved_at(u, u_strides, initial, initial_strides, reset, reset_strides, weight, bias, b, d,
                                     s, channel_mask, length, W, TYPE)  # fmt: skip
                gate = 1.0 / (1.0 + tl.exp(-total))
                grad *= gate * (1.0 + total * (1.0 - gate))
                grad = tl.where(inside, grad, 0.0)
            if j == 0:
                sums += tl.where(tap == W, tl.sum(grad, 1)[:, None], 0.0)
                behind = t < t
                for i in tl.static_range(W):
                    x = inputs_at(u, u_strides, initial, initial_strides, b, d, t - i, channel_mask, length, W, TYPE)
                    if reset is not None:
                        if i > 0:
                            behind = behind | starts_at(reset, reset_strides, b, t - i + 1, length)
                        x = tl.where(behind[None, :], 0.0, x)
                    x = tl.where(inside, x, 0.0)
                    sums += tl.where(tap == W - 1 - i, tl.sum(grad * x, 1)[:, None], 0.0)
            if reset is not None:
                if j > 0:
                    crossed = crossed | starts_at(reset, reset_strides, b, s, length)
                grad = tl.where(crossed[None, :], 0.0, grad)
            slope += tl.load(weight + d * W + W - 1 - j, mask=channel_mask, other=0.0).to(TYPE)[:, None] * grad
        at = b * grad_u_strides[0] + d[:, None] * grad_u_strides[1] + tl.cast(t, tl.int64)[None, :] * grad_u_strides[2]
        tl.store(grad_u + at, slope, mask=channel_mask[:, None] & (t >= 0)[None, :] & (t < length)[None, :])
        if grad_initial is not None:
            at = (b * channels + d)[:, None] * (W - 1) + (t + W - 1)[None, :]
            tl.store(grad_initial + at, slope, mask=channel_mask[:, None] & (t < 0)[None, :] & (t > -W)[None, :])
    at = ((b * segments + segment) * channels + d)[:, None] * TAPS + tap
    tl.store(grad_taps + at, sums, mask=channel_mask[:, None] & (tap <= W))
