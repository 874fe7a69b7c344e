"""The scan of Mamba-2 as matrix products, by PyTorch on any device (Dao & Gu 2024, section 6).

A chunk of Q positions is one product with a lower triangular matrix of decays; what a chunk adds to the state is
another; the states at the chunks' beginnings follow from those by a recurrence over chunks, again a triangular
product; a last one brings them to the positions.  The decays are exponentials of sums of delta A over the positions in
between, which are never positive; the sums are differences of float64 running sums, so that a strong decay takes no
precision from what comes after it.

A call is computed piece by piece: a number of rows of the batch, a number of positions with the state carried on.  Of
a large call only the inputs and the states at the pieces' beginnings are kept for backward; the rest is computed a
second time.

Shapes: x, y (batch, L, H, P); delta (batch, L, H); A, D (H,); B, C (batch, L, G, N); state (batch, H, P, N); reset
(batch, L); K chunks of Q positions.  (H heads, P channels per head, G groups of R = H/G heads, N states.)
"""

from __future__ import annotations

from functools import partial
from itertools import repeat
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from lra_ssm.ops.inputs import SSDInputs
from lra_ssm.ops.tensors import recompute, without_autocast, without_nonfinite

CHUNKS = 64  # K of a piece at most: the recurrence over chunks takes K² products
# Numbers of a piece's decays at most: what a CPU's cache holds; on a GPU (not measured) what its memory can spare.
NUMBERS, NUMBERS_ELSEWHERE = 1 << 19, 1 << 26
KEPT = 1 << 21  # numbers of a call's decays up to which backward computes nothing twice


class _Mixing(torch.autograd.Function):
    """scores exp(sums_i - sums_j), 0 where hidden: sums (…, H, Q) float64, scores (…, G, 1, Q, Q) -> (…, H, Q, Q)."""

    @staticmethod
    def forward(ctx: Any, sums: Tensor, scores: Tensor, hidden: Tensor) -> Tensor:
        # A float64 difference as two of scores' dtype: what rounding took from the sums is subtracted by itself.
        high = sums.to(scores.dtype)
        low = (sums - high).to(scores.dtype)
        between = high.unsqueeze(-1) - high.unsqueeze(-2)
        between += low.unsqueeze(-1) - low.unsqueeze(-2)
        decays = between.masked_fill_(hidden, -torch.inf).exp_()
        by_group = decays.unflatten(-3, (scores.shape[-4], decays.shape[-3] // scores.shape[-4]))
        mixing = (scores * by_group).view(decays.shape)
        ctx.save_for_backward(by_group, mixing)
        return mixing

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        decays, mixing = ctx.saved_tensors
        grad_scores = None
        if ctx.needs_input_grad[1]:
            grad_scores = (grad.view(decays.shape) * decays).sum(-3, keepdim=True)
        grad = (grad * mixing).double()  # most of what the two sums have in common cancels
        return grad.sum(-1) - grad.sum(-2), grad_scores, None


def _hidden(Q: int, document: Tensor | None, device: torch.device, delayed: bool = False) -> Tensor:
    """Return which j position i does not see, j > i or in another document: document (…, Q) -> (…, Q, Q).

    delayed: a position does not see itself either.
    """
    hidden = torch.ones(Q, Q, dtype=torch.bool, device=device).triu(0 if delayed else 1)
    return hidden if document is None else hidden | (document.unsqueeze(-1) != document.unsqueeze(-2))


def _factors(sums: Tensor, dropped: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return exp of sums (batch, K, H, Q), 0 where dropped, as (batch, K, H, 1, Q)."""
    sums = sums.to(dtype)
    sums = sums if dropped is None else sums.masked_fill(dropped, -torch.inf)
    return sums.exp().unsqueeze(-2)


def _run_piece(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, state: Tensor, reset: Tensor | None,
    Q: int, delayed: bool, zero_nonfinite: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return (y in x's dtype, state after it) of a piece, computed in the state's dtype."""
    x_dtype, dtype, (batch, L, H, P), (G, N), missing = x.dtype, state.dtype, x.shape, B.shape[2:], -x.shape[1] % Q
    with without_autocast(x.device):
        x, delta, B, C = (t.to(dtype) for t in (x, delta, B, C))
        if missing:
            x, delta, B, C = (F.pad(t, (0,) * (2 * t.dim() - 3) + (missing,)) for t in (x, delta, B, C))
        if zero_nonfinite:
            x, delta, B, C = map(without_nonfinite, (x, delta, B, C))
        K = x.shape[1] // Q
        # Positions last: all heads of a group, and their channels, are then the rows of one product.
        x = x.reshape(batch, K, Q, H * P).transpose(2, 3).contiguous().view(batch, K, H, P, Q)
        delta = delta.reshape(batch, K, Q, H).transpose(2, 3)  # (batch, K, H, Q)
        B, C = (t.reshape(batch, K, Q, G, N).transpose(2, 3) for t in (B, C))  # (batch, K, G, Q, N)
        # Running sums of delta A within chunks (batch, K, H, Q), and over whole chunks (batch, H, K + 1).
        within = (delta * A.unsqueeze(-1)).double().cumsum(-1)
        over = F.pad(within[..., -1].transpose(1, 2).cumsum(-1), (1, 0))
        document = at_ends = begun = ended = None
        if reset is not None:
            document = F.pad(reset, (0, missing)).long().cumsum(1).reshape(batch, K, 1, Q)  # the state is of document 0
            at_ends = F.pad(document[..., -1].transpose(1, 2), (1, 0))  # (batch, 1, K + 1)
            begun = document != at_ends[..., :-1].transpose(1, 2).unsqueeze(-1)
            ended = document != document[..., -1:]
        v = x if delayed else x * delta.unsqueeze(-2)

        # What every chunk adds to the state, and the states at the chunks' beginnings and at the end.
        to_end = _factors(within[..., -1:] - within, ended, dtype)
        added = (v * to_end).view(batch, K, G, H // G * P, Q) @ B  # (batch, K, G, R P, N)
        sums = torch.cat([state.reshape(batch, H, 1, P * N), added.view(batch, K, H, P * N).transpose(1, 2)], 2)
        links = _Mixing.apply(over, over.new_ones(1, 1, 1, 1, dtype=dtype), _hidden(K + 1, at_ends, x.device))
        beginnings, last = (links @ sums).split([K, 1], 2)

        # What the state at a chunk's beginning brings to its positions, and what they bring to each other.
        beginnings = beginnings.transpose(1, 2).reshape(added.shape)
        carried = (beginnings @ C.transpose(-1, -2)).view(x.shape) * _factors(within, begun, dtype)
        scores = (C @ B.transpose(-1, -2)).unsqueeze(3)  # (batch, K, G, 1, Q, Q)
        mixing = _Mixing.apply(within, scores, _hidden(Q, document, x.device, delayed))
        y = torch.baddbmm(carried.flatten(0, 2), v.flatten(0, 2), mixing.flatten(0, 2).transpose(1, 2)).view(x.shape)
        if D is not None:
            y = torch.addcmul(y, D[:, None, None], x)
        y = y.view(batch, K, H * P, Q).transpose(2, 3).reshape(batch, K * Q, H, P)
        return y[:, :L].to(x_dtype), last.reshape(state.shape)


def _chunk(x: Tensor, N: int) -> int:
    """Return the default Q: larger products pay if the states are large (docs/performance.md)."""
    size = x.shape[-1] * N
    return 64 if x.device.type != "cpu" or size > 2048 else 32 if size > 256 else 16


def _piece_size(x: Tensor, Q: int) -> tuple[int, int]:
    """Return how many rows and positions a piece has: a piece of several rows has all positions."""
    _, L, H, _ = x.shape
    chunks = max(1, (NUMBERS if x.device.type == "cpu" else NUMBERS_ELSEWHERE) // (H * Q * Q))
    length = min(chunks, CHUNKS, -(-L // Q)) * Q
    return (max(1, chunks * Q // length), L) if length >= L else (1, length)


def run_eager_ssd(inputs: SSDInputs) -> tuple[Tensor, Tensor]:
    """Return (y, last state) for checked inputs."""
    x, delta, A, B, C, D, initial, reset, Q, dtype, delayed, zero = inputs
    batch, L, H, P = x.shape
    if initial is None:
        initial = x.new_zeros(batch, H, P, B.shape[-1], dtype=dtype)
    Q = min(_chunk(x, B.shape[-1]) if Q is None else Q, L)
    if torch.compiler.is_compiling() or not batch:  # torch.compile chooses for itself what to compute twice
        return _run_piece(x, delta, A, B, C, D, initial, reset, Q, delayed, zero)
    rows, length = _piece_size(x, Q)
    run = partial(_run_piece, Q=Q, delayed=delayed, zero_nonfinite=zero)
    keep = batch * L * H * Q <= KEPT
    # Rows one after the other in one dimension, so that one split and one concatenation, a copy each, make the pieces.
    in_a_row = [min(length, L - start) for start in range(0, L, length)]
    sizes = [min(rows, batch - first) * n for first in range(0, batch, rows) for n in in_a_row]
    pieces = zip(*(repeat(None) if t is None else t.flatten(0, 1).split(sizes) for t in (x, delta, B, C, reset)),
                 strict=False)  # fmt: skip
    outputs, last_states = [], []
    for state in initial.split(rows):
        for _ in in_a_row:
            x_k, delta_k, B_k, C_k, reset_k = (
                None if t is None else t.unflatten(0, (len(state), -1)) for t in next(pieces)
            )
            y, state = recompute(run, x_k, delta_k, A, B_k, C_k, D, state, reset_k, keep=keep)
            outputs.append(y.flatten(0, 1))
        last_states.append(state)
    return torch.cat(outputs).view(x.shape), torch.cat(last_states)
