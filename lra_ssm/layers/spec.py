"""Modules given to a model as specifications, not as instances: layers, blocks, whole networks.

Whoever builds one calls it: a layer as `layer(d_model)`, a block as `block(d_model, layer)`, a network as `network()`.
In YAML it is `{class_path: lra_ssm.layers.B2S6, init_args: {num_blocks: 8}}`, in Python `LayerSpec(B2S6,
num_blocks=8)`; both are stored as the same plain dict, so that checkpoints load with `weights_only=True`.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from types import UnionType
from typing import Any, Self, Union, get_args, get_origin, get_type_hints

from torch import nn

from lra_ssm.errors import hint
from lra_ssm.layers.contract import check_call

LayerFactory = Callable[[int], nn.Module]  # d_model ->
BlockFactory = Callable[[int, LayerFactory], nn.Module]  # d_model, layer ->
HeadFactory = Callable[[int, int], nn.Module]  # d_model, num_classes ->
NetworkFactory = Callable[[], nn.Module]


class ModuleSpec:
    """A class (or a function that returns a module) and its keyword arguments, without what its builder gives.

    `class_or_path`: the class itself, or its import path. `init_args`: plain values, or specifications in their turn
    (also as classes or plain dicts, also in lists), which reach the class as specifications; where it says that it
    takes an `nn.Module`, built.
    Raises ValueError for what is no class, cannot be imported, or does not take the arguments.
    """

    kind = "module"
    builder_gives: tuple[str, ...] | None = None  # names of the first parameters; None where nobody knows yet
    called_with: tuple[str, ...] = ()  # what the built module is called with, where that is fixed

    def __init__(self, class_or_path: Callable[..., nn.Module] | str, /, **init_args: Any) -> None:
        self.cls = import_object(class_or_path, self.kind) if isinstance(class_or_path, str) else class_or_path
        if refused := _bound_or_built(self.cls):
            raise ValueError(f"a {self.kind} is built by its model, once or more: give {type(self).__name__}{refused}")
        named = inspect.isclass(self.cls) or inspect.isroutine(self.cls)  # what a path can name
        if not named:
            raise ValueError(f"{class_or_path!r} is no {self.kind}: it must be a class or function{self._takes()}")
        try:
            parameters = list(inspect.signature(self.cls).parameters.values())
        except ValueError as error:  # such as `type`
            raise ValueError(f"{class_or_path!r} is no {self.kind}: {error}") from error
        given = len(self.builder_gives or ())
        if len(parameters) < given or self._is_no_such(parameters[:given]):
            raise ValueError(f"{class_or_path!r} is no {self.kind}: it must be a class or function{self._takes()}")
        self.class_path = public_path(self.cls)
        taken = {p.name: p.default for p in parameters[given:] if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        for key in init_args if len(taken) == len(parameters[given:]) else ():
            if key not in taken:
                raise ValueError(f"{self.class_path} takes no argument {key!r}; {hint(key, taken, 'it takes')}")
        # Defaults are written out, as in the configuration: a checkpoint says everything.
        known = self.builder_gives is not None
        defaults = {key: value for key, value in taken.items() if known and value is not inspect.Parameter.empty}
        self.init_args = {**defaults, **init_args}
        self._left_open = defaults.keys() - init_args.keys()

    def _takes(self) -> str:
        return f" that takes {' and '.join(self.builder_gives)} first" if self.builder_gives else ""

    def _is_no_such(self, first: list[inspect.Parameter]) -> bool:
        """Whether these first parameters are not the builder's: it gives a layer, and a number is wanted there."""
        names = self.builder_gives or ()
        hints, wanted = annotations(self.cls), zip(names, first, strict=True)
        return any(name == "layer" and hints.get(p.name) in (int, float, bool, str) for name, p in wanted)

    @classmethod
    def of(cls, spec: "ModuleSpec | Mapping[str, Any] | Callable[..., nn.Module] | str") -> Self:
        """A specification from whatever may stand for one: itself, the plain dict, or a class without arguments."""
        if isinstance(spec, cls):
            return spec
        if isinstance(spec, ModuleSpec):
            return cls(spec.cls, **{key: v for key, v in spec.init_args.items() if key not in spec._left_open})
        if isinstance(spec, Mapping):
            unknown = set(spec) - {"class_path", "init_args"}
            if "class_path" not in spec or unknown:
                raise ValueError(f"a {cls.kind} is given as class_path and init_args, got {sorted(spec)}")
            return cls(spec["class_path"], **(spec.get("init_args") or {}))
        return cls(spec)

    def as_dict(self) -> dict[str, Any]:
        """The plain dict that is stored in hyperparameters.

        Raises ValueError for a class or argument that could not be read back from it.
        """
        try:
            import_object(self.class_path)
        except ValueError as error:
            raise ValueError(
                f"{self.class_path} cannot be imported again: define it at the top of a module of its own"
            ) from error
        hints, stored = annotations(self.cls), {}
        for key, value in self.init_args.items():
            try:
                stored[key] = _stored(value, hints.get(key), f"{self.class_path}, argument {key}")
            except ValueError:
                if key not in self._left_open:  # a default that is no plain value stays the class's own
                    raise
        return {"class_path": self.class_path, "init_args": stored}

    def __call__(self, *given: Any) -> nn.Module:
        hints = annotations(self.cls)
        built = self.cls(*given, **{key: _passed(value, hints.get(key)) for key, value in self.init_args.items()})
        if self.called_with:
            check_call(built, self.kind, *self.called_with)
        return built

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModuleSpec) and self.cls is other.cls and self.init_args == other.init_args

    __hash__ = None  # type: ignore[assignment]  # its arguments may be lists

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


class NetworkSpec(ModuleSpec):
    """A whole network: `NetworkSpec(Classifier, layer=LayerSpec(B2S6), num_classes=10, vocab_size=18)`."""

    kind, builder_gives = "network", ()


def _bound_or_built(given: Any) -> str | None:
    """Of what stands where a class should and can never be named in a checkpoint: what to give, and what it is."""
    if isinstance(given, ModuleSpec):
        return f"({given.cls.__name__}, …), not a {type(given).__name__} within another"
    if isinstance(given, nn.Module):
        return f"({type(given).__name__}, …), not an instance of {type(given).__name__}"
    if isinstance(given, partial):
        bound = [*map(repr, given.args), *(f"{name}={value!r}" for name, value in given.keywords.items())]
        return f"({', '.join([getattr(given.func, '__name__', 'Class'), *bound])}), not a functools.partial"
    if inspect.ismethod(given) and not inspect.isclass(given.__self__):
        return f" a class or function of a module, not a method of an instance of {type(given.__self__).__name__}"
    if getattr(given, "__name__", "") == "<lambda>":
        return " a class or function of a module, not a lambda: no checkpoint can name it"
    return None


def own_arguments(function: Callable[..., Any]) -> list[str]:
    """Names of the parameters that a specification may set: without the first ones, where they are called as what the
    builder of a layer, block or head gives."""
    names = tuple(inspect.signature(function).parameters)
    kinds = (LayerSpec, BlockSpec, PoolingSpec, HeadSpec)
    given = [len(gives) for kind in kinds if names[: len(gives := kind.builder_gives)] == gives]
    return list(names[max(given, default=0) :])


def annotations(function: Callable[..., Any]) -> dict[str, Any]:
    """Annotations by parameter, also where they are written as text; without those that cannot be resolved."""
    own = function.__init__ if inspect.isclass(function) else function
    try:
        return get_type_hints(own)
    except (NameError, AttributeError, TypeError):  # one of them: imported for type checkers alone
        found = {}
        for name, hint in getattr(own, "__annotations__", {}).items():
            with suppress(Exception):
                found[name] = eval(hint, getattr(own, "__globals__", {})) if isinstance(hint, str) else hint
        return found


def _members(hint: Any) -> tuple[Any, ...]:
    """What a union is made of, or the annotation itself."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _item_hint(hint: Any) -> Any:
    """What a list, tuple or dict of this annotation holds."""
    for one in _members(hint):
        if inspect.isclass(get_origin(one)) and issubclass(get_origin(one), (Sequence, Mapping)):
            held = [argument for argument in get_args(one) if argument is not ...]
            return held[-1] if held else None
    return None


def wants_specification(hint: Any) -> bool:
    """Whether an argument of this annotation is built by whoever takes it, or holds such arguments."""
    own = any(get_origin(h) is Callable for h in _members(hint))
    return own or (_item_hint(hint) is not None and wants_specification(_item_hint(hint)))


def _is_spec(value: Any) -> bool:
    is_dict = isinstance(value, Mapping) and "class_path" in value and set(value) <= {"class_path", "init_args"}
    return isinstance(value, ModuleSpec) or is_dict


def _specification(value: Any, hint: Any) -> ModuleSpec:
    """A nested specification that knows how many parameters its builder gives, where the annotation says it."""
    spec = ModuleSpec.of(value)
    for one in _members(hint):
        if get_origin(one) is Callable and isinstance(get_args(one)[0], list) and spec.builder_gives is None:
            first = list(inspect.signature(spec.cls).parameters)[: len(get_args(one)[0])]
            named = type("NestedSpec", (ModuleSpec,), {"builder_gives": tuple(first)})
            return named(spec.cls, **{key: v for key, v in spec.init_args.items() if key not in first})
    return spec


def _passed(value: Any, hint: Any) -> Any:
    """An argument as the class takes it."""
    if inspect.isclass(value) and any(inspect.isclass(h) and issubclass(h, nn.Module) for h in _members(hint)):
        return value()
    if _is_spec(value):
        spec = _specification(value, hint)
        wanted = _members(hint)
        if any(get_origin(h) is type for h in wanted):
            return spec.cls
        return spec() if any(inspect.isclass(h) and issubclass(h, nn.Module) for h in wanted) else spec
    if isinstance(value, (list, tuple)):
        return type(value)(_passed(item, _item_hint(hint)) for item in value)
    if isinstance(value, dict):
        return {key: _passed(item, _item_hint(hint)) for key, item in value.items()}
    return value


def _stored(value: Any, hint: Any, where: str) -> Any:
    """An argument as plain values."""
    if value is None or isinstance(value, (bool, int, float, str)) and type(value).__module__ == "builtins":
        return value
    if _is_spec(value) or inspect.isclass(value) or inspect.isfunction(value) or inspect.ismethod(value):
        return _specification(value, hint).as_dict()
    if isinstance(value, (list, tuple)):
        return type(value)(_stored(item, _item_hint(hint), where) for item in value)
    if isinstance(value, dict):
        return {key: _stored(item, _item_hint(hint), where) for key, item in value.items()}
    raise ValueError(f"{where} is a {type(value).__name__}; plain values and specifications alone can be stored")


def import_object(path: str, kind: str = "module") -> Any:
    """What an import path names; a nested class too. Raises ValueError where it cannot be imported."""
    parts = path.split(".")
    reason: Exception = ValueError("it has no module")
    for i in range(len(parts) - 1, 0, -1):
        try:
            found: Any = import_module(".".join(parts[:i]))
        except ImportError as error:
            reason = reason if i < len(parts) - 1 else error
            continue
        try:
            for name in parts[i:]:
                found = getattr(found, name)
            return found
        except AttributeError as error:
            reason = error
            break
    raise ValueError(f"{kind} class_path {path!r} cannot be imported: {reason}") from reason


def public_path(cls: Callable[..., nn.Module]) -> str:
    """The shortest import path of `cls`: lra_ssm.layers.B2S6 rather than lra_ssm.layers.b2s6.B2S6."""
    parts = cls.__module__.split(".")
    for i in range(1, len(parts)):
        package = import_module(".".join(parts[:i]))
        if getattr(package, cls.__qualname__, None) is cls:
            return f"{package.__name__}.{cls.__qualname__}"
    return f"{cls.__module__}.{cls.__qualname__}"
