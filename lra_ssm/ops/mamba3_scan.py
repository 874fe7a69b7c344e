"""The scan of Mamba-3 (single input, single output): the exponential-trapezoidal rule, and states that rotate.

Shapes: x, y (batch, L, H, P); delta, A, trapezoid (batch, L, H); angles (batch, L, R); B, C (batch, L, H, N); D (H,);
state (batch, H, P + 1, N + 1). (L length, H heads, P channels per head, N states, R pairs of states that rotate.)

Sources: Lahoti et al. 2026, "Mamba-3" (arXiv 2603.15569), and its public code (state-spaces/mamba,
modules/mamba3.py and ops/triton/mamba3).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from lra_ssm.ops.ssd_scan import ssd_scan
from lra_ssm.ops.tensors import (
    check_shapes,
    check_tensors,
    has_double,
    is_nonfinite,
    read_sizes,
    without_autocast,
    without_nonfinite,
)


def mamba3_scan(
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    trapezoid: Tensor,
    angles: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    *,
    chunk_size: int | None = None,
    initial_state: Tensor | None = None,
    reset: Tensor | None = None,
    valid: Tensor | None = None,
    return_last_state: bool = False,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Run, for every batch item and head, with α_k = exp(Δ_k A_k) and λ = trapezoid:

        S_k = α_k R_k S_{k-1} + (1 - λ_k) Δ_k α_k R_k (x_{k-1} B_{k-1}ᵀ) + λ_k Δ_k x_k B_kᵀ,   y_k = S_k C_k + D x_k

    R_k rotates states 2r and 2r + 1 by -Δ_k angles_{k,r}, for every r < R; it is the transition of a complex state, as
    a real one of twice the size. λ = 1 is Euler's rule, Mamba-2's; λ = 1/2 is the trapezoidal rule. It is computed as
    Mamba-2's scan over B and C that are rotated by the sum of all angles so far ("RoPE trick").

    Args:
        x: (batch, L, H, P), real.
        delta: (batch, L, H), the step sizes, softplus taken.
        A: (batch, L, H), negative.
        trapezoid: (batch, L, H), from 0 to 1.
        angles: (batch, L, R) with 2 R <= N, in radians per unit of time.
        B, C: (batch, L, H, N), of every head.
        D: (H,); 0 if not given.
        chunk_size, backend: see `ssd_scan`.
        initial_state: (batch, H, P + 1, N + 1), the state before step 0; zero if not given. It holds S in [:P, :N], the
            last x in [:P, N] and the last B in [P, :N].
        reset: (batch, L) bool; where true everything before that step is dropped.
        valid: (batch, L) bool, true at the real positions, which come first; where false the state does not change.
        return_last_state: return (y, state after step L - 1) instead of y; gradients flow through both.

    State and arithmetic are float32, or float64 if any input is float64; y has x's dtype.

    Raises:
        ValueError: one line naming the argument, what it is and what it should be.
    """
    work = _check({"x": x, "delta": delta, "A": A, "trapezoid": trapezoid, "angles": angles, "B": B, "C": C, "D": D,
                   "initial_state": initial_state})  # fmt: skip
    (batch, _, H, P), N = x.shape, B.shape[-1]
    delta, A, trapezoid = (t.to(work) for t in (delta, A, trapezoid))
    if valid is not None:
        delta = delta.masked_fill(~valid.unsqueeze(-1), 0)
    turn = delta.double().unsqueeze(-1) * angles.double().unsqueeze(2)  # (batch, L, H, R)
    finite = turn if reset is None else without_nonfinite(turn)
    phase = finite.cumsum(1).remainder(2 * math.pi).to(work)
    if reset is not None:  # an inf or NaN counts at its position; the state brings it to the rest of its document
        phase = phase.masked_fill(is_nonfinite(turn), torch.nan)
    keys, queries = (rotate_pairs(t.to(work), phase) for t in (B, C))

    # x_k enters the state twice: at k, and at k + 1, before that position's decay. Together this is what later
    # positions read of it. At its own position only the first counts.
    own = trapezoid * delta
    next_ = (1 - trapezoid) * delta
    late = F.pad(next_[:, 1:], (0, 0, 0, 1))
    if reset is not None:
        late = late.masked_fill(F.pad(reset[:, 1:], (0, 1)).unsqueeze(-1), 0)
    initial = x.new_zeros(batch, H, P + 1, N + 1, dtype=work) if initial_state is None else initial_state.to(work)
    before, last_x, last_B = _split_state(initial)
    state = before + next_[:, 0, :, None, None] * _outer(last_x, last_B)
    wide = x.to(work)
    y, state = ssd_scan(
        wide * (own + late).unsqueeze(-1), -delta * A, A.new_full((H,), -1), keys, queries, delayed=True,
        chunk_size=chunk_size, initial_state=state, reset=reset, return_last_state=True, backend=backend,
    )  # fmt: skip
    own = own * (keys * queries).sum(-1)
    y = y + (own if D is None else own + D.to(work)).unsqueeze(-1) * wide
    if not return_last_state:
        return y.to(x.dtype)
    state = rotate_pairs(state, -phase[:, -1].unsqueeze(2))
    if valid is None:
        last_x, last_B = wide[:, -1], B[:, -1]
    else:
        count = valid.sum(1)
        at = (torch.arange(batch, device=x.device), (count - 1).clamp(min=0))
        some = (count > 0)[:, None, None]
        last_x, last_B = torch.where(some, wide[at], last_x), torch.where(some, B[at].to(work), last_B)
    return y.to(x.dtype), _join_state(state, last_x, last_B.to(work))


def mamba3_step(
    x: Tensor, delta: Tensor, A: Tensor, trapezoid: Tensor, angles: Tensor, B: Tensor, C: Tensor, D: Tensor | None,
    state: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return (y, state after it) of `mamba3_scan` at one position; its arguments without L, in the state's precision.

    y has x's dtype. Gradients flow through everything; nothing is checked.
    """
    dtype, work = x.dtype, state.dtype
    x, delta, A, trapezoid, angles, B, C = (t.to(work) for t in (x, delta, A, trapezoid, angles, B, C))
    before, last_x, last_B = _split_state(state)
    before = before + ((1 - trapezoid) * delta)[..., None, None] * _outer(last_x, last_B)
    phase = -delta.unsqueeze(-1) * angles.unsqueeze(1)  # (batch, H, R)
    decayed = (delta * A).exp()[..., None, None] * rotate_pairs(before, phase.unsqueeze(2))
    after = decayed + (trapezoid * delta)[..., None, None] * _outer(x, B)
    with without_autocast(x.device):
        y = (after @ C.unsqueeze(-1)).squeeze(-1)
    if D is not None:
        y = y + D.to(work).unsqueeze(-1) * x
    return y.to(dtype), _join_state(after, x, B)


def rotate_pairs(x: Tensor, phase: Tensor) -> Tensor:
    """Rotate entries 2r and 2r + 1 of x (…, N) by phase (…, R), for r < R; the entries from 2 R on stay."""
    rotating, rest = x.split([2 * phase.shape[-1], x.shape[-1] - 2 * phase.shape[-1]], -1)
    first, second = rotating.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = phase.cos(), phase.sin()
    rotated = torch.stack([first * cos - second * sin, first * sin + second * cos], -1)
    return torch.cat([rotated.flatten(-2), rest], -1)


def _split_state(state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return S (batch, H, P, N), the last x (batch, H, P) and the last B (batch, H, N) of `mamba3_scan`'s state."""
    return state[..., :-1, :-1], state[..., :-1, -1], state[..., -1, :-1]


def _join_state(S: Tensor, last_x: Tensor, last_B: Tensor) -> Tensor:
    """Do the inverse of `_split_state`; the remaining entry is 0."""
    return torch.cat([torch.cat([S, last_x.unsqueeze(-1)], -1), F.pad(last_B, (0, 1)).unsqueeze(-2)], -2)


def _outer(x: Tensor, B: Tensor) -> Tensor:
    return x.unsqueeze(-1) * B.unsqueeze(-2)


def _check(tensors: dict[str, Tensor | None]) -> torch.dtype:
    """Check what `ssd_scan` does not see. Return the arithmetic's dtype. Raises ValueError naming the argument."""
    check_tensors(tensors, optional=("D", "initial_state"))
    x, angles, B = tensors["x"], tensors["angles"], tensors["B"]
    assert x is not None and angles is not None and B is not None
    sizes = read_sizes("x", x, "batch L H P")
    N = B.shape[-1]
    sizes |= {"N": N, "P+1": sizes["P"] + 1, "N+1": N + 1, "R": angles.shape[-1]}
    expected = dict.fromkeys(("delta", "A", "trapezoid"), "batch L H") | dict.fromkeys("BC", "batch L H N")
    check_shapes(tensors, expected | {"D": "H", "initial_state": "batch H P+1 N+1", "angles": "batch L R"}, sizes)
    if 2 * sizes["R"] > N:
        raise ValueError(f"angles: shape {tuple(angles.shape)}; expected (batch, L, R) with 2 R at most N = {N}")
    return torch.float64 if has_double(*tensors.values()) else torch.float32
