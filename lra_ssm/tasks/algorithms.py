"""Optimizers by name: torch's, Muon for matrices next to AdamW, or a user's class."""

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Muon, Optimizer

from lra_ssm.errors import InputError, hint
from lra_ssm.layers.roles import parameter_roles
from lra_ssm.models.backbone import Backbone
from lra_ssm.tasks.arguments import build, check_arguments, import_class, keyword_parameters
from lra_ssm.width.parameterizations import Optimizer as Rule

ALGORITHMS: dict[str, type[Optimizer]] = {"AdamW": AdamW, "SGD": SGD, "Muon": Muon}
USUAL_BETAS = (0.9, 0.999)
# Class name -> update rule in the theory of width.
_RULES: dict[str, Rule] = {
    "SGD": "sgd", **dict.fromkeys(("AdamW", "Adam", "NAdam", "RAdam", "Adamax", "RMSprop"), "adam"),
    "Adafactor": "adafactor", "Muon": "muon",
}  # fmt: skip
# Settings of `OptimizerSettings` and its roles, so not arguments of a class.
_SETTINGS = ("lr", "weight_decay", "betas")


def check_algorithm(name: str) -> None:
    """Check that the name is known or is an import path, which is not imported yet. Raises ValueError."""
    if name in ALGORITHMS or "." in name:
        return
    if name in torch.optim.__all__:
        raise ValueError(f"algorithm {name!r} is named by its import path, torch.optim.{name}")
    raise ValueError(f"algorithm is {name!r}, neither a known name nor an import path; {hint(name, ALGORITHMS)}")


def default_eps(name: str, arguments: Mapping[str, Any]) -> float | None:
    """Return the epsilon next to the gradients' second moments.

    None if the optimizer has none, and for Muon, whose own epsilon is another quantity than AdamW's.
    """
    cls = ALGORITHMS[name] if name in ALGORITHMS else import_class(name, "algorithm")
    eps = arguments.get("eps", signature(cls).parameters["eps"].default if "eps" in keyword_parameters(cls) else None)
    return eps if isinstance(eps, float) and cls is not Muon else None


def update_rule(name: str, arguments: Mapping[str, Any]) -> Rule:
    """Return how the optimizer's steps depend on gradients and weights.

    Raises InputError if the theory of width does not cover the optimizer.
    """
    rule = _RULES.get(name.rpartition(".")[2])
    if rule is None:
        known = ", ".join(_RULES)
        raise InputError(f"width: no scaling of learning rates is known for algorithm {name}; use one of {known}")
    if rule == "muon" and arguments.get("adjust_lr_fn", "match_rms_adamw") != "match_rms_adamw":
        return "muon_original"  # MuonWithAdamW refuses other values
    return rule


def muon_names(model: nn.Module, name: str) -> set[str]:
    """Return the full names of the parameters that Muon trains; empty if the algorithm is not Muon."""
    if name.rpartition(".")[2] != "Muon":
        return set()
    matrices = hidden_matrices(model)
    return {name for name, p in model.named_parameters() if p in matrices}


def optimizer_of(
    model: nn.Module,
    groups: list[dict[str, Any]],
    name: str = "AdamW",
    arguments: Mapping[str, Any] | None = None,
    betas: tuple[float, float] = USUAL_BETAS,
) -> Optimizer:
    """Build the optimizer of that name or import path over groups of `model`'s parameters, each with its lr and decay.

    Raises InputError for arguments that its class does not take, and for settings that it does not support.
    """
    cls = ALGORITHMS[name] if name in ALGORITHMS else import_class(name, "algorithm")
    if not issubclass(cls, Optimizer):
        raise InputError(f"algorithm {name} is not a torch.optim.Optimizer")
    arguments, parameters = dict(arguments or {}), keyword_parameters(cls)
    check_arguments(cls, arguments, f"algorithm {name}", "arguments", given=("params", *_SETTINGS))
    if cls is not Muon and "betas" not in parameters and betas != USUAL_BETAS:
        raise InputError(f"betas is {list(betas)}, but algorithm {name} does not take betas")
    if "weight_decay" not in parameters and any(group["weight_decay"] for group in groups):
        raise InputError(f"algorithm {name} does not take weight_decay: set every weight_decay to 0")
    if cls is Muon:
        groups_by_algorithm = _split_by_algorithm(groups, hidden_matrices(model))
        return build(MuonWithAdamW, f"algorithm {name}", groups_by_algorithm, arguments, betas, _use_fused(model))
    # Some classes require these arguments, but every group has its own values.
    arguments |= {name: groups[0][name] for name in ("lr", "weight_decay") if name in parameters}
    if "betas" in parameters:
        arguments["betas"] = betas
    if (
        issubclass(cls, (Adam, SGD))
        and "fused" in parameters
        and not {"fused", "foreach", "differentiable"} & {*arguments}
    ):
        arguments["fused"] = _use_fused(model)
    optimizer = build(cls, f"algorithm {name}", groups, **arguments)
    # Lightning refuses to clip if the optimizer could unscale gradients itself, which is not used here.
    optimizer._step_supports_amp_scaling = False
    return optimizer


def _use_fused(model: nn.Module) -> bool | None:
    """Return whether to use torch's fused step: one pass over memory, a fifth of the default's time on a CPU.

    None leaves the choice to torch, whose fused optimizers take neither complex nor sharded parameters.
    """
    devices = {p.device.type if type(p) is nn.Parameter else "sharded" for p in model.parameters()}
    real = all(p.is_floating_point() for p in model.parameters())
    return (real and devices in ({"cpu"}, {"cuda"})) or None


def hidden_matrices(model: nn.Module) -> set[nn.Parameter]:
    """Return the weights of linear maps with role "base" inside the blocks of a `Backbone`, or of a network without
    one.

    Embeddings, heads and a map of features to D are not hidden. AdamW trains everything else: B and C of a recurrence,
    which are vectors for each state, complex weights, which Muon refuses, and whatever is not an `nn.Linear`.
    """
    roles = parameter_roles(model)
    blocks: list[nn.Module] = [module.blocks for module in model.modules() if isinstance(module, Backbone)]
    linear_weights = {m.weight for root in blocks or [model] for m in root.modules() if isinstance(m, nn.Linear)}
    named = model.named_parameters()
    return {p for name, p in named if p in linear_weights and roles[name] == "base" and not p.is_complex()}


def _split_by_algorithm(groups: list[dict[str, Any]], matrices: set[nn.Parameter]) -> list[dict[str, Any]]:
    """Split each group into Muon's matrices and AdamW's parameters, and name the algorithm in it."""
    split = []
    for group in groups:
        hidden = [p for p in group["params"] if p in matrices]
        others = [p for p in group["params"] if p not in matrices]
        if hidden:
            split.append({**group, "name": "hidden", "params": hidden, "algorithm": "Muon"})
        if others:
            split.append({**group, "params": others, "algorithm": "AdamW"})
    return split


class MuonWithAdamW(Optimizer):
    """Muon (Jordan et al. 2024) for some groups and AdamW for the others, as one optimizer: `torch.optim` has both.

    Groups and states of this optimizer are saved, loaded, scheduled and clipped; the two inner ones work on them. A
    step of Muon is scaled by 0.2·√max(rows, columns), so that its root mean square is about AdamW's (Liu et al. 2025,
    "Muon is scalable for LLM training", eq. 4), and one rate and decay serves both. `adjust_lr_fn: original` is
    Jordan's √max(1, rows/columns).

    Args:
        groups: dicts with params, lr, weight_decay and algorithm, "Muon" or "AdamW".
        arguments: Muon's momentum, nesterov, ns_steps, ns_coefficients, eps, adjust_lr_fn.
        betas, fused: AdamW's.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        arguments: Mapping[str, Any],
        betas: tuple[float, float] = USUAL_BETAS,
        fused: bool | None = None,
    ) -> None:
        muon_groups = [group for group in groups if group["algorithm"] == "Muon"]
        adamw_groups = [group for group in groups if group["algorithm"] == "AdamW"]
        if not muon_groups:
            raise ValueError("no hidden matrix found, an nn.Linear of role base in a block")
        # Each writes its defaults into its groups, which are also this optimizer's.
        self._parts: list[Optimizer] = [Muon(muon_groups, **{"adjust_lr_fn": "match_rms_adamw", **arguments})]
        if adamw_groups:
            self._parts.append(AdamW(adamw_groups, betas=betas, fused=fused))
        super().__init__(groups, {"fused": fused})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step of both optimizers, after the closure, which computes loss and gradients; return the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for optimizer in self._parts:
            # Loading a state replaces the groups and the state by new objects.
            name = type(optimizer).__name__
            optimizer.param_groups = [group for group in self.param_groups if group["algorithm"] == name]
            optimizer.state = self.state
            optimizer.step()
        return loss
