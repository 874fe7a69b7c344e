"""The settings that data was prepared with, recorded beside it, and the options of a fit that takes it."""

import inspect
import json
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from lra_ssm.cli.summary import prepared_folders
from lra_ssm.datamodules.base import PreparedData
from lra_ssm.datamodules.storage import load, num_examples, resolve_root
from lra_ssm.errors import InputError, squeeze
from lra_ssm.files import write_json
from lra_ssm.layers.spec import import_object

SETTINGS = "settings.json"  # in a prepared folder: what `prepare` was told
# What decides how batches are made, not what is prepared.
LOADING = {
    "batch_size", "eval_batch_size", "shuffle_seed", "num_workers", "pin_memory", "bucket_batches",
    "length", "order", "isolate", "evaluation", "eval_stride",
}  # fmt: skip
_SHOWN = 3  # prepared folders in a message


def remember(datamodule: PreparedData, settings: dict[str, Any]) -> None:
    """Writes beside prepared data, where it can, which settings it was first prepared with."""
    file = datamodule.prepared_folder / SETTINGS
    with suppress(OSError):
        if not file.exists():
            write_json(file, {"class_path": _path(type(datamodule)), "init_args": settings})


def fit_options(datamodule: PreparedData, own: dict[str, Any], settings: dict[str, Any]) -> list[str] | None:
    """What a configuration of data with the arguments `own` must be told to find what is prepared with `settings`.

    None where it cannot find it: its files were changed or removed since.
    """
    cls = type(datamodule)
    given = {name: parameter.default for name, parameter in inspect.signature(cls).parameters.items()} | own
    settings = {name: value for name, value in settings.items() if name != "root"}
    others = {name: value for name, value in settings.items() if _plain(given.get(name)) != _plain(value)}

    def found(values: dict[str, Any]) -> str:
        try:
            return cls(**{**own, **values, "root": str(datamodule.data_root)}).prepared_folder.name
        except (InputError, TypeError):  # its files are gone; or `own` is of another version
            return ""

    if not (target := found(settings)):
        return None
    for name in list(others):
        without = {n: value for n, value in others.items() if n != name}
        if found(without) == target:
            others = without
    if found(others) != target:
        return None
    if resolve_root(own.get("root")) != datamodule.data_root:
        others["root"] = str(datamodule.data_root)
    return [shlex.quote(f"--data.{name}={_text(value)}") for name, value in others.items()]


def what_is_prepared(datamodule: PreparedData, own: dict[str, Any]) -> str:
    """What `prepare` made of this dataset below the root, with the options that take it; else nothing."""
    found = []
    for each in _prepared_alike(datamodule, own):
        gone = f"{each.folder}, but {each.source} has changed or is gone"
        found.append(f"{' '.join(each.options)} ({each.counts})" if each.options else gone)
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"prepared there: {'; '.join(found[:_SHOWN])}{more}" if found else ""


class _Prepared(NamedTuple):
    folder: Path
    counts: str  # of examples, by split
    source: str
    options: list[str]  # of a fit that takes it; none where its files have changed since


def _prepared_alike(datamodule: PreparedData, own: dict[str, Any]) -> Iterator[_Prepared]:
    """What `prepare` made of this dataset below the root."""
    for folder in prepared_folders(datamodule.data_root):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # of another hand, or damaged
            known = json.loads((folder / SETTINGS).read_text())
            if known["class_path"] == _path(type(datamodule)):
                splits = load(folder).manifest["splits"]
                counts = ", ".join(f"{num_examples(split):,} {name}" for name, split in splits.items())
                settings = known["init_args"]
                yield _Prepared(folder, counts, settings["source"], fit_options(datamodule, own, settings) or [])


def other_source(class_path: str, own: dict[str, Any]) -> str:
    """The source that a configuration of data, which is not prepared, could take instead of its own: of what is
    prepared below the root the only one with all of its other settings. Empty where there is none, or several.

    own: the configuration's arguments. Data that is generated, and files that are there, are the configuration's.
    """
    cls = import_object(class_path)
    if not issubclass(cls, PreparedData):
        return ""
    try:
        datamodule = cls(**own)
    except (InputError, TypeError, ValueError):  # who makes it for use says so
        return ""
    source = datamodule.source
    is_there = source not in cls.sources and Path(source).exists()
    if source == "generated" or is_there or datamodule.is_prepared():
        return ""
    found = []
    for each in _prepared_alike(datamodule, own):
        if [option.partition("=")[0].lstrip("'") for option in each.options] == ["--data.source"]:
            found.append(each.source)
    return found[0] if len(found) == 1 else ""


def say_other_source(source: str) -> None:
    print(squeeze(f"note: taking the data prepared from {source}: no other is prepared (--data.source={source})"))


def with_config(message: str, arguments: list[str]) -> str:
    """A data module's message with `lra-ssm prepare` and the fit's own options in place of `… DATASET`."""
    if not arguments[0].startswith(("--config", "-c")):
        return message
    command = f"`lra-ssm prepare {' '.join(map(shlex.quote, arguments))}`"
    return re.sub("`lra-ssm prepare .+?`", lambda _: command, message)


def _path(cls: type) -> str:
    return f"lra_ssm.datamodules.{cls.__name__}"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _text(value: Any) -> str:
    """As the command line reads it."""
    return value if isinstance(value, str) else json.dumps(_plain(value), separators=(",", ":"))
