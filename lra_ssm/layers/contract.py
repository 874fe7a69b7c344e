"""Checks of what a user's layer, block, pooling, head or network takes and returns: one clear line if it does not fit.

Shapes: B batch, L length, D channels.
"""

import inspect
from typing import Any

from torch import Tensor, nn

from lra_ssm.errors import InputError


def check_call(module: Any, kind: str, *arguments: str) -> None:
    """Check that it is an nn.Module that takes these positional arguments. Raises InputError."""
    name = _class_name(module)
    if not isinstance(module, nn.Module):
        raise InputError(f"{name} is not a torch.nn.Module, and a {kind} has to be one")
    if type(module).forward is nn.Module.forward:
        raise InputError(f"{name} has no forward: a {kind} is called with ({', '.join(arguments)})")
    signature = inspect.signature(module.forward)
    try:
        signature.bind(*arguments)
    except TypeError:
        parameters, call = ", ".join(signature.parameters), ", ".join(arguments)
        raise InputError(f"{name}.forward takes ({parameters}): a {kind} is called with ({call})") from None


def check_output(module: nn.Module, out: Any, shape: tuple[int, ...], inputs: Tensor, rule: str) -> None:
    """Check that `out`, returned for `given`, is a floating tensor of this shape. Raises InputError, stating `rule`."""
    if not (isinstance(out, Tensor) and out.shape == shape and out.is_floating_point()):
        raise wrong_output(module, out, inputs, rule)


def wrong_output(module: nn.Module, out: Any, inputs: Tensor, rule: str, argument: str = "x") -> InputError:
    """Return the error that names the module, what it returned for which argument, and the rule that this breaks."""
    name = _class_name(module)
    return InputError(f"{name} returned {_describe(out)} for {argument} {tuple(inputs.shape)}: {rule}")


def _class_name(module: Any) -> str:
    """Return the import path of a module's class."""
    cls = type(getattr(module, "_orig_mod", module))  # inside torch.compile
    return f"{cls.__module__}.{cls.__qualname__}"


def _describe(out: Any) -> str:
    """Describe an output: (4, 100, 32) for a tensor, with its dtype if that is wrong; a tuple's parts."""
    if isinstance(out, Tensor):
        return f"{tuple(out.shape)}" + ("" if out.is_floating_point() else f" {out.dtype}")
    if isinstance(out, tuple):
        return f"a tuple of {' and '.join(map(_describe, out)) or 'nothing'}"
    return "None" if out is None else f"a {type(out).__name__}"
