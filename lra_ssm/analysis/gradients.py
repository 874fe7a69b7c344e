"""Where gradients go: relative gradients over the sequence, gradients over weights, gradients of Δ.

Sources: Yu & Erichson 2025 (B2S6), eq. 6 and theorem 3; Wang & Li 2024 (StableSSM), fig. 3-4.
Shapes: L length, D input channels, D' output channels, N states.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from lra_ssm.analysis.memory import Model
from lra_ssm.ops import selective_scan


def jacobian_norms(
    model: Model, x: Tensor, position: int = -1, probes: int | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """‖J_k‖_F, J_k = ∂f(x)_position / ∂x_k, for every position k: x (batch, L, D) -> (batch, L).

    Args:
        model: f, from (batch, L, D) to (batch, L, D'), or to (batch, D') as a classifier, which has one position.
        x: inputs.
        position: of the output.
        probes: None is exact, with one backward pass for each of the D' outputs. Otherwise as many passes with random
            signs v, as E‖vᵀJ‖² = ‖J‖²: the square has a relative standard deviation of at most (2 / probes)^½.
        generator: of the signs.
    """
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        y = model(x)
        y = y[:, position] if y.dim() == 3 else y
    if probes is None or probes >= y.shape[-1]:
        directions = torch.eye(y.shape[-1], dtype=y.dtype, device=y.device)
    else:
        signs = torch.randint(0, 2, (probes, y.shape[-1]), generator=generator)
        directions = (2 * signs - 1).to(y) / probes**0.5
    total = torch.zeros(x.shape[:2], dtype=x.dtype, device=x.device)
    for i, direction in enumerate(directions):
        (grad,) = torch.autograd.grad(y, x, direction.expand_as(y), retain_graph=i < len(directions) - 1)
        total += grad.square().sum(-1)
    return total.sqrt()


def relative_gradient(
    model: Model, x: Tensor, position: int = -1, probes: int | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """S_k = ‖J_k‖_F / Σ_k' ‖J_k'‖_F (B2S6, eq. 6): the share of position k in what the output at `position` depends
    on. Arguments as of `jacobian_norms`. (batch, L), rows that add up to 1."""
    norms = jacobian_norms(model, x, position, probes, generator)
    return norms / norms.sum(-1, keepdim=True)


class Ratio(NamedTuple):
    """Gradient over weight of one parameter."""

    largest: float  # max over entries of |gradient| / |weight|, entries that are 0 left out (StableSSM, fig. 3)
    norm: float  # ‖gradient‖ / ‖weight‖


def gradient_over_weight(module: nn.Module) -> dict[str, Ratio]:
    """By name, of every parameter that has a gradient and is not all 0: StableSSM's measure of how far a step moves a
    weight (fig. 3-4, appendix D)."""
    ratios = {}
    for name, weight in module.named_parameters():
        if weight.grad is None:
            continue
        w, g = _whole(weight.detach()), _whole(weight.grad)
        if not w.any():
            continue
        ratios[name] = Ratio(float((g[w != 0] / w[w != 0]).abs().max()), float(g.norm() / w.norm()))
    return ratios


def _whole(x: Tensor) -> Tensor:
    """Of a parameter that is sharded (FSDP2), all of it."""
    return x.full_tensor() if isinstance(x, DTensor) else x


class DeltaGradients(NamedTuple):
    """Derivatives of the last output of one scalar unit, each (batch,)."""

    s4d_b: Tensor  # of S4D with respect to b, Δ = exp(b)
    s6_w: Tensor  # of S6 with respect to w, Δ = softplus(w u + b)
    s6_b: Tensor  # of S6 with respect to b


def delta_gradients(u: Tensor, A: Tensor, B: Tensor, C: Tensor, b: float, w: float = 0.0) -> DeltaGradients:
    """∂y_L of an S4D unit (B2S6, eq. 1) and of an S6 unit (eq. 3) with the same A, B, C and b, one channel: theorem 3.

    u (batch, L); A, B, C (N,) complex; y is the real part, as the paper's.
    """
    # A parameter for every sequence: one backward pass for all.
    s4d_b, s6_w, s6_b = (u.new_full((len(u),), value, requires_grad=True) for value in (b, w, b))
    x, A = u[:, None], A[None]

    def last(delta: Tensor, B: Tensor, C: Tensor) -> Tensor:
        # The scan gives 2 Re; the paper's y is Re.
        y: Tensor = selective_scan(x, delta, A, B, C, discretization="zoh")  # type: ignore[assignment]
        return y[:, 0, -1].sum() / 2

    with torch.enable_grad():
        held = s4d_b.exp()[:, None, None].expand_as(x)
        (grad,) = torch.autograd.grad(last(held, B[None], C[None]), s4d_b)
        selective = nn.functional.softplus(s6_w[:, None, None] * x + s6_b[:, None, None])
        both = torch.autograd.grad(last(selective, B[:, None] * x, C[:, None] * x), [s6_w, s6_b])
    return DeltaGradients(grad, *both)


def delta_gradient_ratios(u: Tensor, A: Tensor, B: Tensor, C: Tensor, b: float) -> tuple[float, float]:
    """E|∂y_S6/∂w| / E|∂y_S4D/∂b| and E|∂y_S6/∂b| / E|∂y_S4D/∂b| at w = 0, the mean over the sequences u (batch, L).

    They grow as c³ and c² with the scale c of the input, the second as L^½ with L exp(b) held fixed (B2S6, theorem 3
    and fig. 5)."""
    found = [g.abs().mean() for g in delta_gradients(u, A, B, C, b)]
    return float(found[1] / found[0]), float(found[2] / found[0])
