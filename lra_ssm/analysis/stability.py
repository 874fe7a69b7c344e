"""How near a model is to instability: its error when weights are perturbed.

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
    """sup_t (‖H_t - Ĥ_t‖∞ + ‖dH_t/dt - dĤ_t/dt‖∞) of two functionals (eq. 6), on the given inputs.

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
    """E_m(β): the largest distance of the target from the model with weights perturbed by at most β (eq. 8).

    The supremum is sampled, as in the paper (appendix F.1): random directions, each parameter moved by β in its own
    norm, as |θ|₂ is the largest of theirs. NaN or infinite outputs count as infinite.

    Args:
        target: H, from (B, T, D) to (B, T, D').
        model: Ĥ.
        x: inputs on which they are compared.
        beta: β; 0 is the model as it is.
        perturbations: how many are tried.
        parameters: names of those that are perturbed; None for all.
        generator: of the directions.
        order: of the norm in which each parameter is moved; infinity lets every entry move by β. Of a diagonal Λ that
            is |Λ|₂ as a matrix norm, in which the proof of theorem 3.3 moves every eigenvalue by β.
    """
    wanted, worst = target(x), 0.0
    own = dict(model.named_parameters())
    chosen = list(own) if parameters is None else list(parameters)
    if unknown := set(chosen) - own.keys():
        raise ValueError(f"{type(model).__name__} has no parameter {sorted(unknown)[0]!r}")
    for _ in range(perturbations if beta else 1):
        moved = {}
        for name in chosen:
            noise = torch.randn(own[name].shape, generator=generator, dtype=own[name].dtype)
            moved[name] = own[name] + beta * noise.to(own[name].device) / vector_norm(noise, order)
        distance = sobolev_distance(x, wanted, functional_call(model, moved, (x,)))
        worst = max(worst, distance if distance == distance else float("inf"))
    return worst
