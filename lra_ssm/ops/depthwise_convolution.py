"""Short causal convolutions along time, one filter per channel, and what they need to continue from where they stopped.

Shapes: u, y (B, D, L); weight (D, W); bias (D,); initial (B, D, W-1), the inputs before position 0; reset (B, L).
(B batch, D channels, L length, W width of the filter.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lra_ssm.ops.backends import cpu_pieces, triton_depthwise
from lra_ssm.ops.tensors import check_shapes, check_tensors, has_double, read_sizes


def check_depthwise_inputs(
    u: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None, reset: Tensor | None
) -> torch.dtype:
    """Return the arithmetic's dtype. Raises ValueError, naming the argument, for what does not fit."""
    tensors = {"u": u, "weight": weight, "bias": bias, "initial": initial, "reset": reset}
    check_tensors(tensors, optional=("bias", "initial", "reset"))
    W = read_sizes("weight", weight, "D W")["W"]
    expected = {"weight": "D W", "bias": "D", "initial": "B D W-1", "reset": "B L"}
    check_shapes(tensors, expected, read_sizes("u", u, "B D L") | {"W": W, "W-1": W - 1})
    return torch.float64 if has_double(*tensors.values()) else torch.float32


class _Native(torch.autograd.Function):
    """The convolution, with `silu` followed by SiLU, in C++; it keeps only its inputs."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None, reset: Tensor | None,
        silu: bool,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(u, weight, bias, initial, reset)
        ctx.silu = silu
        return cpu_pieces.convolution(u, weight, bias, initial, reset, silu)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        u, weight, bias, initial, reset = ctx.saved_tensors
        grads = cpu_pieces.convolution_backward(grad_y, u, weight, bias, initial, reset, ctx.silu)
        return (*(g if wanted else None for g, wanted in zip(grads, ctx.needs_input_grad[:4], strict=True)), None, None)


def _shifted_products(
    u: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None, reset: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Sum over taps, by operations that torch.compile fuses into one pass."""
    (batch, D, L), W = u.shape, weight.shape[1]
    before = u.new_zeros(batch, D, W - 1) if initial is None else initial
    past = torch.cat([before.to(dtype), u.to(dtype)], dim=-1)
    y = torch.zeros_like(u, dtype=dtype) if bias is None else torch.empty_like(u, dtype=dtype).copy_(bias[:, None])
    crossed = None if reset is None else torch.zeros_like(reset)  # whether a document starts at one of t-j+1 .. t
    for j in range(W):
        seen = past[..., W - 1 - j : W - 1 - j + L]
        if crossed is not None and reset is not None and j:
            crossed = crossed | F.pad(reset, (j - 1, 0))[:, :L]
            seen = seen.masked_fill(crossed.unsqueeze(1), 0)  # a product would leave inf and nan
        y = y + weight[:, W - 1 - j, None].to(dtype) * seen
    return y.to(u.dtype)


def causal_depthwise_convolution(
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    initial: Tensor | None = None,
    reset: Tensor | None = None,
    silu: bool = False,
) -> Tensor:
    """Compute y_t = bias + sum over j < W of weight[:, W-1-j] u_{t-j}, whose last tap is the present, as in conv1d.

    Args:
        u: (B, D, L), real, of any strides; y has its shape, dtype and memory layout.
        weight: (D, W), W >= 1: conv1d's weight (D, 1, W) without the middle dimension.
        bias: (D,).
        initial: (B, D, W-1), the inputs before position 0, as `conv_state` gives them; zeros if not given.
        reset: (B, L) bool, true where a new document starts: no tap reaches across its start, into `initial` included
            (inf and nan neither).
        silu: SiLU(y) instead of y.

    Floating dtypes may be mixed: float64 if any input is, otherwise computed in float32, whatever autocast says; each
    gradient has its input's dtype and, by C++ or Triton, is not differentiable a second time.  Raises ValueError, one
    line naming the argument, for a shape, dtype or device that does not fit.

    On a GPU it is one Triton kernel forward and one backward. On a CPU it is one pass in C++ for inputs of one dtype,
    up to four taps and channels next to each other; otherwise a sum of W shifted products, by torch's operations.
    """
    dtype = check_depthwise_inputs(u, weight, bias, initial, reset)
    if (
        weight.shape[1] <= cpu_pieces.MAX_TAPS
        and u.stride(1) == 1
        and u.numel()
        and cpu_pieces.supports(u, weight, bias, initial)
    ):
        return _Native.apply(u, weight, bias, initial, reset, silu)
    if u.device.type == "cuda" and triton_depthwise.supports(u):
        return triton_depthwise.convolution(u, weight, bias, initial, reset, silu)
    y = _shifted_products(u, weight, bias, initial, reset, dtype)
    return F.silu(y) if silu else y


def conv_state(
    u: Tensor,
    W: int,
    lengths: Tensor | None = None,
    *,
    initial: Tensor | None = None,
    reset: Tensor | None = None,
) -> Tensor:
    """Return the `initial` (B, D, W-1) for a convolution of width W that continues where u ends: the last W-1 inputs.

    Args:
        u: (B, D, L), real.
        lengths: (B,) integers from 0 to L (not checked: the values may be on a GPU), the real positions of each
            sequence, the rest being padding on the right; all L if not given.
        initial: (B, D, W-1), what came before u, which the taps of a sequence shorter than W-1 reach back into.
        reset: (B, L) bool, as in `causal_depthwise_convolution`: taps before the last document's start are zero.

    It has u's dtype, and gradients for u and initial.  Raises ValueError as `causal_depthwise_convolution` does.
    """
    if W < 1:
        raise ValueError(f"W: {W}; expected a width of at least 1")
    tensors = {"u": u, "lengths": lengths, "initial": initial, "reset": reset}
    check_tensors(tensors, optional=("lengths", "initial", "reset"), lengths="int64 or int32")
    sizes = read_sizes("u", u, "B D L") | {"W-1": W - 1}
    check_shapes(tensors, {"lengths": "B", "initial": "B D W-1", "reset": "B L"}, sizes)
    batch, D, L = u.shape
    if lengths is None:
        lengths = torch.full((batch,), L, device=u.device)
    positions = lengths.unsqueeze(1) + torch.arange(1 - W, 0, device=u.device)  # (B, W-1), below 0 in `initial`
    taps = u.gather(2, positions.clamp(min=0).unsqueeze(1).expand(batch, D, W - 1))
    if initial is None:
        before = torch.zeros_like(taps)
    else:
        index = (positions + W - 1).clamp(max=max(W - 2, 0)).unsqueeze(1).expand(batch, D, W - 1)
        before = initial.to(u.dtype).gather(2, index)
    taps = torch.where((positions < 0).unsqueeze(1), before, taps)
    if reset is not None:
        t = torch.arange(L, device=u.device)
        starts = torch.where(reset & (t < lengths.unsqueeze(1)), t, -W).amax(1, keepdim=True)
        taps = torch.where((positions >= starts).unsqueeze(1), taps, torch.zeros_like(taps))
    return taps
