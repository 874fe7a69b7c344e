"""How correlation and variance grow through a stack of linear layers x_t = λ x_{t-1} + u_t.

Source: "On the Interplay between Learning and Memory in Deep State Space Models" (anonymous, ICLR 2025 submission),
Prop. 1. Shapes: T lags; K layers.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def autocorrelations(eigenvalues: Sequence[float], rho: float, lags: int) -> Tensor:
    """Return R at lags 0 … lags-1 of the input, ρ^|Δ| with 0 <= ρ <= 1, and of every layer's output: (K + 1, lags).

    The result of Prop. 1 for every layer, float64. Input and layers form one triangular system driven by white noise,
    x_t = A x_{t-1} + b w_t. Its covariance P solves P = A P Aᵀ + b bᵀ, and R(Δ) is the diagonal of
    A^Δ P. At ρ = 1 the input is constant: each layer multiplies it by 1/(1 - λ), and R by the square of that.
    """
    _check(eigenvalues)
    if not 0 <= rho <= 1:
        raise ValueError(f"rho is {rho}; it must be from 0 to 1")
    if rho == 1:
        gains = torch.tensor([1.0, *(1 / (1 - value) ** 2 for value in eigenvalues)], dtype=torch.float64)
        return gains.cumprod(0)[:, None].expand(-1, lags)
    n = len(eigenvalues) + 1
    A = torch.zeros(n, n, dtype=torch.float64)
    for i, value in enumerate([rho, *eigenvalues]):  # x^(i)_t = λ_i x^(i)_{t-1} + x^(i-1)_t
        A[i] = A[i - 1] if i else 0.0
        A[i, i] = value
    b = torch.full((n, 1), (1 - rho**2) ** 0.5, dtype=torch.float64)
    # Solved from the top down, so that the small variances of the first layers keep their digits.
    system = torch.eye(n * n, dtype=torch.float64) - torch.kron(A, A)
    lagged = torch.linalg.solve_triangular(system, torch.kron(b, b), upper=False).view(n, n)
    R = []
    for _ in range(lags):
        R.append(lagged.diagonal())
        lagged = A @ lagged
    return torch.stack(R, 1)


def latent_variances(eigenvalues: Sequence[float], rho: float) -> Tensor:
    """Return the variance R(0) of the input, which is 1, and of every layer's state (fig. 1C): (K + 1,), float64."""
    return autocorrelations(eigenvalues, rho, 1)[:, 0]


def _check(eigenvalues: Sequence[float]) -> None:
    for value in eigenvalues:
        if not abs(value) < 1:
            raise ValueError(f"eigenvalue {value}: the output has a finite variance only for |λ| < 1")
