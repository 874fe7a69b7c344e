"""Complex parameters, kept as real ones: optimizers, DDP and safetensors take those as they are.

Shapes: N states (conjugate pairs); leading dimensions are free.
"""

import torch
from torch import Tensor


def as_complex(x: Tensor) -> Tensor:
    """Real (..., 2), (re, im) last -> complex (...). Half precision, which has no complex type, becomes complex64."""
    return torch.view_as_complex(_at_least_float32(x))


def stable_diagonal(A_log: Tensor, A_imag: Tensor) -> Tensor:
    """A = -exp(A_log) + i A_imag (..., N), its real part negative whatever is learned (Gu et al. 2022, S4D)."""
    return torch.complex(-_at_least_float32(A_log).exp(), _at_least_float32(A_imag))


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
