"""Padding: sequences are padded on the right, and `lengths` says how much of each is real.

Shapes: B batch, L length, D channels.
"""

import torch
from torch import Tensor, arange


def check_sequence(x: Tensor, module: object) -> None:
    """Check that x is (B, L, D) with at least one position; B may be 0. Raises ValueError naming the module's class."""
    if x.dim() != 3 or x.shape[1] < 1:
        raise ValueError(
            f"{type(module).__name__}: x has the shape {tuple(x.shape)}; expected (batch, length, d_model), length at"
            " least 1"
        )


def check_lengths(lengths: Tensor | None, x: Tensor, minimum: int = 0) -> None:
    """Check that lengths (B,) are whole numbers from `minimum` to L for x (B, L, …). Raises ValueError.

    Length 0 is a sequence that has ended in an earlier slice: its state does not change. A caller that needs one
    vector or label per sequence passes `minimum=1`. The values are only read on the CPU, because reading them on a GPU
    would wait for it; `tasks` checks them before the batch is moved to a GPU.
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
        wrong = next((n for n in lengths.tolist() if not minimum <= n <= L), None)
    except RuntimeError:  # fake tensors and vmap have no values to read
        return
    if wrong is not None:
        raise ValueError(f"lengths: {wrong} among them; expected {minimum} to L = {L}, the real positions of each")


def valid_mask(lengths: Tensor, L: int) -> Tensor:
    """Return (B, L, 1) bool, true at real positions, for integer lengths (B,)."""
    return (arange(L, device=lengths.device) < lengths[:, None]).unsqueeze(-1)


def real_resets(reset: Tensor | None, lengths: Tensor | None) -> Tensor | None:
    """Return reset (B, L) bool with the resets at padding removed: no document starts there."""
    if reset is None or lengths is None:
        return reset
    return reset & valid_mask(lengths, reset.shape[1]).squeeze(-1)


def mask_padding(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Return x (B, L, D) with padded positions set to 0, or x itself without lengths.

    Raises ValueError for invalid lengths; see `check_lengths`.
    """
    if lengths is None:
        return x
    check_lengths(lengths, x)
    return x.masked_fill(~valid_mask(lengths, x.shape[1]), 0)
