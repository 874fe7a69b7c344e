"""Cross-entropy of a linear head that never holds all logits at once: it makes them for a part of the positions, uses
them, and makes the next part's in the same memory.

Shapes: n positions, D channels, V vocabulary; x (n, D), weight (V, D), targets and losses (n,).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lra_ssm.ops.backends import triton_losses
from lra_ssm.ops.tensors import check_tensors, read_sizes, without_autocast

# Of float32 logits at a time. A part has hundreds of positions even of a large vocabulary: with few, reading and
# writing the weight's gradient takes as long as the product that is added to it. On a GPU it has thousands, so that
# kernels are few: a share of the memory that is there, not of what is free, on which no result must depend.
_CHUNK_BYTES = 64 << 20
_SHARE = 128
_CACHE_BYTES = 1 << 20  # on a CPU the softmax works on so many bytes of them, which stay in its cache


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


def _run(
    x: Tensor, weight: Tensor, targets: Tensor, ignored: Tensor, product: torch.dtype, scale: Tensor | None,
    needs: tuple[bool, ...],
) -> tuple[Tensor, tuple[Tensor | None, Tensor | None]]:  # fmt: skip
    """Return the losses (n,), and with scale (n,), their gradient, the gradients of x and weight that are needed.

    product: the dtype of matrix products.
    """
    exact = torch.promote_types(product, torch.float32)  # of the softmax, sums and losses
    x, weight = x.to(product), weight.to(product)
    # The product's dtype if one kernel computes losses and gradients from logits.
    buffer = x.new_empty(0, dtype=product if triton_losses.supports(x) else exact)
    losses = x.new_empty(len(x), dtype=exact)
    grad_x = torch.zeros_like(x) if scale is not None and needs[0] else None
    grad_weight = torch.zeros_like(weight, dtype=exact) if scale is not None and needs[1] else None
    with without_autocast(x.device):
        for rows in _parts(len(x), len(weight), _chunk_bytes(x.device)):
            count = rows.stop - rows.start
            if not len(buffer):  # for all parts: the first is the longest
                buffer = buffer.new_empty(count, len(weight))
            logits, slope = buffer[:count], None
            if product == logits.dtype:
                torch.mm(x[rows], weight.t(), out=logits)
            else:
                logits.copy_(x[rows] @ weight.t())
            if scale is not None:
                slope = scale[rows].to(exact).masked_fill(ignored[rows], 0)
            losses[rows] = _losses(logits, targets[rows], ignored[rows], slope)
            if scale is None:
                continue
            gradient = logits.to(product)
            if grad_x is not None:
                torch.mm(gradient, weight, out=grad_x[rows])
            if grad_weight is not None and product == exact:
                grad_weight.addmm_(gradient.t(), x[rows])
            elif grad_weight is not None:
                grad_weight += gradient.t() @ x[rows]
    return losses, (grad_x, grad_weight)


class _Losses(torch.autograd.Function):
    """Losses by position, whose backward makes the logits a second time; or their sum.

    The sum's gradients are made in forward from the logits that are there already. Backward multiplies them, in place,
    by what the sum is multiplied by; a second backward makes them again.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, ignored: Tensor, product: torch.dtype, sum_losses: bool
    ) -> Tensor:
        ctx.save_for_backward(x, weight, targets, ignored)
        ctx.product, ctx.gradients = product, None
        if not sum_losses or not any(ctx.needs_input_grad):
            losses, _ = _run(x, weight, targets, ignored, product, None, ())
            return losses.sum() if sum_losses else losses
        scale = torch.ones_like(targets, dtype=torch.promote_types(product, torch.float32))
        losses, ctx.gradients = _run(x, weight, targets, ignored, product, scale, ctx.needs_input_grad)
        return losses.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, targets, ignored = ctx.saved_tensors
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            scale = grad.expand(len(x))
            _, gradients = _run(x, weight, targets, ignored, ctx.product, scale, ctx.needs_input_grad)
        elif grad.device.type != "cpu" or grad != 1:  # asking a GPU would wait for it
            gradients = tuple(None if gradient is None else gradient.mul_(grad) for gradient in gradients)
        grad_x, grad_weight = gradients
        grad_x = None if grad_x is None else grad_x.to(x.dtype)
        return grad_x, None if grad_weight is None else grad_weight.to(weight.dtype), None, None, None, None


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    ignore_index: int = -100,
    reduction: Literal["none", "sum"] = "none",
) -> Tensor:
    """Return -log softmax(x weightᵀ)[target] of every position, in nats, without all logits at once.

    Args:
        x: (…, D), real floating.
        weight: (V, D), the head's, or an embedding's that is tied to it.
        targets: (…), int64, below V.
        ignore_index: targets that are not scored.
        reduction: "none" gives the losses (…), 0 where ignored, and makes the logits again in backward. "sum" gives
            their sum (); if gradients are needed, forward computes them from the same logits: three matrix products
            in all, nothing computed twice. (For the mean divide the sum.)

    Matrix products in x's dtype, or autocast's; softmax, losses and sums, the weight's gradient among them, in float32
    (float64 for float64 x); each gradient has its input's dtype and is not differentiable a second time. Where
    torch.compile traces it, "sum" too makes the logits again in backward.

    Raises:
        ValueError: one line naming the argument, for a shape, dtype, device or (on a CPU) target that does not fit.
    """
    check_tensors({"x": x, "weight": weight, "targets": targets}, targets="int64")
    V = read_sizes("weight", weight, "V D")["V"]
    if x.dim() < 1 or weight.shape[1] != x.shape[-1] or targets.shape != x.shape[:-1]:
        others = f"weight (V, D) = {tuple(weight.shape)} and targets (…) = {tuple(targets.shape)}"
        raise ValueError(f"x: shape {tuple(x.shape)}; expected (…, D) for {others}")
    if x.device.type == "cpu" and not torch.compiler.is_compiling():  # elsewhere looking at the values would wait
        wrong = targets[((targets < 0) | (targets >= V)) & (targets != ignore_index)]
        if wrong.numel():
            raise ValueError(f"targets: {wrong[0].item()} among them; expected 0 to V-1 = {V - 1}, or {ignore_index}")
    if reduction not in ("none", "sum"):
        raise ValueError(f"reduction: {reduction!r}; expected 'none' or 'sum'")
    autocast = x.device.type != "meta" and torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64
    product = torch.get_autocast_dtype(x.device.type) if autocast else x.dtype
    flat = targets.reshape(-1)
    ignored = flat == ignore_index
    arguments = x.reshape(-1, x.shape[-1]), weight, flat.masked_fill(ignored, 0), ignored, product
    if reduction == "sum" and not torch.compiler.is_compiling():
        return _Losses.apply(*arguments, True)
    losses = _Losses.apply(*arguments, False).view(targets.shape)
    return losses.sum() if reduction == "sum" else losses
