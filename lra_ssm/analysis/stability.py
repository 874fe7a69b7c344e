"""How close a model is to instability: its error when its weights are perturbed.

Source: Wang & Li 2024 (StableSSM), definition 2.4, eq. 6-8. Shapes: B batch, T positions, D channels.
"""

from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.linalg import vector_norm

from lra_ssm.analysis.memory import Model


@torch.no_grad()
def sobolev_distance(x: Tensor, y: Tensor, other: Tensor) -> float:
    """Return sup_t (‖H_t - Ĥ_t‖∞ + ‖dH_t/dt - dĤ_t/dt‖∞) of two functionals (eq. 6), on the given inputs.

    ‖H_t‖∞ is the supremum over them of |H_t(x)|∞ / (|x|∞ + 1) (eq. 23), the derivative the difference from one position
    to the next. x (B, T, D) inputs, y and other (B, T, D') the outputs of both.
    """
    error = y - other
    change = torch.diff(error, dim=1, prepend=torch.zeros_like(error[:, :1]))
    scale = x.abs().amax((1, 2))[:, None] + 1
    size = [(e.abs().amax(-1) / scale).amax(0) for e in (error, change)]
    return float((size[0] + size[1]).max())


@torch.no_grad()
def perturbation_error(
    target: Model,
    model: nn.Module,
    x: Tensor,
    beta: float,
    perturbations: int = 30,
    parameters: Collection[str] | None = None,
    generator: torch.Generator | None = None,
    order: float = 2.0,
) -> float:
    """Return E_m(β), the largest distance of the target from the model with weights perturbed by at most β (eq. 8).

    The supremum is sampled, as in the paper (appendix F.1): each parameter is moved in a random direction by β in its
    own norm, as |θ|₂ is the largest of these norms. NaN or infinite outputs count as an infinite distance.

    Args:
        target: H, from (B, T, D) to (B, T, D').
        model: Ĥ.
        x: inputs on which they are compared.
        beta: β; 0 leaves the model unperturbed.
        perturbations: number of directions to try.
        parameters: names of the parameters to perturb; None for all.
        generator: draws the directions.
        order: the order of the norm; infinity lets every entry move by β. For a diagonal Λ that is the matrix norm
            |Λ|₂, in which the proof of theorem 3.3 moves every eigenvalue by β.
    """
    expected, worst = target(x), 0.0
    weights = dict(model.named_parameters())
    names = list(weights) if parameters is None else list(parameters)
    if unknown := set(names) - weights.keys():
        raise ValueError(f"{type(model).__name__} has no parameter {sorted(unknown)[0]!r}")
    for _ in range(perturbations if beta else 1):
        perturbed = {}
        for name in names:
            noise = torch.randn(weights[name].shape, generator=generator, dtype=weights[name].dtype)
            perturbed[name] = weights[name] + beta * noise.to(weights[name].device) / vector_norm(noise, order)
        distance = sobolev_distance(x, expected, functional_call(model, perturbed, (x,)))
        worst = max(worst, distance if distance == distance else float("inf"))
    return worst
