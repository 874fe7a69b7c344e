"""Classes that settings name by import path, and their arguments."""

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from lra_ssm.errors import InputError, hint
from lra_ssm.layers.spec import import_object


def import_class(path: str, kind: str) -> type[Any]:
    """Return the class of an import path. Raises InputError if it cannot be imported or is not a class."""
    try:
        imported = import_object(path, kind)
    except ValueError as error:
        raise InputError(str(error)) from error
    if not inspect.isclass(imported):
        raise InputError(f"{kind} {path} is not a class")
    return imported


def keyword_parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a class or function that can be given by name."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: p for name, p in inspect.signature(function).parameters.items() if p.kind in kinds}


def check_arguments(
    function: Callable[..., Any], arguments: Mapping[str, Any], label: str, setting: str, given: Collection[str]
) -> None:
    """Check that a function takes these arguments next to the ones that are always given. Raises InputError.

    label, setting: names of the function and of the setting that holds the arguments, for messages.
    """
    settable = [name for name in keyword_parameters(function) if name not in given]
    any_name = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values())
    for name in arguments:
        if name in given or not (name in settable or any_name):
            raise InputError(f"{label} does not take {setting}.{name}; {hint(name, settable, 'it takes')}")


def build(cls: Callable[..., Any], label: str, *positional: Any, **arguments: Any) -> Any:
    """Build an instance. Raises InputError if the constructor misses an argument or refuses a value."""
    try:
        return cls(*positional, **arguments)
    except (TypeError, ValueError) as error:
        raise InputError(f"{label}: {error}") from error
