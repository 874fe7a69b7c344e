"""Learning rate and weight decay of every parameter, by the roles that layers declare; optimizer and schedule.

A module gives its parameters roles (`lra_ssm.layers.roles`), and `OptimizerSettings.roles` gives roles their settings.
Defaults of settings that an entry leaves out, and of roles without an entry:

| role         | learning rate                  | weight decay                     |
|--------------|--------------------------------|----------------------------------|
| base         | lr                             | weight_decay                     |
| embedding    | lr                             | weight_decay                     |
| no_decay     | lr                             | 0                                |
| norm         | as no_decay                    | as no_decay                      |
| recurrent    | 0.001                          | 0                                |
| delta        | as recurrent                   | as recurrent                     |
| a user's own | lr                             | weight_decay                     |

Sources: A and B of S4D at a lower learning rate without decay: Gu et al. 2022 and the public S4 code; the reduced
learning rate of Δ's parameters: Yu & Erichson 2025, section 6 (it does not give the factor, so it is a setting).
A width parameterization multiplies each of them by a factor: `lra_ssm.width.scaling`.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from torch import nn

from lra_ssm.errors import InputError, hint
from lra_ssm.layers.roles import ROLES, parameter_roles
from lra_ssm.tables import table, terminal_width
from lra_ssm.tasks.algorithms import USUAL_BETAS, check_algorithm, default_eps, optimizer_of
from lra_ssm.tasks.schedules import Span, check_schedule, schedule_of
from lra_ssm.width.scaling import Factors


@dataclass(frozen=True)
class RoleSettings:
    """Settings for the parameters of one role; None is the role's default (see `lra_ssm.tasks.optim`).

    Args:
        lr: learning rate.
        lr_factor: instead of `lr`: the learning rate is this times the optimizer's lr. 0 freezes the parameters.
        weight_decay: weight decay.
    """

    lr: float | None = None
    lr_factor: float | None = None
    weight_decay: float | None = None


_FOLLOWS = {"delta": "recurrent", "norm": "no_decay"}
_DEFAULT_ROLES = {"recurrent": RoleSettings(lr=0.001, weight_decay=0.0), "no_decay": RoleSettings(weight_decay=0.0)}


@dataclass(frozen=True)
class OptimizerSettings:
    """How parameters are trained; by default by AdamW with a linear warm-up and a cosine to 0.

    Args:
        lr: learning rate of every role that does not have its own.
        weight_decay: weight decay of every role that does not have its own.
        roles: learning rate and weight decay by role: "recurrent", "delta" (Δ's), "no_decay" (biases, selective layers'
            D), "norm" (norms' weights), "embedding" (the tokens' and so a tied head's), or a role of a user's layer.
        warmup_steps: optimizer steps of linear warm-up before the schedule; below 1, their share of the run's.
        min_lr_factor: share of every rate at which a schedule that falls until the run's end ends.
        betas: AdamW's, or those of another algorithm that takes betas; each at least 0 and below 1.
        cosine_by: "step", or "epoch": the cosine is constant within an epoch.
        algorithm: "AdamW", "SGD", "Muon" (with AdamW for everything but hidden matrices), or the import path of an
            optimizer, such as torch.optim.NAdam.
        arguments: arguments of its constructor other than parameters, lr, weight_decay and betas.
        schedule: "cosine", "linear", "constant", "wsd", "rsqrt", or the import path of an LRScheduler.
        schedule_arguments: the schedule's arguments: see `schedules.py`.
        ema_decay: share that averages of weights and buffers keep at each step; the averages are validated, tested and
            exported. None for no averages.

    Raises:
        ValueError: a number is negative or missing, a share is above 1, an entry of `roles` has both lr and lr_factor,
            or the algorithm or schedule is unknown.
    """

    lr: float = 0.01
    weight_decay: float = 0.05
    roles: dict[str, RoleSettings] = field(default_factory=dict)
    warmup_steps: float = 1000
    min_lr_factor: float = 0.0
    betas: tuple[float, float] = USUAL_BETAS
    cosine_by: Literal["step", "epoch"] = "step"
    algorithm: str = "AdamW"
    arguments: dict[str, Any] = field(default_factory=dict)
    schedule: str = "cosine"
    schedule_arguments: dict[str, Any] = field(default_factory=dict)
    ema_decay: float | None = None

    def __post_init__(self) -> None:
        if self.cosine_by not in ("step", "epoch"):
            raise ValueError(f"cosine_by is {self.cosine_by!r}; it must be step or epoch")
        for name in ("lr", "weight_decay", "warmup_steps", "min_lr_factor"):
            object.__setattr__(self, name, _number(name, getattr(self, name)))
        object.__setattr__(self, "roles", {role: _role_settings(role, entry) for role, entry in self.roles.items()})
        if self.warmup_steps >= 1 and self.warmup_steps != int(self.warmup_steps):
            raise ValueError(f"warmup_steps is {self.warmup_steps}; it must be a whole number, or a share below 1")
        if self.min_lr_factor > 1:
            raise ValueError(f"min_lr_factor is {self.min_lr_factor}; it is a share of the rates, at most 1")
        betas = tuple(float(beta) for beta in self.betas)
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas is {self.betas}; it must be two numbers of at least 0 and below 1")
        object.__setattr__(self, "betas", betas)
        if self.ema_decay is not None and _number("ema_decay", self.ema_decay) >= 1:
            raise ValueError(f"ema_decay is {self.ema_decay}; it must be below 1, such as 0.999")
        check_algorithm(self.algorithm)
        check_schedule(self.schedule, self.schedule_arguments, self.min_lr_factor, self.cosine_by)

    def warmup_of(self, total_steps: int) -> int:
        """Return the steps of warm-up in a run of so many steps."""
        return int(self.warmup_steps if self.warmup_steps >= 1 else self.warmup_steps * total_steps)

    def of_role(self, role: str) -> "Rate":
        """Return learning rate and weight decay of the parameters with this role."""
        names = [role, *([_FOLLOWS[role]] if role in _FOLLOWS else [])]
        entries = [table[name] for table in (self.roles, _DEFAULT_ROLES) for name in names if name in table]
        rates = (entry.lr if entry.lr_factor is None else entry.lr_factor * self.lr for entry in entries)
        lr = next((rate for rate in rates if rate is not None), self.lr)
        decays = (entry.weight_decay for entry in entries)
        return Rate(lr, next((decay for decay in decays if decay is not None), self.weight_decay))

    @classmethod
    def of(cls, settings: "OptimizerSettings | Mapping[str, Any]") -> "OptimizerSettings":
        """Make settings from themselves or from values by name."""
        return settings if isinstance(settings, OptimizerSettings) else cls(**settings)


def _number(name: str, value: Any) -> Any:
    """Return the value if it is a number of at least 0; ints stay ints. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ValueError(f"{name} is {value}; it must be a number of at least 0")
    return float(value) if isinstance(value, float) else value  # numpy's float64 is a float that torch.load refuses


def _role_settings(role: str, entry: RoleSettings | Mapping[str, Any]) -> RoleSettings:
    """Return an entry of `roles`. Raises ValueError if it is not valid."""
    if role == "base":
        raise ValueError("roles.base: the role base has the optimizer's own lr and weight_decay; set these")
    if not isinstance(entry, RoleSettings):
        if not isinstance(entry, Mapping):
            raise ValueError(f"roles.{role} is {entry!r}; give lr or lr_factor, and weight_decay: {{lr: 0.001}}")
        entry = RoleSettings(**entry)
    if entry.lr is not None and entry.lr_factor is not None:
        raise ValueError(f"roles.{role} has lr {entry.lr} and lr_factor {entry.lr_factor}; set one of them to null")
    given = {name: value for name, value in asdict(entry).items() if value is not None}
    return RoleSettings(**{name: _number(f"roles.{role}.{name}", value) for name, value in given.items()})


DEFAULTS = OptimizerSettings()


class Rate(NamedTuple):
    """How one parameter is trained; factors of a width parameterization are multiplied in."""

    lr: float
    weight_decay: float
    eps: float | None = None  # None is the algorithm's own
    width: Factors | None = None

    def widened(self, width: Factors, eps: float | None) -> "Rate":
        """Multiply the factors in, except for that of the initial value, which has been applied."""
        eps = None if eps is None else eps * width.eps
        return Rate(self.lr * width.lr, self.weight_decay * width.weight_decay, eps, width._replace(initial=1.0))


def parameter_rates(
    model: nn.Module, settings: OptimizerSettings, width: Mapping[str, Factors] | None = None
) -> Mapping[str, Rate]:
    """Return learning rate and weight decay by full parameter name, in the model's order, including width factors if
    given.

    Raises InputError for a layer's role that `settings.roles` does not have, and for an entry that no layer uses.
    """
    roles = parameter_roles(model)
    known = [*ROLES, *settings.roles]
    for name, role in roles.items():
        if role not in known:
            raise InputError(
                f"{name} has the role {role!r}, which optimizer.roles does not have: add roles: {{{role}: {{lr: …}}}},"
                f" or let optim_roles give one of {', '.join(ROLES)}"
            )
    for role in settings.roles:
        if role not in ROLES and role not in roles.values():
            raise InputError(f"optimizer.roles has {role!r}, which no parameter has; {hint(role, [*ROLES[1:]])}")
    rates = {name: settings.of_role(role) for name, role in roles.items()}
    if width is None:
        return rates
    eps = default_eps(settings.algorithm, settings.arguments)
    return {name: rate.widened(width[name], eps) for name, rate in rates.items()}


def parameter_groups(model: nn.Module, rates: Mapping[str, Rate]) -> list[dict[str, Any]]:
    """Return optimizer groups of `model`: dicts with name, params, lr and weight_decay.

    rates: of every parameter by its full name, from `parameter_rates`. Parameters with the same rate and decay share a
    group, which is named after its roles. Embeddings are not named next to "base", nor norms next to "no_decay".
    """
    roles, parameters = parameter_roles(model), dict(model.named_parameters())
    merged_into = {"embedding": "base", "norm": "no_decay"}
    known = list(dict.fromkeys([*ROLES, *roles.values()]))
    groups: dict[Rate, dict[str, Any]] = {}
    group_roles: dict[Rate, set[str]] = {}
    for name in sorted(roles, key=lambda name: known.index(merged_into.get(roles[name], roles[name]))):
        group = groups.setdefault(rates[name], {"name": "", "params": [], **_group_settings(rates[name])})
        group["params"].append(parameters[name])
        group_roles.setdefault(rates[name], set()).add(roles[name])
    for rate, group in groups.items():
        named = {role for role in group_roles[rate] if merged_into.get(role) not in group_roles[rate]}
        group["name"] = ", ".join(role for role in known if role in named)
    return list(groups.values())


def _group_settings(rate: Rate) -> dict[str, Any]:
    """Return a group's settings as plain values, as a checkpoint stores them."""
    settings = {key: value for key, value in rate._asdict().items() if value is not None}
    return settings if rate.width is None else {**settings, "width": rate.width._asdict()}


def format_groups(groups: list[dict[str, Any]]) -> str:
    """Return a table of optimizer groups, at most as wide as the terminal, with one row per group.

    Columns: name, number of parameters, learning rate, weight decay; the algorithm if there are two; the factors of a
    width parameterization in rate, decay and epsilon.
    """
    rows = []
    for number, group in enumerate(groups):
        rate, width = group.get("initial_lr", group["lr"]), group.get("width", {})
        row = {
            "group": group.get("name", f"group {number}"),
            "width": width.get("kind", ""),
            "parameters": f"{sum(p.numel() for p in group['params']):,}",
            "lr": f"{rate:g}" if rate else "0 (frozen)",
            "weight decay": f"{group['weight_decay']:g}",
            "algorithm": group.get("algorithm", ""),
        }
        factors = {"× lr": "lr", "× decay": "weight_decay", "× eps": "eps"}
        rows.append(row | {name: f"{width[key]:.3g}" if width else "" for name, key in factors.items()})
    head = [name for name in rows[0] if any(row[name] for row in rows)]
    cells = [[row[name] for name in head] for row in rows]
    return table(head, cells, left=1 + ("width" in head), width=terminal_width())


def optimizer_and_schedule(
    model: nn.Module,
    settings: OptimizerSettings,
    total_steps: int,
    epoch_steps: float = math.inf,
    width: Mapping[str, Factors] | None = None,
) -> dict[str, Any]:
    """Return what `configure_optimizers` returns: an optimizer over `model`'s groups and its schedule, advanced by
    steps.

    epoch_steps: steps of an epoch, needed by a cosine by epochs. width: every parameter's factors, if the model has a
    width parameterization. Raises InputError if epoch_steps is missing, and for arguments that the algorithm or the
    schedule does not take.
    """
    if settings.cosine_by == "epoch" and epoch_steps == math.inf:
        raise InputError("cosine_by is epoch, which needs trainer.max_epochs and epochs that end; otherwise use step")
    groups = parameter_groups(model, parameter_rates(model, settings, width))
    optimizer = optimizer_of(model, groups, settings.algorithm, settings.arguments, settings.betas)
    hold = math.ceil(epoch_steps) if settings.cosine_by == "epoch" else 1
    span = Span(settings.warmup_of(total_steps), total_steps, settings.min_lr_factor, hold)
    schedule = schedule_of(optimizer, settings.schedule, settings.schedule_arguments, span)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
