"""Normalization of (B, L, D) sequences with padding.

All norms take `(x, lengths=None)`. LayerNorm and RMSNorm look at one position at a time, so padding cannot leak into
them. BatchNorm takes its statistics over real positions only ("batch_padded" over all, as the public S4 code does), and
over all devices together: how many devices share a batch does not change what is trained.

Shapes: B batch, L length, D channels.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from lra_ssm.layers.masking import valid_mask
from lra_ssm.layers.roles import Role, WidthRole

NormName = Literal["batch", "batch_padded", "layer", "rms"]


_frozen = False


@contextmanager
def freeze_running_stats() -> Iterator[None]:
    """Keep BatchNorm from updating its running statistics, while backward computes a block a second time."""
    global _frozen
    before, _frozen = _frozen, True
    try:
        yield
    finally:
        _frozen = before


class BatchNorm(nn.Module):
    """BatchNorm over the positions of the batch, in training over those of every process of `torch.distributed`.

    Args:
        d_model: D.
        padding: padded positions count in the statistics too, with the values they have: see `Block.counts_padding`.
    """

    def __init__(self, d_model: int, padding: bool = False) -> None:
        super().__init__()
        self.norm, self.padding = nn.BatchNorm1d(d_model), padding

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        if lengths is None or self.padding:
            return self._normalize(x.reshape(-1, x.shape[-1])).view_as(x)
        valid = valid_mask(lengths, x.shape[1])
        if x.device.type == "cpu" and not torch.compiler.is_compiling():
            return self._packed(x, valid.squeeze(-1))
        return self._masked(x, valid)

    def _packed(self, x: Tensor, valid: Tensor) -> Tensor:
        """Normalize only the real positions, valid (B, L).

        Their number depends on data: reading it would wait for a GPU, and would break a compiled graph.
        """
        rows = self._normalize(x[valid])
        return torch.zeros_like(x, dtype=rows.dtype).index_put((valid,), rows)

    def _masked(self, x: Tensor, valid: Tensor) -> Tensor:
        """Do the same by sums that skip the padding, valid (B, L, 1)."""
        y = _batch_norm(self.norm, x, valid) if self.training else self.norm(x.flatten(0, 1)).view_as(x)
        return y.masked_fill(~valid, 0)

    def _normalize(self, rows: Tensor) -> Tensor:
        """Normalize rows (positions, D)."""
        if self.training and world_size() > 1:
            return _batch_norm(self.norm, rows)
        if self.training and _frozen:
            norm = self.norm
            assert norm.running_mean is not None and norm.running_var is not None
            # Copies, not None: checkpointing needs the second run to save as many tensors as the first.
            statistics = norm.running_mean.clone(), norm.running_var.clone()
            return functional.batch_norm(rows, *statistics, norm.weight, norm.bias, True, eps=norm.eps)
        return self.norm(rows)

    def width_roles(self) -> dict[str, WidthRole]:
        return {"norm.weight": "vector", "norm.bias": "vector"}


def _batch_norm(norm: nn.BatchNorm1d, rows: Tensor, valid: Tensor | None = None) -> Tensor:
    """Apply `norm` in training to the rows (…, D) of all processes together (torch's SyncBatchNorm needs a GPU).

    valid: (…, 1), the rows that count; the output is 0 at the others. None for all.
    """
    y, mean, variance, count = _Normalized.apply(rows, norm.weight, norm.bias, valid, norm.eps)
    if _frozen:
        return y
    assert norm.running_mean is not None and norm.running_var is not None and norm.num_batches_tracked is not None
    assert norm.momentum is not None
    norm.num_batches_tracked.add_(1)
    with torch.no_grad():
        norm.running_mean.lerp_(mean.to(norm.running_mean), norm.momentum)
        norm.running_var.lerp_((variance * (count / (count - 1).clamp(min=1))).to(norm.running_var), norm.momentum)
    return y


class _Normalized(torch.autograd.Function):
    """Return y, and the mean (D,), variance (D,) and number () of all processes' rows.

    The only tensor of x's size that it keeps for backward is x.

    With x̂ = (x − mean) / σ and means over the rows: ∂x = weight / σ (∂y − mean(∂y) − x̂ mean(∂y x̂)).
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, valid: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        dims = tuple(range(x.dim() - 1))
        y = _where_valid(x.float() if x.dtype in (torch.float16, torch.bfloat16) else x, valid)
        counted = y.new_ones(()) if valid is None else valid.to(y.dtype)
        count = _all_reduce(y.new_tensor(x.numel() // x.shape[-1]) if valid is None else counted.sum())
        mean = _all_reduce(y.sum(dims)) / count
        y = y.sub(mean) if valid is None else y.sub_(mean).mul_(counted)
        variance = _all_reduce(torch.linalg.vector_norm(y, dim=dims).square()) / count
        scale = (variance + eps).rsqrt()
        y = y.mul_(scale * weight).add_(bias) if valid is None else y.mul_(scale * weight).addcmul_(counted, bias)
        ctx.save_for_backward(x, weight, valid, mean, scale, count)
        ctx.mark_non_differentiable(mean, variance, count)
        return y.to(x.dtype), mean, variance, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        x, weight, valid, mean, scale, count = ctx.saved_tensors
        dims = tuple(range(x.dim() - 1))
        grad = _where_valid(grad.to(mean.dtype), valid)
        grad_bias = grad.sum(dims)
        slope = torch.addcmul(-mean * scale, x.to(mean.dtype), scale)  # x̂, overwritten below by x's gradient
        grad_weight = (grad * slope).sum(dims)
        x_term, mean_term = (_all_reduce(sums.clone()) / count for sums in (grad_weight, grad_bias))
        slope = slope.mul_(-x_term).add_(grad).sub_(mean_term).mul_(scale * weight)
        slope = slope if valid is None else slope.masked_fill_(~valid, 0)
        return slope.to(x.dtype), grad_weight.to(weight.dtype), grad_bias.to(weight.dtype), None, None


def _where_valid(x: Tensor, valid: Tensor | None) -> Tensor:
    return x if valid is None else x.masked_fill(~valid, 0)


def _all_reduce(sums: Tensor) -> Tensor:
    if world_size() > 1:
        dist.all_reduce(sums)
    return sums


def world_size() -> int:
    """Return the number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class LayerNorm(nn.LayerNorm):
    """LayerNorm over channels."""

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return super().forward(_to_model_precision(self.weight, x))

    def width_roles(self) -> dict[str, WidthRole]:
        return {"weight": "vector", "bias": "vector"}


class RMSNorm(nn.RMSNorm):
    """RMSNorm over channels, with Mamba's epsilon."""

    def __init__(self, d_model: int, eps: float = 1e-5) -> None:
        super().__init__(d_model, eps=eps)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return super().forward(_to_model_precision(self.weight, x))

    def width_roles(self) -> dict[str, WidthRole]:
        return {"weight": "vector"}


class GatedRMSNorm(nn.Module):
    """RMSNorm of y · SiLU(z) over each of `groups` equal groups of channels (Mamba-2's, layernorm_gated.py).

    Args:
        d_model: D.
        groups: the number of groups, must divide D.
        eps: added to the mean square.
    """

    def __init__(self, d_model: int, groups: int = 1, eps: float = 1e-5) -> None:
        super().__init__()
        self.groups, self.eps = groups, eps
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, y: Tensor, z: Tensor) -> Tensor:
        """y, z (…, D) -> (…, D)."""
        y = y * functional.silu(z)
        weight = self.weight.to(y.dtype)  # autocast makes y's dtype lower
        if self.groups == 1:
            return functional.rms_norm(y, weight.shape, weight, self.eps)
        parts = y.unflatten(-1, (self.groups, -1))
        return functional.rms_norm(parts, parts.shape[-1:], None, self.eps).flatten(-2) * weight

    def optim_roles(self) -> dict[str, Role]:
        return {"weight": "norm"}

    def width_roles(self) -> dict[str, WidthRole]:
        return {"weight": "vector"}


def _to_model_precision(weight: Tensor, x: Tensor) -> Tensor:
    """Return a float32 residual x in the lower precision of the model, in which its layers go on, as in Mamba's code.

    The sums of a normalization are float32 in any precision.
    """
    lower = weight.dtype in (torch.float16, torch.bfloat16) and x.dtype == torch.float32
    return x.to(weight.dtype) if lower else x


def make_norm(name: NormName, d_model: int) -> nn.Module:
    """Build the normalization called `name`."""
    norms: dict[str, Callable[[int], nn.Module]] = {
        "batch": BatchNorm,
        "batch_padded": partial(BatchNorm, padding=True),
        "layer": LayerNorm,
        "rms": RMSNorm,
    }
    return norms[name](d_model)
