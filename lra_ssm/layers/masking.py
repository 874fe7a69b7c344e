"""Padding: sequences are padded on the right, `lengths` says how much of each is real.

Shapes: B batch, L length, D channels.
"""

from torch import Tensor, arange


def valid_mask(lengths: Tensor, L: int) -> Tensor:
    """(B,) integer lengths -> (B, L, 1) bool, true at real positions."""
    return (arange(L, device=lengths.device) < lengths[:, None]).unsqueeze(-1)


def real_resets(reset: Tensor | None, lengths: Tensor | None) -> Tensor | None:
    """reset (B, L) bool without what stands at padding: no document starts there."""
    if reset is None or lengths is None:
        return reset
    return reset & valid_mask(lengths, reset.shape[1]).squeeze(-1)


def mask_padding(x: Tensor, lengths: Tensor | None) -> Tensor:
    """x (B, L, D) with padded positions set to 0; x itself where there is no padding information."""
    if lengths is None:
        return x
    return x.masked_fill(~valid_mask(lengths, x.shape[1]), 0)
