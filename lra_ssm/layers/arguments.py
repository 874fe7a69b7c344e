"""Modules that check and remember the arguments they were built with, so that they can be built again."""

import inspect
from functools import cache
from typing import Any, Literal, Self, get_args, get_origin

from torch import nn

from lra_ssm.layers.spec import annotations


class KeepsArguments(nn.Module):
    """A module that knows the arguments of its constructor.

    Raises:
        ValueError: an argument is not one of the values of its annotation, a Literal.
    """

    _arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        self.__dict__["_arguments"] = args, kwargs  # nn.Module.__setattr__ does not work before __init__
        arguments = self.constructor_arguments()
        for name, choices in _choices(cls).items():  # type: ignore[arg-type]
            if name in arguments and arguments[name] not in choices:
                known = ", ".join(map(str, choices))
                raise ValueError(f"{cls.__name__} {name} is {arguments[name]!r}; it must be one of {known}")
        return self

    def constructor_arguments(self) -> dict[str, Any]:
        """Return the arguments that the constructor was given, by name."""
        args, kwargs = self._arguments
        return dict(zip(inspect.signature(type(self)).parameters, args, strict=False)) | kwargs


@cache
def _choices(cls: type) -> dict[str, tuple[Any, ...]]:
    """Return the values of the constructor's arguments that are annotated as a Literal."""
    return {name: get_args(hint) for name, hint in annotations(cls).items() if get_origin(hint) is Literal}
