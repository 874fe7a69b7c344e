"""Read a sweep file: the runs that it lists.

    name: delta-rate                            # default: the file's name
    configs: [scifar/b2s6, my.yaml]             # names or files
    seeds: [0, 1, 2]                            # default: the config's seed
    experiment: delta/{config}/{variant}        # default: the config's
    set: {trainer.max_steps: 10000}             # for every run
    grid:                                       # every combination
      model.optimizer.lr: [0.001, 0.004]
      model.network.layer.complex_A, model.network.layer.bias: [[true, true], [true, false]]   # vary together
    variants:                                   # settings that belong together, with a name
      one-block: {model.network.layer.num_blocks: 1}
      whole: {}
    runs_dir: runs
    groups: [{configs: …, seeds: …}, …]         # several of these; settings next to `groups` apply to all of them

Seeds vary slowest, so that the first runs cover every combination once.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from lra_ssm import shipped
from lra_ssm.errors import InputError, hint
from lra_ssm.runs.identity import SEED

_PARTS = ("configs", "seeds", "experiment", "set", "grid", "variants")


@dataclass(frozen=True)
class SweepRun:
    """A run of a sweep: a config and the settings that it changes, seed and experiment included."""

    config: Path
    changes: dict[str, Any]

    def options(self, config: Path, runs_dir: str) -> list[str]:
        """Return the options of `lra-ssm fit`, with `config` in place of the run's config."""
        changes = self.changes | {"runs_dir": runs_dir}
        return [f"--config={config}", *(f"--{key}={_as_option(value)}" for key, value in changes.items())]


@dataclass(frozen=True)
class Sweep:
    name: str
    file: Path
    runs_dir: str
    runs: list[SweepRun]


def read_sweep(name_or_file: str | Path) -> Sweep:
    """Read a sweep file, or a shipped one by its name.

    Raises InputError with the file, the place in it and what would be right there.
    """
    file = shipped.find("sweep", name_or_file)
    try:
        content = _mapping(yaml.safe_load(file.read_bytes()), "the file", ("name", "runs_dir", "groups", *_PARTS))
        name = str(content.get("name", file.stem))
        if not re.fullmatch(r"[\w-][\w.-]*", name):
            raise InputError(f"name is {name!r}; it becomes a folder: use letters, digits, - and _")
        groups = content.get("groups", [{}])
        if not isinstance(groups, list) or not groups:
            raise InputError("groups is not a list; each group has configs, seeds, set, grid or variants")
        shared = {part: content[part] for part in _PARTS if part in content}
        runs: list[SweepRun] = []
        for number, group in enumerate(groups, 1):
            group, where = _mapping(group, f"groups[{number}]", _PARTS), f"groups[{number}]." * ("groups" in content)
            # A group adds to `set` and `grid`; its other parts replace the shared ones.
            added = {p: _mapping(shared.get(p), p) | _mapping(group.get(p), f"{where}{p}") for p in ("set", "grid")}
            runs += _runs(shared | group | added, where)
        return Sweep(name, file, str(content.get("runs_dir", "runs")), runs)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"sweep {file} is not valid YAML: {error}") from error
    except InputError as error:
        raise InputError(f"sweep {file}: {error}") from error


def _runs(group: Mapping[str, Any], where: str) -> Iterator[SweepRun]:
    names = _list(group.get("configs"), f"{where}configs", str, "a list of names or files: [mnist/s4d, my.yaml]")
    configs = [shipped.find("config", name) for name in names]
    seeds = [None]
    if "seeds" in group:
        seeds = _list(group["seeds"], f"{where}seeds", int, "a list of whole numbers: [0, 1, 2]")
    grid = [list(_settings(keys, values, f"{where}grid.{keys}")) for keys, values in group["grid"].items()]
    variants = _mapping(group.get("variants") or {"": {}}, f"{where}variants")
    for seed, config, (variant, options) in product(seeds, configs, variants.items()):
        fixed = group["set"] | _mapping(options, f"{where}variants.{variant}")
        for settings in product(*grid):
            changes: dict[str, Any] = {}
            if experiment := group.get("experiment"):
                names_here = {"config": config.stem} | ({"variant": variant} if variant else {})
                try:
                    changes["experiment"] = str(experiment).format(**names_here)
                except (LookupError, ValueError, AttributeError):
                    known = " and ".join(f"{{{name}}}" for name in names_here)
                    raise InputError(f"{where}experiment is {experiment!r}; use only {known} in it") from None
            if seed is not None:
                changes[SEED] = seed
            for setting in (fixed, *settings):
                changes |= setting
            # A class comes before its settings, since a new class starts from its own defaults.
            ordered = sorted(changes, key=lambda key: key.removesuffix(".class_path").count("."))
            yield SweepRun(config, {key: changes[key] for key in ordered})


def _settings(keys: str, values: Any, where: str) -> Iterator[dict[str, Any]]:
    """Yield what a line of a grid sets: one setting, or several that have the same value or one each of a list."""
    names = [name.strip() for name in keys.split(",")]
    for value in _list(values, where, object, "a list of values"):
        each = value if len(names) > 1 and isinstance(value, list) else [value] * len(names)
        if len(each) != len(names):
            raise InputError(f"{where} has {value!r}; for {len(names)} settings give {len(names)} values")
        yield dict(zip(names, each, strict=True))


def _as_option(value: Any) -> str:
    """Return a value from YAML as the command line takes it."""
    is_json = value is None or isinstance(value, (bool, int, float, list, dict))  # a date is its text
    return json.dumps(value, ensure_ascii=False, default=str) if is_json else str(value)


def _mapping(value: Any, where: str, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the value if it is a mapping whose keys are texts among `names`; return {} for None."""
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise InputError(f"{where} is {value!r}; it takes settings and their values")
    if unknown := next((key for key in value if names and key not in names), None):
        raise InputError(f"{where} has {unknown!r}; {hint(unknown, names or (), 'it takes')}")
    return value


def _list(value: Any, where: str, kind: type, what: str) -> list[Any]:
    """Return the value if it is a non-empty list of `kind`; True and False are not whole numbers."""
    refused = bool if kind is int else ()
    if isinstance(value, list) and value and all(isinstance(v, kind) and not isinstance(v, refused) for v in value):
        return value
    raise InputError(f"{where} is {value!r}; give {what}")
