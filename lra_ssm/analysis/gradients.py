"""Relative gradients over the sequence, gradients over weights, gradients with respect to Δ.

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
    """Return ‖J_k‖_F, J_k = ∂f(x)_position / ∂x_k, for every position k: x (batch, L, D) -> (batch, L).

    Args:
        model: f, from (batch, L, D) to (batch, L, D'), or to (batch, D') as a classifier, which has one position.
        x: inputs.
        position: the output's position.
        probes: None is exact and takes one backward pass for each of the D' outputs. A number estimates the norm from
            so many passes with random signs v, as E‖vᵀJ‖² = ‖J‖²; the relative standard deviation of the square is at
            most (2 / probes)^½.
        generator: draws the signs.
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
    """Return S_k = ‖J_k‖_F / Σ_k' ‖J_k'‖_F (B2S6, eq. 6), the share of position k in what the output depends on.

    Arguments as for `jacobian_norms`. Returns (batch, L); each row adds up to 1.
    """
    norms = jacobian_norms(model, x, position, probes, generator)
    return norms / norms.sum(-1, keepdim=True)


class Ratio(NamedTuple):
    """Gradient over weight of one parameter."""

    largest: float  # max over the entries that are not 0 of |gradient| / |weight| (StableSSM, fig. 3)
    norm: float  # ‖gradient‖ / ‖weight‖


def gradient_over_weight(module: nn.Module) -> dict[str, Ratio]:
    """Return, by name, gradient over weight of every parameter that has a gradient and is not all 0.

    StableSSM's measure of how far a step moves a weight (fig. 3-4, appendix D).
    """
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
    """Gather a parameter that is sharded (FSDP2)."""
    return x.full_tensor() if isinstance(x, DTensor) else x


class DeltaGradients(NamedTuple):
    """Derivatives of the last output of one scalar unit, each (batch,)."""

    s4d_b: Tensor  # S4D's with respect to b, Δ = exp(b)
    s6_w: Tensor  # S6's with respect to w, Δ = softplus(w u + b)
    s6_b: Tensor  # S6's with respect to b


def delta_gradients(u: Tensor, A: Tensor, B: Tensor, C: Tensor, b: float, w: float = 0.0) -> DeltaGradients:
    """Differentiate y_L of an S4D unit (B2S6, eq. 1) and of an S6 unit (eq. 3) with the same A, B, C, b (theorem 3).

    One channel: u (batch, L); A, B, C (N,) complex; y is the real part, as in the paper.
    """
    # Each sequence has its own parameter, so that one backward pass is enough.
    s4d_b, s6_w, s6_b = (u.new_full((len(u),), value, requires_grad=True) for value in (b, w, b))
    x, A = u[:, None], A[None]

    def last_output(delta: Tensor, B: Tensor, C: Tensor) -> Tensor:
        # The scan gives 2 Re; the paper's y is Re.
        y: Tensor = selective_scan(x, delta, A, B, C, discretization="zoh")  # type: ignore[assignment]
        return y[:, 0, -1].sum() / 2

    with torch.enable_grad():
        s4d_delta = s4d_b.exp()[:, None, None].expand_as(x)
        (grad,) = torch.autograd.grad(last_output(s4d_delta, B[None], C[None]), s4d_b)
        s6_delta = nn.functional.softplus(s6_w[:, None, None] * x + s6_b[:, None, None])
        s6_grads = torch.autograd.grad(last_output(s6_delta, B[:, None] * x, C[:, None] * x), [s6_w, s6_b])
    return DeltaGradients(grad, *s6_grads)


def delta_gradient_ratios(u: Tensor, A: Tensor, B: Tensor, C: Tensor, b: float) -> tuple[float, float]:
    """Return E|∂y_S6/∂w| / E|∂y_S4D/∂b| and E|∂y_S6/∂b| / E|∂y_S4D/∂b| at w = 0, means over the sequences u (batch, L).

    They grow as c³ and c² with the scale c of the input. The second grows as L^½ if L exp(b) is fixed (B2S6, theorem 3
    and fig. 5).
    """
    s4d_b, s6_w, s6_b = (grad.abs().mean() for grad in delta_gradients(u, A, B, C, b))
    return float(s6_w / s4d_b), float(s6_b / s4d_b)
