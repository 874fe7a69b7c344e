"""The arguments of `s4d_kernel`, checked and brought to one form, for every backend and for the reference.

Shapes: delta (D,), A and B (D, N) or (N,), C (N,), (D, N) or (K, D, N).
(D channels, N states (conjugate pairs for complex A), K kernels that share A, B and delta.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lra_ssm.ops.discretization import bilinear_as_zoh
from lra_ssm.ops.tensors import check_dense

DISCRETIZATIONS = ("zoh", "bilinear")


@dataclass(frozen=True)
class KernelInputs:
    """Checked arguments: delta (D,) real; A, B (D, N) and C (K, D, N) real or complex, as A is; of either precision.

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
        """Return the same with delta in float64, and A, B and C in float64 or complex128."""
        wide = torch.complex128 if self.A.is_complex() else torch.float64
        A, B, C = (x.to(wide) for x in (self.A, self.B, self.C))
        return replace(self, delta=self.delta.double(), A=A, B=B, C=C)

    def as_zoh(self) -> KernelInputs:
        """Return the same kernel under zero-order hold, for backends that compute only that; A complex.

        A bilinear one has its A and B replaced, in double, as `bilinear_as_zoh` says.
        """
        if self.discretization == "zoh":
            return self
        inputs = self.in_double()
        A, factor = bilinear_as_zoh(inputs.delta.unsqueeze(-1), inputs.A)
        return replace(inputs, A=A, B=factor * inputs.B, discretization="zoh")


def check_kernel_inputs(delta: Tensor, A: Tensor, B: Tensor, C: Tensor, L: int, discretization: str) -> KernelInputs:
    """Return `s4d_kernel`'s arguments as `KernelInputs`. Raises ValueError, naming the argument that does not fit."""
    check_dense(delta=delta, A=A, B=B, C=C)
    if delta.dim() != 1 or not delta.is_floating_point():
        raise ValueError(f"delta: shape {tuple(delta.shape)}, dtype {delta.dtype}; expected (D,), real floating")
    D, N = delta.shape[0], A.shape[-1] if A.dim() else 0
    if N < 1:
        raise ValueError(f"A: shape {tuple(A.shape)}; expected (N,) or (D, N) with N >= 1")
    for name, x, several in (("A", A, False), ("B", B, False), ("C", C, True)):
        if not (x.is_floating_point() or x.is_complex()):
            raise ValueError(f"{name}: dtype {x.dtype}; expected a real or complex floating dtype")
        if tuple(x.shape) not in ((N,), (D, N)) and not (several and x.dim() == 3 and tuple(x.shape[1:]) == (D, N)):
            expected = f"(N,) or (D, N){' or (K, D, N)' if several else ''} with D = {D}, N = {N}"
            raise ValueError(f"{name}: shape {tuple(x.shape)}; expected {expected}")
        if x.is_complex() and not A.is_complex():
            raise ValueError(f"{name}: complex, but A is real; expected a real {name}, or a complex A")
    if L < 1:
        raise ValueError(f"L: {L}; expected at least 1")
    if discretization not in DISCRETIZATIONS:
        raise ValueError(f"discretization: {discretization!r}; expected 'zoh' or 'bilinear'")
    double = any(x.dtype in (torch.float64, torch.complex128) for x in (delta, A, B, C))
    least = torch.complex64 if A.is_complex() else torch.float32
    A, B, C = (x.to(torch.promote_types(x.dtype, least)) for x in (A, B, C))
    C = C.expand(*C.shape[:-2], D, N).reshape(-1, D, N)
    delta = delta.to(torch.promote_types(delta.dtype, torch.float32))
    dtype = torch.float64 if double else torch.float32
    return KernelInputs(delta, A.expand(D, N), B.expand(D, N), C, L, discretization, dtype)
