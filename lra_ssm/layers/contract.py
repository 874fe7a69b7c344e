"""What a layer, block, pooling, head or network of a user's own takes and gives: one line where it does not.

Shapes: B batch, L length, D channels.
"""

import inspect
from typing import Any

from torch import Tensor, nn

from lra_ssm.errors import InputError, defined_at


def check_call(module: Any, kind: str, *arguments: str) -> None:
    """It is an nn.Module and takes these positional arguments. Raises InputError."""
    name, where = _named(module)
    if not isinstance(module, nn.Module):
        raise InputError(f"{name} is no torch.nn.Module, and a {kind} has to be one{where}")
    if type(module).forward is nn.Module.forward:
        raise InputError(f"{name} has no forward: a {kind} is called with ({', '.join(arguments)}){where}")
    try:
        taken = inspect.signature(module.forward)
    except (ValueError, TypeError):  # of TorchScript nobody knows
        return
    try:
        taken.bind(*arguments)
    except TypeError:
        takes, called = ", ".join(taken.parameters), ", ".join(arguments)
        raise InputError(f"{name}.forward takes ({takes}): a {kind} is called with ({called}){where}") from None


def check_output(module: nn.Module, out: Any, shape: tuple[int, ...], given: Tensor, rule: str) -> None:
    """What a module returned for `given` is a floating tensor of this shape. `rule` says it. Raises InputError."""
    if not (isinstance(out, Tensor) and out.shape == shape and out.is_floating_point()):
        raise wrong_output(module, out, given, rule)


def wrong_output(module: nn.Module, out: Any, given: Tensor, rule: str, argument: str = "x") -> InputError:
    """The error that names the module, what it returned, what for, and the rule that this breaks."""
    name, where = _named(module)
    return InputError(f"{name} returned {_shown(out)} for {argument} {tuple(given.shape)}: {rule}{where}")


def _named(module: Any) -> tuple[str, str]:
    """A module's class by its import path, and where its forward stands."""
    own = type(getattr(module, "_orig_mod", module))  # of torch.compile
    return f"{own.__module__}.{own.__qualname__}", defined_at(own)


def _shown(out: Any) -> str:
    """(4, 100, 32) of a tensor, with its dtype where that is wrong; a tuple's parts."""
    if isinstance(out, Tensor):
        return f"{tuple(out.shape)}" + ("" if out.is_floating_point() else f" {out.dtype}")
    if isinstance(out, tuple):
        return f"a tuple of {' and '.join(map(_shown, out)) or 'nothing'}"
    return "None" if out is None else f"a {type(out).__name__}"
