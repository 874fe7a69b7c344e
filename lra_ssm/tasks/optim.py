"""Learning rate and weight decay of every parameter, from what the layers declare, and the schedule.

A module may declare `optim_roles() -> {parameter name: role}` for its own parameters and those below it; the module
nearest to a parameter speaks for it. Roles: "recurrent", "delta", "no_decay". A parameter that nobody names takes the
base learning rate and decay.

| group     | learning rate          | weight decay |
|-----------|------------------------|--------------|
| base      | lr                     | weight_decay |
| no_decay  | lr                     | 0            |
| recurrent | recurrent_lr           | 0            |
| delta     | delta_lr_factor · lr   | 0            |

Sources: A, B and Δ of S4D at a lower learning rate without decay: Gu et al. 2022 and the public S4 code; the reduced
learning rate on Δ's parameters: Yu & Erichson 2025, section 5 (the factor is not given there, so it is a setting).
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

GROUPS = ("base", "no_decay", "recurrent", "delta")


def parameter_roles(model: nn.Module) -> dict[str, str]:
    """Full parameter name -> role, in the model's order.

    Raises ValueError where a module declares a role for a parameter that it does not have, or a role that is none.
    """
    roles = {name: "base" for name, _ in model.named_parameters()}
    # named_modules lists a parent before its children: what a child declares replaces what its parent said.
    for prefix, declared in _declarations(model):
        for name, role in declared.items():
            full = f"{prefix}.{name}" if prefix else name
            if full not in roles:
                raise ValueError(
                    f"optim_roles of {prefix or type(model).__name__} names {name!r}, which is no parameter of it"
                )
            if role not in GROUPS[1:]:
                raise ValueError(
                    f"optim_roles gives {full} the role {role!r}; it must be one of {', '.join(GROUPS[1:])}"
                )
            roles[full] = role
    return roles


def _declarations(model: nn.Module) -> Iterator[tuple[str, dict[str, str]]]:
    for prefix, module in model.named_modules():
        declare = getattr(module, "optim_roles", None)
        if callable(declare):
            yield prefix, declare()


def parameter_groups(
    model: nn.Module, lr: float, recurrent_lr: float, weight_decay: float, delta_lr_factor: float | None = None
) -> list[dict[str, Any]]:
    """Optimizer groups of `model`: dicts with name, params, lr and weight_decay; empty groups are left out.

    lr: base. recurrent_lr: absolute. delta_lr_factor: times lr; None is recurrent_lr / lr, 0 freezes Δ.
    """
    delta_lr = recurrent_lr if delta_lr_factor is None else delta_lr_factor * lr
    rates = {"base": lr, "no_decay": lr, "recurrent": recurrent_lr, "delta": delta_lr}
    roles = parameter_roles(model)
    groups = []
    for role in GROUPS:
        params = [p for name, p in model.named_parameters() if roles[name] == role]
        if params:
            decay = weight_decay if role == "base" else 0.0
            groups.append({"name": role, "params": params, "lr": rates[role], "weight_decay": decay})
    return groups


def format_groups(groups: list[dict[str, Any]]) -> str:
    """A table of optimizer groups, one row each: name, number of parameters, learning rate, weight decay."""
    rows = [("group", "parameters", "lr", "weight decay")]
    for number, group in enumerate(groups):
        count = sum(p.numel() for p in group["params"])
        rate = group.get("initial_lr", group["lr"])
        rows.append(
            (
                group.get("name", f"group {number}"),
                f"{count:,}",
                f"{rate:g}" if rate else "0 (frozen)",
                f"{group['weight_decay']:g}",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join(
        row[0].ljust(widths[0]) + "".join("  " + cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))
        for row in rows
    )


def warmup_cosine(optimizer: torch.optim.Optimizer, warmup_steps: int, total_steps: int) -> LambdaLR:
    """Linear warm-up from 0 over `warmup_steps`, then half a cosine to 0 at `total_steps`; scales every group."""

    def factor(step: int) -> float:
        if step < warmup_steps:
            return step / warmup_steps
        progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))

    return LambdaLR(optimizer, factor)
