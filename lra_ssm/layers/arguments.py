"""Modules that remember the arguments they were built with, so that they can be built again."""

import inspect
from typing import Any, Self

from torch import nn


class KeepsArguments(nn.Module):
    """A module that knows the arguments of its constructor."""

    _arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        self.__dict__["_arguments"] = args, kwargs  # nn.Module.__setattr__ does not work before __init__
        return self

    def constructor_arguments(self) -> dict[str, Any]:
        """Return the arguments that the constructor was given, by name."""
        args, kwargs = self._arguments
        return dict(zip(inspect.signature(type(self)).parameters, args, strict=False)) | kwargs
