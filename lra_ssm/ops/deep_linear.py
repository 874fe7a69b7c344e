"""Deep linear state-space models as one layer, and that in its eigenbasis; all exact.

Layer k of a stack, one input and one output each:  x^(k)_t = Λ_k x^(k)_{t-1} + B_k y^(k-1)_t,  y^(k)_t = C_k x^(k)_t.
Source: "On the Interplay between Learning and Memory in Deep State Space Models" (anonymous, ICLR 2025 submission),
section 3.3, eq. 6-11, for N states a layer and any B and C.  Eq. 10-11 have wrong signs in print; they are right here.

Shapes: eigenvalues, B, C (..., K, N), real; one layer: A (..., M, M), B and C (..., M), M = K N, layer by layer.
(K layers, N states; leading dimensions are free.)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class OneLayer(NamedTuple):
    """x_t = A x_{t-1} + B u_t, y_t = C x_t: A (..., M, M) or, diagonal, (..., M); B and C (..., M)."""

    A: Tensor
    B: Tensor
    C: Tensor


def one_layer(eigenvalues: Tensor, B: Tensor, C: Tensor) -> OneLayer:
    """Return the K layers as one of M = K N states, A lower triangular (eq. 7-8); the layers' states are its states."""
    K, N = eigenvalues.shape[-2:]
    rows: list[Tensor] = []  # of A, (..., N, M) a layer
    inputs: list[Tensor] = []  # (..., N) a layer
    for k in range(K):
        diagonal = torch.nn.functional.pad(torch.diag_embed(eigenvalues[..., k, :]), (k * N, (K - 1 - k) * N))
        if k == 0:
            rows.append(diagonal)
            inputs.append(B[..., 0, :])
        else:  # what comes in is C_{k-1} x^(k-1)_t, of which the rows above say how it comes from t - 1
            above = B[..., k, :, None] * C[..., k - 1, None, :]
            rows.append(diagonal + above @ rows[-1])
            inputs.append((above @ inputs[-1].unsqueeze(-1)).squeeze(-1))
    outputs = torch.nn.functional.pad(C[..., -1, :], ((K - 1) * N, 0))
    return OneLayer(torch.cat(rows, -2), torch.cat(inputs, -1), outputs)


def eigenvectors(eigenvalues: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """Return P (..., M, M), A P = P diag(eigenvalues) for the A of `one_layer`, scaled as the paper's: C P = (1, …, 1).

    For N = 1 and B = C = 1, P_ik = Π_{m=i+1..K} (λ_k - λ_m)/λ_k where i >= k, else 0 (eq. 10 with its signs put right).
    Raises ValueError where no such P exists: an eigenvalue of two layers, or a mode that never reaches the output.
    """
    K, N = eigenvalues.shape[-2:]
    columns = []
    for j in range(K):  # modes of layer j: column n is e_n in that layer, and what follows from it in the later ones
        rate = eigenvalues[..., j, None, :]  # (..., 1, N)
        below = torch.eye(N, dtype=rate.dtype, device=rate.device).expand(*rate.shape[:-2], N, N)
        parts = [torch.zeros_like(below)] * j + [below]
        for k in range(j + 1, K):
            gap = rate - eigenvalues[..., k, :, None]
            if (gap == 0).any():
                raise ValueError("eigenvectors: two layers share an eigenvalue; A then has no basis of eigenvectors")
            below = rate / gap * B[..., k, :, None] * (C[..., k - 1, None, :] @ below)
            parts.append(below)
        columns.append(torch.cat(parts, -2))
    P = torch.cat(columns, -1)
    readout = C[..., -1, None, :] @ P[..., -N:, :]
    if (readout == 0).any():
        raise ValueError("eigenvectors: a mode never reaches the output (an eigenvalue, or an entry of B or C, is 0)")
    return P / readout


def diagonal(eigenvalues: Tensor, B: Tensor, C: Tensor) -> OneLayer:
    """Return the one layer in its eigenbasis (eq. 9): A (..., M), the eigenvalues of all layers; B = P⁻¹B, C = C P = 1.

    Raises ValueError as `eigenvectors` does.
    """
    P, system = eigenvectors(eigenvalues, B, C), one_layer(eigenvalues, B, C)
    into_modes = torch.linalg.solve(P, system.B.unsqueeze(-1)).squeeze(-1)
    return OneLayer(eigenvalues.flatten(-2), into_modes, (system.C.unsqueeze(-2) @ P).squeeze(-2))
