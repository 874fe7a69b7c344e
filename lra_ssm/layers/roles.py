"""The roles of parameters: how the optimizer treats them, and how they scale with the width.

A module may declare `optim_roles() -> {parameter name: role}` for its own parameters and those of its submodules, and
`width_roles()` likewise; the declaration of the module nearest to a parameter counts.

The optimizer's settings (`lra_ssm.tasks.OptimizerSettings`) give each role its learning rate and weight decay. "norm"
is the weight of a normalization, "embedding" the weight of tokens, which may also be the head's. A parameter that no
module names is "no_decay" if it is a bias, "norm" if it is the weight of one of torch's norms, and "base" otherwise. A
user's layer may use other words, which the optimizer's settings must then have. Declarations may name parameters that
a module leaves out in its settings: those that are None, or buffers.

To a width parameterization (`lra_ssm.width`) each parameter is one of

| role      | maps                                                        | initial values scale as the width to the |
|-----------|-------------------------------------------------------------|------|
| embedding | a fixed number of inputs or states to channels              | 0    |
| hidden    | channels to channels                                        | −1/2 |
| readout   | channels to the network's outputs                           | −1/2 |
| state     | channels to a fixed number of states, step sizes or ranks   | −1/2 |
| vector    | a channel to itself: biases, norms, A and D of each channel | 0    |
| fixed     | nothing whose size depends on the width                     | 0    |

or one of these with another exponent, such as ("vector", −0.5) for the biases of nn.Linear.
"""

from collections.abc import Iterator
from typing import Any, Literal

from torch import Tensor, nn

Role = Literal["base", "recurrent", "delta", "no_decay", "norm", "embedding"]
ROLES = ("base", "embedding", "no_decay", "norm", "recurrent", "delta")
NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase)
WidthKind = Literal["embedding", "hidden", "readout", "state", "vector", "fixed"]
WidthRole = WidthKind | tuple[WidthKind, float]
INITIAL_EXPONENTS: dict[WidthKind, float] = {
    "embedding": 0.0, "hidden": -0.5, "readout": -0.5, "state": -0.5, "vector": 0.0, "fixed": 0.0,
}  # fmt: skip


def parameter_roles(model: nn.Module) -> dict[str, str]:
    """Return the optimizer's role of every parameter by its full name, in the model's order.

    Raises ValueError if a module declares a role for a parameter that it does not have, or one that is not text.
    """
    roles = {name: _default_role(model, name, p) for name, p in model.named_parameters()}
    for full, name, role in _declared(model, "optim_roles"):
        if not isinstance(role, str) or not role:
            raise ValueError(f"optim_roles gives {full} the role {role!r}; a role is a word")
        roles[name] = role
    return roles


def _default_role(model: nn.Module, full: str, parameter: nn.Parameter) -> str:
    """Return "no_decay" for a bias (`bias`; torch's `in_proj_bias`, `bias_hh_l0`), "norm" for a norm, or "base"."""
    owner, _, name = full.rpartition(".")
    if "bias" in name.split("_") and parameter.ndim <= 1:
        return "no_decay"
    return "norm" if isinstance(model.get_submodule(owner), NORMS) else "base"


def width_roles(model: nn.Module) -> dict[str, tuple[WidthKind, float]]:
    """Return every parameter's width role and the exponent of its initial values, by full name, in the model's order.

    Raises ValueError as `parameter_roles`, and if a parameter has no role.
    """
    roles: dict[str, Any] = dict.fromkeys((name for name, _ in model.named_parameters()), None)
    for full, name, role in _declared(model, "width_roles"):
        kind, exponent = role if isinstance(role, tuple) else (role, INITIAL_EXPONENTS.get(role, 0.0))
        if kind not in INITIAL_EXPONENTS:
            known = ", ".join(INITIAL_EXPONENTS)
            raise ValueError(f"width_roles gives {full} the role {kind!r}; it must be one of {known}")
        roles[name] = (kind, exponent)
    for name, role in roles.items():
        if role is None:
            owner = type(model.get_submodule(name.rpartition(".")[0])).__name__
            raise ValueError(
                f"{name} has no width role: declare it in width_roles() of {owner} or of a module around it"
                f" ({', '.join(INITIAL_EXPONENTS)})"
            )
    return roles


def _declared(model: nn.Module, method: str) -> Iterator[tuple[str, str, Any]]:
    """Yield (full name as declared, the parameter's first name, role), a parent's before its children's."""
    first = {id(p): name for name, p in model.named_parameters()}  # a shared parameter has several names but one role
    canonical = {name: first[id(p)] for name, p in model.named_parameters(remove_duplicate=False)}
    # named_modules lists a parent before its children, so that a child's declaration replaces its parent's.
    for prefix, module in model.named_modules():
        declare = getattr(module, method, None)
        for name, role in declare().items() if callable(declare) else ():
            full = f"{prefix}.{name}" if prefix else name
            if full in canonical:
                yield full, canonical[full], role
            elif not _is_left_out(module, name):
                raise ValueError(
                    f"{method} of {prefix or type(model).__name__} names {name!r}, which is not one of its parameters"
                )


def _is_left_out(module: nn.Module, name: str) -> bool:
    """Return whether this module has None, or a buffer, such as an S4D's B that is not learned, for a parameter."""
    for part in name.split("."):
        if not hasattr(module, part):
            return False
        if (value := getattr(module, part)) is None:
            return True
        module = value
    return isinstance(module, Tensor) and not isinstance(module, nn.Parameter)


def channel_maps(module: nn.Module) -> dict[str, WidthRole]:
    """Return the width roles of a module whose own nn.Linear modules all map channels to channels."""
    return linear_roles(**{name: (m, "hidden") for name, m in module.named_children() if isinstance(m, nn.Linear)})


def linear_roles(**maps: tuple[nn.Module | None, WidthRole]) -> dict[str, WidthRole]:
    """Return the width roles of nn.Linear modules, given by name with their weight's role; None modules are left out.

    A bias starts as the weight does, within ± 1/√(inputs). Its role is "vector" for channels and "fixed" for outputs or
    states.
    """
    roles: dict[str, WidthRole] = {}
    for name, (linear, role) in maps.items():
        if linear is None:
            continue
        kind, exponent = role if isinstance(role, tuple) else (role, INITIAL_EXPONENTS[role])
        roles[f"{name}.weight"] = role
        if getattr(linear, "bias", None) is not None:
            roles[f"{name}.bias"] = ("fixed" if kind in ("readout", "state", "fixed") else "vector", exponent)
    return roles
