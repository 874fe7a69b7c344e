"""Eigenvalues and timescales of layers, by what a step does to their state; and the step sizes Δ.

Of a layer nothing is asked but that it steps: a `RecurrentLayer`, or a module of a user's own with
`initial_state(batch)` and `step(x_t, state)` whose state is one tensor and moves linearly.

Shapes: P positions, D channels, S states.
"""

import copy
import math

import torch
from torch import Tensor, nn

from lra_ssm.layers.recurrent import RecurrentLayer

MOST_STATES = 1024  # of a transition that is no diagonal: the matrix is made


@torch.no_grad()
def eigenvalues(layer: nn.Module, x: Tensor) -> Tensor | None:
    """Eigenvalues of the transition x_k = Ā_k x_{k-1} + … at P inputs: x (P, D) -> (P, S) complex128.

    A selective layer has others at every input. Of conjugate pairs one is listed, and one of a head (SSD) that has one
    for all its states. Measured in float64: a step is linear in the state, so that Ā's diagonal is the step from ones
    less the step from zeros. Where Ā is no diagonal it is made column by column.
    None where the layer cannot step, or Ā is no diagonal of more than MOST_STATES states.
    """
    if not (isinstance(layer, RecurrentLayer) or (hasattr(layer, "step") and hasattr(layer, "initial_state"))):
        return None
    layer, x = copy.deepcopy(layer).double().cpu(), x.detach().double().cpu()
    zero = _zero_state(layer, len(x))
    if not isinstance(zero, Tensor):
        return None
    base = _after(layer, x, zero)
    diagonal = _after(layer, x, torch.ones_like(zero)) - base
    some = torch.randn(zero.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(zero.dtype)
    moved = _after(layer, x, some) - base
    if torch.allclose(moved, diagonal * some, rtol=1e-6, atol=1e-9 * (1 + float(base.abs().max()))):
        first = diagonal[..., :1, :1]
        if diagonal.dim() == 4 and torch.allclose(diagonal, first.expand_as(diagonal), rtol=1e-9, atol=1e-12):
            diagonal = first
        return diagonal.flatten(1).to(torch.complex128)
    S = zero[0].numel()
    if S > MOST_STATES:
        return None
    basis = torch.eye(S, dtype=zero.dtype).view(S, *zero.shape[1:])
    found = []
    for row in x:
        inputs = row.expand(S + 1, -1)
        after = _after(layer, inputs, torch.cat([basis, torch.zeros_like(basis[:1])])).flatten(1)
        found.append(torch.linalg.eigvals((after[:-1] - after[-1]).T))
    return torch.stack(found).to(torch.complex128)


def _zero_state(layer: nn.Module, count: int) -> Tensor:
    if isinstance(layer, RecurrentLayer):  # a bidirectional one refuses initial_state; its scan reads from the left
        dtype = torch.complex128 if layer.complex_state else torch.float64
        return torch.zeros(count, *layer.state_shape, dtype=dtype)
    return layer.initial_state(count)  # type: ignore[operator]


def _after(layer: nn.Module, x: Tensor, state: Tensor) -> Tensor:
    if isinstance(layer, RecurrentLayer):
        after = layer.scan(x[:, None], initial_state=state, return_last_state=True)[1]
        assert after is not None
        return after
    return layer.step(x, state)[1]  # type: ignore[operator]


def timescales(eigenvalues: Tensor) -> Tensor:
    """τ = -1/log|λ|, in positions: after so many a state has decayed to 1/e. (...) complex -> (...) float64.

    Infinite where |λ| >= 1.
    """
    rate = -eigenvalues.abs().double().clamp(min=1e-300).log()
    return torch.where(rate > 0, 1 / rate.clamp(min=1e-300), math.inf)


def mean_timescales(eigenvalues: Tensor) -> Tensor:
    """(P, S) at P positions -> (S,): τ of the geometric mean of |λ_k|, as a state decays by their product."""
    return timescales(eigenvalues.abs().double().clamp(min=1e-300).log().mean(0).exp().to(torch.complex128))


@torch.no_grad()
def step_sizes(layer: nn.Module, x: Tensor) -> Tensor | None:
    """Δ at every position and channel, x (B, L, D) -> (B, L, D), by the layer's own `step_sizes`; None without one."""
    inner = getattr(layer, "system", None)  # of a StableSSM
    own = getattr(layer, "step_sizes", None) or getattr(inner, "step_sizes", None)
    return own(x) if callable(own) else None
