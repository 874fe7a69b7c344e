"""Classes that settings name by import path, and their arguments."""

import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

from lra_ssm.errors import InputError, hint
from lra_ssm.layers.spec import import_object


def named_class(path: str, kind: str) -> type[Any]:
    """Return the class of an import path. Raises InputError if it cannot be imported or is not a class."""
    try:
        found = import_object(path, kind)
    except ValueError as error:
        module, _, name = path.rpartition(".")
        near = hint(name, getattr(sys.modules.get(module), "__all__", ()))
        raise InputError(f"{error}{f'; {near}' if near.startswith('did') else ''}") from error
    if not inspect.isclass(found):
        raise InputError(f"{kind} {path} is not a class")
    return found


def taken_by(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a class or function that can be given by name."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: p for name, p in inspect.signature(function).parameters.items() if p.kind in kinds}


def check_arguments(
    function: Callable[..., Any], arguments: Mapping[str, Any], what: str, setting: str, given: Collection[str]
) -> None:
    """Check that a function takes these arguments next to the ones that are always given, and that none is missing.

    what, setting: names of the function and of the setting that holds the arguments, for messages. Raises InputError.
    """
    taken = taken_by(function)
    own = [name for name in taken if name not in given]
    any_name = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values())
    for name in arguments:
        if name in given or not (name in own or any_name):
            raise InputError(f"{what} does not take {setting}.{name}; {hint(name, own, 'it takes')}")
    missing = [name for name in own if taken[name].default is inspect.Parameter.empty and name not in arguments]
    if missing:
        raise InputError(f"{what} needs {', '.join(f'{setting}.{name}' for name in missing)}")


def built(cls: Callable[..., Any], what: str, *given: Any, **arguments: Any) -> Any:
    """Build an instance. Raises InputError if the constructor refuses a value."""
    try:
        return cls(*given, **arguments)
    except InputError:
        raise
    except (TypeError, ValueError) as error:
        raise InputError(f"{what}: {error}") from error
