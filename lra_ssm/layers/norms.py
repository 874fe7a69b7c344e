"""Normalization of (B, L, D) sequences with padding.

All three take `(x, lengths=None)`. LayerNorm and RMSNorm look at one position at a time, so padding cannot leak
into them; BatchNorm takes its statistics over real positions only ("batch_padded" over all, as the public S4 code),
of all devices together: how many share a batch does not change what is trained.

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


_keeps = False


@contextmanager
def statistics_kept() -> Iterator[None]:
    """Within, BatchNorm leaves its running statistics: a block that backward computes a second time is counted once."""
    global _keeps
    before, _keeps = _keeps, True
    try:
        yield
    finally:
        _keeps = before


class BatchNorm(nn.Module):
    """BatchNorm over the positions of the batch, in training those of every process of `torch.distributed`.

    Args:
        d_model: D.
        padding: padded positions count in its statistics too, with what stands there: see `Block.counts_padding`.
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
        """Takes the real positions out, valid (B, L). Their number is data: a GPU would wait for it, a graph break."""
        rows = self._normalize(x[valid])
        return torch.zeros_like(x, dtype=rows.dtype).index_put((valid,), rows)

    def _masked(self, x: Tensor, valid: Tensor) -> Tensor:
        """The same, valid (B, L, 1), by sums that pass the padding over."""
        y = _batch_norm(self.norm, x, valid) if self.training else self.norm(x.flatten(0, 1)).view_as(x)
        return y.masked_fill(~valid, 0)

    def _normalize(self, rows: Tensor) -> Tensor:
        """rows (positions, D) -> the same, normalized."""
        if self.training and processes() > 1:
            return _batch_norm(self.norm, rows)
        if self.training and _keeps:
            norm = self.norm
            assert norm.running_mean is not None and norm.running_var is not None
            statistics = norm.running_mean.clone(), norm.running_var.clone()  # backward has to find as many tensors
            return functional.batch_norm(rows, *statistics, norm.weight, norm.bias, True, eps=norm.eps)
        return self.norm(rows)

    def optim_roles(self) -> dict[str, Role]:
        return {"norm.weight": "norm", "norm.bias": "no_decay"}

    def width_roles(self) -> dict[str, WidthRole]:
        return {"norm.weight": "vector", "norm.bias": "vector"}


def _batch_norm(norm: nn.BatchNorm1d, rows: Tensor, valid: Tensor | None = None) -> Tensor:
    """What `norm` gives in training for the rows (…, D) of all processes together (torch's SyncBatchNorm needs a GPU).

    valid: (…, 1), which rows are taken, 0 for the others; None for all.
    """
    y, mean, variance, count = _Normalized.apply(rows, norm.weight, norm.bias, valid, norm.eps)
    if _keeps:
        return y
    if norm.running_mean is not None and norm.running_var is not None and norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        momentum = norm.momentum if norm.momentum is not None else 1 / float(norm.num_batches_tracked)
        with torch.no_grad():
            norm.running_mean.lerp_(mean.to(norm.running_mean), momentum)
            norm.running_var.lerp_((variance * (count / (count - 1).clamp(min=1))).to(norm.running_var), momentum)
    return y


class _Normalized(torch.autograd.Function):
    """y, and mean, variance (D,) and number () of the rows of all processes. Of that size it keeps x alone.

    With x̂ = (x − mean) / σ and means over the rows: ∂x = weight / σ (∂y − mean(∂y) − x̂ mean(∂y x̂)).
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, valid: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        over = tuple(range(x.dim() - 1))
        y = _taken(x.float() if x.dtype in (torch.float16, torch.bfloat16) else x, valid)
        taken = y.new_ones(()) if valid is None else valid.to(y.dtype)
        count = _over_processes(y.new_tensor(x.numel() // x.shape[-1]) if valid is None else taken.sum())
        mean = _over_processes(y.sum(over)) / count
        y = y.sub(mean) if valid is None else y.sub_(mean).mul_(taken)
        variance = _over_processes(torch.linalg.vector_norm(y, dim=over).square()) / count
        scale = (variance + eps).rsqrt()
        y = y.mul_(scale * weight).add_(bias) if valid is None else y.mul_(scale * weight).addcmul_(taken, bias)
        ctx.save_for_backward(x, weight, valid, mean, scale, count)
        ctx.mark_non_differentiable(mean, variance, count)
        return y.to(x.dtype), mean, variance, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        x, weight, valid, mean, scale, count = ctx.saved_tensors
        over = tuple(range(x.dim() - 1))
        grad = _taken(grad.to(mean.dtype), valid)
        grad_bias = grad.sum(over)
        slope = torch.addcmul(-mean * scale, x.to(mean.dtype), scale)  # x̂, which becomes x's gradient
        grad_weight = (grad * slope).sum(over)
        of_x, of_one = (_over_processes(sums.clone()) / count for sums in (grad_weight, grad_bias))
        slope = slope.mul_(-of_x).add_(grad).sub_(of_one).mul_(scale * weight)
        slope = slope if valid is None else slope.masked_fill_(~valid, 0)
        return slope.to(x.dtype), grad_weight.to(weight.dtype), grad_bias.to(weight.dtype), None, None


def _taken(x: Tensor, valid: Tensor | None) -> Tensor:
    return x if valid is None else x.masked_fill(~valid, 0)


def _over_processes(sums: Tensor) -> Tensor:
    if processes() > 1:
        dist.all_reduce(sums)
    return sums


def processes() -> int:
    """How many train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class LayerNorm(nn.LayerNorm):
    """LayerNorm over channels."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return super().forward(_in_precision_of(self.weight, x))

    def optim_roles(self) -> dict[str, Role]:
        return {"weight": "norm", "bias": "no_decay"}

    def width_roles(self) -> dict[str, WidthRole]:
        return {"weight": "vector", "bias": "vector"}


class RMSNorm(nn.RMSNorm):
    """RMSNorm over channels, with Mamba's epsilon."""

    def __init__(self, d_model: int, eps: float = 1e-5) -> None:
        super().__init__(d_model, eps=eps)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return super().forward(_in_precision_of(self.weight, x))

    def optim_roles(self) -> dict[str, Role]:
        return {"weight": "norm"}

    def width_roles(self) -> dict[str, WidthRole]:
        return {"weight": "vector"}


class GatedRMSNorm(nn.Module):
    """RMSNorm of y · SiLU(z) over each of `groups` equal parts of the channels (Mamba-2's, layernorm_gated.py).

    Args:
        d_model: D.
        groups: their number, must divide D.
        eps: added to the mean square.
    """

    def __init__(self, d_model: int, groups: int = 1, eps: float = 1e-5) -> None:
        super().__init__()
        self.groups, self.eps = groups, eps
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, y: Tensor, z: Tensor) -> Tensor:
        """y, z (…, D) -> (…, D)."""
        y = y * functional.silu(z)
        weight = self.weight.to(y.dtype)  # which autocast makes lower
        if self.groups == 1:
            return functional.rms_norm(y, weight.shape, weight, self.eps)
        parts = y.unflatten(-1, (self.groups, -1))
        return functional.rms_norm(parts, parts.shape[-1:], None, self.eps).flatten(-2) * weight

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, groups={self.groups}, eps={self.eps}"

    def optim_roles(self) -> dict[str, Role]:
        return {"weight": "norm"}

    def width_roles(self) -> dict[str, WidthRole]:
        return {"weight": "vector"}


def _in_precision_of(weight: Tensor, x: Tensor) -> Tensor:
    """A float32 residual for a model of lower precision, whose layers go on in it, as in Mamba's code. (The sums within
    a normalization are float32 in any.)"""
    lower = weight.dtype in (torch.float16, torch.bfloat16) and x.dtype == torch.float32
    return x.to(weight.dtype) if lower else x


def make_norm(name: NormName, d_model: int) -> nn.Module:
    """The normalization called `name`."""
    norms: dict[str, Callable[[int], nn.Module]] = {
        "batch": BatchNorm,
        "batch_padded": partial(BatchNorm, padding=True),
        "layer": LayerNorm,
        "rms": RMSNorm,
    }
    if name not in norms:
        raise ValueError(f"norm is {name!r}; it must be one of {', '.join(norms)}")
    return norms[name](d_model)
