"""Short causal convolutions along time, one filter per channel, and what they need to continue from where they stopped.

Shapes: u, y (B, D, L); weight (D, W); bias (D,); initial (B, D, W-1), the inputs before position 0; reset (B, L).
(B batch, D channels, L length, W width of the filter.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lra_ssm.ops.backends import cpu_pieces, triton_depthwise
from lra_ssm.ops.tensors import check_dense

# On a CPU the W passes are made over a part of u at a time, which so stays in the second-level cache: so many bytes.
_PIECE_BYTES = 1 << 20

Piece = tuple[slice, slice, int, int]  # batch items, channels, and from where to where in time


def _check_input(u: Tensor, W: int, initial: Tensor | None, reset: Tensor | None) -> None:
    check_dense(u=u, initial=initial, reset=reset)
    if u.dim() != 3 or not u.is_floating_point() or u.shape[1] < 1 or u.shape[2] < 1:
        got = f"shape {tuple(u.shape)}, dtype {u.dtype}"
        raise ValueError(f"u: {got}; expected (B, D, L) with D >= 1 and L >= 1, real floating")
    batch, D, L = u.shape
    if initial is not None and (tuple(initial.shape) != (batch, D, W - 1) or not initial.is_floating_point()):
        got, expected = f"shape {tuple(initial.shape)}, dtype {initial.dtype}", (batch, D, W - 1)
        raise ValueError(f"initial: {got}; expected (B, D, W-1) = {expected}, real floating")
    if reset is not None and (tuple(reset.shape) != (batch, L) or reset.dtype != torch.bool):
        got = f"shape {tuple(reset.shape)}, dtype {reset.dtype}"
        raise ValueError(f"reset: {got}; expected (B, L) = {(batch, L)}, bool")


def _check_devices(u: Tensor, **others: Tensor | None) -> None:
    for name, x in others.items():
        if x is not None and x.device != u.device:
            raise ValueError(f"{name}: on {x.device}; expected {u.device}, where u is")


def check_depthwise_inputs(
    u: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None, reset: Tensor | None
) -> torch.dtype:
    """The arithmetic's dtype; ValueError, naming the argument, for what does not fit."""
    check_dense(weight=weight, bias=bias)
    if weight.dim() != 2 or weight.shape[1] < 1 or not weight.is_floating_point():
        got = f"shape {tuple(weight.shape)}, dtype {weight.dtype}"
        raise ValueError(f"weight: {got}; expected (D, W) with W >= 1, real floating")
    _check_input(u, weight.shape[1], initial, reset)
    D = u.shape[1]
    if weight.shape[0] != D:
        raise ValueError(f"weight: shape {tuple(weight.shape)}; expected (D, W) with D = {D}, as in u")
    if bias is not None and (tuple(bias.shape) != (D,) or not bias.is_floating_point()):
        raise ValueError(f"bias: shape {tuple(bias.shape)}, dtype {bias.dtype}; expected (D,) = {(D,)}, real floating")
    _check_devices(u, weight=weight, bias=bias, initial=initial, reset=reset)
    tensors = (u, weight, bias, initial)
    return torch.float64 if any(x is not None and x.dtype == torch.float64 for x in tensors) else torch.float32


def _pieces(u: Tensor) -> Iterator[Piece]:
    """Parts of u that are whole runs of memory; one on a GPU."""
    (batch, D, L), budget = u.shape, _PIECE_BYTES // 4
    items, channels, steps = batch, D, L
    if u.device.type == "cpu":
        items = max(budget // (D * L), 1)
        if u.stride(1) < u.stride(2):
            steps = min(max(budget // D, 1), L)
        else:
            channels = min(max(budget // L, 1), D)
    for i in range(0, batch, items):
        for d in range(0, D, channels):
            for t in range(0, L, steps):
                yield slice(i, i + items), slice(d, d + channels), t, min(t + steps, L)


def _keep_masks(reset: Tensor | None, W: int, dtype: torch.dtype) -> list[Tensor | None]:
    """For each lag j < W, (B, 1, L) integers: all bits clear where a document starts at one of t-j+1 .. t, else set."""
    if reset is None:
        return [None] * W
    bits = torch.int64 if dtype == torch.float64 else torch.int32
    masks: list[Tensor | None] = [None]
    crossing = torch.zeros_like(reset)
    for j in range(1, W):
        crossing[:, j - 1 :] |= reset[:, : max(reset.shape[1] - j + 1, 0)]
        masks.append((crossing.to(bits) - 1).unsqueeze(1))
    return masks


def _masked(x: Tensor, keep: Tensor | None, items: slice, begin: int, stop: int) -> Tensor:
    """x, of the times begin .. stop-1, and zero for what comes across a boundary, inf and nan too.

    Bit by bit: on a CPU as fast as a product, which would leave nan, and a fifth of masked_fill's time.
    """
    return x if keep is None else (x.view(keep.dtype) & keep[items, :, begin:stop]).view(x.dtype)


def _past(u: Tensor, initial: Tensor | None, W: int, piece: Piece, dtype: torch.dtype) -> tuple[Tensor, int]:
    """The inputs that a piece of the output sees, and the time of the first of them."""
    items, channels, start, stop = piece
    if initial is not None and start < W - 1:
        both = [initial[items, channels].to(dtype), u[items, channels, :stop].to(dtype)]
        time_first = u.stride(1) < u.stride(2)  # the result in the order of u's memory
        return torch.cat([x.mT for x in both], 1).mT if time_first else torch.cat(both, 2), 1 - W
    first = max(start - W + 1, 0)
    return u[items, channels, first:stop].to(dtype), first


class _Convolution(torch.autograd.Function):
    """Keeps its inputs alone.  Arithmetic in `dtype`, results in the inputs' dtypes and u's layout."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None, reset: Tensor | None,
        dtype: torch.dtype,
    ) -> Tensor:  # fmt: skip
        W = weight.shape[1]
        taps = weight.to(dtype).unsqueeze(-1).flip(1)  # taps[:, j] of lag j: (D, 1)
        keep = _keep_masks(reset, W, dtype)
        y = torch.empty_like(u)
        for piece in _pieces(u):
            items, channels, start, stop = piece
            past, first = _past(u, initial, W, piece, dtype)
            out = y[items, channels, start:stop]
            total = out if out.dtype == dtype else torch.empty_like(out, dtype=dtype)
            torch.mul(past[..., start - first :], taps[channels, 0], out=total)
            if bias is not None:
                total += bias[channels, None]
            for j in range(1, W):
                begin = max(start, first + j)  # before it, lag j reaches behind what there is
                if begin < stop:
                    seen = _masked(past[..., begin - j - first : stop - j - first], keep[j], items, begin, stop)
                    total[..., begin - start :].addcmul_(seen, taps[channels, j])
            if total is not out:
                out.copy_(total)
        ctx.save_for_backward(u, weight, initial, reset)
        ctx.dtype, ctx.bias_dtype = dtype, None if bias is None else bias.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        u, weight, initial, reset = ctx.saved_tensors
        needs_u, needs_weight, needs_bias, needs_initial = ctx.needs_input_grad[:4]
        (_, _, L), (_, W), dtype = u.shape, weight.shape, ctx.dtype
        taps, keep = weight.to(dtype).unsqueeze(-1).flip(1), _keep_masks(reset, W, dtype)
        grad_u, grad_taps = torch.empty_like(u), torch.zeros_like(taps[..., 0])
        grad_bias = torch.zeros_like(grad_taps[:, 0])
        for piece in _pieces(u):
            items, channels, start, stop = piece
            future = grad_y[items, channels, start : min(stop + W - 1, L)].to(dtype)
            present = future[..., : stop - start]
            if needs_u:
                out = grad_u[items, channels, start:stop]
                total = out if out.dtype == dtype else torch.empty_like(out, dtype=dtype)
                torch.mul(present, taps[channels, 0], out=total)
                for j in range(1, W):
                    end = min(stop, L - j)
                    if start < end:
                        seen = _masked(future[..., j : end - start + j], keep[j], items, start + j, end + j)
                        total[..., : end - start].addcmul_(seen, taps[channels, j])
                if total is not out:
                    out.copy_(total)
            if needs_bias:
                grad_bias[channels] += present.sum((0, 2))
            if needs_weight:
                past, first = _past(u, initial, W, piece, dtype)
                for j in range(W):
                    begin = max(start, first + j)
                    if begin < stop:
                        product = past[..., begin - j - first : stop - j - first] * present[..., begin - start :]
                        grad_taps[channels, j] += _masked(product, keep[j], items, begin, stop).sum((0, 2))
        grad_initial = None
        if needs_initial:
            grad_initial = torch.zeros_like(initial, dtype=dtype)
            for j in range(1, W):  # the output at t < j sees what came before position 0, at W-1 + t - j in `initial`
                n = min(j, L)
                seen = _masked(grad_y[..., :n].to(dtype), keep[j], slice(None), 0, n)
                grad_initial[..., W - 1 - j : W - 1 - j + n].addcmul_(seen, taps[:, j])
            grad_initial = grad_initial.to(initial.dtype)
        return (
            grad_u if needs_u else None,
            grad_taps.flip(1).to(weight.dtype) if needs_weight else None,
            grad_bias.to(ctx.bias_dtype) if needs_bias else None,
            grad_initial,
            None,
            None,
        )


class _Native(torch.autograd.Function):
    """The same, and SiLU if so asked, in C++; keeps its inputs alone."""

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


def _traced(
    u: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None, reset: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """The same by plain operations: torch.compile makes one pass of them, and cannot look into `_Convolution`."""
    (batch, D, L), W = u.shape, weight.shape[1]
    before = u.new_zeros(batch, D, W - 1) if initial is None else initial
    past = torch.cat([before.to(dtype), u.to(dtype)], dim=-1)
    y = torch.zeros_like(u, dtype=dtype) if bias is None else bias.to(dtype)[:, None].expand(u.shape)
    for j, keep in enumerate(_keep_masks(reset, W, dtype)):
        seen = past[..., W - 1 - j : W - 1 - j + L]
        seen = seen if keep is None else seen.masked_fill(keep == 0, 0)
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
    """y_t = bias + sum over j < W of weight[:, W-1-j] u_{t-j}: the last tap is the present, as in torch's conv1d.

    Args:
        u: (B, D, L), real, of any strides; y has its shape, dtype and memory layout.
        weight: (D, W), W >= 1: conv1d's weight (D, 1, W) without the middle dimension.
        bias: (D,).
        initial: (B, D, W-1), the inputs before position 0, as `last_taps` gives them; zeros if not given.
        reset: (B, L) bool, true where a new document starts: no tap reaches across its start, into `initial` included
            (inf and nan neither).
        silu: SiLU(y) instead of y.

    Floating dtypes may be mixed: float64 if any input is, otherwise computed in float32, whatever autocast says; each
    gradient has its input's dtype and is not differentiable a second time.  Raises ValueError, one line naming the
    argument, for a shape, dtype or device that does not fit.

    On a GPU one Triton kernel forward and one backward. On a CPU, of one dtype and up to four taps whose channels lie
    next to each other, one pass in C++; otherwise W sums of shifted products rather than conv1d, which on a CPU takes
    up to twice as long for transposed inputs.
    """
    dtype = check_depthwise_inputs(u, weight, bias, initial, reset)
    if (
        weight.shape[1] <= cpu_pieces.MAX_TAPS
        and u.stride(1) == 1
        and u.numel()
        and cpu_pieces.takes(u, weight, bias, initial)
    ):
        return _Native.apply(u, weight, bias, initial, reset, silu)
    if u.device.type == "cuda" and triton_depthwise.takes(u):
        return triton_depthwise.convolution(u, weight, bias, initial, reset, silu)
    run = _traced if torch.compiler.is_compiling() else _Convolution.apply
    y = run(u, weight, bias, initial, reset, dtype)
    return F.silu(y) if silu else y


def last_taps(
    u: Tensor,
    W: int,
    lengths: Tensor | None = None,
    *,
    initial: Tensor | None = None,
    reset: Tensor | None = None,
) -> Tensor:
    """The `initial` (B, D, W-1) with which a convolution of width W continues where u ends: the last W-1 inputs.

    Args:
        u: (B, D, L), real.
        lengths: (B,) integers from 0 to L (not checked: the values may be on a GPU), the real positions of each
            sequence, the rest being padding on the right; all L if not given.
        initial: (B, D, W-1), what came before u, which the taps of a sequence shorter than W-1 reach back into.
        reset: (B, L) bool, as in `causal_depthwise_convolution`: taps before the last document's start are zero.

    In u's dtype, with gradients for u and initial.  Raises ValueError as `causal_depthwise_convolution` does.
    """
    if W < 1:
        raise ValueError(f"W: {W}; expected a width of at least 1")
    _check_input(u, W, initial, reset)
    batch, D, L = u.shape
    if lengths is None:
        lengths = torch.full((batch,), L, device=u.device)
    elif tuple(lengths.shape) != (batch,) or lengths.dtype not in (torch.int64, torch.int32):
        got = f"shape {tuple(lengths.shape)}, dtype {lengths.dtype}"
        raise ValueError(f"lengths: {got}; expected (B,) = {(batch,)}, int64 or int32")
    _check_devices(u, lengths=lengths, initial=initial, reset=reset)
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
