"""The arguments of `selective_scan`, `ssd_scan`, `linear_scan` and `s4d_kernel`, checked and brought to one form for
every backend and for the reference. Their shapes are in the functions' docstrings.

Each check returns a tuple of arguments. It raises ValueError, naming the argument, for what does not fit.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lra_ssm.ops.discretization import bilinear_as_zoh
from lra_ssm.ops.tensors import check_shapes, check_tensors, has_double, read_sizes

# -- the selective scan ------------------------------------------------------------------------------------------------

_COMPLEX = ("A", "B", "C", "B_bias", "initial_state")  # which may be complex


class ScanTensors(NamedTuple):
    """The tensors of a call, in the order in which every backend's autograd sees them.

    u, delta and variable B, C are the caller's tensors (B, C with a group dimension), in their dtypes and strides. The
    small ones (A, constant B and C, B_bias, D, delta_bias, initial_state) are in the arithmetic's dtype, with A (D, N);
    a bias next to a constant B is already added to it, so B_bias is left for a variable B only.
    """

    u: Tensor
    delta: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    B_bias: Tensor | None
    D: Tensor | None
    delta_bias: Tensor | None
    initial_state: Tensor | None
    reset: Tensor | None


class ScanInputs(NamedTuple):
    """Checked arguments of `selective_scan`."""

    tensors: ScanTensors
    z: Tensor | None  # the caller's
    delta_softplus: bool
    discretization: str
    constant_delta: Tensor | None  # (D,), softplus taken, where it is the same at every step; delta is it, expanded
    dtype: torch.dtype  # of the real arithmetic: float32 or float64
    state_dtype: torch.dtype  # the same, or its complex counterpart if A is complex
    needs_state: bool = False  # whether the last state may get a gradient

    @property
    def needs_grad(self) -> bool:
        """Return whether backward may follow, for which a backend saves tensors."""
        return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in self.tensors)


def _input_or_output_matrix(name: str, x: Tensor, A: Tensor, batch: int, D: int, N: int, L: int) -> Tensor:
    """Return B or C as constant (D, N) or variable (batch, G, N, L), complex if re and im are interleaved in it.

    Raises ValueError for another shape.
    """
    if x.dim() == 2:
        check_shapes({name: x}, {name: "D N"}, {"D": D, "N": N})
        return x
    may_interleave = A.is_complex() and not x.is_complex()
    interleaved = may_interleave and x.shape[-1] != L and x.shape[-1] == 2 * L
    if x.dim() not in (3, 4) or x.shape[0] != batch or x.shape[-2] != N or not (interleaved or x.shape[-1] == L):
        # A symbolic length as text is a number: torch.compile would compile again for each.
        sizes = f"batch = {batch}, D = {D}, N = {N}, L = {L}"
        sizes += f" (real) or 2L = {2 * L} (re, im interleaved)" if may_interleave else ""
        raise ValueError(f"{name}: shape {tuple(x.shape)}; expected (D, N), (batch, N, L) or (batch, G, N, L), {sizes}")
    x = x if x.dim() == 4 else x.unsqueeze(1)
    if x.shape[1] < 1 or D % x.shape[1]:
        got = f"shape {tuple(x.shape)}"
        raise ValueError(f"{name}: {got}; expected (batch, G, N, L) with G dividing D = {D}; G = {x.shape[1]} does not")
    if interleaved:
        pairs = x.to(torch.promote_types(x.dtype, torch.float32)).unflatten(-1, (L, 2)).resolve_neg()
        *strides, last = pairs.stride()
        # torch.compile cannot ask where a tensor begins
        copies = torch.compiler.is_compiling() or last != 1 or any(n % 2 for n in (pairs.storage_offset(), *strides))
        x = torch.complex(*pairs.unbind(-1)) if copies else torch.view_as_complex(pairs)
    return x


def check_scan_inputs(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    delta_bias: Tensor | None, delta_softplus: bool, B_bias: Tensor | None, discretization: str,
    initial_state: Tensor | None, reset: Tensor | None, return_last_state: bool,
) -> ScanInputs:  # fmt: skip
    """Return `selective_scan`'s arguments as `ScanInputs`."""
    tensors = {
        "u": u, "delta": delta, "A": A, "B": B, "C": C, "D": D, "z": z, "delta_bias": delta_bias, "B_bias": B_bias,
        "initial_state": initial_state, "reset": reset,
    }  # fmt: skip
    optional = ("D", "z", "delta_bias", "B_bias", "initial_state", "reset")
    check_tensors(tensors, optional, **dict.fromkeys(_COMPLEX, "real or complex floating"))
    for name in _COMPLEX:
        x = tensors[name]
        if x is not None and x.is_complex() and not A.is_complex():
            raise ValueError(f"{name}: dtype {x.dtype}, but A is real; expected a real {name}, or a complex A")
    if discretization not in ("euler", "zoh"):
        raise ValueError(f"discretization: {discretization!r}; expected 'euler' or 'zoh'")
    sizes = read_sizes("u", u, "batch D L")
    batch, channels, L = u.shape
    if A.dim() not in (1, 2) or A.shape[-1] < 1 or (A.dim() == 2 and A.shape[0] != channels):
        raise ValueError(f"A: shape {tuple(A.shape)}; expected (D, N) or (N,) with D = {channels} and N >= 1")
    N = sizes["N"] = A.shape[-1]
    expected = {"delta": "D" if delta.dim() == 1 else "batch D L", "z": "batch D L", "D": "D", "delta_bias": "D",
                "B_bias": "D N", "initial_state": "batch D N", "reset": "batch L"}  # fmt: skip
    check_shapes(tensors, expected, sizes)
    B, C = (_input_or_output_matrix(name, x, A, batch, channels, N, L) for name, x in (("B", B), ("C", C)))

    dtype = torch.float64 if has_double(*tensors.values()) else torch.float32
    state_dtype = torch.promote_types(dtype, torch.complex64) if A.is_complex() else dtype

    def small(x: Tensor | None, to: torch.dtype) -> Tensor | None:
        return None if x is None else x.to(to).resolve_conj()  # a lazy conjugate has no view as real pairs

    if B.dim() == 2 and B_bias is not None:
        B, B_bias = B.to(state_dtype) + B_bias.to(state_dtype), None
    constant_delta, delta_bias = None, small(delta_bias, dtype)
    if delta.dim() == 1:
        delta = delta.to(dtype) if delta_bias is None else delta.to(dtype) + delta_bias
        constant_delta = F.softplus(delta) if delta_softplus else delta
        delta, delta_bias, delta_softplus = constant_delta[:, None].expand(batch, channels, L), None, False
    A, B, C = (x.to(state_dtype).resolve_conj() if x.dim() <= 2 else x for x in (A, B, C))
    in_order = ScanTensors(u, delta, A.expand(channels, N), B, C, small(B_bias, state_dtype), small(D, dtype),
                           delta_bias, small(initial_state, state_dtype), reset)  # fmt: skip
    needs_state = return_last_state and torch.is_grad_enabled()
    return ScanInputs(
        in_order, z, bool(delta_softplus), discretization, constant_delta, dtype, state_dtype, needs_state
    )


# -- Mamba-2's scan ----------------------------------------------------------------------------------------------------


class SSDInputs(NamedTuple):
    """Checked arguments of `ssd_scan`: x, delta, B and C are the caller's; A, D and initial_state are in the
    arithmetic's dtype."""

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
    zero_nonfinite: bool = False  # whether a backend takes 0 in place of inf and NaN: see ssd_scan.py


def check_ssd_inputs(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, chunk_size: int | None,
    initial_state: Tensor | None, reset: Tensor | None, delayed: bool = False,
) -> SSDInputs:  # fmt: skip
    """Return `ssd_scan`'s arguments as `SSDInputs`."""
    tensors = {"x": x, "delta": delta, "A": A, "B": B, "C": C, "D": D, "initial_state": initial_state, "reset": reset}
    check_tensors(tensors, optional=("D", "initial_state", "reset"))
    sizes = read_sizes("x", x, "batch L H P")
    if B.dim() != 4 or min(B.shape[2:]) < 1 or sizes["H"] % B.shape[2]:
        raise ValueError(f"B: shape {tuple(B.shape)}; expected (batch, L, G, N) with G dividing H = {sizes['H']}")
    expected = {"delta": "batch L H", "A": "H", "B": "batch L G N", "C": "batch L G N", "D": "H",
                "initial_state": "batch H P N", "reset": "batch L"}  # fmt: skip
    check_shapes(tensors, expected, sizes | {"G": B.shape[2], "N": B.shape[3]})
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size: {chunk_size}; expected at least 1, or None")
    dtype = torch.float64 if has_double(*tensors.values()) else torch.float32

    def small(value: Tensor | None) -> Tensor | None:
        return None if value is None else value.to(dtype)

    return SSDInputs(x, delta, A.to(dtype), B, C, small(D), small(initial_state), reset, chunk_size, dtype, delayed)


# -- the linear scan ---------------------------------------------------------------------------------------------------


class LinearInputs(NamedTuple):
    """Checked arguments of `linear_scan`: a, b and initial in the arithmetic's dtype, real or complex, of at least
    single precision, without lazy conjugates."""

    a: Tensor
    b: Tensor
    initial: Tensor | None
    reset: Tensor | None
    dtype: torch.dtype  # of x


def check_linear_inputs(a: Tensor, b: Tensor, initial_state: Tensor | None, reset: Tensor | None) -> LinearInputs:
    """Return `linear_scan`'s arguments as `LinearInputs`."""
    tensors = {"b": b, "a": a, "initial_state": initial_state, "reset": reset}
    any_floating = dict.fromkeys(("a", "b", "initial_state"), "real or complex floating")
    check_tensors(tensors, ("initial_state", "reset"), **any_floating)
    sizes = read_sizes("b", b, "B D L")
    check_shapes(tensors, {"a": "D" if a.dim() == 1 else "B D L", "initial_state": "B D", "reset": "B L"}, sizes)
    dtype = torch.promote_types(a.dtype, b.dtype)
    dtype = dtype if initial_state is None else torch.promote_types(dtype, initial_state.dtype)
    work = torch.promote_types(dtype, torch.float32)
    a, b = (x.to(work).resolve_conj() for x in (a, b))
    initial = None if initial_state is None else initial_state.to(work).resolve_conj()
    return LinearInputs(a, b, initial, reset, dtype)


# -- S4D's kernel ------------------------------------------------------------------------------------------------------


class KernelInputs(NamedTuple):
    """Checked arguments of `s4d_kernel`: delta (D,) real; A, B (D, N) and C (K, D, N) complex; of either precision.

    Whatever the precision, a backend computes in double what has no L, which is small, and the phase l delta Im(A),
    which reaches thousands of radians.
    """

    delta: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    L: int
    discretization: str
    dtype: torch.dtype  # of the kernel, and of the sums over states: float32 or float64

    def in_double(self) -> KernelInputs:
        """Return the same with delta in float64, and A, B and C in complex128."""
        A, B, C = (x.to(torch.complex128) for x in (self.A, self.B, self.C))
        return self._replace(delta=self.delta.double(), A=A, B=B, C=C)

    def as_zoh(self) -> KernelInputs:
        """Return the same kernel under zero-order hold, for backends that compute only that.

        A bilinear one has its A and B replaced, in double, as `bilinear_as_zoh` says.
        """
        if self.discretization == "zoh":
            return self
        inputs = self.in_double()
        A, factor = bilinear_as_zoh(inputs.delta.unsqueeze(-1), inputs.A)
        return inputs._replace(A=A, B=factor * inputs.B, discretization="zoh")


def check_kernel_inputs(delta: Tensor, A: Tensor, B: Tensor, C: Tensor, L: int, discretization: str) -> KernelInputs:
    """Return `s4d_kernel`'s arguments as `KernelInputs`."""
    tensors = {"delta": delta, "A": A, "B": B, "C": C}
    check_tensors(tensors, A="complex", B="real or complex floating", C="real or complex floating")
    if delta.dim() != 1 or A.dim() not in (1, 2) or A.shape[-1] < 1:
        name, x, expected = ("delta", delta, "(D,)") if delta.dim() != 1 else ("A", A, "(N,) or (D, N) with N >= 1")
        raise ValueError(f"{name}: shape {tuple(x.shape)}; expected {expected}")
    D, N = len(delta), A.shape[-1]
    for name, x, several in (("A", A, False), ("B", B, False), ("C", C, True)):
        if tuple(x.shape) not in ((N,), (D, N)) and not (several and x.dim() == 3 and tuple(x.shape[1:]) == (D, N)):
            expected = f"(N,) or (D, N){' or (K, D, N)' if several else ''} with D = {D}, N = {N}"
            raise ValueError(f"{name}: shape {tuple(x.shape)}; expected {expected}")
    if L < 1:
        raise ValueError(f"L: {L}; expected at least 1")
    if discretization not in ("zoh", "bilinear"):
        raise ValueError(f"discretization: {discretization!r}; expected 'zoh' or 'bilinear'")
    dtype = torch.float64 if has_double(*tensors.values()) else torch.float32
    A, B, C = (x.to(torch.promote_types(x.dtype, torch.complex64)) for x in (A, B, C))
    C = C.expand(*C.shape[:-2], D, N).reshape(-1, D, N)
    delta = delta.to(torch.promote_types(delta.dtype, torch.float32))
    return KernelInputs(delta, A.expand(D, N), B.expand(D, N), C, L, discretization, dtype)
