"""Normalization of (B, L, D) sequences with padding.

All three take `(x, lengths=None)`. LayerNorm and RMSNorm look at one position at a time, so padding cannot leak
into them; BatchNorm takes its statistics over real positions alone ("batch_padded" over all, as the public S4 code),
of all devices together: how many share a batch does not change what is trained.

Shapes: B batch, L length, D channels.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce

from lra_ssm.layers.masking import valid_mask
from lra_ssm.layers.roles import Role
from lra_ssm.ops import rms_norm

NormName = Literal["batch", "batch_padded", "layer", "rms"]


class BatchNorm(nn.Module):
    """BatchNorm over the positions of the batch, in training those of every process of `torch.distributed`.

    Args:
        d_model: D.
        padding: padded positions count in its statistics too, with what stands there: after a block zeros.
    """

    def __init__(self, d_model: int, padding: bool = False) -> None:
        super().__init__()
        self.norm, self.padding = nn.BatchNorm1d(d_model), padding

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        if lengths is None or self.padding:
            return self._normalize(x.reshape(-1, x.shape[-1])).view_as(x)
        valid = valid_mask(lengths, x.shape[1]).squeeze(-1)
        packed = self._normalize(x[valid])
        return torch.zeros_like(x, dtype=packed.dtype).index_put((valid,), packed)

    def _normalize(self, rows: Tensor) -> Tensor:
        """rows (positions, D) -> the same, normalized."""
        shared = self.training and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        return _shared_batch_norm(self.norm, rows) if shared else self.norm(rows)

    def optim_roles(self) -> dict[str, Role]:
        return {"norm.weight": "norm", "norm.bias": "no_decay"}


def _shared_batch_norm(norm: nn.BatchNorm1d, rows: Tensor) -> Tensor:
    """What `norm` gives for the rows (positions, D) of all processes together. (torch's SyncBatchNorm needs a GPU.)"""
    x = rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows
    count = x.new_tensor(len(x))
    dist.all_reduce(count)
    mean = all_reduce(x.sum(0)) / count
    variance = all_reduce((x - mean).square().sum(0)) / count
    if norm.running_mean is not None and norm.running_var is not None and norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        momentum = norm.momentum if norm.momentum is not None else 1 / float(norm.num_batches_tracked)
        with torch.no_grad():
            norm.running_mean.lerp_(mean.to(norm.running_mean), momentum)
            norm.running_var.lerp_((variance * (count / (count - 1).clamp(min=1))).to(norm.running_var), momentum)
    y = (x - mean) * (variance + norm.eps).rsqrt() * norm.weight + norm.bias
    return y.to(rows.dtype)


class LayerNorm(nn.LayerNorm):
    """LayerNorm over channels."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return super().forward(_in_precision_of(self.weight, x))

    def optim_roles(self) -> dict[str, Role]:
        return {"weight": "norm", "bias": "no_decay"}


class RMSNorm(nn.RMSNorm):
    """RMSNorm over channels, with Mamba's epsilon."""

    def __init__(self, d_model: int, eps: float = 1e-5) -> None:
        super().__init__(d_model, eps=eps)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        assert self.eps is not None
        return rms_norm(_in_precision_of(self.weight, x), self.weight, self.eps)

    def optim_roles(self) -> dict[str, Role]:
        return {"weight": "norm"}


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
