"""What a parameter is to the optimizer, and how it grows with the width: every module says both of its own.

A module may declare `optim_roles() -> {parameter name: role}` for its own parameters and those below it, and
`width_roles()` likewise; the module nearest to a parameter speaks for it.

The optimizer's settings (`lra_ssm.tasks.OptimizerSettings`) give each role its learning rate and weight decay. "norm"
is the weight of a normalization, "embedding" the weight of tokens, which may be the head's too. A parameter that no
module names is "no_decay" if it is a bias, "norm" if it is the weight of one of torch's norms, and else "base". A layer
of your own may use other words, which the optimizer's settings must then have.

To a width parameterization (`lra_ssm.width`) each parameter is one of

| role      | maps                                                        | initial values vary as the width to the |
|-----------|-------------------------------------------------------------|------|
| embedding | a fixed number of inputs or states to channels              | 0    |
| hidden    | channels to channels                                        | −1/2 |
| readout   | channels to the network's outputs                           | −1/2 |
| state     | channels to a fixed number of states, step sizes or ranks   | −1/2 |
| vector    | a channel to itself: biases, norms, A and D of each channel | 0    |
| fixed     | nothing whose size is the width's                           | 0    |

or such a role with another exponent, as ("vector", −0.5) for the biases of nn.Linear.
"""

from collections.abc import Iterator
from typing import Any, Literal

from torch import nn

Role = Literal["base", "recurrent", "delta", "no_decay", "norm", "embedding"]
ROLES = ("base", "embedding", "no_decay", "norm", "recurrent", "delta")
NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase)
WidthKind = Literal["embedding", "hidden", "readout", "state", "vector", "fixed"]
WidthRole = WidthKind | tuple[WidthKind, float]
INITIAL_EXPONENTS: dict[WidthKind, float] = {
    "embedding": 0.0, "hidden": -0.5, "readout": -0.5, "state": -0.5, "vector": 0.0, "fixed": 0.0,
}  # fmt: skip


def parameter_roles(model: nn.Module) -> dict[str, str]:
    """Full parameter name -> role, in the model's order.

    Raises ValueError where a module declares a role for a parameter that it does not have, or something else than text.
    """
    roles = {name: _default_role(model, name, p) for name, p in model.named_parameters()}
    for full, name, role in _declared(model, "optim_roles"):
        if not isinstance(role, str) or not role:
            raise ValueError(f"optim_roles gives {full} the role {role!r}; a role is a word")
        roles[name] = role
    return roles


def _default_role(model: nn.Module, full: str, parameter: nn.Parameter) -> str:
    """A vector whose name says bias (`bias`; torch's `in_proj_bias`, `bias_hh_l0`), a norm's weight, or another."""
    owner, _, name = full.rpartition(".")
    if "bias" in name.split("_") and parameter.ndim <= 1:
        return "no_decay"
    return "norm" if isinstance(model.get_submodule(owner), NORMS) else "base"


def width_roles(model: nn.Module) -> dict[str, tuple[WidthKind, float]]:
    """Full name -> how it grows with the width, and with which exponent its initial values do, in the model's order.

    Raises ValueError as `parameter_roles`, and where a parameter has no role.
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
    """(full name as declared, the parameter's first name, role), a parent's before its children's."""
    first = {id(p): name for name, p in model.named_parameters()}  # a shared parameter has several names, and one role
    same = {name: first[id(p)] for name, p in model.named_parameters(remove_duplicate=False)}
    fixed = {name for name, _ in model.named_buffers(remove_duplicate=False)}  # frozen parameters, say
    # named_modules lists a parent before its children: what a child declares replaces what its parent said.
    for prefix, module in model.named_modules():
        declare = getattr(module, method, None)
        for name, role in declare().items() if callable(declare) else ():
            full = f"{prefix}.{name}" if prefix else name
            if full in fixed:
                continue
            if full not in same:
                raise ValueError(
                    f"{method} of {prefix or type(model).__name__} names {name!r}, which is no parameter of it"
                )
            yield full, same[full], role


def linear_roles(**maps: tuple[nn.Module | None, WidthRole]) -> dict[str, WidthRole]:
    """Of nn.Linear modules by their names, each with its weight's role; those that are None are left out.

    A bias starts as the weight does: in ± 1/√(inputs). One of channels has role "vector", of outputs or states "fixed".
    """
    found: dict[str, WidthRole] = {}
    for name, (linear, role) in maps.items():
        if linear is None:
            continue
        kind, exponent = role if isinstance(role, tuple) else (role, INITIAL_EXPONENTS[role])
        found[f"{name}.weight"] = role
        if getattr(linear, "bias", None) is not None:
            found[f"{name}.bias"] = ("fixed" if kind in ("readout", "state", "fixed") else "vector", exponent)
    return found
