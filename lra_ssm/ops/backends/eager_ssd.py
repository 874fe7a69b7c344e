"""The scan of Mamba-2 as matrix products, by PyTorch on any device (Dao & Gu 2024, section 6).

A chunk of Q positions is one product with a lower triangular matrix of decays; what a chunk adds to the state is
another; the states at the chunks' beginnings follow from those by a recurrence over chunks, again a triangular
product; a last one brings them to the positions.  The decays are exponentials of sums of delta A over the positions in
between, which are never positive; the sums are differences of float64 running sums, so that a strong decay takes no
precision from what comes after it.

A call is taken piece by piece: so many rows of the batch, so many positions with the state carried on.  Kept for
backward are the inputs and the states at the pieces' beginnings; the rest is computed a second time.

Shapes: x, y (batch, L, H, P); delta (batch, L, H); A, D (H,); B, C (batch, L, G, N); state (batch, H, P, N); reset
(batch, L); K chunks of Q positions.  (H heads, P channels per head, G groups of R = H/G heads, N states.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from lra_ssm.ops.ssd_inputs import SSDInputs
from lra_ssm.ops.tensors import without_autocast, without_nonfinite

CHUNKS = 64  # K of a piece at most: the recurrence over chunks takes K² products


# Numbers of a piece's decays at most: what a CPU's cache holds; on a GPU (not measured) what its memory can spare.
NUMBERS, NUMBERS_ELSEWHERE = 1 << 19, 1 << 26


class _Piece(NamedTuple):
    """A piece of the inputs, padded to whole chunks, and the decays between its positions."""

    x: Tensor  # (batch, K, Q, H, P)
    delta: Tensor  # (batch, K, Q, H, 1)
    B: Tensor  # (batch, K, G, Q, N)
    C: Tensor
    v: Tensor  # delta x
    decays: Tensor  # (batch, K, H, Q, Q): from position j to i of a chunk, 0 for j > i
    after: Tensor  # (batch, K, Q, H, 1): from a chunk's beginning to the position
    before: Tensor  # (batch, K, Q, H, 1): from the position to the chunk's end
    over: Tensor  # (batch, H, K + 1, K + 1): from one chunk's beginning to another's, or to the end


def _decays(sums: Tensor, document: Tensor | None, dtype: torch.dtype) -> Tensor:
    """exp(sums_i - sums_j) for j <= i in the same document, else 0: sums, document (…, Q) -> (…, Q, Q)."""
    Q = sums.shape[-1]
    unseen = torch.ones(Q, Q, dtype=torch.bool, device=sums.device).triu(1)
    if document is not None:
        unseen = unseen | (document.unsqueeze(-1) != document.unsqueeze(-2))
    between = (sums.unsqueeze(-1) - sums.unsqueeze(-2)).to(dtype)
    return between.masked_fill_(unseen, -torch.inf).exp_()


def _factors(sums: Tensor, dropped: Tensor | None, dtype: torch.dtype) -> Tensor:
    """exp of (batch, K, H, Q), 0 where dropped, as (batch, K, Q, H, 1)."""
    sums = sums.to(dtype)
    sums = sums if dropped is None else sums.masked_fill(dropped, -torch.inf)
    return sums.exp().transpose(2, 3).unsqueeze(-1)


def _prepare(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, reset: Tensor | None, Q: int, dtype: torch.dtype,
    zero_nonfinite: bool,
) -> _Piece:  # fmt: skip
    (batch, _, H, P), (G, N), missing = x.shape, B.shape[2:], -x.shape[1] % Q
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
    return _Piece(
        x, delta, B, C, delta * x, _decays(within, document, dtype), _factors(within, begun, dtype),
        _factors(within[..., -1:] - within, ended, dtype), _decays(over, at_ends, dtype),
    )  # fmt: skip


def _grouped(t: Tensor, G: int) -> Tensor:
    """(batch, K, Q, H, P) -> (batch, K, G, Q, R P)."""
    batch, K, Q = t.shape[:3]
    return t.reshape(batch, K, Q, G, -1).transpose(2, 3)


def _by_heads(t: Tensor, like: Tensor) -> Tensor:
    """The inverse of `_grouped`."""
    return t.transpose(2, 3).reshape(like.shape)


def _mixing(piece: _Piece) -> Tensor:
    """The decays times C B^T: (batch, K, H, Q, Q)."""
    batch, K, H, Q, _ = piece.decays.shape
    G = piece.B.shape[2]
    scores = (piece.C @ piece.B.transpose(-1, -2)).unsqueeze(3)  # (batch, K, G, 1, Q, Q)
    return (scores * piece.decays.reshape(batch, K, G, H // G, Q, Q)).reshape(batch, K, H, Q, Q)


def _sums(piece: _Piece, state: Tensor) -> Tensor:
    """The state before the piece and what every chunk adds: (batch, H, K + 1, P N)."""
    batch, H, P, N = state.shape
    added = _grouped(piece.v * piece.before, piece.B.shape[2]).transpose(-1, -2) @ piece.B  # (batch, K, G, R P, N)
    return torch.cat([state.reshape(batch, 1, H, P * N), added.reshape(batch, -1, H, P * N)], 1).transpose(1, 2)


def _states(states: Tensor, piece: _Piece) -> Tensor:
    """(batch, H, K + 1, P N), the last of which is left out -> (batch, K, G, R P, N)."""
    batch, K, G, _, N = piece.B.shape
    return states[:, :, :-1].transpose(1, 2).reshape(batch, K, G, -1, N)


def _forward(piece: _Piece, D: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
    """(y (batch, K Q, H, P), state after it)."""
    y = (_mixing(piece) @ piece.v.transpose(2, 3)).transpose(2, 3)  # (batch, K, Q, H, P)
    states = piece.over @ _sums(piece, state)
    carried = _by_heads(piece.C @ _states(states, piece).transpose(-1, -2), piece.x)
    y = torch.addcmul(y, carried, piece.after)
    if D is not None:
        y = torch.addcmul(y, D.unsqueeze(-1), piece.x)
    return y.flatten(1, 2), states[:, :, -1].reshape(state.shape)


def _fall(grad: Tensor, decays: Tensor) -> Tensor:
    """Gradient of the sums behind `_decays`, by that of the decays: (…, Q, Q) -> (…, Q). Writes into grad.

    Sums in float64: what is in those of both kinds is to cancel.
    """
    grad = grad.mul_(decays)
    return grad.sum(-1, dtype=torch.float64) - grad.sum(-2, dtype=torch.float64)


def _backward(
    piece: _Piece, A: Tensor, D: Tensor | None, state: Tensor, grad_y: Tensor, grad_state: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, delta, B, C (each as in `_Piece`), A, D and state; grad_y (batch, K, Q, H, P)."""
    x, delta, B, C, v, decays, after, before, over = piece
    batch, K, G, Q, N = B.shape
    H, P = x.shape[3:]
    sums = _sums(piece, state)
    states = _states(over @ sums, piece)

    # What the state at a chunk's beginning brings to its positions.
    carried = _by_heads(C @ states.transpose(-1, -2), x)
    grad_carried = grad_y * after
    grad_within = (grad_carried * carried).sum(-1).transpose(2, 3).double()  # (batch, K, H, Q)
    grad_carried = _grouped(grad_carried, G)
    grad_C = grad_carried @ states
    grad_states = (grad_carried.transpose(-1, -2) @ C).reshape(batch, K, H, P * N)

    # The recurrence over chunks.
    grad_states = torch.cat([grad_states, grad_state.reshape(batch, 1, H, P * N)], 1).transpose(1, 2)
    grad_over = _fall(grad_states @ sums.transpose(-1, -2), over)  # (batch, H, K + 1)
    grad_sums = (over.transpose(-1, -2) @ grad_states).transpose(1, 2)  # (batch, K + 1, H, P N)
    grad_added = grad_sums[:, 1:].reshape(batch, K, G, -1, N)

    # What the chunks add to the state.
    left = _by_heads(B @ grad_added.transpose(-1, -2), x) * before  # of v
    lost = (left * v).sum(-1).transpose(2, 3).double()
    lost[..., -1] = 0  # the last position is the chunk's end
    grad_B = _grouped(v * before, G) @ grad_added

    # Within the chunks.
    of_mixing = grad_y.transpose(2, 3) @ v.transpose(2, 3).transpose(-1, -2)  # (batch, K, H, Q, Q)
    mixing = _mixing(piece)
    grad_v = torch.add(left, (mixing.transpose(-1, -2) @ grad_y.transpose(2, 3)).transpose(2, 3))
    grad_scores = (of_mixing * decays).reshape(batch, K, G, H // G, Q, Q).sum(3)
    grad_C += grad_scores @ B
    grad_B += grad_scores.transpose(-1, -2) @ C
    grad_within += _fall(of_mixing, mixing) - lost

    # Of delta A, which every later sum has; those at the ends are summed up over the chunks.
    later = grad_over[..., 1:].flip(-1).cumsum(-1).flip(-1).transpose(1, 2)  # (batch, K, H)
    grad_within[..., -1] += lost.sum(-1) + later
    grad_decay = grad_within.flip(-1).cumsum(-1).flip(-1).transpose(2, 3).to(x.dtype).unsqueeze(-1)
    grad_delta = torch.addcmul((grad_v * x).sum(-1, keepdim=True), grad_decay, A.unsqueeze(-1))
    grad_x = grad_v * delta
    if D is not None:
        grad_x = torch.addcmul(grad_x, D.unsqueeze(-1), grad_y)
    grad_A, grad_D = ((a * b).sum((0, 1, 2, 4)) for a, b in ((grad_decay, delta), (grad_y, x)))
    return grad_x, grad_delta, grad_B, grad_C, grad_A, grad_D, grad_sums[:, 0].reshape(state.shape)


class _Pieces(torch.autograd.Function):
    """x, delta, B and C in any dtypes; A, D and the initial state in the arithmetic's."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, initial: Tensor,
        reset: Tensor | None, Q: int, zero_nonfinite: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        (batch, L), dtype = x.shape[:2], initial.dtype
        rows, length = _cut(x, Q)
        y, last = torch.empty_like(x, memory_format=torch.contiguous_format), torch.empty_like(initial)
        kept = initial.new_empty(-(-L // length), *initial.shape)  # the states at the pieces' beginnings
        for at in _ranges(batch, rows):
            state = initial[at]
            for k, of in enumerate(_ranges(L, length)):
                kept[k, at] = state
                x_k, delta_k, B_k, C_k = (t[at, of] for t in (x, delta, B, C))
                piece = _prepare(
                    x_k, delta_k, A, B_k, C_k, None if reset is None else reset[at, of], Q, dtype, zero_nonfinite
                )
                y_k, state = _forward(piece, D, state)
                y[at, of] = y_k[:, : x_k.shape[1]]
            last[at] = state
        ctx.save_for_backward(x, delta, A, B, C, D, reset, kept)
        ctx.Q, ctx.zero_nonfinite = Q, zero_nonfinite
        return y, last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor, grad_state: Tensor) -> tuple[Tensor | None, ...]:
        x, delta, A, B, C, D, reset, kept = ctx.saved_tensors
        (batch, L), Q, dtype = x.shape[:2], ctx.Q, kept.dtype
        rows, length = _cut(x, Q)
        grads = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, delta, B, C)]
        grad_A, grad_D, grad_initial = torch.zeros_like(A), torch.zeros_like(A), torch.empty_like(kept[0])
        with without_autocast(x.device):
            for at in _ranges(batch, rows):
                grad = grad_state[at]
                for k, of in reversed(list(enumerate(_ranges(L, length)))):
                    x_k, delta_k, B_k, C_k, grad_k = (t[at, of] for t in (x, delta, B, C, grad_y))
                    piece = _prepare(
                        x_k,
                        delta_k,
                        A,
                        B_k,
                        C_k,
                        None if reset is None else reset[at, of],
                        Q,
                        dtype,
                        ctx.zero_nonfinite,
                    )
                    grad_k = F.pad(grad_k.to(dtype), (0, 0, 0, 0, 0, -x_k.shape[1] % Q)).reshape(piece.x.shape)
                    *found, of_A, of_D, grad = _backward(piece, A, D, kept[k, at], grad_k, grad)
                    found[1] = found[1].squeeze(-1)
                    found[2:] = [t.transpose(2, 3) for t in found[2:]]
                    for whole, part in zip(grads, found, strict=True):
                        whole[at, of] = part.flatten(1, 2)[:, : x_k.shape[1]]
                    grad_A += of_A
                    grad_D += of_D
                grad_initial[at] = grad
        grad_x, grad_delta, grad_B, grad_C = grads
        return (
            grad_x, grad_delta, grad_A, grad_B, grad_C, None if D is None else grad_D, grad_initial, None, None, None,
        )  # fmt: skip


def _chunk(x: Tensor, N: int) -> int:
    """Q where nobody says: larger products pay where the states are large (docs/performance.md)."""
    return 32 if x.device.type == "cpu" and x.shape[-1] * N < 2048 else 64


def _cut(x: Tensor, Q: int) -> tuple[int, int]:
    """How many rows and positions a piece has."""
    _, L, H, _ = x.shape
    chunks = max(1, (NUMBERS if x.device.type == "cpu" else NUMBERS_ELSEWHERE) // (H * Q * Q))
    length = min(chunks, CHUNKS, -(-L // Q)) * Q
    return max(1, chunks * Q // length), length


def _ranges(end: int, step: int) -> Iterator[slice]:
    return (slice(k, min(k + step, end)) for k in range(0, end, step))


def run_eager_ssd(inputs: SSDInputs) -> tuple[Tensor, Tensor]:
    """(y, last state) of checked inputs."""
    x, delta, A, B, C, D, initial, reset, Q, dtype, zero = inputs
    batch, L, H, P = x.shape
    if initial is None:
        initial = x.new_zeros(batch, H, P, B.shape[-1], dtype=dtype)
    Q = min(_chunk(x, B.shape[-1]) if Q is None else Q, L)
    with without_autocast(x.device):
        if torch.compiler.is_compiling():  # which chooses for itself what to compute twice
            y, last = _forward(_prepare(x, delta, A, B, C, reset, Q, dtype, zero), D, initial)
            return y[:, :L].to(x.dtype), last
        return _Pieces.apply(x, delta, A, B, C, D, initial, reset, Q, zero)
