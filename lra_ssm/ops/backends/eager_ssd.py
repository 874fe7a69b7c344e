"""The scan of Mamba-2 as matrix products, by PyTorch on any device (Dao & Gu 2024, section 6).

A chunk of Q positions is one product with a lower triangular matrix of decays; what a chunk adds to the state is
another; the states at the chunks' beginnings follow from those by a recurrence over chunks, again a triangular
product; a last one brings them to the positions.  The decays are exponentials of sums of delta A over the positions in
between, which are never positive; the sums are differences of float64 running sums, so that a strong decay takes no
precision from what comes after it.

Long sequences are taken slab by slab, with the state carried on.  Kept for backward are the inputs and the states at
the slabs' beginnings; a slab is then computed a second time, under autograd.

Shapes: x, y (batch, L, H, P); delta (batch, L, H); A, D (H,); B, C (batch, L, G, N); state (batch, H, P, N); reset
(batch, L); K chunks of Q positions.  (H heads, P channels per head, G groups of R = H/G heads, N states.)
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from lra_ssm.ops.ssd_inputs import SSDInputs
from lra_ssm.ops.tensors import without_autocast

CHUNK = 64  # Q where nobody says
CHUNKS_PER_SLAB = 32


def _decays(sums: Tensor, document: Tensor | None, dtype: torch.dtype) -> Tensor:
    """exp(sums_i - sums_j) for j <= i in the same document, else 0: sums, document (…, Q) -> (…, Q, Q)."""
    Q = sums.shape[-1]
    unseen = torch.ones(Q, Q, dtype=torch.bool, device=sums.device).triu(1)
    if document is not None:
        unseen = unseen | (document.unsqueeze(-1) != document.unsqueeze(-2))
    between = (sums.unsqueeze(-1) - sums.unsqueeze(-2)).to(dtype)
    return between.masked_fill(unseen, -torch.inf).exp()


def _slab(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, state: Tensor, reset: Tensor | None,
    Q: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(y in x's dtype, state after it) of a piece of the sequence; state in the arithmetic's dtype."""
    (batch, L, H, P), (G, N), dtype, own = x.shape, B.shape[2:], state.dtype, x.dtype
    x, delta, B, C = (F.pad(t.to(dtype), (0,) * (2 * t.dim() - 3) + (-L % Q,)) for t in (x, delta, B, C))
    K, R = x.shape[1] // Q, H // G
    # Running sums of delta A within chunks (batch, K, H, Q), and over whole chunks (batch, H, K + 1).
    within = (delta * A).double().reshape(batch, K, Q, H).transpose(2, 3).cumsum(-1)
    over = F.pad(within[..., -1].transpose(1, 2).cumsum(-1), (1, 0))
    document = at_ends = begins = ends = None
    if reset is not None:
        document = F.pad(reset, (0, -L % Q)).long().cumsum(1).reshape(batch, K, 1, Q)  # the state comes from document 0
        at_ends = F.pad(document[..., -1].transpose(1, 2), (1, 0))  # (batch, 1, K + 1)
        begins = document != at_ends[..., :-1].transpose(1, 2).unsqueeze(-1)  # where the state before is dropped
        ends = document != document[..., -1:]

    v = (delta.unsqueeze(-1) * x).reshape(batch, K, Q, H, P)
    B, C = (t.reshape(batch, K, Q, G, N).transpose(2, 3) for t in (B, C))  # (batch, K, G, Q, N)
    scores = (C @ B.transpose(-1, -2)).unsqueeze(3)  # (batch, K, G, 1, Q, Q)
    mixing = scores * _decays(within, document, dtype).reshape(batch, K, G, R, Q, Q)
    y = (mixing.reshape(batch, K, H, Q, Q) @ v.transpose(2, 3)).transpose(2, 3)  # (batch, K, Q, H, P)

    def factors(sums: Tensor, dropped: Tensor | None) -> Tensor:
        """exp of (batch, K, H, Q), 0 where dropped, as (batch, K, Q, H, 1)."""
        sums = sums.to(dtype)
        sums = sums if dropped is None else sums.masked_fill(dropped, -torch.inf)
        return sums.exp().transpose(2, 3).unsqueeze(-1)

    left = v * factors(within[..., -1:] - within, ends)
    added = left.reshape(batch, K, Q, G, R * P).permute(0, 1, 3, 4, 2) @ B  # (batch, K, G, R P, N)
    states = torch.cat([state.reshape(batch, 1, H, P * N), added.reshape(batch, K, H, P * N)], 1).transpose(1, 2)
    states = _decays(over, at_ends, dtype) @ states  # (batch, H, K + 1, P N)
    before = states[:, :, :-1].transpose(1, 2).reshape(batch, K, G, R * P, N)
    carried = (C @ before.transpose(-1, -2)).transpose(2, 3).reshape(batch, K, Q, H, P)
    y = y + carried * factors(within, begins)
    if D is not None:
        y = y + D.unsqueeze(-1) * x.reshape(y.shape)
    return y.reshape(batch, K * Q, H, P)[:, :L].to(own), states[:, :, -1].reshape(batch, H, P, N)


class _Slabs(torch.autograd.Function):
    """x, delta, B and C in any dtypes; A, D and the initial state in the arithmetic's."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, initial: Tensor,
        reset: Tensor | None, Q: int, length: int,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        y, state, kept = torch.empty_like(x, memory_format=torch.contiguous_format), initial, []
        for piece, out in zip(_pieces(length, x, delta, B, C, reset), y.split(length, 1), strict=True):
            kept.append(state)
            x_k, delta_k, B_k, C_k, reset_k = piece
            y_k, state = _slab(x_k, delta_k, A, B_k, C_k, D, state, reset_k, Q)
            out.copy_(y_k)
        ctx.save_for_backward(x, delta, A, B, C, D, reset, *kept)
        ctx.Q, ctx.length = Q, length
        return y, state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor, grad_state: Tensor) -> tuple[Tensor | None, ...]:
        x, delta, A, B, C, D, reset, *kept = ctx.saved_tensors
        varying = [torch.empty_like(t) for t in (x, delta, B, C)]
        fixed = [torch.zeros_like(A), None if D is None else torch.zeros_like(D)]
        pieces = list(_pieces(ctx.length, x, delta, B, C, reset, grad_y, *varying))
        for state, (x_k, delta_k, B_k, C_k, reset_k, grad_k, *outs) in reversed(list(zip(kept, pieces, strict=True))):
            leaves = [t.detach().requires_grad_() for t in (x_k, delta_k, B_k, C_k, A, D, state) if t is not None]
            x_k, delta_k, B_k, C_k, A_k, *D_k, state = leaves
            with torch.enable_grad(), without_autocast(x.device):
                results = _slab(x_k, delta_k, A_k, B_k, C_k, D_k[0] if D_k else None, state, reset_k, ctx.Q)
            grads = torch.autograd.grad(results, leaves, (grad_k, grad_state))
            for out, grad in zip(outs, grads[:4], strict=True):
                out.copy_(grad)
            for total, grad in zip(fixed, grads[4:-1], strict=False):
                assert total is not None
                total += grad
            grad_state = grads[-1]
        grad_x, grad_delta, grad_B, grad_C = varying
        return grad_x, grad_delta, fixed[0], grad_B, grad_C, fixed[1], grad_state, None, None, None


def _pieces(length: int, *tensors: Tensor | None) -> Any:
    """Slabs of tensors (batch, L, …), None for a tensor that is None."""
    count = -(-next(t for t in tensors if t is not None).shape[1] // length)
    return zip(*([None] * count if t is None else t.split(length, 1) for t in tensors), strict=True)


def run_eager_ssd(inputs: SSDInputs) -> tuple[Tensor, Tensor]:
    """(y, last state) of checked inputs."""
    x, delta, A, B, C, D, initial, reset, Q, dtype = inputs
    batch, L, H, P = x.shape
    if initial is None:
        initial = x.new_zeros(batch, H, P, B.shape[-1], dtype=dtype)
    Q = min(CHUNK if Q is None else Q, L)
    with without_autocast(x.device):
        if torch.compiler.is_compiling():  # which chooses for itself what to compute twice
            return _slab(x, delta, A, B, C, D, initial, reset, Q)
        return _Slabs.apply(x, delta, A, B, C, D, initial, reset, Q, Q * CHUNKS_PER_SLAB)
