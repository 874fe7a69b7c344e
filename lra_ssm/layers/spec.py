"""Modules given to a model as specifications, not as instances: layers, blocks, whole networks.

Whoever builds one calls it: a layer as `layer(d_model)`, a block as `block(d_model, layer)`, a network as `network()`.
In YAML it is `{class_path: lra_ssm.layers.B2S6, init_args: {num_blocks: 8}}`, in Python `LayerSpec(B2S6,
num_blocks=8)`; both are stored as the same plain dict, so that checkpoints load with `weights_only=True`.
"""

import difflib
import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Self

from torch import nn

LayerFactory = Callable[[int], nn.Module]  # d_model ->
BlockFactory = Callable[[int, LayerFactory], nn.Module]  # d_model, layer ->
NetworkFactory = Callable[[], nn.Module]


class ModuleSpec:
    """A class (or a function that returns a module) and its keyword arguments, without what its builder gives.

    `class_or_path`: the class itself, or its import path. `init_args`: plain values, or specifications in their turn
    (also as classes, or as their plain dicts).
    Raises ValueError for a path that cannot be imported and for arguments the class does not take.
    """

    kind = "module"
    builder_gives: tuple[str, ...] = ()

    def __init__(self, class_or_path: Callable[..., nn.Module] | str, /, **init_args: Any) -> None:
        self.cls = _import(class_or_path, self.kind) if isinstance(class_or_path, str) else class_or_path
        if not callable(self.cls) or len(inspect.signature(self.cls).parameters) < len(self.builder_gives):
            first = f" that takes {' and '.join(self.builder_gives)} first" if self.builder_gives else ""
            raise ValueError(f"{class_or_path!r} is no {self.kind}: it must be a class or function{first}")
        self.class_path = _public_path(self.cls)
        parameters = list(inspect.signature(self.cls).parameters.values())[len(self.builder_gives) :]
        named = {p.name: p.default for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        for key in init_args if len(named) == len(parameters) else ():
            if key not in named:
                near = difflib.get_close_matches(key, named, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(named)}"
                raise ValueError(f"{self.class_path} takes no argument {key!r}; {hint}")
        # Defaults are written out, as in the configuration: a checkpoint says everything.
        defaults = {key: value for key, value in named.items() if value is not inspect.Parameter.empty}
        self.init_args = {key: _specified(value) for key, value in {**defaults, **init_args}.items()}
        # An argument that is annotated as a module gets one; any other specification is the class's own to build.
        self._modules = {
            p.name for p in parameters if inspect.isclass(p.annotation) and issubclass(p.annotation, nn.Module)
        }

    @classmethod
    def of(cls, spec: "ModuleSpec | Mapping[str, Any] | Callable[..., nn.Module]") -> Self:
        """A specification from whatever may stand for one: itself, the plain dict, or a class without arguments."""
        if isinstance(spec, cls):
            return spec
        if isinstance(spec, ModuleSpec):
            return cls(spec.cls, **spec.init_args)
        if isinstance(spec, Mapping):
            unknown = set(spec) - {"class_path", "init_args"}
            if "class_path" not in spec or unknown:
                raise ValueError(f"a {cls.kind} is given as class_path and init_args, got {sorted(spec)}")
            return cls(spec["class_path"], **(spec.get("init_args") or {}))
        return cls(spec)

    def as_dict(self) -> dict[str, Any]:
        """The plain dict that is stored in hyperparameters."""
        plain = {key: v.as_dict() if isinstance(v, ModuleSpec) else v for key, v in self.init_args.items()}
        return {"class_path": self.class_path, "init_args": plain}

    def __call__(self, *given: Any) -> nn.Module:
        build = {key for key in self._modules if isinstance(self.init_args.get(key), ModuleSpec)}
        return self.cls(*given, **{key: v() if key in build else v for key, v in self.init_args.items()})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.class_path}, {self.init_args})"


class LayerSpec(ModuleSpec):
    """A layer, without d_model: `LayerSpec(B2S6, num_blocks=8)`."""

    kind, builder_gives = "layer", ("d_model",)


class BlockSpec(ModuleSpec):
    """A block, without d_model and its layer: `BlockSpec(S4Block, prenorm=True)`."""

    kind, builder_gives = "block", ("d_model", "layer")


class NetworkSpec(ModuleSpec):
    """A whole network: `NetworkSpec(Classifier, layer=LayerSpec(B2S6), num_classes=10, vocab_size=18)`."""

    kind = "network"


def _specified(value: Any) -> Any:
    """An argument that stands for a module, as a specification; any other as it is."""
    if isinstance(value, Mapping) and "class_path" in value:
        return ModuleSpec.of(value)
    is_module = inspect.isclass(value) and issubclass(value, nn.Module)
    return ModuleSpec(value) if is_module or inspect.isfunction(value) else value


def _import(path: str, kind: str) -> Callable[..., nn.Module]:
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{kind} class_path {path!r} cannot be imported: {error}") from error


def _public_path(cls: Callable[..., nn.Module]) -> str:
    """The shortest import path of `cls`: lra_ssm.layers.B2S6 rather than lra_ssm.layers.b2s6.B2S6."""
    parts = cls.__module__.split(".")
    for i in range(1, len(parts)):
        package = import_module(".".join(parts[:i]))
        if getattr(package, cls.__qualname__, None) is cls:
            return f"{package.__name__}.{cls.__qualname__}"
    return f"{cls.__module__}.{cls.__qualname__}"
