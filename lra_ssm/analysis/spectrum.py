"""Eigenvalues and timescales of layers, measured from how a step changes their state; and the step sizes Δ.

A layer is a `RecurrentLayer`, or a module of your own with `initial_state(batch)` and `step(x_t, state)` whose state is
one tensor and changes linearly.

Shapes: P positions, D channels, S states.
"""

import copy
import math

import torch
from torch import Tensor, nn

from lra_ssm.layers.recurrent import RecurrentLayer, ScanContext

MAX_STATES = 1024  # of a transition that is not diagonal, whose matrix is computed


@torch.no_grad()
def eigenvalues(layer: nn.Module, x: Tensor) -> Tensor | None:
    """Return the eigenvalues of the transition x_k = Ā_k x_{k-1} + … at P inputs: x (P, D) -> (P, S) complex128.

    A selective layer's differ from input to input. A conjugate pair is listed once, and so is the one eigenvalue of a
    head (SSD). A layer may give them by a method `eigenvalues_at(x)`. Otherwise they are measured in float64: a step is
    linear in the state, so the diagonal of Ā is the step from ones minus the step from zeros. If Ā is not diagonal, it
    is computed column by column.
    Returns None if the layer cannot step, or if Ā is not diagonal and has more than MAX_STATES states.
    """
    if not (isinstance(layer, RecurrentLayer) or (hasattr(layer, "step") and hasattr(layer, "initial_state"))):
        return None
    layer, x = copy.deepcopy(layer).double().cpu(), x.detach().double().cpu()
    if callable(formula := getattr(layer, "eigenvalues_at", None)):
        return formula(x).to(torch.complex128)
    zero = _zero_state(layer, len(x))
    if not isinstance(zero, Tensor):
        return None
    base = _next_state(layer, x, zero)
    diagonal = _next_state(layer, x, torch.ones_like(zero)) - base
    random = torch.randn(zero.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(zero.dtype)
    change = _next_state(layer, x, random) - base
    if torch.allclose(change, diagonal * random, rtol=1e-6, atol=1e-9 * (1 + float(base.abs().max()))):
        first = diagonal[..., :1, :1]
        if diagonal.dim() == 4 and torch.allclose(diagonal, first.expand_as(diagonal), rtol=1e-9, atol=1e-12):
            diagonal = first
        return diagonal.flatten(1).to(torch.complex128)
    S = zero[0].numel()
    if S > MAX_STATES:
        return None
    basis = torch.eye(S, dtype=zero.dtype).view(S, *zero.shape[1:])
    values = []
    for row in x:
        inputs = row.expand(S + 1, -1)
        after = _next_state(layer, inputs, torch.cat([basis, torch.zeros_like(basis[:1])])).flatten(1)
        values.append(torch.linalg.eigvals((after[:-1] - after[-1]).T))
    return torch.stack(values).to(torch.complex128)


def _zero_state(layer: nn.Module, count: int) -> Tensor:
    if isinstance(layer, RecurrentLayer):  # a bidirectional one refuses initial_state; its scan reads from the left
        dtype = torch.complex128 if layer.complex_state else torch.float64
        return torch.zeros(count, *layer.state_shape, dtype=dtype)
    return layer.initial_state(count)  # type: ignore[operator]


def _next_state(layer: nn.Module, x: Tensor, state: Tensor) -> Tensor:
    if isinstance(layer, RecurrentLayer):
        after = layer.scan(x[:, None], ScanContext(initial_state=state, return_last_state=True))[1]
        assert after is not None
        return after
    return layer.step(x, state)[1]  # type: ignore[operator]


def timescales(eigenvalues: Tensor) -> Tensor:
    """Return τ = -1/log|λ|, the number of positions after which a state has decayed to 1/e.

    (...) complex -> (...) float64; infinite where |λ| >= 1.
    """
    rate = -eigenvalues.abs().double().clamp(min=1e-300).log()
    return torch.where(rate > 0, 1 / rate.clamp(min=1e-300), math.inf)


def mean_timescales(eigenvalues: Tensor) -> Tensor:
    """Return τ of the geometric mean of |λ_k| over positions, as a state decays by their product: (P, S) -> (S,)."""
    return timescales(eigenvalues.abs().double().clamp(min=1e-300).log().mean(0).exp().to(torch.complex128))


@torch.no_grad()
def step_sizes(layer: nn.Module, x: Tensor) -> Tensor | None:
    """Return Δ at every position and channel, x (B, L, D) -> (B, L, D), or None if the layer has no `step_sizes`."""
    inner = getattr(layer, "system", None)  # of a StableSSM
    compute = getattr(layer, "step_sizes", None) or getattr(inner, "step_sizes", None)
    return compute(x) if callable(compute) else None
