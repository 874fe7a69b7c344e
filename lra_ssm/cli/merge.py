"""Merge config files and options of a command line into one configuration, and check its names.

Files and options are merged in the order in which they are given, before jsonargparse checks the types once:
- A value replaces the one before it, a list the whole list. Only the names of a mapping are merged.
- A class given in place of another one starts from its own defaults (see `_keep_arguments`).
- `--a.b.c=value` sets one name within classes, without their `init_args`. A list has no names: only an item that the
  command line added itself (`--trainer.callbacks+=Class`) takes further options.
"""

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_origin

import yaml
from jsonargparse import get_loader
from lightning.pytorch import Callback, LightningDataModule, callbacks, loggers
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from torch import nn

from lra_ssm import datamodules, layers, models, tasks
from lra_ssm.errors import InputError, hint
from lra_ssm.layers.spec import annotations, import_object, public_path
from lra_ssm.runs.identity import item_of, members
from lra_ssm.shipped import find

# Option -> classes of this package that it takes by their short names.
CHOICES: dict[str, tuple[type, ...]] = {
    "--data": tuple(getattr(datamodules, name) for name in datamodules.__all__),
    "--model": (tasks.Classification, tasks.Regression, tasks.LanguageModelling, tasks.MaskedModelling),
    "--model.network": (
        models.Classifier, models.DualEncoder, models.Regressor, models.LanguageModel,
    ),
    "--model.network.layer": (
        layers.S4D, layers.S6, layers.B2S6, layers.StableSSM, layers.LRU, layers.RGLRU, layers.DeepLinearSSM,
        layers.LocalConvolution, layers.S5, layers.SSD, layers.Mamba3, layers.Attention,
    ),
    "--model.network.block": (
        layers.S4Block, layers.S5Block, layers.MambaBlock, layers.Mamba2Block, layers.Mamba3Block, layers.GriffinBlock,
        layers.HyenaBlock, layers.TransformerBlock,
    ),
    "--model.network.embedding": (models.ScalarEmbedding, models.PositionEmbedding, models.FeaturePositionEmbedding),
    "--model.network.pooling": (models.MeanPooling, models.FirstPooling, models.LastPooling, models.MaxPooling),
    "--model.network.head": (
        models.LinearHead, models.MLPHead, models.NLIHead, models.LRAPairHead, models.LogitPairHead,
    ),
}  # fmt: skip
_SHORT_NAMES = {cls.__name__: cls for classes in CHOICES.values() for cls in classes}
_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_BASES = (nn.Module, LightningDataModule, Callback, Logger)  # where one of these is expected, a text names a class
RUN_FOLDER = "{run}"  # stands for the run's directory in a logger's save_dir


class MergedConfig:
    """Files and options, merged in the order in which they are given.

    sections: the names at the top of a configuration, and the class that takes the names below each; None for model and
        data, whose class is in the configuration, and for a plain value.
    """

    def __init__(self, sections: Mapping[str, Any], config: dict[str, Any] | None = None) -> None:
        self.sections, self.config = sections, config or {}
        self._appended: set[str] = set()  # lists whose last item the command line added
        self._kept: dict[str, tuple[str, str]] = {}  # settings that a new class keeps -> the new and the old class

    def add_file(self, name_or_file: str) -> None:
        """Merge a YAML file, or a shipped config by its name. Raises InputError if it is not a valid one."""
        path = Path(name_or_file)
        path = path if path.exists() and not path.is_dir() else find("config", name_or_file)  # a pipe is not a file
        content = _read(path)
        for name in content.keys() - self.sections.keys():
            raise InputError(f"{path}: unknown key {name!r}; {hint(str(name), self.sections)}")
        self.config = self._merge(self.config, content, "")
        self._appended.clear()

    def add_option(self, option: str) -> None:
        """Merge `--a.b.c=text`, or `--a.b.c+=text`, which adds an item to a list.

        Raises InputError if the option cannot be set.
        """
        name, _, text = option.partition("=")
        append, dotted = name.endswith("+"), name.removeprefix("--").rstrip("+")
        *head, last = dotted.replace(".init_args.", ".").removesuffix(".class_path").split(".")
        if (top := head[0] if head else last) not in self.sections:
            raise InputError(f"unknown option --{top}; {hint(f'--{top}', [f'--{each}' for each in self.sections])}")
        node: Any = self.config
        where, owner = "", None
        for name in head:
            where = f"{where}.{name}".lstrip(".")
            node, owner = self._enter(node, name, owner, where)
        below_a_mapping = owner is None and where and where not in self.sections  # its values have no types
        where = f"{where}.{last}".lstrip(".")
        value: Any = text
        if text in ("null", "~"):
            value = None
        elif below_a_mapping or text[:1] in ("{", "["):  # jsonargparse reads a value with a type
            value = _parse_yaml(text, f"--{where}: {text}")
        if append:
            items = node.get(last)
            items = items if isinstance(items, list) else [] if items is None else [items]
            value = [*items, *(value if isinstance(value, list) else [value])]
        if append or isinstance(value, str):  # one class where a list of classes is allowed
            self._appended.add(where)
        node[last] = self._merge(node[last], value, where) if last in node else value
        self._kept.pop(where, None)

    def _enter(self, node: dict[str, Any], name: str, owner: Any, where: str) -> tuple[dict[str, Any], Any]:
        """Return the mapping below `node[name]`, and the class or function that takes its names (None: any names)."""
        value = node.get(name)
        if isinstance(value, list):
            if where not in self._appended:
                raise InputError(f"--{where} is a list, whose items have no names: give the whole list")
            value[-1] = value[-1] if isinstance(value[-1], dict) else {"class_path": value[-1]}
            value = value[-1]
        if isinstance(value, str) and _names_class(value):
            value = node[name] = {"class_path": value}
        kind = annotations(owner).get(name) if owner else self.sections.get(where)
        if value is None:
            value = node[name] = {}
            parameter = inspect.signature(owner).parameters.get(name) if owner else None
            if parameter and inspect.isclass(parameter.default) and parameter.default is not parameter.empty:
                value["class_path"] = public_path(parameter.default)
            elif where in ("model", "data") or owner and _is_built(kind):
                raise InputError(f"{where}: no class is given here; give it, or a --config that does, before its"
                                 " arguments")  # fmt: skip
        if not isinstance(value, dict):
            raise InputError(f"--{where} is {value!r}: it has no settings")
        if "class_path" in value:
            value["init_args"] = value.get("init_args") or {}
            return value["init_args"], find_class(value["class_path"], where)
        classes = [each for each in members(kind) if is_dataclass(each) or each in self.sections.values()]
        return value, classes[0] if kind is not None and classes else None

    def _merge(self, old: Any, new: Any, where: str) -> Any:
        """Return `old` with the values of `new` in place of its own."""
        if isinstance(new, str) and isinstance(old, dict) and "class_path" in old and _names_class(new):
            new = {"class_path": new}
        if not (isinstance(old, dict) and isinstance(new, dict)):
            return new
        if "class_path" in old and "class_path" in new:
            old = self._keep_arguments(old, new["class_path"], where)
        merged = dict(old)
        for name, value in new.items():
            below = where if name == "init_args" else f"{where}.{name}".lstrip(".")
            merged[name] = self._merge(old[name], value, below) if name in old else value
            if name != "class_path":
                self._kept.pop(below, None)
        return merged

    def _keep_arguments(self, old: dict[str, Any], new_path: str, where: str) -> dict[str, Any]:
        """Return the old class's arguments that a new class keeps.

        These are the ones without a default in the new class; all that both take if one class is derived from the
        other; and all if the class is the same.
        """
        old_class, new_class = find_class(old["class_path"], where), find_class(new_path, where)
        arguments = old.get("init_args")
        if old_class is new_class and old_class is not None or not isinstance(arguments, dict):
            return old
        if old_class is None or new_class is None:
            return {"class_path": old["class_path"]}
        both_classes = inspect.isclass(old_class) and inspect.isclass(new_class)
        related = both_classes and (issubclass(old_class, new_class) or issubclass(new_class, old_class))
        parameters = inspect.signature(new_class).parameters.values()
        names = {each.name for each in parameters if related or each.default is each.empty}
        kept = {name: value for name, value in arguments.items() if name in names}
        self._kept |= {f"{where}.{name}": (new_class.__name__, old_class.__name__) for name in kept}
        return {"class_path": old["class_path"], "init_args": kept}

    def finished(self) -> dict[str, Any]:
        """Return the merged configuration with import paths of classes; print which settings new classes kept.

        Raises InputError for an unknown name, a class that cannot be imported, or a section that is not a mapping.
        """
        for new, old in dict.fromkeys(self._kept.values()):
            names = [where.rpartition(".")[2] for where, pair in self._kept.items() if pair == (new, old)]
            print(f"note: {new} replaces {old} and keeps its settings {', '.join(names)}", file=sys.stderr)
        checked: dict[str, Any] = {}
        for name, value in self.config.items():
            if name in ("model", "data"):
                checked[name] = check_value(value, nn.Module, name)
            elif (cls := self.sections.get(name)) is not None:
                checked[name] = _check_names({} if value is None else value, cls, name, name)
            else:
                checked[name] = value
        return checked


def _read(path: Path) -> dict[str, Any]:
    """Read a YAML file. Raises InputError if it is not a mapping."""
    content = _parse_yaml(path.read_text(encoding="utf-8"), str(path))
    if not isinstance(content, dict):
        raise InputError(f"{path}: a config is a mapping of names to settings, not a {type(content).__name__}")
    return content


def _parse_yaml(text: str, where: str) -> Any:
    try:
        return get_loader("yaml")(text)
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = f", line {mark.line + 1}" if mark and "\n" in text else ""
        raise InputError(f"{where}{line}: this is not valid YAML: {problem or error}") from error


def _names_class(text: str) -> bool:
    return bool(_IMPORT_PATH.fullmatch(text)) and text not in ("true", "false", "True", "False")


# -- checking names ------------------------------------------------------------------------------------------------


def find_class(path: str, where: str) -> Any:
    """Return the class of an import path or of a short name (ours or Lightning's); None for other short names.

    Raises InputError if the path cannot be imported (with the nearest name); an error in a user's module is raised as
    it is.
    """
    if path in _SHORT_NAMES:
        return _SHORT_NAMES[path]
    if "." not in path:
        return next((vars(module)[path] for module in (callbacks, loggers) if path in vars(module)), None)
    try:
        return import_object(path)
    except ValueError as error:
        missing = error.__cause__
        reason = str(missing or error)
        if isinstance(missing, AttributeError) and isinstance(missing.obj, ModuleType):
            classes = [name for name, value in vars(missing.obj).items() if inspect.isclass(value)]
            reason += f"; {hint(str(missing.name), getattr(missing.obj, '__all__', classes))}"
        raise InputError(f"{where}: {reason}") from error


def check_value(value: Any, kind: Any, where: str) -> Any:
    """Return a value with each class as {class_path, init_args} and its import path. kind: the annotation.

    Raises InputError for an unknown class or name, or a missing argument.
    """
    if isinstance(value, list):
        return [check_value(each, item_of(kind) or kind, where) for each in value]
    if isinstance(value, str) and _names_class(value) and _is_built(kind):
        value = {"class_path": value}
    if not isinstance(value, dict):
        return value
    if "class_path" in value:
        cls = find_class(value["class_path"], where)
        known_names = [each.__name__ for each in CHOICES.get(f"--{where}", ())]
        if cls is None and known_names:
            raise InputError(f"{where}: no class {value['class_path']!r}; {hint(value['class_path'], known_names)}")
        if cls is None:
            return value
        factory = next((get_args(each)[0] for each in _flat(kind) if get_origin(each) is Callable), ())
        arguments = value.get("init_args") or {}
        if cls is TensorBoardLogger and isinstance(arguments, dict):
            arguments = {"save_dir": RUN_FOLDER, "name": "tensorboard", "version": "", **arguments}
        arguments = _check_names(arguments, cls, where, f"{where}.init_args", len(factory))
        return {**value, "class_path": public_path(cls), "init_args": arguments}
    if cls := next((each for each in members(kind) if is_dataclass(each)), None):
        return _check_names(value, cls, where, where)
    return {name: check_value(each, item_of(kind), f"{where}.{name}") for name, each in value.items()}


def _check_names(arguments: Any, cls: Any, where: str, label: str, num_from_builder: int = 0) -> Any:
    """Check and return the arguments of a class; its builder gives the first ones (a layer's d_model)."""
    if not isinstance(arguments, dict):
        raise InputError(f"{label} is {arguments!r}; it must be a mapping of names to settings")
    kinds = annotations(cls)
    parameters = list(inspect.signature(cls).parameters.values())[num_from_builder:]
    known_names = [each.name for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
    for name in arguments if len(known_names) == len(parameters) else ():
        if name not in known_names:
            raise InputError(
                f"{where}: {public_path(cls)} takes no key {name!r}; {hint(str(name), known_names, 'it takes')}"
            )
    for each in parameters:
        if each.name in known_names and each.default is each.empty and arguments.get(each.name) is None:
            if each.name not in arguments or "None" not in str(kinds.get(each.name, None)):
                raise InputError(f"{where}: {public_path(cls)} needs {each.name!r}; give --{where}.{each.name}")
    return {name: check_value(each, kinds.get(name), f"{where}.{name}") for name, each in arguments.items()}


def _is_built(kind: Any) -> bool:
    """Return whether a value of this type is built from a class, so that a text may name the class."""
    types = [get_origin(each) or each for each in _flat(kind)]
    return any(each is Callable or inspect.isclass(each) and issubclass(each, _BASES) for each in types)


def _flat(kind: Any) -> list[Any]:
    """Return the members of an annotation, and the members of lists in it."""
    return [x for each in members(kind) for x in (members(item_of(each)) if get_origin(each) is list else [each])]
