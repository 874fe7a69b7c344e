"""A layer given to a model as a specification, not as an instance.

The model builds it once per block as `Class(d_model, **init_args)`. In YAML it is
`{class_path: lra_ssm.layers.B2S6, init_args: {num_blocks: 8}}`, in Python `LayerSpec(B2S6, num_blocks=8)`; both are
stored as the same plain dict, so that checkpoints load with `weights_only=True`.
"""

import difflib
import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Literal

from torch import nn

# How the optimizer treats a parameter that a module names in `optim_roles()`; see lra_ssm.tasks.optim.
Role = Literal["recurrent", "delta", "no_decay"]


class LayerSpec:
    """A layer class (or a function that returns a module) and its arguments, without d_model.

    `class_or_path`: the class itself, or its import path. `init_args`: keyword arguments; plain values only.
    Raises ValueError for a path that cannot be imported and for arguments the class does not take.
    """

    def __init__(self, class_or_path: Callable[..., nn.Module] | str, **init_args: Any) -> None:
        self.cls = _import(class_or_path) if isinstance(class_or_path, str) else class_or_path
        if not callable(self.cls) or not inspect.signature(self.cls).parameters:
            raise ValueError(f"{class_or_path!r} is no layer: it must be a class or function that takes d_model first")
        self.class_path = _public_path(self.cls)
        _, *parameters = inspect.signature(self.cls).parameters.values()  # without d_model
        named = {p.name: p.default for p in parameters if p.kind is not p.VAR_KEYWORD}
        for key in init_args if len(named) == len(parameters) else ():
            if key not in named:
                near = difflib.get_close_matches(key, named, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(named)}"
                raise ValueError(f"{self.class_path} takes no argument {key!r}; {hint}")
        # Defaults are written out, as in the configuration: a checkpoint says everything.
        defaults = {key: value for key, value in named.items() if value is not inspect.Parameter.empty}
        self.init_args = {**defaults, **init_args}

    @classmethod
    def of(cls, spec: "LayerSpec | Mapping[str, Any] | Callable[..., nn.Module]") -> "LayerSpec":
        """A LayerSpec from whatever may stand for one: itself, the plain dict, or a layer class without arguments."""
        if isinstance(spec, LayerSpec):
            return spec
        if isinstance(spec, Mapping):
            unknown = set(spec) - {"class_path", "init_args"}
            if "class_path" not in spec or unknown:
                raise ValueError(f"a layer is given as class_path and init_args, got {sorted(spec)}")
            return cls(spec["class_path"], **(spec.get("init_args") or {}))
        return cls(spec)

    def as_dict(self) -> dict[str, Any]:
        """The plain dict that is stored in hyperparameters."""
        return {"class_path": self.class_path, "init_args": dict(self.init_args)}

    def __call__(self, d_model: int) -> nn.Module:
        return self.cls(d_model, **self.init_args)

    def __repr__(self) -> str:
        return f"LayerSpec({self.class_path}, {self.init_args})"


def _import(path: str) -> Callable[..., nn.Module]:
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"layer class_path {path!r} cannot be imported: {error}") from error


def _public_path(cls: Callable[..., nn.Module]) -> str:
    """The shortest import path of `cls`: lra_ssm.layers.B2S6 rather than lra_ssm.layers.b2s6.B2S6."""
    parts = cls.__module__.split(".")
    for i in range(1, len(parts)):
        package = import_module(".".join(parts[:i]))
        if getattr(package, cls.__qualname__, None) is cls:
            return f"{package.__name__}.{cls.__qualname__}"
    return f"{cls.__module__}.{cls.__qualname__}"
