"""Which optimizer makes the steps: one of torch's, Muon for matrices next to AdamW, or a class of one's own."""

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Muon, Optimizer

from lra_ssm.errors import InputError, hint
from lra_ssm.layers.roles import parameter_roles
from lra_ssm.models.backbone import Backbone
from lra_ssm.tasks.arguments import built, check_arguments, named_class, taken_by
from lra_ssm.width.parameterizations import Optimizer as Rule

ALGORITHMS: dict[str, type[Optimizer]] = {"AdamW": AdamW, "SGD": SGD, "Muon": Muon}
USUAL_BETAS = (0.9, 0.999)
# By class what its steps are like in the theory of width.
_RULES: dict[str, Rule] = {
    "SGD": "sgd", **dict.fromkeys(("AdamW", "Adam", "NAdam", "RAdam", "Adamax", "RMSprop"), "adam"),
    "Adafactor": "adafactor", "Muon": "muon",
}  # fmt: skip
# Settings of their own, for every role.
_SETTINGS = ("lr", "weight_decay", "betas")


def check_algorithm(name: str) -> None:
    """Whether there is such an optimizer; a class is not imported yet. Raises ValueError."""
    if name in ALGORITHMS or "." in name:
        return
    if name in torch.optim.__all__:
        raise ValueError(f"algorithm {name!r} is named by its import path, torch.optim.{name}")
    raise ValueError(f"algorithm is {name!r}, neither a known name nor an import path; {hint(name, ALGORITHMS)}")


def default_eps(name: str, arguments: Mapping[str, Any]) -> float | None:
    """The epsilon beside gradients' second moments that the optimizer of that name has; None: it has none, or Muon's
    own for matrices beside AdamW's."""
    cls = ALGORITHMS[name] if name in ALGORITHMS else named_class(name, "algorithm")
    found = arguments.get("eps", signature(cls).parameters["eps"].default if "eps" in taken_by(cls) else None)
    return found if isinstance(found, float) and cls is not Muon else None


def update_rule(name: str, arguments: Mapping[str, Any]) -> Rule:
    """How the steps of the optimizer of that name go with gradients and weights. Raises InputError where theory has
    nothing on it."""
    rule = _RULES.get(name.rpartition(".")[2])
    if rule is None:
        known = ", ".join(_RULES)
        raise InputError(f"width: there are no learning rates of algorithm {name} by width; there are of {known}")
    if rule == "muon" and arguments.get("adjust_lr_fn", "match_rms_adamw") != "match_rms_adamw":
        return "muon_original"  # MuonWithAdamW refuses any third
    return rule


def muon_names(model: nn.Module, name: str) -> set[str]:
    """Full names of the parameters that Muon trains, where the algorithm of that name is Muon; else none."""
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
    """The optimizer of that name or import path over groups of `model`'s parameters, each with its lr and weight decay.

    Raises InputError for arguments that its class does not take, and for settings that it has no place for.
    """
    cls = ALGORITHMS[name] if name in ALGORITHMS else named_class(name, "algorithm")
    if not issubclass(cls, Optimizer):
        raise InputError(f"algorithm {name} is no torch.optim.Optimizer")
    arguments, takes = dict(arguments or {}), taken_by(cls)
    for setting in _SETTINGS:
        if setting in arguments:
            raise InputError(f"arguments.{setting}: {setting} is a setting of its own, optimizer.{setting}")
    check_arguments(cls, arguments, f"algorithm {name}", "arguments", given=("params", *_SETTINGS))
    if cls is not Muon and "betas" not in takes and betas != USUAL_BETAS:
        raise InputError(f"betas is {list(betas)}, but algorithm {name} takes none")
    if "weight_decay" not in takes and any(group["weight_decay"] for group in groups):
        raise InputError(f"algorithm {name} takes no weight decay: set every weight_decay to 0")
    if cls is Muon:
        parted = _by_algorithm(groups, hidden_matrices(model))
        return built(MuonWithAdamW, f"algorithm {name}", parted, arguments, betas, _fused(model))
    # Groups have their own; what a class wants for those that have none is never used.
    arguments |= {name: groups[0][name] for name in ("lr", "weight_decay") if name in takes}
    if "betas" in takes:
        arguments["betas"] = betas
    if issubclass(cls, (Adam, SGD)) and "fused" in takes and not {"fused", "foreach", "differentiable"} & {*arguments}:
        arguments["fused"] = _fused(model)
    optimizer = built(cls, f"algorithm {name}", groups, **arguments)
    # It could unscale gradients itself, which we do not ask of it; Lightning refuses to clip where this says so.
    optimizer._step_supports_amp_scaling = False
    return optimizer


def _fused(model: nn.Module) -> bool | None:
    """One pass over memory; on a CPU a fifth of the time of torch's default there. None: as torch chooses.

    torch's fused optimizers take neither complex nor sharded parameters.
    """
    devices = {p.device.type if type(p) is nn.Parameter else "sharded" for p in model.parameters()}
    real = all(p.is_floating_point() for p in model.parameters())
    return (real and devices in ({"cpu"}, {"cuda"})) or None


def hidden_matrices(model: nn.Module) -> set[nn.Parameter]:
    """The weights of linear maps with role "base" inside the blocks of a `Backbone`; of a network without one, all.

    Embeddings, heads and a map of features to D are no hidden ones. B and C of a recurrence are vectors of its states,
    each channel's own, and have AdamW, as have complex weights, which Muon refuses, and all that is no `nn.Linear`.
    """
    roles = parameter_roles(model)
    blocks: list[nn.Module] = [module.blocks for module in model.modules() if isinstance(module, Backbone)]
    inside = {m.weight for part in blocks or [model] for m in part.modules() if isinstance(m, nn.Linear)}
    named = model.named_parameters()
    return {p for name, p in named if p in inside and roles[name] == "base" and not p.is_complex()}


def _by_algorithm(groups: list[dict[str, Any]], matrices: set[nn.Parameter]) -> list[dict[str, Any]]:
    """The groups, matrices parted from the rest of theirs, each with its algorithm."""
    parted = []
    for group in groups:
        of_muon = [p for p in group["params"] if p in matrices]
        others = [p for p in group["params"] if p not in matrices]
        if of_muon:
            parted.append({**group, "name": "hidden", "params": of_muon, "algorithm": "Muon"})
        if others:
            parted.append({**group, "params": others, "algorithm": "AdamW"})
    return parted


class MuonWithAdamW(Optimizer):
    """Muon (Jordan et al. 2024) for some groups and AdamW for the others, as one optimizer: `torch.optim` has both.

    Its groups and states are what is saved, loaded, scheduled and clipped; the two work on them. A step of Muon is
    scaled by 0.2·√max(rows, columns), so that its root mean square is as AdamW's (Liu et al. 2025, "Muon is scalable
    for LLM training", eq. 4), whose rates and decay then serve both; `adjust_lr_fn: original` has Jordan's
    √max(1, rows/columns).

    Args:
        groups: dicts with params, lr, weight_decay and algorithm, "Muon" or "AdamW".
        arguments: of Muon: momentum, nesterov, ns_steps, ns_coefficients, eps, adjust_lr_fn.
        betas, fused: of AdamW.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        arguments: Mapping[str, Any],
        betas: tuple[float, float] = USUAL_BETAS,
        fused: bool | None = None,
    ) -> None:
        of_muon = [group for group in groups if group["algorithm"] == "Muon"]
        others = [group for group in groups if group["algorithm"] == "AdamW"]
        if not of_muon:
            raise InputError("algorithm Muon: there is no hidden matrix, an nn.Linear of role base in a block")
        # Each writes its own defaults into its groups, which are ours too.
        self._parts: list[Optimizer] = [Muon(of_muon, **{"adjust_lr_fn": "match_rms_adamw", **arguments})]
        if others:
            self._parts.append(AdamW(others, betas=betas, fused=fused))
        super().__init__(groups, {"fused": fused})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of each, after the closure, which computes loss and gradients; returns the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self._parts:
            # What was loaded since is in other objects.
            name = type(part).__name__
            part.param_groups = [group for group in self.param_groups if group["algorithm"] == name]
            part.state = self.state
            part.step()
        return loss
