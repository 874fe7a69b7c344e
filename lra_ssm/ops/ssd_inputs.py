"""The arguments of `ssd_scan`, checked, for every backend and for the reference.

Shapes: x (batch, L, H, P); delta (batch, L, H); A, D (H,); B, C (batch, L, G, N); initial_state (batch, H, P, N); reset
(batch, L). (L length, H heads, P channels per head, G groups of H/G heads, N states.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from lra_ssm.ops.tensors import check_dense, is_clean, is_nonfinite, without_nonfinite


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
    delayed: bool = False
    zero_nonfinite: bool = False  # whether a backend takes 0 in place of inf and NaN: see `keep_nonfinite_apart`


def check_ssd_inputs(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, chunk_size: int | None,
    initial_state: Tensor | None, reset: Tensor | None, delayed: bool = False,
) -> SSDInputs:  # fmt: skip
    """Return `ssd_scan`'s arguments as `SSDInputs`. Raises ValueError, naming the argument, for what does not fit."""
    tensors = {"x": x, "delta": delta, "A": A, "B": B, "C": C, "D": D, "initial_state": initial_state, "reset": reset}
    check_dense(**tensors)
    present = {name: value for name, value in tensors.items() if value is not None}
    for name in ("x", "delta", "A", "B", "C"):
        if name not in present:
            raise ValueError(f"{name}: None; expected a tensor")
    for name, value in present.items():
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
        if name in present and tuple(present[name].shape) != shape:
            raise ValueError(f"{name}: shape {tuple(present[name].shape)}; expected {letters} = {shape}")
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size: {chunk_size}; expected at least 1, or None")
    double = any(value.dtype == torch.float64 for value in present.values())
    dtype = torch.float64 if double else torch.float32

    def small(value: Tensor | None) -> Tensor | None:
        return None if value is None else value.to(dtype)

    return SSDInputs(x, delta, A.to(dtype), B, C, small(D), small(initial_state), reset, chunk_size, dtype, delayed)


def keep_nonfinite_apart(inputs: SSDInputs, run: Callable[[SSDInputs], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Call `run` on the inputs such that an inf or NaN before a reset does not reach what comes after it.

    Backends bring positions together by products with decays, 0 across a reset, and 0 times NaN is NaN. So they take 0
    in place of what is not finite (each by itself, piece by piece: copies of whole inputs would be kept for backward).
    Here y and the last state become NaN where it counts: in its document, from its position on.
    """
    x, delta, _, B, C, _, initial, reset, *_ = inputs
    if reset is None or is_clean(x, delta, B, C, initial):
        return run(inputs)
    heads, dtype = x.shape[2] // B.shape[2], inputs.dtype
    sums = x.sum(-1, dtype=dtype) + delta + B.sum(-1, dtype=dtype).repeat_interleave(heads, 2)
    entering = is_nonfinite(sums)  # (batch, L, H): here something enters the state
    before = entering.cumsum(1) - entering.int()  # how many at earlier positions
    if initial is not None:
        before = before + is_nonfinite(initial.sum((-1, -2))).int().unsqueeze(1)
    of_document = torch.where(reset.unsqueeze(-1), before, 0).cummax(1).values  # before the document
    bad = before + entering.int() > of_document
    bad_y = (before + is_nonfinite(delta).int() > of_document) if inputs.delayed else bad
    initial = None if initial is None else without_nonfinite(initial)
    y, state = run(inputs._replace(initial_state=initial, zero_nonfinite=True))
    unread = is_nonfinite(C.sum(-1, dtype=dtype)).repeat_interleave(heads, 2)
    y = y.masked_fill((bad_y | unread).unsqueeze(-1), torch.nan)
    return y, state.masked_fill(bad[:, -1, :, None, None], torch.nan)
