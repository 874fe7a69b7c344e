"""S4D's convolution kernel in eager PyTorch, on any device: two small tables of powers and one matrix product.

Shapes: A_bar (D, N), weights (K, D, N), kernel (K, D, L).  (D channels, N states, K kernels, L length.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from lra_ssm.ops.discretization import bilinear, zoh
from lra_ssm.ops.kernel_inputs import KernelInputs

# Powers are taken as A_bar^(iT + j) = (A_bar^T)^i A_bar^j: two tables of L/T and T columns and one matrix product
# instead of a (D, N, L) tensor.  T = 128 was the fastest from L = 1024 to 16384.
_T = 128


def run_eager_kernel(inputs: KernelInputs) -> Tensor:
    """Return the kernel (K, D, L) for checked inputs."""
    inputs = inputs.in_double()
    rule = zoh if inputs.discretization == "zoh" else bilinear
    A_bar, B_bar = rule(inputs.delta.unsqueeze(-1), inputs.A)
    return _two_level(A_bar, inputs.C * inputs.B * B_bar, inputs.L, inputs.dtype)


def _powers(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return x^0 .. x^(count-1) in a new last dimension, and x^m with m the power of two >= count.

    By doubling: log2(count) steps, and values and gradients are right at x = 0 too, unlike pow's.
    """
    table, step = torch.ones_like(x).unsqueeze(-1), x.unsqueeze(-1)
    while table.shape[-1] < count:
        table = torch.cat([table, table * step], dim=-1)
        step = step * step
    return table[..., :count], step.squeeze(-1)


def _real_rows(x: Tensor) -> Tensor:
    """Return complex (..., N) as real (..., 2N), re and im interleaved; real x as it is."""
    return torch.view_as_real(x).flatten(-2) if x.is_complex() else x


def _two_level(A_bar: Tensor, weights: Tensor, L: int, dtype: torch.dtype) -> Tensor:
    """Return 2 Re sum_n weights_n A_bar_n^l (no 2 Re if real): A_bar (D, N), weights (K, D, N) -> (K, D, L)."""
    D, N = A_bar.shape
    wide = dtype == torch.float64
    state_dtype = (torch.complex128 if wide else torch.complex64) if A_bar.is_complex() else dtype
    T = min(_T, L)
    blocks = -(-L // T)
    low, A_bar_T = _powers(A_bar, T)  # (D, N, T), (D, N); T is a power of two unless there is only one block
    high, _ = _powers(A_bar_T, blocks)  # (D, N, blocks)
    # (D, K, blocks, N): K kernels are K times the rows of one product
    left = (weights.unsqueeze(-1) * high).permute(1, 0, 3, 2).to(state_dtype)
    right = low.transpose(1, 2).to(state_dtype)  # (D, T, N)
    if A_bar.is_complex():
        left = 2 * left.conj()  # Re(a b) is the real dot product of conj(a) and b
    rows = _real_rows(left.resolve_conj()).flatten(1, 2)  # (D, K blocks, N or 2N)
    kernel = torch.bmm(rows, _real_rows(right).transpose(1, 2))  # (D, K blocks, T)
    return kernel.view(D, -1, blocks * T)[..., :L].transpose(0, 1)  # (K, D, L)
