"""Normalization of (B, L, D) sequences with padding.

All three take `(x, lengths=None)`. LayerNorm and RMSNorm look at one position at a time, so padding cannot leak
into them; BatchNorm takes its statistics over real positions alone (the public S4 code counts the padding in).

Shapes: B batch, L length, D channels.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from lra_ssm.layers.masking import valid_mask
from lra_ssm.layers.spec import Role

NormName = Literal["batch", "layer", "rms"]


class BatchNorm(nn.Module):
    """BatchNorm over the real positions of the batch. It wraps `nn.BatchNorm1d` on the packed positions, so that
    SyncBatchNorm conversion finds it."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(d_model)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        if lengths is None:
            return self.norm(x.reshape(-1, x.shape[-1])).view_as(x)
        valid = valid_mask(lengths, x.shape[1]).squeeze(-1)
        packed = self.norm(x[valid])
        return torch.zeros_like(x, dtype=packed.dtype).index_put((valid,), packed)

    def optim_roles(self) -> dict[str, Role]:
        return {"norm.weight": "no_decay", "norm.bias": "no_decay"}


class LayerNorm(nn.LayerNorm):
    """LayerNorm over channels."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return super().forward(x)

    def optim_roles(self) -> dict[str, Role]:
        return {"weight": "no_decay", "bias": "no_decay"}


class RMSNorm(nn.RMSNorm):
    """RMSNorm over channels, with Mamba's epsilon."""

    def __init__(self, d_model: int, eps: float = 1e-5) -> None:
        super().__init__(d_model, eps=eps)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return super().forward(x)

    def optim_roles(self) -> dict[str, Role]:
        return {"weight": "no_decay"}


def make_norm(name: NormName, d_model: int) -> nn.Module:
    """The normalization called `name`: "batch", "layer" or "rms"."""
    norms = {"batch": BatchNorm, "layer": LayerNorm, "rms": RMSNorm}
    if name not in norms:
        raise ValueError(f"norm is {name!r}; it must be one of {', '.join(norms)}")
    return norms[name](d_model)
