"""Padding: sequences are padded on the right, `lengths` says how much of each is real.

Shapes: B batch, L length, D channels.
"""

import torch
from torch import Tensor, arange


def check_sequence(x: Tensor, taken_by: object) -> None:
    """Whether x is (B, L, D) with a position at least; B may be 0. Raises ValueError naming who takes it."""
    if x.dim() != 3 or x.shape[1] < 1:
        raise ValueError(
            f"{type(taken_by).__name__}: x has the shape {tuple(x.shape)}; expected (batch, length, d_model), length at"
            " least 1"
        )


def check_lengths(lengths: Tensor | None, x: Tensor, least: int = 0) -> None:
    """Whether lengths (B,) are what x (B, L, …) may have: whole numbers from `least` to L. Raises ValueError.

    0 is a sequence that ended before this piece of it: its state stands still. Where one vector or label is wanted of
    each, `least` is 1. The numbers are looked at on the CPU alone: a GPU would have to be waited for. There they are
    what they were when the batch was made; `tasks` looks at them before it goes to the device.
    """
    if lengths is None:
        return
    B, L = x.shape[:2]
    if lengths.shape != (B,):
        raise ValueError(f"lengths: shape {tuple(lengths.shape)}; expected (B,) = {(B,)}")
    if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
        raise ValueError(f"lengths: dtype {lengths.dtype}; expected whole numbers, such as int64")
    if lengths.device.type != "cpu" or torch.compiler.is_compiling():
        return
    try:
        wrong = next((n for n in lengths.tolist() if not least <= n <= L), None)
    except RuntimeError:  # nobody may see the values: fake tensors, vmap
        return
    if wrong is not None:
        raise ValueError(f"lengths: {wrong} among them; expected {least} to L = {L}, the real positions of each")


def valid_mask(lengths: Tensor, L: int) -> Tensor:
    """(B,) integer lengths -> (B, L, 1) bool, true at real positions."""
    return (arange(L, device=lengths.device) < lengths[:, None]).unsqueeze(-1)


def real_resets(reset: Tensor | None, lengths: Tensor | None) -> Tensor | None:
    """reset (B, L) bool without what stands at padding: no document starts there."""
    if reset is None or lengths is None:
        return reset
    return reset & valid_mask(lengths, reset.shape[1]).squeeze(-1)


def mask_padding(x: Tensor, lengths: Tensor | None) -> Tensor:
    """x (B, L, D) with padded positions set to 0; x itself where there is no padding information.

    Raises ValueError for lengths that x cannot have; see `check_lengths`."""
    if lengths is None:
        return x
    check_lengths(lengths, x)
    return x.masked_fill(~valid_mask(lengths, x.shape[1]), 0)
