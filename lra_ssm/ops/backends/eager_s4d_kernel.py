"""S4D's convolution kernel in eager PyTorch, on any device: two small tables of powers and one matrix product.

Shapes: A_bar (D, N), weights (K, D, N), kernel (K, D, L).  (D channels, N conjugate pairs, K kernels, L length.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from lra_ssm.ops.discretization import bilinear, zoh
from lra_ssm.ops.inputs import KernelInputs

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


def _two_level(A_bar: Tensor, weights: Tensor, L: int, dtype: torch.dtype) -> Tensor:
    """Return 2 Re sum_n weights_n A_bar_n^l: A_bar (D, N), weights (K, D, N) -> (K, D, L)."""
    D, T = len(A_bar), min(_T, L)
    blocks = -(-L // T)
    low, A_bar_T = _powers(A_bar, T)  # (D, N, T), (D, N); T is a power of two unless there is only one block
    high, _ = _powers(A_bar_T, blocks)  # (D, N, blocks)
    # (D, K, blocks, N): K kernels are K times the rows of one product
    state_dtype = torch.promote_types(dtype, torch.complex64)
    left = (weights.unsqueeze(-1) * high).permute(1, 0, 3, 2).to(state_dtype)
    right = low.transpose(1, 2).to(state_dtype)  # (D, T, N)
    # Re(a b) is the real dot product of conj(a) and b.
    rows, columns = (torch.view_as_real(x).flatten(-2) for x in (2 * left.conj().resolve_conj(), right))
    kernel = torch.bmm(rows.flatten(1, 2), columns.transpose(1, 2))  # (D, K blocks, T)
    return kernel.view(D, -1, blocks * T)[..., :L].transpose(0, 1)  # (K, D, L)
