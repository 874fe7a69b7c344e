"""The arguments of `ssd_scan`, checked, for every backend and for the reference.

Shapes: x (batch, L, H, P); delta (batch, L, H); A, D (H,); B, C (batch, L, G, N); initial_state (batch, H, P, N); reset
(batch, L). (L length, H heads, P channels per head, G groups of H/G heads, N states.)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lra_ssm.ops.tensors import check_dense


class SSDInputs(NamedTuple):
    """Checked arguments: x, delta, B and C are the caller's; A, D and initial_state are in the arithmetic's dtype."""

    x: Tensor
    delta: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None
    initial_state: Tensor | None
    reset: Tensor | None
    chunk_size: int | None
    dtype: torch.dtype  # of the arithmetic: float32 or float64


def check_ssd_inputs(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, chunk_size: int | None,
    initial_state: Tensor | None, reset: Tensor | None,
) -> SSDInputs:  # fmt: skip
    """`ssd_scan`'s arguments as `SSDInputs`; ValueError, naming the argument, for what does not fit."""
    tensors = {"x": x, "delta": delta, "A": A, "B": B, "C": C, "D": D, "initial_state": initial_state, "reset": reset}
    check_dense(**tensors)
    given = {name: value for name, value in tensors.items() if value is not None}
    for name in ("x", "delta", "A", "B", "C"):
        if name not in given:
            raise ValueError(f"{name}: None; expected a tensor")
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"{name}: {type(value).__name__}; expected a tensor")
        if name == "reset" and value.dtype != torch.bool:
            raise ValueError(f"reset: {value.dtype}; expected a bool tensor")
        if name != "reset" and not value.is_floating_point():
            raise ValueError(f"{name}: dtype {value.dtype}; expected a real floating dtype")
        if value.device != x.device:
            raise ValueError(f"{name}: on {value.device}; expected {x.device}, where x is")
    if x.dim() != 4 or min(x.shape[1:]) < 1:
        raise ValueError(f"x: shape {tuple(x.shape)}; expected (batch, L, H, P) with L, H and P at least 1")
    batch, L, H, P = x.shape
    if B.dim() != 4 or min(B.shape[2:]) < 1 or H % B.shape[2]:
        raise ValueError(f"B: shape {tuple(B.shape)}; expected (batch, L, G, N) with G dividing H = {H}")
    G, N = B.shape[2:]
    expected: dict[str, tuple[str, tuple[int, ...]]] = {
        "delta": ("(batch, L, H)", (batch, L, H)),
        "A": ("(H,)", (H,)),
        "B": ("(batch, L, G, N)", (batch, L, G, N)),
        "C": ("(batch, L, G, N)", (batch, L, G, N)),
        "D": ("(H,)", (H,)),
        "initial_state": ("(batch, H, P, N)", (batch, H, P, N)),
        "reset": ("(batch, L)", (batch, L)),
    }
    for name, (letters, shape) in expected.items():
        if name in given and tuple(given[name].shape) != shape:
            raise ValueError(f"{name}: shape {tuple(given[name].shape)}; expected {letters} = {shape}")
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size: {chunk_size}; expected at least 1, or None")
    double = any(value.dtype == torch.float64 for value in given.values())
    dtype = torch.float64 if double else torch.float32

    def small(value: Tensor | None) -> Tensor | None:
        return None if value is None else value.to(dtype)

    return SSDInputs(x, delta, A.to(dtype), B, C, small(D), small(initial_state), reset, chunk_size, dtype)
