"""Frequency response and group delay: from the eigenvalues of a stack, or from the impulse response of any system.

Source: "On the Interplay between Learning and Memory in Deep State Space Models" (anonymous, ICLR 2025 submission),
Prop. 2 and eq. 5. Shapes: K layers, N states, T positions, W frequencies ω in radians per position.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def frequency_response(omega: Tensor, eigenvalues: Tensor, B: Tensor | None = None, C: Tensor | None = None) -> Tensor:
    """Return H(ω) = Π_k Σ_n C_kn B_kn / (1 - λ_kn exp(-iω)) of a stack of diagonal systems (Prop. 2, eq. 3-4).

    omega (W,); eigenvalues, B and C (K, N), real or complex; B and C are 1 by default -> (W,) complex.
    """
    phase = torch.exp(-1j * omega)[:, None, None]
    weight = torch.ones_like(eigenvalues) if B is None else B
    weight = weight if C is None else weight * C
    return (weight / (1 - eigenvalues * phase)).sum(-1).prod(-1)


def group_delay(eigenvalues: Sequence[float] | Tensor) -> float:
    """Return τ_d = Σ_k λ_k/(1 - λ_k), in positions, of a stack of scalar layers with B = C = 1, at ω = 0 (eq. 5)."""
    values = torch.as_tensor(eigenvalues, dtype=torch.float64)
    return float((values / (1 - values)).sum())


def response_of(omega: Tensor, impulse: Tensor) -> Tensor:
    """Return H(ω) = Σ_t h_t exp(-iωt) of an impulse response (..., T): (..., W) complex."""
    t = torch.arange(impulse.shape[-1], dtype=omega.dtype)
    return impulse.to(torch.complex128) @ torch.exp(-1j * t[:, None] * omega).to(torch.complex128)


def group_delay_of(omega: Tensor, impulse: Tensor) -> Tensor:
    """Return the group delay -dφ/dω, φ the phase of H, of an impulse response h (..., T): (..., W) positions, float64.

    The derivative is exact: H' = Σ -i t h_t exp(-iωt), hence -dφ/dω = Re(Σ t h_t exp(-iωt) / H). h must have
    decayed by T. The result is NaN where H is 0, as 0 has no phase.
    """
    t = torch.arange(impulse.shape[-1], dtype=torch.float64)
    return (response_of(omega, t * impulse) / response_of(omega, impulse)).real
