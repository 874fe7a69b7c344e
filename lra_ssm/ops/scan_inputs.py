"""The arguments of `selective_scan`, checked and brought to one form, for every backend and for the reference.

Shapes: u, delta, z (batch, D, L), or delta (D,); A (D, N); B, C constant (D, N) or variable (batch, G, N, L), the last
dimension 2L where re and im are interleaved; D, delta_bias (D,); B_bias (D, N); initial_state (batch, D, N); reset
(batch, L). (D channels, L length, N states, G groups of D/G channels, B's and C's own.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lra_ssm.ops.tensors import check_dense

DISCRETIZATIONS = ("euler", "zoh")


class ScanTensors(NamedTuple):
    """The tensors of a call, in the order in which every backend's autograd sees them."""

    u: Tensor
    delta: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    B_bias: Tensor | None
    D: Tensor | None
    z: Tensor | None
    delta_bias: Tensor | None
    initial: Tensor | None
    reset: Tensor | None


@dataclass(frozen=True)
class ScanInputs:
    """Checked arguments.

    u, delta, z and variable B, C are the caller's tensors (B, C with a group dimension), in their dtypes and strides.
    The small ones (A, constant B and C, D, delta_bias, B_bias, initial_state) are in the arithmetic's dtype, with A
    (D, N); a bias next to a constant B is already added to it, so B_bias is left for a variable B only.
    """

    u: Tensor
    delta: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None
    z: Tensor | None
    delta_bias: Tensor | None
    delta_softplus: bool
    B_bias: Tensor | None
    discretization: str
    initial_state: Tensor | None
    reset: Tensor | None
    constant_delta: Tensor | None  # (D,), softplus taken, where it is the same at every step; delta is it, expanded
    dtype: torch.dtype  # of the real arithmetic: float32 or float64
    state_dtype: torch.dtype  # the same, or its complex counterpart if A is complex

    @property
    def tensors(self) -> ScanTensors:
        return ScanTensors(
            self.u, self.delta, self.A, self.B, self.C, self.B_bias, self.D, self.z, self.delta_bias,
            self.initial_state, self.reset,
        )  # fmt: skip

    @property
    def needs_grad(self) -> bool:
        """Return whether backward may follow, for which a backend saves tensors."""
        return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in self.tensors)


def is_interleaved(x: Tensor, length: int, state_dtype: torch.dtype) -> bool:
    """Return whether a variable B or C holds re and im interleaved along time."""
    return state_dtype.is_complex and not x.is_complex() and x.shape[-1] == 2 * length


def _wrong(name: str, x: Tensor, expected: str) -> ValueError:
    return ValueError(f"{name}: shape {tuple(x.shape)}; expected {expected}")


def _check_types(tensors: dict[str, Tensor | None], reset: Tensor | None, u: Tensor, complex_A: bool) -> None:
    may_be_complex = ("A", "B", "C", "B_bias", "initial_state")
    for name, x in tensors.items():
        if x is None:
            continue
        if not isinstance(x, Tensor):
            raise ValueError(f"{name}: {type(x).__name__}; expected a tensor")
        if x.is_complex():
            if name not in may_be_complex:
                raise ValueError(f"{name}: dtype {x.dtype}; expected a real floating dtype")
            if name != "A" and not complex_A:
                raise ValueError(f"{name}: dtype {x.dtype}, but A is real; expected a real {name}, or a complex A")
        elif not x.is_floating_point():
            kinds = "real or complex floating" if name in may_be_complex else "real floating"
            raise ValueError(f"{name}: dtype {x.dtype}; expected a {kinds} dtype")
    if reset is not None and not (isinstance(reset, Tensor) and reset.dtype == torch.bool):
        raise ValueError(f"reset: {getattr(reset, 'dtype', type(reset).__name__)}; expected a bool tensor")
    for name, x in {**tensors, "reset": reset}.items():
        if x is not None and x.device != u.device:
            raise ValueError(f"{name}: on {x.device}; expected {u.device}, where u is")


def _input_or_output_matrix(name: str, x: Tensor, complex_A: bool, batch: int, D: int, N: int, L: int) -> Tensor:
    """Return B or C as constant (D, N) or variable (batch, G, N, L or 2L). Raises ValueError for another shape."""
    if x.dim() == 2:
        if tuple(x.shape) != (D, N):
            raise _wrong(name, x, f"constant (D, N) = {(D, N)}, or variable (batch, N, L) or (batch, G, N, L)")
        return x
    interleaved = complex_A and not x.is_complex()
    lengths = (L, 2 * L) if interleaved else (L,)
    # `in` asks torch.compile's symbolic lengths whether they are the same object
    long = any(x.shape[-1] == length for length in lengths)
    if x.dim() not in (3, 4) or x.shape[0] != batch or x.shape[-2] != N or not long:
        # A symbolic length as text is a number: torch.compile would compile again for each.
        last = f"L = {L}" + (f" (real) or 2L = {2 * L} (re, im interleaved)" if interleaved else "")
        raise _wrong(name, x, f"(D, N), (batch, N, L) or (batch, G, N, L), batch = {batch}, D = {D}, N = {N}, {last}")
    if x.dim() == 3:
        return x.unsqueeze(1)
    if x.shape[1] < 1 or D % x.shape[1]:
        raise _wrong(name, x, f"(batch, G, N, L) with G dividing D = {D}; G = {x.shape[1]} does not")
    return x


def check_scan_inputs(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    delta_bias: Tensor | None, delta_softplus: bool, B_bias: Tensor | None, discretization: str,
    initial_state: Tensor | None, reset: Tensor | None,
) -> ScanInputs:  # fmt: skip
    """Return `selective_scan`'s arguments as `ScanInputs`. Raises ValueError, naming the argument that does not fit."""
    tensors = {
        "u": u, "delta": delta, "A": A, "B": B, "C": C, "D": D, "z": z, "delta_bias": delta_bias, "B_bias": B_bias,
        "initial_state": initial_state,
    }  # fmt: skip
    for name in ("u", "delta", "A", "B", "C"):
        if tensors[name] is None:
            raise ValueError(f"{name}: None; expected a tensor")
    check_dense(**tensors, reset=reset)
    complex_A = isinstance(A, Tensor) and A.is_complex()
    _check_types(tensors, reset, u, complex_A)
    if discretization not in DISCRETIZATIONS:
        raise ValueError(f"discretization: {discretization!r}; expected 'euler' or 'zoh'")
    if u.dim() != 3 or u.shape[1] < 1 or u.shape[2] < 1:
        raise _wrong("u", u, "(batch, D, L) with D >= 1 and L >= 1")
    batch, channels, L = u.shape
    if A.dim() not in (1, 2) or A.shape[-1] < 1 or (A.dim() == 2 and A.shape[0] != channels):
        raise _wrong("A", A, f"(D, N) or (N,) with D = {channels} and N >= 1")
    N = A.shape[-1]
    expected_shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        "delta": ("(D,)", (channels,)) if delta.dim() == 1 else ("(batch, D, L)", (batch, channels, L)),
        "z": ("(batch, D, L)", (batch, channels, L)),
        "D": ("(D,)", (channels,)),
        "delta_bias": ("(D,)", (channels,)),
        "B_bias": ("(D, N)", (channels, N)),
        "initial_state": ("(batch, D, N)", (batch, channels, N)),
        "reset": ("(batch, L)", (batch, L)),
    }
    for name, (letters, shape) in expected_shapes.items():
        x = {**tensors, "reset": reset}[name]
        if x is not None and tuple(x.shape) != shape:
            raise _wrong(name, x, f"{letters} = {shape}")
    B = _input_or_output_matrix("B", B, complex_A, batch, channels, N, L)
    C = _input_or_output_matrix("C", C, complex_A, batch, channels, N, L)

    double = any(x is not None and x.dtype in (torch.float64, torch.complex128) for x in tensors.values())
    dtype = torch.float64 if double else torch.float32
    state_dtype = (torch.complex128 if double else torch.complex64) if complex_A else dtype

    def constant(x: Tensor) -> Tensor:
        return x.to(state_dtype).resolve_conj()  # a lazy conjugate has no view as real pairs

    def small(x: Tensor | None, to: torch.dtype) -> Tensor | None:
        return None if x is None else x.to(to).resolve_conj()

    if B.dim() == 2 and B_bias is not None:
        B, B_bias = B.to(state_dtype) + B_bias.to(state_dtype), None
    constant_delta, delta_bias = None, small(delta_bias, dtype)
    if delta.dim() == 1:
        delta = delta.to(dtype) if delta_bias is None else delta.to(dtype) + delta_bias
        constant_delta = F.softplus(delta) if delta_softplus else delta
        delta, delta_bias, delta_softplus = constant_delta[:, None].expand(batch, channels, L), None, False
    return ScanInputs(
        u=u,
        delta=delta,
        A=constant(A).expand(channels, N),
        B=constant(B) if B.dim() == 2 else B,
        C=constant(C) if C.dim() == 2 else C,
        D=small(D, dtype),
        z=z,
        delta_bias=delta_bias,
        delta_softplus=bool(delta_softplus),
        B_bias=small(B_bias, state_dtype),
        discretization=discretization,
        initial_state=small(initial_state, state_dtype),
        reset=reset,
        constant_delta=constant_delta,
        dtype=dtype,
        state_dtype=state_dtype,
    )
