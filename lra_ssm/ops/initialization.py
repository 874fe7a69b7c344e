"""Initial values: the diagonal of A, and the step size delta.

Shapes: N states (for complex A: conjugate pairs, so that N entries stand for M = 2N real states), D channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


def s4d_lin(N: int) -> Tensor:
    """Return S4D-Lin's A_n = -1/2 + i pi n, n = 0..N-1 (Gu et al. 2022, "On the Param…", eq. 9). (N,) complex64."""
    n = torch.arange(N, dtype=torch.float64)
    return torch.complex(torch.full_like(n, -0.5), math.pi * n).to(torch.complex64)


def s4d_inv(N: int) -> Tensor:
    """Return S4D-Inv: A_n = -1/2 + i (M/pi)(M/(2n+1) - 1), M = 2N, n < N (Gu et al. 2022, eq. 8). (N,) complex64."""
    n, M = torch.arange(N, dtype=torch.float64), 2 * N
    return torch.complex(torch.full_like(n, -0.5), M / math.pi * (M / (2 * n + 1) - 1)).to(torch.complex64)


def s4d_legs(N: int) -> Tensor:
    """Return S4D-LegS: the eigenvalues of `hippo_legs_normal` (Gu et al. 2022, eq. 6-7). (N,) complex64."""
    return hippo_legs_normal(N)[0].to(torch.complex64)


def hippo_legs_normal(N: int) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues (N,) with positive imaginary part of HiPPO-LegS' normal part of size M = 2N, ascending,
    and their eigenvectors (M, N), of length 1: complex128 (S4, theorem 1; S5, section 3.3)."""
    imag, vectors = np.linalg.eigh(_legs_rotation(N))
    eigenvalues = torch.complex(torch.full((N,), -0.5, dtype=torch.float64), torch.tensor(imag[N:]))
    return eigenvalues, torch.tensor(vectors[:, N:])


def _legs_rotation(N: int) -> np.ndarray:
    """-i S of the normal part A + P P^T = -1/2 I + S of size 2N, S skew-symmetric, S_nk = -sqrt((2n+1)(2k+1))/2 for
    n > k: Hermitian, with eigenvalues Im(lambda) in pairs +-, the upper half behind the lower."""
    root = np.sqrt(2 * np.arange(2 * N, dtype=np.float64) + 1)
    lower = np.tril(-np.outer(root, root) / 2, -1)
    return -1j * (lower - lower.T)


def s4d_real(N: int) -> Tensor:
    """Return S4D-Real: A_n = -(n+1), n = 0..N-1, the diagonal of HiPPO-LegS and Mamba's A. (N,) float32."""
    return -(torch.arange(N, dtype=torch.float32) + 1)


_A_BY_NAME: dict[str, Callable[[int], Tensor]] = {
    "lin": s4d_lin,
    "inv": s4d_inv,
    "legs": s4d_legs,
    "real": s4d_real,
}


def initialize_A(name: str, N: int) -> Tensor:
    """Return the diagonal of A by name, "lin", "inv", "legs" (complex64) or "real" (float32), shape (N,)."""
    if name not in _A_BY_NAME:
        raise ValueError(f"name: {name!r}; expected one of {', '.join(map(repr, _A_BY_NAME))}")
    return _A_BY_NAME[name](N)


def log_uniform_delta(
    D: int, delta_min: float = 1e-3, delta_max: float = 1e-1, *, generator: torch.Generator | None = None
) -> Tensor:
    """Draw step sizes, log-uniform in [delta_min, delta_max]: shape (D,), float32 (S4D and Mamba)."""
    if not 0 < delta_min <= delta_max:
        raise ValueError(f"delta_min, delta_max: {delta_min}, {delta_max}; expected 0 < delta_min <= delta_max")
    low, high = math.log(delta_min), math.log(delta_max)
    return torch.exp(low + (high - low) * torch.rand(D, generator=generator)).clamp(delta_min, delta_max)


def inverse_softplus(x: Tensor) -> Tensor:
    """Return w with softplus(w) = x > 0: x + log(-expm1(-x)), any shape (mamba-ssm, mamba_simple.py, dt bias)."""
    return x + torch.log(-torch.expm1(-x))
