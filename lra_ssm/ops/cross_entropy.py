"""Cross-entropy of a linear head that never holds all logits at once: it makes them for a part of the positions, uses
them, and makes the next part's in the same memory.

Shapes: n positions, D channels, V vocabulary; x (n, D), weight (V, D), bias (V,), targets and losses (n,).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lra_ssm.ops.backends import triton_losses
from lra_ssm.ops.tensors import check_dense, without_autocast

# Of float32 logits at a time. A part has hundreds of positions even of a large vocabulary: with few, reading and
# writing the weight's gradient takes as long as the product that is added to it. On a GPU it has thousands, so that
# kernels are few: a share of the memory that is there, not of what is free, on which no result must depend.
_CHUNK_BYTES = 64 << 20
_SHARE = 128
_CACHE_BYTES = 1 << 20  # on a CPU the softmax works on so many bytes of them, which stay in its cache

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]  # of x, weight and bias


def _chunk_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return _CHUNK_BYTES
    return max(_CHUNK_BYTES, torch.cuda.get_device_properties(device).total_memory // _SHARE)


def _parts(n: int, V: int, chunk_bytes: int) -> Iterator[slice]:
    """Yield parts of the positions, of similar size, whose logits take at most chunk_bytes in float32."""
    count = max(1, math.ceil(n * V * 4 / chunk_bytes))
    size = max(1, math.ceil(n / count))
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


class _Head:
    """Logits and their gradients' products, of a part at a time, in buffers that all parts share."""

    def __init__(self, x: Tensor, weight: Tensor, bias: Tensor | None, product: torch.dtype) -> None:
        self.x, self.weight, self.bias = x.to(product), weight.to(product), bias
        self.exact = torch.promote_types(product, torch.float32)  # of the softmax, sums and losses
        self.product, self.logits = product, x.new_empty(0)
        # The dtype of a part's logits: the product's if one kernel computes losses and gradients from them.
        self.logits_dtype = product if bias is None and triton_losses.supports(x) else self.exact

    def part(self, rows: slice) -> Tensor:
        """Return the logits (rows, V) in `logits_dtype`; the memory is the next part's too."""
        count, V = rows.stop - rows.start, len(self.weight)
        if len(self.logits) < count:
            self.logits = self.x.new_empty(count, V, dtype=self.logits_dtype)
        logits = self.logits[:count]
        if self.product == self.logits_dtype:
            torch.mm(self.x[rows], self.weight.t(), out=logits)
        else:
            logits.copy_(self.x[rows] @ self.weight.t())
        if self.bias is not None:
            logits += self.bias
        return logits

    def gradients(self, needs: tuple[bool, ...]) -> Gradients:
        """Return zeros to add to, in `exact` except for x's gradient, which a part writes once."""
        x = torch.zeros_like(self.x) if needs[0] else None
        weight = torch.zeros_like(self.weight, dtype=self.exact) if needs[1] else None
        bias = torch.zeros_like(self.bias, dtype=self.exact) if needs[2] and self.bias is not None else None
        return x, weight, bias

    def add(self, gradients: Gradients, rows: slice, slope: Tensor) -> None:
        """Add the contribution of a part's logits' gradient (rows, V)."""
        grad_x, grad_weight, grad_bias = gradients
        if grad_bias is not None:
            grad_bias += slope.sum(0)
        slope = slope.to(self.product)
        if grad_x is not None:
            torch.mm(slope, self.weight, out=grad_x[rows])
        if grad_weight is not None and self.product == self.exact:
            grad_weight.addmm_(slope.t(), self.x[rows])
        elif grad_weight is not None:
            grad_weight += slope.t() @ self.x[rows]


def _blocks(logits: Tensor) -> Iterator[slice]:
    """Return the number of a part's rows that fit into a CPU's cache; all of them on a GPU."""
    size = len(logits)
    if logits.device.type == "cpu":
        size = max(1, _CACHE_BYTES // (logits.shape[1] * logits.element_size()))
    for start in range(0, len(logits), size):
        yield slice(start, start + size)


def _losses(logits: Tensor, targets: Tensor, ignored: Tensor, scale: Tensor | None = None) -> Tensor:
    """Return -log softmax(logits)[target], 0 where ignored.

    With scale (rows,), which is 0 there too, logits are overwritten with the gradient of sum(scale · losses).
    """
    if triton_losses.supports(logits):
        return triton_losses.softmax_losses(logits, targets, ignored, scale)
    losses = logits.new_empty(len(logits))
    for rows in _blocks(logits):
        block = logits[rows]
        at_target = block.gather(1, targets[rows, None]).squeeze(1)
        p = torch.softmax(block, dim=-1)
        # The log of the sum of exponentials by the largest logit, whose p is at least 1/V: one exponential, not two.
        losses[rows] = block.amax(-1) - p.amax(-1).log() - at_target
        if scale is not None:
            torch.mul(p, scale[rows, None], out=block)
    if scale is not None:
        logits.scatter_add_(1, targets.unsqueeze(1), -scale.unsqueeze(1))
        if logits.device.type == "cpu" and not torch.compiler.is_compiling():  # a GPU would have to be waited for
            logits.index_fill_(0, ignored.nonzero().squeeze(1), 0)
        else:
            logits.masked_fill_(ignored.unsqueeze(1), 0)
    return losses.masked_fill_(ignored, 0)


class _Losses(torch.autograd.Function):
    """Losses by position, whose backward makes the logits a second time; or their sum.

    The sum's gradients are made in forward from the logits that are there already. Backward multiplies them, in place,
    by what the sum is multiplied by; a second backward makes them again.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, ignored: Tensor,
        product: torch.dtype, chunk_bytes: int, sum_losses: bool,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(x, weight, bias, targets, ignored)
        ctx.product, ctx.chunk_bytes = product, chunk_bytes
        scale = (~ignored).to(torch.promote_types(product, torch.float32))
        at_once = sum_losses and any(ctx.needs_input_grad)
        losses, ctx.gradients = _run(ctx, x, weight, bias, targets, ignored, scale if at_once else None)
        return losses.sum() if sum_losses else losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, targets, ignored = ctx.saved_tensors
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            _, gradients = _run(ctx, x, weight, bias, targets, ignored, grad.expand(len(x)))
            assert gradients is not None
        elif grad.device.type != "cpu" or grad != 1:  # asking a GPU would wait for it
            for gradient in gradients:
                if gradient is not None:
                    gradient *= grad
        return (*_typed(gradients, x, weight, bias), None, None, None, None, None)


def _run(
    ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, ignored: Tensor, scale: Tensor | None
) -> tuple[Tensor, Gradients | None]:
    """Return the losses (n,), and with scale (n,), their gradient, the gradients of x, weight and bias."""
    head = _Head(x, weight, bias, ctx.product)
    losses = x.new_empty(len(x), dtype=head.exact)
    gradients = None if scale is None else head.gradients(ctx.needs_input_grad)
    with without_autocast(x.device):
        for rows in _parts(len(x), len(weight), ctx.chunk_bytes):
            logits, slope = head.part(rows), None
            if scale is not None:
                slope = scale[rows].to(head.exact).masked_fill(ignored[rows], 0)
            losses[rows] = _losses(logits, targets[rows], ignored[rows], slope)
            if gradients is not None:
                head.add(gradients, rows, logits)
    return losses, gradients


def _typed(gradients: Gradients, *inputs: Tensor | None) -> Iterator[Tensor | None]:
    for gradient, x in zip(gradients, inputs, strict=True):
        yield None if gradient is None or x is None else gradient.to(x.dtype)


def _check(x: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, ignore_index: int) -> None:
    check_dense(x=x, weight=weight, targets=targets, bias=bias)
    if x.dim() < 1 or not x.is_floating_point():
        raise ValueError(f"x: shape {tuple(x.shape)}, dtype {x.dtype}; expected (…, D), real floating")
    D = x.shape[-1]
    if weight.dim() != 2 or weight.shape[0] < 1 or weight.shape[1] != D or not weight.is_floating_point():
        got = f"shape {tuple(weight.shape)}, dtype {weight.dtype}"
        raise ValueError(f"weight: {got}; expected (V, D) with V >= 1 and D = {D}, as in x, real floating")
    V = len(weight)
    if bias is not None and (tuple(bias.shape) != (V,) or not bias.is_floating_point()):
        got = f"shape {tuple(bias.shape)}, dtype {bias.dtype}"
        raise ValueError(f"bias: {got}; expected (V,) = {(V,)}, as in weight, real floating")
    if targets.shape != x.shape[:-1] or targets.dtype != torch.int64:
        got = f"shape {tuple(targets.shape)}, dtype {targets.dtype}"
        raise ValueError(f"targets: {got}; expected {tuple(x.shape[:-1])}, x's without D, int64")
    for name, other in (("weight", weight), ("targets", targets), ("bias", bias)):
        if other is not None and other.device != x.device:
            raise ValueError(f"{name}: on {other.device}; expected {x.device}, where x is")
    if x.device.type == "cpu" and not torch.compiler.is_compiling():  # elsewhere looking at the values would wait
        wrong = targets[((targets < 0) | (targets >= V)) & (targets != ignore_index)]
        if wrong.numel():
            raise ValueError(f"targets: {wrong[0].item()} among them; expected 0 to V-1 = {V - 1}, or {ignore_index}")


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Literal["none", "sum"] = "none",
    chunk_bytes: int | None = None,
) -> Tensor:
    """Return -log softmax(x weightᵀ + bias)[target] of every position, in nats, without all logits at once.

    Args:
        x: (…, D), real floating.
        weight: (V, D), the head's, or an embedding's that is tied to it.
        targets: (…), int64, below V.
        bias: (V,).
        ignore_index: targets that are not scored.
        reduction: "none" gives the losses (…), 0 where ignored, and makes the logits again in backward. "sum" gives
            their sum (); if gradients are needed, forward computes them from the same logits: three matrix products
            in all, nothing computed twice. (For the mean divide the sum.)
        chunk_bytes: float32 logits at a time, at least one position's; None for 64 MiB on a CPU, on a GPU for a
            128th of its memory where that is more.

    Matrix products in x's dtype, or autocast's; softmax, losses and sums, the weight's gradient among them, in float32
    (float64 for float64 x); each gradient has its input's dtype and is not differentiable a second time. Where
    torch.compile traces it, "sum" too makes the logits again in backward.

    Raises:
        ValueError: one line naming the argument, for a shape, dtype, device or (on a CPU) target that does not fit.
    """
    _check(x, weight, targets, bias, ignore_index)
    if reduction not in ("none", "sum"):
        raise ValueError(f"reduction: {reduction!r}; expected 'none' or 'sum'")
    chunk_bytes = _chunk_bytes(x.device) if chunk_bytes is None else chunk_bytes
    if chunk_bytes < 1:
        raise ValueError(f"chunk_bytes: {chunk_bytes}; expected at least 1")
    autocast = x.device.type != "meta" and torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64
    product = torch.get_autocast_dtype(x.device.type) if autocast else x.dtype
    flat = targets.reshape(-1)
    ignored = flat == ignore_index
    arguments = (
        x.reshape(-1, x.shape[-1]), weight, bias, flat.masked_fill(ignored, 0), ignored, product, chunk_bytes
    )  # fmt: skip
    if reduction == "sum" and not torch.compiler.is_compiling():
        return _Losses.apply(*arguments, True)
    losses = _Losses.apply(*arguments, False).view(targets.shape)
    return losses.sum() if reduction == "sum" else losses
