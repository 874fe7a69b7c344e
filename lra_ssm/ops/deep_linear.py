"""Deep linear state-space models as one layer, in its eigenbasis, and back; all exact.

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


class Stack(NamedTuple):
    """K layers: each (..., K, N)."""

    eigenvalues: Tensor
    B: Tensor
    C: Tensor


class OneLayer(NamedTuple):
    """x_t = A x_{t-1} + B u_t, y_t = C x_t: A (..., M, M) or, diagonal, (..., M); B and C (..., M)."""

    A: Tensor
    B: Tensor
    C: Tensor


def one_layer(eigenvalues: Tensor, B: Tensor, C: Tensor) -> OneLayer:
    """The K layers as one of M = K N states, A lower triangular (eq. 7-8); the states are those of the layers."""
    K, N = eigenvalues.shape[-2:]
    rows: list[Tensor] = []  # of A, (..., N, M) a layer
    inputs: list[Tensor] = []  # (..., N) a layer
    for k in range(K):
        own = torch.nn.functional.pad(torch.diag_embed(eigenvalues[..., k, :]), (k * N, (K - 1 - k) * N))
        if k == 0:
            rows.append(own)
            inputs.append(B[..., 0, :])
        else:  # what comes in is C_{k-1} x^(k-1)_t, of which the rows above say how it comes from t - 1
            above = B[..., k, :, None] * C[..., k - 1, None, :]
            rows.append(own + above @ rows[-1])
            inputs.append((above @ inputs[-1].unsqueeze(-1)).squeeze(-1))
    outputs = torch.nn.functional.pad(C[..., -1, :], ((K - 1) * N, 0))
    return OneLayer(torch.cat(rows, -2), torch.cat(inputs, -1), outputs)


def eigenvectors(eigenvalues: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """P (..., M, M) with A P = P diag(eigenvalues) for the A of `one_layer`, scaled as the paper's: C P = (1, …, 1).

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
    """The one layer in its eigenbasis (eq. 9): A (..., M), the eigenvalues of all layers; B = P⁻¹B, C = C P = 1.

    Raises ValueError as `eigenvectors` does.
    """
    P, system = eigenvectors(eigenvalues, B, C), one_layer(eigenvalues, B, C)
    into_modes = torch.linalg.solve(P, system.B.unsqueeze(-1)).squeeze(-1)
    return OneLayer(eigenvalues.flatten(-2), into_modes, (system.C.unsqueeze(-2) @ P).squeeze(-2))


def from_one_layer(A: Tensor, B: Tensor, C: Tensor, n_layers: int) -> Stack:
    """The K layers of which `one_layer` makes this; eigenvalues must not be 0.

    B_k and C_{k-1} are determined up to a factor that goes from one to the other: the entry of B_k with the largest
    weight is 1 for k > 1.  Raises ValueError where A, B and C do not belong to a stack of `n_layers` layers.
    """
    M = A.shape[-1]
    if M % n_layers:
        raise ValueError(f"from_one_layer: {M} states are not {n_layers} layers of equal size")
    N = M // n_layers
    blocks = A.unflatten(-2, (n_layers, N)).unflatten(-1, (n_layers, N))  # (..., K, N, K, N)
    rates = torch.diagonal(A, dim1=-2, dim2=-1).unflatten(-1, (n_layers, N))
    into, out = [B[..., :N]], []
    for k in range(1, n_layers):
        product = blocks[..., k, :, k - 1, :] / rates[..., k - 1, None, :]  # B_k C_{k-1}
        row = product.abs().amax(-1).argmax(-1)[..., None, None].expand(*product.shape[:-2], 1, N)
        column = product.abs().amax(-2).argmax(-1)[..., None, None].expand(*product.shape[:-2], N, 1)
        C_before, B_k = product.gather(-2, row).squeeze(-2), product.gather(-1, column).squeeze(-1)
        out.append(C_before)
        into.append(B_k / B_k.gather(-1, row[..., 0, :1]))
    stack = Stack(rates, torch.stack(into, -2), torch.stack([*out, C[..., -N:]], -2))
    if not all(
        torch.allclose(got, given, rtol=1e-6, atol=1e-9 * float(given.abs().max()))
        for got, given in zip(one_layer(*stack), (A, B, C), strict=True)
    ):
        raise ValueError(f"from_one_layer: the system is not a stack of {n_layers} layers of {N} states")
    return stack


def from_diagonal(eigenvalues: Tensor, B: Tensor, C: Tensor) -> Stack:
    """K layers of one state from a diagonal layer of K states, each (..., K): λ^(k) in the order given, B and C 1 but
    for B_1, the gain of the whole.

    Such a stack has no zeros: a diagonal layer is one where C_i B_i Π_{m≠i} (λ_i - λ_m)/λ_i is the same for every i
    (the residues of eq. 4).  Raises ValueError where it is not: no stack of K single states equals it.
    """
    pairs = (eigenvalues.unsqueeze(-1) - eigenvalues.unsqueeze(-2)) / eigenvalues.unsqueeze(-1)
    others = ~torch.eye(eigenvalues.shape[-1], dtype=torch.bool, device=eigenvalues.device)
    gains = B * C * torch.where(others, pairs, 1).prod(-1)
    gain = gains.mean(-1, keepdim=True)
    if not torch.allclose(gains, gain.expand_as(gains), rtol=1e-6):
        raise ValueError("from_diagonal: the layer has zeros; no stack of layers with one state each equals it")
    ones = torch.ones_like(eigenvalues)
    B = torch.cat([gain, ones[..., 1:]], -1)
    return Stack(eigenvalues.unsqueeze(-1), B.unsqueeze(-1), ones.unsqueeze(-1))
