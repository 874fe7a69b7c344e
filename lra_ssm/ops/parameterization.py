"""How eigenvalues and complex numbers are kept as real parameters: λ = f(w), w what the optimizer moves.

Optimizers, DDP and safetensors take real tensors as they are.  Shapes: N states (conjugate pairs where complex);
leading dimensions are free.
"""

from __future__ import annotations

import torch
from torch import Tensor


def eigenvalues(w: Tensor, imag: Tensor | None = None) -> Tensor:
    """λ = -exp(w), real (..., N), or λ = -exp(w) + i imag, complex: Re λ < 0 whatever is learned.

    Sources: Gu et al. 2022 (S4D), section 3.2; "exp" in StableSSM (Wang & Li 2024), table 1.  Half precision, which has
    no complex type, becomes complex64.
    """
    if imag is None:
        return -w.exp()
    return torch.complex(-_at_least_float32(w).exp(), _at_least_float32(imag))


def inverse_eigenvalues(A: Tensor) -> Tensor:
    """The w (..., N), real, with Re `eigenvalues(w)` = Re A < 0."""
    return (-A.real).log()


def as_complex(x: Tensor) -> Tensor:
    """Real (..., 2), (re, im) last -> complex (...).  Half precision, which has no complex type, becomes complex64."""
    return torch.view_as_complex(_at_least_float32(x))


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
