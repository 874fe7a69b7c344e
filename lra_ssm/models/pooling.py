"""Pooling: from a vector per position to one per sequence, over real positions only.

A pooling is built as `Pooling(d_model)` and called as `pooling(x, lengths)`: x (B, L, D), 0 at padding, and lengths
(B,) or None -> (B, D). It raises ValueError for invalid lengths, 0 included: the mean of no positions is undefined.

Shapes: B batch, L length, D channels.
"""

import torch
from torch import Tensor, nn

from lra_ssm.layers import check_lengths, valid_mask


class MeanPooling(nn.Module):
    """The mean over positions."""

    def __init__(self, d_model: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        check_lengths(lengths, x, minimum=1)
        return x.sum(1) / (x.shape[1] if lengths is None else lengths[:, None])


class FirstPooling(nn.Module):
    """The first position, which may be a class token."""

    def __init__(self, d_model: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        check_lengths(lengths, x, minimum=1)
        return x[:, 0]


class LastPooling(nn.Module):
    """The last position."""

    def __init__(self, d_model: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        check_lengths(lengths, x, minimum=1)
        return x[:, -1] if lengths is None else x[torch.arange(x.shape[0], device=x.device), lengths - 1]


class MaxPooling(nn.Module):
    """The maximum over positions, channel by channel."""

    def __init__(self, d_model: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        check_lengths(lengths, x, minimum=1)
        return (x if lengths is None else x.masked_fill(~valid_mask(lengths, x.shape[1]), -torch.inf)).amax(1)
