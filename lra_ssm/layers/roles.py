"""What a parameter is to the optimizer: every module says it of its own, the task's optimizer settings give it rates.

A module may declare `optim_roles() -> {parameter name: role}` for its own parameters and those below it; the module
nearest to a parameter speaks for it. A parameter that nobody names is "base": base learning rate and weight decay.
"norm" is the weight of a normalization, "embedding" that of tokens (which may be the head's too): as "no_decay" and
"base" are, unless their decay is set.
"""

from typing import Literal

from torch import nn

Role = Literal["recurrent", "delta", "no_decay", "norm", "embedding"]
ROLES = ("base", "embedding", "no_decay", "norm", "recurrent", "delta")


def parameter_roles(model: nn.Module) -> dict[str, str]:
    """Full parameter name -> role, in the model's order.

    Raises ValueError where a module declares a role for a parameter that it does not have, or a role that is none.
    """
    roles = {name: "base" for name, _ in model.named_parameters()}
    first = {id(p): name for name, p in model.named_parameters()}  # a shared parameter has several names, and one role
    same = {name: first[id(p)] for name, p in model.named_parameters(remove_duplicate=False)}
    fixed = {name for name, _ in model.named_buffers(remove_duplicate=False)}  # frozen parameters, say
    # named_modules lists a parent before its children: what a child declares replaces what its parent said.
    for prefix, module in model.named_modules():
        declare = getattr(module, "optim_roles", None)
        for name, role in declare().items() if callable(declare) else ():
            full = f"{prefix}.{name}" if prefix else name
            if full in fixed:
                continue
            if full not in same:
                raise ValueError(
                    f"optim_roles of {prefix or type(model).__name__} names {name!r}, which is no parameter of it"
                )
            if role not in ROLES[1:]:
                raise ValueError(
                    f"optim_roles gives {full} the role {role!r}; it must be one of {', '.join(ROLES[1:])}"
                )
            roles[same[full]] = role
    return roles


def biases_without_decay(module: nn.Module) -> dict[str, Role]:
    """ "no_decay" for every parameter of `module` and below it that is called bias."""
    return {name: "no_decay" for name, _ in module.named_parameters() if name.rpartition(".")[2] == "bias"}
