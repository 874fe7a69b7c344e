"""Learning rate and weight decay of every parameter, from what the layers declare, and the schedule.

| role      | learning rate          | weight decay                                                    |
|-----------|------------------------|-----------------------------------------------------------------|
| base      | lr                     | weight_decay                                                    |
| embedding | lr                     | weight_decay, or embedding_weight_decay                         |
| no_decay  | lr                     | 0, or weight_decay with decay_biases_and_norms                  |
| norm      | lr                     | as no_decay, or norm_weight_decay                               |
| recurrent | recurrent_lr           | recurrent_weight_decay                                          |
| delta     | delta_lr_factor · lr   | delta_weight_decay                                              |

Sources: A and B of S4D at a lower learning rate without decay: Gu et al. 2022 and the public S4 code; the reduced
learning rate on Δ's parameters: Yu & Erichson 2025, section 6 (the factor is not given there, so it is a setting).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from lra_ssm.errors import InputError, hint
from lra_ssm.layers.roles import ROLES, parameter_roles
from lra_ssm.tables import table, terminal_width

_NO_NUMBERS = ("decay_biases_and_norms", "betas", "cosine_by")


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW with a linear warm-up and a cosine to 0, or to a floor.

    Args:
        lr: base learning rate.
        recurrent_lr: learning rate of the parameters with role "recurrent"; absolute.
        delta_lr_factor: times lr it is the learning rate of role "delta"; None is recurrent_lr / lr, 0 freezes it.
        weight_decay: of role "base".
        decay_biases_and_norms: whether roles "no_decay" (biases, selective layers' D) and "norm" have `weight_decay`
            too, as in state-spaces/s4 up to v3, or none.
        norm_weight_decay: of role "norm", the norms' weights alone; None: as decay_biases_and_norms says.
        embedding_weight_decay: of role "embedding", the tokens' and thereby a tied head's; None: weight_decay.
        recurrent_weight_decay: of role "recurrent".
        delta_weight_decay: of role "delta".
        warmup_steps: optimizer steps of linear warm-up before the cosine; below 1 their share of the run's.
        min_lr_factor: where the cosine ends: this share of every rate.
        betas: AdamW's, each at least 0 and below 1.
        cosine_by: "step", or "epoch": within an epoch the cosine stands still.

    Raises ValueError for a value below 0 or none at all, or a share above 1.
    """

    lr: float = 0.01
    recurrent_lr: float = 0.001
    delta_lr_factor: float | None = None
    weight_decay: float = 0.05
    decay_biases_and_norms: bool = False
    norm_weight_decay: float | None = None
    embedding_weight_decay: float | None = None
    recurrent_weight_decay: float = 0.0
    delta_weight_decay: float = 0.0
    warmup_steps: float = 1000
    min_lr_factor: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    cosine_by: Literal["step", "epoch"] = "step"

    def __post_init__(self) -> None:
        if self.cosine_by not in ("step", "epoch"):
            raise ValueError(f"cosine_by is {self.cosine_by!r}; it must be step or epoch")
        for field in fields(self):
            value = getattr(self, field.name)
            if (value is None and field.default is None) or field.name in _NO_NUMBERS:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise ValueError(f"{field.name} is {value}; it must be a number of at least 0")
            if isinstance(value, float):  # numpy's float64 is one, and no checkpoint could be read again with it
                object.__setattr__(self, field.name, float(value))
        if not isinstance(self.decay_biases_and_norms, bool):
            raise ValueError(f"decay_biases_and_norms is {self.decay_biases_and_norms!r}; it must be true or false")
        if self.warmup_steps >= 1 and self.warmup_steps != int(self.warmup_steps):
            raise ValueError(f"warmup_steps is {self.warmup_steps}; it must be a whole number, or a share below 1")
        if self.min_lr_factor > 1:
            raise ValueError(f"min_lr_factor is {self.min_lr_factor}; it is a share of the rates: 1 at most")
        betas = tuple(float(beta) for beta in self.betas)
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas is {self.betas}; it must be two numbers of at least 0 and below 1")
        object.__setattr__(self, "betas", betas)

    def warmup_of(self, total_steps: int) -> int:
        """Steps of warm-up in a run of so many."""
        return int(self.warmup_steps if self.warmup_steps >= 1 else self.warmup_steps * total_steps)

    @classmethod
    def of(cls, settings: "OptimizerSettings | Mapping[str, Any]") -> "OptimizerSettings":
        """From itself, or its values by name, as they stand in a checkpoint. Raises ValueError for other names."""
        if isinstance(settings, OptimizerSettings):
            return settings
        known = [field.name for field in fields(cls)]
        for name in settings:
            if name not in known:
                raise ValueError(f"{name!r} is no optimizer setting; {hint(name, known)}")
        return cls(**settings)


DEFAULTS = OptimizerSettings()


class Rate(NamedTuple):
    """How one parameter is trained."""

    lr: float
    weight_decay: float


def parameter_rates(model: nn.Module, settings: OptimizerSettings) -> dict[str, Rate]:
    """Full parameter name -> learning rate and weight decay, in the model's order."""
    s = settings
    no_decay = s.weight_decay if s.decay_biases_and_norms else 0.0
    rates = {
        "base": Rate(s.lr, s.weight_decay),
        "embedding": Rate(s.lr, s.weight_decay if s.embedding_weight_decay is None else s.embedding_weight_decay),
        "no_decay": Rate(s.lr, no_decay),
        "norm": Rate(s.lr, no_decay if s.norm_weight_decay is None else s.norm_weight_decay),
        "recurrent": Rate(s.recurrent_lr, s.recurrent_weight_decay),
        "delta": Rate(s.recurrent_lr if s.delta_lr_factor is None else s.delta_lr_factor * s.lr, s.delta_weight_decay),
    }
    return {name: rates[role] for name, role in parameter_roles(model).items()}


def parameter_groups(model: nn.Module, rates: dict[str, Rate]) -> list[dict[str, Any]]:
    """Optimizer groups of `model`: dicts with name, params, lr and weight_decay.

    rates: of every parameter by its full name, from `parameter_rates`, or refined. Parameters with the same rate and
    decay share a group, which is named after the roles in it; a norm's or an embedding's where it is another's group
    than usual.
    """
    roles, parameters = parameter_roles(model), dict(model.named_parameters())
    usual = {"embedding": "base", "norm": "no_decay"}  # optimizers' states are in this order: older runs' too
    groups: dict[Rate, dict[str, Any]] = {}
    inside: dict[Rate, set[str]] = {}
    for name in sorted(roles, key=lambda name: ROLES.index(usual.get(roles[name], roles[name]))):
        group = groups.setdefault(rates[name], {"name": "", "params": [], **rates[name]._asdict()})
        group["params"].append(parameters[name])
        inside.setdefault(rates[name], set()).add(roles[name])
    for rate, group in groups.items():
        shown = {role for role in inside[rate] if usual.get(role) not in inside[rate]}
        group["name"] = ", ".join(role for role in ROLES if role in shown)
    return list(groups.values())


def format_groups(groups: list[dict[str, Any]]) -> str:
    """A table of optimizer groups, one row each: name, number of parameters, learning rate, weight decay; as wide as
    the terminal at most."""
    rows = []
    for number, group in enumerate(groups):
        count = sum(p.numel() for p in group["params"])
        rate = group.get("initial_lr", group["lr"])
        name, rate = group.get("name", f"group {number}"), f"{rate:g}" if rate else "0 (frozen)"
        rows.append((name, f"{count:,}", rate, f"{group['weight_decay']:g}"))
    return table(("group", "parameters", "lr", "weight decay"), rows, width=terminal_width())


def warmup_cosine(
    optimizer: torch.optim.Optimizer, warmup_steps: int, total_steps: int, min_lr_factor: float = 0.0, hold: int = 1
) -> LambdaLR:
    """Linear warm-up from 0 over `warmup_steps`, then half a cosine to `min_lr_factor` at `total_steps`; scales every
    group. The cosine moves at every step whose number `hold` divides, and stands still between them."""

    def factor(step: int) -> float:
        if step < warmup_steps:
            return step / warmup_steps
        progress = max(0, step - step % hold - warmup_steps) / max(1, total_steps - warmup_steps)
        return min_lr_factor + (1 - min_lr_factor) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))

    return LambdaLR(optimizer, factor)


def optimizer_and_schedule(
    model: nn.Module, settings: OptimizerSettings, total_steps: int, epoch_steps: float = math.inf
) -> dict[str, Any]:
    """What a task's `configure_optimizers` returns: AdamW over `model`'s groups, its schedule moved by steps.

    epoch_steps: how many an epoch has; a cosine by epochs wants it. Raises InputError where it does not get it.
    """
    if settings.cosine_by == "epoch" and epoch_steps == math.inf:
        raise InputError("cosine_by is epoch, which needs trainer.max_epochs and epochs that end; else it is step")
    # One pass over memory; on a CPU a fifth of the time of torch's default there.
    devices = {p.device.type if type(p) is nn.Parameter else "sharded" for p in model.parameters()}
    fused = devices in ({"cpu"}, {"cuda"}) or None
    groups = parameter_groups(model, parameter_rates(model, settings))
    optimizer = torch.optim.AdamW(groups, betas=settings.betas, fused=fused)
    # It could unscale gradients itself, which we do not ask of it; Lightning refuses to clip where this says so.
    optimizer._step_supports_amp_scaling = False
    hold = math.ceil(epoch_steps) if settings.cosine_by == "epoch" else 1
    schedule = warmup_cosine(optimizer, settings.warmup_of(total_steps), total_steps, settings.min_lr_factor, hold)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
