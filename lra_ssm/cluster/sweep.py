"""A sweep file: which runs it stands for.

    name: delta-factor                          # default: the file's name
    configs: [scifar/b2s6, my.yaml]             # by name, or files
    seeds: [0, 1, 2]                            # default: each config's own
    experiment: delta/{config}/{variant}        # default: each config's own
    set: {trainer.max_steps: 10000}             # of every run
    grid:                                       # every combination
      model.optimizer.lr: [0.001, 0.004]
      model.optimizer.roles.delta.lr_factor: {from: 0.001, to: 1.0, points: 4, scale: log}
      model.network.layer.complex_A, model.network.layer.bias: [[true, true], [true, false]]   # go together
    variants:                                   # options that belong together, under a name
      one-block: {model.network.layer.num_blocks: 1}
      whole: {}
    random:                                     # drawn: so many runs of each combination
      runs: 8
      seed: 0
      model.optimizer.weight_decay: {from: 0.001, to: 0.1, scale: log}
      model.network.n_layers: [4, 6, 8]
    runs_dir: runs
    groups: [{configs: …, seeds: …}, …]         # several of these; what stands beside it holds for all of them

A run is the options of one `lra-ssm fit`. Seeds vary slowest: the first runs are one of everything.
"""

import json
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import yaml

from lra_ssm import shipped
from lra_ssm.errors import InputError, hint
from lra_ssm.runs.identity import SEED

_PARTS = ("configs", "seeds", "experiment", "set", "grid", "variants", "random")
_TOGETHER = ("set", "grid", "random")  # a group adds to those beside it; its other parts replace theirs
_RANGE = ("from", "to", "points", "scale")
_MOST = 10_000  # runs
_Content = TypeVar("_Content")


@dataclass(frozen=True)
class SweepRun:
    """A run of a sweep: a config and what is changed of it, the seed and the experiment included."""

    index: int  # from 1
    config: Path
    changes: dict[str, Any]
    runs_dir: str

    def options(self, config: Path) -> list[str]:
        """Of `lra-ssm fit`, with `config`, this run's own or a copy of it."""
        changes = self.changes | ({"runs_dir": self.runs_dir} if self.runs_dir != "runs" else {})
        return [f"--config={config}", *(f"--{key}={as_option(value)}" for key, value in changes.items())]


@dataclass(frozen=True)
class Sweep:
    name: str
    file: Path
    runs_dir: str
    runs: list[SweepRun]


def read_sweep(file: Path) -> Sweep:
    """The runs of a sweep, of its file or of one that is shipped, numbered from 1.

    Raises InputError that names the file, the place in it and what would be right there.
    """
    return read_file("sweep", file, _sweep)


def read_file(kind: shipped.Kind, given: Path, read: Callable[[Path, dict[str, Any]], _Content]) -> _Content:
    """What `read` makes of a file of options, given with its content: a user's or a shipped one.

    Raises InputError that names the file, where it is none, and for what `read` raises it.
    """
    file = shipped.find(kind, given)
    try:
        return read(file, _mapping(yaml.load(file.read_bytes(), _Loader), "it"))
    except OSError as error:
        raise InputError(f"{kind} {file} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{kind} {file} is no YAML: {error}") from error
    except InputError as error:
        raise InputError(f"{kind} {file}: {error}") from error


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping (YAML keeps the last); a date is text, as written."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in found if not tag.endswith(":timestamp")]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                here = key.start_mark.line + 1
                if key.value in lines:
                    raise InputError(f"line {here} has {key.value!r} again, as line {lines[key.value]}; keep one")
                lines[key.value] = here
        return node


def _sweep(file: Path, content: Mapping[str, Any]) -> Sweep:
    name, runs_dir = content.get("name", file.stem), content.get("runs_dir", "runs")
    if not isinstance(name, str) or not name or set(name) & set("/\\ \t\n") or name.startswith("."):
        raise InputError(f"name is {name!r}; it names a folder: letters, digits, - and _")
    if not isinstance(runs_dir, str) or not runs_dir:
        raise InputError(f"runs_dir is {runs_dir!r}, not a folder")
    groups = content.get("groups", [{}])
    if not isinstance(groups, list) or not groups:
        raise InputError("groups is no list of groups; each has configs, seeds, set, grid, variants or random")
    known(content, ("name", "runs_dir", "groups", *_PARTS), "it")
    shared = {key: content[key] for key in _PARTS if key in content}
    found: list[tuple[Path, dict[str, Any]]] = []
    for number, group in enumerate(groups, 1):
        where = f"groups[{number}]" if "groups" in content else "it"
        group = _mapping(group, where)
        known(group, _PARTS, where)
        together = {
            part: _mapping(shared.get(part), part) | _mapping(group.get(part), f"{where}.{part}") for part in _TOGETHER
        }
        found += _group({**shared, **group, **together}, where)
        if len(found) > _MOST:
            raise InputError(f"these are more than {_MOST:,} runs; fewer values in grid, or fewer random runs")
    runs = [SweepRun(i, config, changes, runs_dir) for i, (config, changes) in enumerate(found, 1)]
    return Sweep(name, file, runs_dir, runs)


def _group(group: Mapping[str, Any], where: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Config and changes of each of a group's runs."""
    given = _list(group.get("configs"), f"{where}.configs", str)
    try:
        configs = [shipped.find("config", text) for text in given]
    except InputError as error:
        raise InputError(f"{where}.configs: {error} (files are looked for from {Path.cwd()})") from error
    seeds: Sequence[int | None] = [None]
    if "seeds" in group:
        seeds = _list(group["seeds"], f"{where}.seeds", int)
    experiment = group.get("experiment")
    if experiment is not None and not isinstance(experiment, str):
        raise InputError(f"{where}.experiment is {experiment!r}, not a name")
    grid = [_settings(keys, values, f"{where}.grid.{keys}") for keys, values in group["grid"].items()]
    names = [name for setting in grid for name in setting[0]]
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise InputError(f"{where}.grid has {twice[0]} in two lines, of which only one would hold")
    variants = _mapping(group.get("variants") or {"": {}}, f"{where}.variants")
    drawn = list(_draws(group["random"], f"{where}.random"))
    for seed, config, (variant, options) in product(seeds, configs, variants.items()):
        fixed = group["set"] | _mapping(options, f"{where}.variants.{variant}")
        for *settings, draw in product(*grid, drawn):
            changes = {} if experiment is None else {"experiment": _named(experiment, config, variant, where)}
            changes |= {} if seed is None else {SEED: seed}
            for setting in (fixed, *settings, draw):
                changes |= setting
            yield config, _classes_first(changes)


def _classes_first(changes: dict[str, Any]) -> dict[str, Any]:
    """The same options, each after those whose names its own begins with.

    A class that replaces another one starts from its own defaults: options given before it would be lost."""
    names = {key: ".".join(p for p in key.split(".") if p not in ("class_path", "init_args")) for key in changes}
    ordered: dict[str, Any] = {}
    for key, name in names.items():
        above = [other for other in names if name.startswith(f"{names[other]}.")]
        for one in [*sorted(above, key=lambda other: len(names[other])), key]:
            ordered.setdefault(one, changes[one])
    return ordered


def _named(experiment: str, config: Path, variant: str, where: str) -> str:
    names = {"{config}": config.stem} | ({"{variant}": variant} if variant else {})
    try:
        return re.sub(r"\{[^}]*\}?", lambda braces: names[braces[0]], experiment)
    except KeyError as error:  # {variant} without variants is one
        said = f"{error.args[0]} is not known, {' and '.join(names)} may stand in it"
        raise InputError(f"{where}.experiment is {experiment!r}; {said}") from None


def _settings(keys: str, given: Any, where: str) -> list[dict[str, Any]]:
    """What a line of a grid sets: one option, or several that have the same value or a list of them."""
    names = [name.strip() for name in keys.split(",")]
    found = []
    for value in _values(given, where):
        values = value if len(names) > 1 and isinstance(value, list) else [value] * len(names)
        if len(values) != len(names):
            raise InputError(
                f"{where} has {value!r}; for {len(names)} options that go together give {len(names)} values"
            )
        found.append(dict(zip(names, values, strict=True)))
    return found


def _values(given: Any, where: str) -> list[Any]:
    """Of a grid's option: the values listed, or so many points of a range."""
    if isinstance(given, list) and given:
        return given
    if not isinstance(given, Mapping):
        raise InputError(f"{where} is {given!r}; give a list of values, or {{from: 0.001, to: 0.1, points: 3}}")
    value, points = _range(given, where), given.get("points")
    if not isinstance(points, int) or points < 2:
        raise InputError(f"{where}.points is {points!r}; a range has 2 or more")
    return [value(i / (points - 1)) for i in range(points)]


def _draws(given: Mapping[str, Any], where: str) -> Iterator[dict[str, Any]]:
    """The random values of each draw. They stay the same when another option is added, or when more are drawn."""
    if not given:
        yield {}
        return
    count, seed = given.get("runs"), given.get("seed", 0)
    if not isinstance(count, int) or not 1 <= count <= _MOST:
        raise InputError(f"{where}.runs is {count!r}; say how many are drawn")
    keys = [key for key in given if key not in ("runs", "seed")]
    generators = {key: random.Random(f"{seed} {key}") for key in keys}
    for _ in range(count):
        draw = {}
        for key in keys:
            value = given[key]
            if isinstance(value, list) and value:
                draw[key] = generators[key].choice(value)
            elif isinstance(value, Mapping) and "points" not in value:
                draw[key] = _range(value, f"{where}.{key}")(generators[key].random())
            else:
                raise InputError(f"{where}.{key} is {value!r}; give a list, or {{from: 0.001, to: 0.1, scale: log}}")
        yield draw


def _range(given: Mapping[str, Any], where: str) -> Callable[[float], float]:
    """The value at a part, 0 to 1, of a range: a whole number between whole ends, else six digits, so that a table
    shows exactly what is run."""
    known(given, _RANGE, where)
    scale = given.get("scale", "linear")
    if scale not in ("linear", "log"):
        raise InputError(f"{where}.scale is {scale!r}, not linear or log")
    ends = [given.get("from"), given.get("to")]
    try:
        # YAML reads 1e-4 as text.
        low, high = (end if isinstance(end, int) else float(end) for end in ends)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InputError(f"{where} goes from {ends[0]!r} to {ends[1]!r}; these are numbers") from None
    if not -math.inf < low < high < math.inf or scale == "log" and low <= 0:
        raise InputError(f"{where} goes from {low} to {high}; from is less than to, and above 0 where the scale is log")

    def value(part: float) -> float:
        found = low * (high / low) ** part if scale == "log" else low + (high - low) * part
        return round(found) if all(isinstance(end, int) for end in ends) else float(f"{found:.6g}")

    return value


def as_option(value: Any) -> str:
    """A value of YAML as the command line takes it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise InputError(f"{where} is {value!r}, not options and their values")
    return value


def _list(value: Any, where: str, kind: type) -> list[Any]:
    if not isinstance(value, list) or not value or not all(type(item) is kind for item in value):
        what = {str: "a list of names or files: [mnist/s4d, my.yaml]", int: "a list of whole numbers: [0, 1, 2]"}[kind]
        raise InputError(f"{where} is {value!r}; give {what}")
    return value


def known(given: Mapping[str, Any], names: Sequence[str], where: str) -> None:
    for key in given:
        if key not in names:
            raise InputError(f"{where} has {key!r}; {hint(key, names, 'it takes')}")
