"""The arguments of `linear_scan`, checked and brought to one dtype, for the scans and for the reference.

Shapes: b (B, D, L); a (D,) or (B, D, L); initial_state (B, D); reset (B, L).  (B batch, D channels, L length.)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lra_ssm.ops.tensors import check_dense


class LinearInputs(NamedTuple):
    """a, b and initial in the arithmetic's dtype: float32, float64, complex64 or complex128; no lazy conjugates."""

    a: Tensor
    b: Tensor
    initial: Tensor | None
    reset: Tensor | None
    dtype: torch.dtype  # of x


def check_linear_inputs(a: Tensor, b: Tensor, initial_state: Tensor | None, reset: Tensor | None) -> LinearInputs:
    """Return `linear_scan`'s arguments as `LinearInputs`. Raises ValueError, naming the argument that does not fit."""
    tensors = {"a": a, "b": b} | ({} if initial_state is None else {"initial_state": initial_state})
    check_dense(**tensors, reset=reset)
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise ValueError(f"{name}: {type(x).__name__}; expected a tensor")
        if not (x.is_floating_point() or x.is_complex()):
            raise ValueError(f"{name}: dtype {x.dtype}; expected a real or complex floating dtype")
    if reset is not None and not (isinstance(reset, Tensor) and reset.dtype == torch.bool):
        raise ValueError(f"reset: {getattr(reset, 'dtype', type(reset).__name__)}; expected a bool tensor")
    for name, x in (tensors if reset is None else tensors | {"reset": reset}).items():
        if x.device != b.device:
            raise ValueError(f"{name}: on {x.device}; expected {b.device}, where b is")
    if b.dim() != 3 or b.shape[1] < 1 or b.shape[2] < 1:
        raise ValueError(f"b: shape {tuple(b.shape)}; expected (B, D, L) with D >= 1 and L >= 1")
    batch, D, L = b.shape
    if tuple(a.shape) not in ((D,), (batch, D, L)):
        raise ValueError(f"a: shape {tuple(a.shape)}; expected (D,) = {(D,)} or (B, D, L) = {(batch, D, L)}")
    if initial_state is not None and tuple(initial_state.shape) != (batch, D):
        raise ValueError(f"initial_state: shape {tuple(initial_state.shape)}; expected (B, D) = {(batch, D)}")
    if reset is not None and tuple(reset.shape) != (batch, L):
        raise ValueError(f"reset: shape {tuple(reset.shape)}; expected (B, L) = {(batch, L)}")
    dtype = b.dtype
    for x in tensors.values():
        dtype = torch.promote_types(dtype, x.dtype)
    work = torch.promote_types(dtype, torch.float32)
    in_dtype = {name: x.to(work).resolve_conj() for name, x in tensors.items()}
    return LinearInputs(in_dtype["a"], in_dtype["b"], in_dtype.get("initial_state"), reset, dtype)
