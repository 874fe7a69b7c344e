"""The convolution kernel of a diagonal, time-invariant state-space model (S4D).

Shapes: delta (D,), A and B (D, N) or (N,), C (N,), (D, N) or (K, D, N), kernel (D, L) or (K, D, L).
(D channels, N states (conjugate pairs for complex A), L length, K kernels that share A, B and delta.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from lra_ssm.ops.backends.cpu_s4d_kernel import s4d_kernel_zoh
from lra_ssm.ops.backends.native_build import unavailable
from lra_ssm.ops.discretization import bilinear, zoh

# Powers are taken as A_bar^(iT + j) = (A_bar^T)^i A_bar^j: two tables of L/T and T columns and one matrix product
# instead of a (D, N, L) tensor.  T = 128 was the fastest from L = 1024 to 16384.
_T = 128


def check_kernel_inputs(delta: Tensor, A: Tensor, B: Tensor, C: Tensor, L: int, discretization: str) -> None:
    """One-line ValueErrors, shared with the reference."""
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
            raise ValueError(f"{name}: complex beside a real A; expected a real {name}, or a complex A")
    if L < 1:
        raise ValueError(f"L: {L}; expected at least 1")
    if discretization not in ("zoh", "bilinear"):
        raise ValueError(f"discretization: {discretization!r}; expected 'zoh' or 'bilinear'")


def _powers(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """x^0 .. x^(count-1) in a new last dimension, and x^m with m the power of two >= count.

    By doubling: log2(count) steps, and values and gradients are right at x = 0 too, unlike pow's.
    """
    table, step = torch.ones_like(x).unsqueeze(-1), x.unsqueeze(-1)
    while table.shape[-1] < count:
        table = torch.cat([table, table * step], dim=-1)
        step = step * step
    return table[..., :count], step.squeeze(-1)


def _real_rows(x: Tensor) -> Tensor:
    """Complex (..., N) as real (..., 2N), re and im interleaved; real as it is."""
    return torch.view_as_real(x).flatten(-2) if x.is_complex() else x


def s4d_kernel(delta: Tensor, A: Tensor, B: Tensor, C: Tensor, L: int, discretization: str = "zoh") -> Tensor:
    """k_l = 2 Re sum_n C_n B_bar_n A_bar_n^l, l = 0..L-1 (S4D, eq. 5); no 2 Re for real A.

    delta (D,) real; A, B (D, N) or (N,); C too, or (K, D, N) for K kernels from one set of powers (a bidirectional
    layer takes K = 2).  Real B or C beside complex A is promoted.  Returns (D, L), or (K, D, L), real: float64 if any
    input is float64 or complex128, else float32.  discretization: "zoh" or "bilinear", see `discretization`.
    Gradients for delta, A, B and C.  Raises ValueError for what does not fit.
    """
    check_kernel_inputs(delta, A, B, C, L, discretization)
    double = any(x.dtype in (torch.float64, torch.complex128) for x in (delta, A, B, C))
    narrow, wide = (torch.complex64, torch.complex128) if A.is_complex() else (torch.float32, torch.float64)
    state_dtype = wide if double else narrow
    D, N = delta.shape[0], A.shape[-1]
    with torch.autocast(delta.device.type, enabled=False):
        # What has no L is small and taken in double: the phase l delta Im(A) reaches thousands of radians.
        step, A_wide = delta.double(), A.to(wide).expand(D, N)
        B_wide, C_wide = B.to(wide).expand(D, N), C.to(wide).expand(*C.shape[:-2], D, N).reshape(-1, D, N)
        if A.is_complex() and discretization == "zoh" and _compiled(delta.device):
            kernel = s4d_kernel_zoh(step, A_wide, B_wide, C_wide, L, double)
        else:
            A_bar, B_bar = (zoh if discretization == "zoh" else bilinear)(step.unsqueeze(-1), A_wide)
            kernel = _two_level(A_bar, C_wide * B_wide * B_bar, L, state_dtype)
    return kernel if C.dim() == 3 else kernel[0]


def _compiled(device: torch.device) -> bool:
    return device.type == "cpu" and unavailable() is None


def _two_level(A_bar: Tensor, weights: Tensor, L: int, state_dtype: torch.dtype) -> Tensor:
    """2 Re sum_n weights_n A_bar_n^l (no 2 Re if real): A_bar (D, N), weights (K, D, N) -> (K, D, L)."""
    D, N = A_bar.shape
    T = min(_T, L)
    blocks = -(-L // T)
    low, A_bar_T = _powers(A_bar, T)  # (D, N, T), (D, N); T is a power of two unless there is one block alone
    high, _ = _powers(A_bar_T, blocks)  # (D, N, blocks)
    # (D, K, blocks, N): K kernels are K times the rows of one product
    left = (weights.unsqueeze(-1) * high).permute(1, 0, 3, 2).to(state_dtype)
    right = low.transpose(1, 2).to(state_dtype)  # (D, T, N)
    if A_bar.is_complex():
        left = 2 * left.conj()  # Re(a b) is the real dot product of conj(a) and b
    rows = _real_rows(left.resolve_conj()).flatten(1, 2)  # (D, K blocks, N or 2N)
    kernel = torch.bmm(rows, _real_rows(right).transpose(1, 2))  # (D, K blocks, T)
    return kernel.view(D, -1, blocks * T)[..., :L].transpose(0, 1)  # (K, D, L)
