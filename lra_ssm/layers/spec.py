"""Modules given to a model as specifications, not as instances: layers, blocks, whole networks.

The module that uses a specification builds it by a call: a layer as `layer(d_model)`, a block as `block(d_model,
layer)`, a network as `network()`.

In YAML it is `{class_path: lra_ssm.layers.B2S6, init_args: {num_blocks: 8}}`, in Python `LayerSpec(B2S6,
num_blocks=8)`; both are stored as the same plain dict, so that checkpoints load with `weights_only=True`.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pkgutil import resolve_name
from types import UnionType
from typing import Any, Self, Union, get_args, get_origin, get_type_hints

from torch import nn

from lra_ssm.errors import hint
from lra_ssm.layers.contract import check_call

LayerFactory = Callable[[int], nn.Module]  # d_model ->
BlockFactory = Callable[[int, LayerFactory], nn.Module]  # d_model, layer ->
Layers = LayerFactory | list[LayerFactory]  # one, or several that are repeated over the depth
Blocks = BlockFactory | list[BlockFactory]
HeadFactory = Callable[[int, int], nn.Module]  # d_model, num_classes ->
EmbeddingFactory = Callable[[int, int], nn.Module]  # vocab_size or d_input, d_model ->
NetworkFactory = Callable[[], nn.Module]

_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")


class ModuleSpec:
    """A class (or a function that returns a module) and its keyword arguments, without those that its builder passes.

    `class_or_path`: the class itself, or its import path. `init_args`: plain values or further specifications (also as
    classes or plain dicts, also in lists). The class receives the latter as specifications, or built if its annotation
    is an `nn.Module`.

    Raises ValueError for something that is not a class, cannot be imported, or does not take the arguments.
    """

    kind = "module"
    builder_gives: tuple[str, ...] | None = None  # the names of the first parameters; None if they are not known yet
    called_with: tuple[str, ...] = ()  # the arguments of the built module's call, if they are fixed

    def __init__(self, class_or_path: Callable[..., nn.Module] | str, /, **init_args: Any) -> None:
        self.cls = import_object(class_or_path, self.kind) if isinstance(class_or_path, str) else class_or_path
        builder_args = self.builder_gives or ()
        if not (inspect.isclass(self.cls) or inspect.isroutine(self.cls)):  # an instance, a partial, another spec
            raise ValueError(
                f"a {self.kind} is built by its model, once or more: give {type(self).__name__}(Class, …), the class or"
                f" function itself, not a {type(self.cls).__name__}"
            )
        parameters = list(inspect.signature(self.cls).parameters.values())
        first = (
            annotations(self.cls).get(parameters[1].name) if "layer" in builder_args and len(parameters) > 1 else None
        )
        if len(parameters) < len(builder_args) or first in (
            int,
            float,
            bool,
            str,
        ):  # S4D(d_model, d_state) is not a block
            takes = f" that takes {' and '.join(builder_args)} first" if builder_args else ""
            raise ValueError(f"{class_or_path!r} is not a {self.kind}: it must be a class or function{takes}")
        self.class_path = public_path(self.cls)
        own_parameters = parameters[len(builder_args) :]
        defaults = {p.name: p.default for p in own_parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        for key in init_args if len(defaults) == len(own_parameters) else ():
            if key not in defaults:
                raise ValueError(f"{self.class_path} takes no argument {key!r}; {hint(key, defaults, 'it takes')}")
        self.init_args = init_args
        self._defaults = {key: default for key, default in defaults.items() if default is not inspect.Parameter.empty}

    @classmethod
    def of(cls, spec: "ModuleSpec | Mapping[str, Any] | Callable[..., nn.Module] | str") -> Self:
        """Make a specification from a specification, its plain dict, or a class or its path."""
        if isinstance(spec, cls):
            return spec
        if isinstance(spec, ModuleSpec):
            return cls(spec.cls, **spec.init_args)
        if isinstance(spec, Mapping):
            if "class_path" not in spec or not _is_spec(spec):
                raise ValueError(f"a {cls.kind} is given as class_path and init_args, got {sorted(spec)}")
            return cls(spec["class_path"], **(spec.get("init_args") or {}))
        return cls(spec)

    @classmethod
    def each(cls, specs: Any, count: int) -> list[Self]:
        """Return `count` specifications from one, or from a repeated list: 6 from [S6, S6, Attention] are it twice.

        Raises ValueError for an empty list.
        """
        several = [cls.of(spec) for spec in specs] if isinstance(specs, (list, tuple)) else [cls.of(specs)]
        if not several:
            raise ValueError(f"{cls.kind} is an empty list; give one, or several that are repeated over the depth")
        return [several[i % len(several)] for i in range(count)]

    def as_dict(self) -> dict[str, Any]:
        """Return the plain dict that is stored in hyperparameters.

        Raises ValueError for a class or argument that could not be restored from it.
        """
        importable = False
        with suppress(ValueError):
            importable = import_object(self.class_path) == self.cls
        if not importable:
            raise ValueError(f"{self.class_path} cannot be imported again: define it at the top of a module of its own")
        # Defaults are written out, so that a checkpoint is complete.
        defaults = self._defaults if self.builder_gives is not None else {}
        hints, stored = annotations(self.cls), {}
        for key, value in (defaults | self.init_args).items():
            try:
                stored[key] = _to_plain(value, hints.get(key), f"{self.class_path}, argument {key}")
            except ValueError:
                if key in self.init_args:  # a default that is not a plain value stays the class's own
                    raise
        return {"class_path": self.class_path, "init_args": stored}

    def __call__(self, *builder_args: Any) -> nn.Module:
        hints = annotations(self.cls)
        built = self.cls(
            *builder_args, **{key: _resolve(value, hints.get(key)) for key, value in self.init_args.items()}
        )
        if self.called_with:
            check_call(built, self.kind, *self.called_with)
        return built

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.class_path}, {self.init_args})"


class LayerSpec(ModuleSpec):
    """A layer, without d_model: `LayerSpec(B2S6, num_blocks=8)`."""

    kind, builder_gives, called_with = "layer", ("d_model",), ("x", "lengths")


class BlockSpec(ModuleSpec):
    """A block, without d_model and its layer: `BlockSpec(S4Block, prenorm=True)`."""

    kind, builder_gives, called_with = "block", ("d_model", "layer"), ("x", "lengths")


class PoolingSpec(ModuleSpec):
    """A pooling, without d_model."""

    kind, builder_gives, called_with = "pooling", ("d_model",), ("x", "lengths")


class HeadSpec(ModuleSpec):
    """A head, without d_model and num_classes."""

    kind, builder_gives = "head", ("d_model", "num_classes")


class EmbeddingSpec(ModuleSpec):
    """An embedding, without vocab_size (or d_input) and d_model."""

    kind, builder_gives = "embedding", ("vocab_size or d_input", "d_model")


class NetworkSpec(ModuleSpec):
    """A whole network: `NetworkSpec(Classifier, layer=LayerSpec(B2S6), num_classes=10, vocab_size=18)`."""

    kind, builder_gives = "network", ()


class _OneArgument(ModuleSpec):
    """A module built with one number: a layer, or a norm or another part of a user's module."""

    builder_gives = ("d_model",)


class _TwoArguments(ModuleSpec):
    """A module built with two numbers: a head, an embedding, or another part of a user's module."""

    builder_gives = ("a number", "a second number")


# An argument's annotation -> the kind of specification that is given there. (HeadFactory is EmbeddingFactory.)
_NESTED = {LayerFactory: _OneArgument, BlockFactory: BlockSpec, HeadFactory: _TwoArguments, NetworkFactory: NetworkSpec}


def annotations(function: Callable[..., Any]) -> dict[str, Any]:
    """Return annotations by parameter, also those written as text; none if one of them cannot be resolved."""
    try:
        return get_type_hints(function.__init__ if inspect.isclass(function) else function)
    except (NameError, AttributeError, TypeError):  # a name imported only for type checkers; a C function
        return {}


def wants_specification(hint: Any) -> bool:
    """Return whether an argument of this annotation is a specification that its receiver builds, or a list of such."""
    members = _members(hint) if hint is not None else ()
    return any(get_origin(member) is Callable or wants_specification(_item_of(member)) for member in members)


def _members(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the annotation itself."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _item_of(hint: Any) -> Any:
    """Return the annotation of the items of a list, tuple or dict of this annotation."""
    items = (get_args(member) for member in _members(hint) if get_origin(member) in (list, tuple, dict))
    return next((args[-1] if args[-1] is not ... else args[0] for args in items if args), None)


def _is_spec(value: Any) -> bool:
    is_dict = isinstance(value, Mapping) and "class_path" in value and set(value) <= {"class_path", "init_args"}
    return is_dict or isinstance(value, ModuleSpec)


def _specification(value: Any, hint: Any) -> ModuleSpec:
    """Return a nested specification of the kind that the annotation names."""
    if isinstance(value, ModuleSpec) and value.builder_gives is not None:
        return value
    return next((_NESTED[member] for member in _members(hint) if member in _NESTED), ModuleSpec).of(value)


def _resolve(value: Any, hint: Any) -> Any:
    """Return an argument in the form that the class takes."""
    if isinstance(value, (list, tuple)):
        return type(value)(_resolve(item, _item_of(hint)) for item in value)
    if isinstance(value, dict) and not _is_spec(value):
        return {key: _resolve(item, _item_of(hint)) for key, item in value.items()}
    wants_module = any(inspect.isclass(member) and issubclass(member, nn.Module) for member in _members(hint))
    if _is_spec(value) or wants_module and inspect.isclass(value):
        spec = _specification(value, hint)
        if any(get_origin(member) is type for member in _members(hint)):
            return spec.cls
        return spec() if wants_module else spec
    return value


def _to_plain(value: Any, hint: Any, where: str) -> Any:
    """Return an argument as plain values."""
    if _is_spec(value) or inspect.isclass(value) or inspect.isfunction(value) or inspect.ismethod(value):
        return _specification(value, hint).as_dict()
    if isinstance(value, (list, tuple)):
        return type(value)(_to_plain(item, _item_of(hint), where) for item in value)
    if isinstance(value, dict):
        return {key: _to_plain(item, _item_of(hint), where) for key, item in value.items()}
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise ValueError(f"{where} is a {type(value).__name__}; only plain values and specifications can be stored")


def import_object(path: str, kind: str = "module") -> Any:
    """Import what an import path names, nested classes included. Raises ValueError if it cannot be imported."""
    if not _IMPORT_PATH.fullmatch(path):  # resolve_name also accepts module:name
        raise ValueError(f"{kind} class_path {path!r} is not an import path such as package.module.Class")
    module, _, name = path.rpartition(".")
    try:
        try:
            return getattr(import_module(module), name)
        except ModuleNotFoundError as error:
            if error.name != module:  # the module exists and fails to import another
                raise
            return resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{kind} class_path {path!r} cannot be imported: {error}") from error


def public_path(cls: Callable[..., Any]) -> str:
    """Return the shortest import path of `cls`: lra_ssm.layers.B2S6 rather than lra_ssm.layers.b2s6.B2S6."""
    parts = cls.__module__.split(".")
    for i in range(1, len(parts)):
        package = import_module(".".join(parts[:i]))
        if getattr(package, cls.__qualname__, None) is cls:
            return f"{package.__name__}.{cls.__qualname__}"
    return f"{cls.__module__}.{cls.__qualname__}"
