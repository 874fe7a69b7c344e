"""The scan of Mamba-2 as matrix products, by PyTorch on any device (Dao & Gu 2024, section 6).

A chunk of Q positions is one product with a lower triangular matrix of decays; what a chunk adds to the state is
another; the states at the chunks' beginnings follow from those by a recurrence over chunks, again a triangular
product; a last one brings them to the positions.  The decays are exponentials of sums of delta A over the positions in
between, which are never positive; the sums are differences of float64 running sums, so that a strong decay takes no
precision from what comes after it.

A call is computed piece by piece: a number of rows of the batch, a number of positions with the state carried on.  Kept
for backward are the inputs and the states at the pieces' beginnings; the rest is computed a second time.

Shapes: x, y (batch, L, H, P); delta (batch, L, H); A, D (H,); B, C (batch, L, G, N); state (batch, H, P, N); reset
(batch, L); K chunks of Q positions.  (H heads, P channels per head, G groups of R = H/G heads, N states.)
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import repeat
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from lra_ssm.ops.ssd_inputs import SSDInputs
from lra_ssm.ops.tensors import recompute, without_autocast, without_nonfinite

CHUNKS = 64  # K of a piece at most: the recurrence over chunks takes K² products
# Numbers of a piece's decays at most: what a CPU's cache holds; on a GPU (not measured) what its memory can spare.
NUMBERS, NUMBERS_ELSEWHERE = 1 << 19, 1 << 26


class _Decays(torch.autograd.Function):
    """exp(sums_i - sums_j) in dtype, 0 where unseen: sums (…, Q) float64 -> (…, Q, Q)."""

    @staticmethod
    def forward(ctx: Any, sums: Tensor, unseen: Tensor, dtype: torch.dtype) -> Tensor:
        between = (sums.unsqueeze(-1) - sums.unsqueeze(-2)).to(dtype)
        decays = between.masked_fill_(unseen, -torch.inf).exp_()
        ctx.save_for_backward(decays)
        return decays

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """Of the sums; in float64, as most of what is in both is to cancel."""
        grad = grad * ctx.saved_tensors[0]
        return grad.sum(-1, dtype=torch.float64) - grad.sum(-2, dtype=torch.float64), None, None


def _decays(sums: Tensor, document: Tensor | None, dtype: torch.dtype) -> Tensor:
    """exp(sums_i - sums_j) for j <= i in the same document, else 0: sums, document (…, Q) -> (…, Q, Q)."""
    Q = sums.shape[-1]
    unseen = torch.ones(Q, Q, dtype=torch.bool, device=sums.device).triu(1)
    if document is not None:
        unseen = unseen | (document.unsqueeze(-1) != document.unsqueeze(-2))
    return _Decays.apply(sums, unseen, dtype)


def _factors(sums: Tensor, dropped: Tensor | None, dtype: torch.dtype) -> Tensor:
    """exp of (batch, K, H, Q), 0 where dropped, as (batch, K, Q, H, 1)."""
    sums = sums.to(dtype)
    sums = sums if dropped is None else sums.masked_fill(dropped, -torch.inf)
    return sums.exp().transpose(2, 3).unsqueeze(-1)


def _grouped(t: Tensor, G: int) -> Tensor:
    """(batch, K, Q, H, P) -> (batch, K, G, Q, R P)."""
    return t.unflatten(3, (G, -1)).flatten(-2).transpose(2, 3)


def _run_piece(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, state: Tensor, reset: Tensor | None,
    Q: int, zero_nonfinite: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(y in x's dtype, state after it) of a piece, in the state's dtype."""
    own, dtype, (batch, L, H, P), (G, N), missing = x.dtype, state.dtype, x.shape, B.shape[2:], -x.shape[1] % Q
    with without_autocast(x.device):
        x, delta, B, C = (F.pad(t.to(dtype), (0,) * (2 * t.dim() - 3) + (missing,)) for t in (x, delta, B, C))
        if zero_nonfinite:
            x, delta, B, C = map(without_nonfinite, (x, delta, B, C))
        K = x.shape[1] // Q
        # Running sums of delta A within chunks (batch, K, H, Q), and over whole chunks (batch, H, K + 1).
        within = (delta * A).double().reshape(batch, K, Q, H).transpose(2, 3).cumsum(-1)
        over = F.pad(within[..., -1].transpose(1, 2).cumsum(-1), (1, 0))
        document = at_ends = begun = ended = None
        if reset is not None:
            document = F.pad(reset, (0, missing)).long().cumsum(1).reshape(batch, K, 1, Q)  # the state is of document 0
            at_ends = F.pad(document[..., -1].transpose(1, 2), (1, 0))  # (batch, 1, K + 1)
            begun = document != at_ends[..., :-1].transpose(1, 2).unsqueeze(-1)
            ended = document != document[..., -1:]
        x, delta = x.reshape(batch, K, Q, H, P), delta.reshape(batch, K, Q, H, 1)
        B, C = (t.reshape(batch, K, Q, G, N).transpose(2, 3) for t in (B, C))
        v = delta * x

        # Within the chunks.
        scores = (C @ B.transpose(-1, -2)).unsqueeze(3)  # (batch, K, G, 1, Q, Q)
        mixing = (scores * _decays(within, document, dtype).reshape(batch, K, G, H // G, Q, Q)).flatten(2, 3)
        y = (mixing @ v.transpose(2, 3)).transpose(2, 3)  # (batch, K, Q, H, P)

        # What every chunk adds to the state, and the states at the chunks' beginnings and at the end.
        to_end = _factors(within[..., -1:] - within, ended, dtype)
        added = _grouped(v * to_end, G).transpose(-1, -2) @ B  # (batch, K, G, R P, N)
        sums = torch.cat([state.reshape(batch, 1, H, P * N), added.reshape(batch, K, H, P * N)], 1).transpose(1, 2)
        states = _decays(over, at_ends, dtype) @ sums  # (batch, H, K + 1, P N)

        # What the state at a chunk's beginning brings to its positions.
        beginnings = states[:, :, :-1].transpose(1, 2).reshape(batch, K, G, H // G * P, N)
        carried = (C @ beginnings.transpose(-1, -2)).transpose(2, 3).reshape(x.shape)
        y = torch.addcmul(y, carried, _factors(within, begun, dtype))
        if D is not None:
            y = torch.addcmul(y, D.unsqueeze(-1), x)
        return y.flatten(1, 2)[:, :L].to(own), states[:, :, -1].reshape(state.shape)


def _chunk(x: Tensor, N: int) -> int:
    """Q where nobody says: larger products pay where the states are large (docs/performance.md)."""
    return 32 if x.device.type == "cpu" and x.shape[-1] * N < 2048 else 64


def _piece_size(x: Tensor, Q: int) -> tuple[int, int]:
    """How many rows and positions a piece has."""
    _, L, H, _ = x.shape
    chunks = max(1, (NUMBERS if x.device.type == "cpu" else NUMBERS_ELSEWHERE) // (H * Q * Q))
    length = min(chunks, CHUNKS, -(-L // Q)) * Q
    return max(1, chunks * Q // length), length


def _split(t: Tensor | None, size: int, dim: int) -> Iterator[Tensor | None]:
    return repeat(None) if t is None else iter(t.split(size, dim))


def run_eager_ssd(inputs: SSDInputs) -> tuple[Tensor, Tensor]:
    """(y, last state) of checked inputs."""
    x, delta, A, B, C, D, initial, reset, Q, dtype, zero = inputs
    batch, L, H, P = x.shape
    if initial is None:
        initial = x.new_zeros(batch, H, P, B.shape[-1], dtype=dtype)
    Q = min(_chunk(x, B.shape[-1]) if Q is None else Q, L)
    if torch.compiler.is_compiling():  # which chooses for itself what to compute twice
        return _run_piece(x, delta, A, B, C, D, initial, reset, Q, zero)
    rows, length = _piece_size(x, Q)
    run = partial(_run_piece, Q=Q, zero_nonfinite=zero)
    results = []
    for of_rows in zip(*(_split(t, rows, 0) for t in (x, delta, B, C, reset, initial)), strict=False):
        *steps, state = of_rows
        outputs = []
        for x_k, delta_k, B_k, C_k, reset_k in zip(*(_split(t, length, 1) for t in steps), strict=False):
            y, state = recompute(run, x_k, delta_k, A, B_k, C_k, D, state, reset_k)
            outputs.append(y)
        results.append((torch.cat(outputs, 1), state))
    y, last = (torch.cat(parts) for parts in zip(*results, strict=True))
    return y, last
