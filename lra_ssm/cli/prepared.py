"""From what is prepared to the options of a fit that takes it, and back."""

import inspect
import json
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

import lra_ssm
from lra_ssm.cli.summary import prepared_folders
from lra_ssm.datamodules.base import PreparedDataModule
from lra_ssm.datamodules.storage.format import num_examples, open_prepared
from lra_ssm.datamodules.storage.root import resolve_root
from lra_ssm.errors import InputError
from lra_ssm.files import write_json

SETTINGS = "settings.json"  # in a prepared folder: what `prepare` was told
# What decides how batches are made, not what is prepared.
LOADING = {
    "batch_size", "eval_batch_size", "shuffle_seed", "num_workers", "pin_memory", "bucket_batches",
    "length", "order", "isolate", "evaluation", "eval_stride",
}  # fmt: skip
_SHOWN = 3  # prepared folders in a message


def remember(datamodule: PreparedDataModule, settings: dict[str, Any]) -> None:
    """Writes beside prepared data which settings it was first prepared with; on a root that cannot be written, not."""
    file = datamodule.prepared_folder / SETTINGS
    with suppress(OSError):
        if not file.exists():
            write_json(file, {"class_path": _path(type(datamodule)), "init_args": settings})


def fit_command(datamodule: PreparedDataModule, settings: dict[str, Any]) -> str:
    """The command that fits on what was just prepared: with the configuration that needs the fewest options for it.

    It is sought in ./configs, and in the repository that the package lies in; where there is none, CONFIG stands for
    one of the user's.
    """
    cls, found = type(datamodule), []
    for file, own, network in _configs(cls):
        options = fit_options(datamodule, own, settings)
        if options is not None:
            options += network_options(datamodule, network)
            found.append((len(options), file.stem != "s4d", str(file), options))  # the quickest layer
    if found:
        _, _, best, options = min(found)
        return " ".join(["lightning fit --config", shlex.quote(best), *options])
    options = [f"--data={cls.__name__}", *(fit_options(datamodule, {}, settings) or [])]
    return " ".join(["lightning fit --config CONFIG", *options])


def fit_options(datamodule: PreparedDataModule, own: dict[str, Any], settings: dict[str, Any]) -> list[str] | None:
    """What a configuration whose data has the arguments `own` must be told to find the data prepared with `settings`.

    None where it cannot find it: its files were changed or removed since.
    """
    cls = type(datamodule)
    defaults = {name: parameter.default for name, parameter in inspect.signature(cls).parameters.items()}
    settings = {name: value for name, value in settings.items() if name != "root"}
    others = {n: value for n, value in settings.items() if _plain(own.get(n, defaults.get(n))) != _plain(value)}

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


def network_options(datamodule: PreparedDataModule, network: dict[str, Any]) -> list[str]:
    """What a configuration whose network has the arguments `network` must be told to take the data's inputs."""
    manifest = datamodule.manifest()
    tokens = manifest.get("vocab_size") or len(manifest.get("vocabulary") or ())
    features, rows = getattr(datamodule, "d_input", None), getattr(datamodule, "vocab_size", None)
    needed: dict[str, Any] = {}
    if features is not None:
        needed = {"d_input": features, "vocab_size": None}
    elif rows or tokens:  # a network may have more rows than a vocabulary that is learnt
        enough = rows is None and (network.get("vocab_size") or 0) >= tokens
        needed = {"vocab_size": network.get("vocab_size") if enough else rows or tokens, "d_input": None}
    if not {"d_input", "vocab_size"} & network.keys():  # it takes numbers
        return []
    return [f"--model.network.{n}={_text(value)}" for n, value in needed.items() if network.get(n) != value]


def what_is_prepared(datamodule: PreparedDataModule, own: dict[str, Any]) -> str:
    """What `prepare` made of this dataset below the root, and the options that a configuration takes it with; else
    nothing."""
    found = []
    for folder in prepared_folders(datamodule.data_root):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # of another hand, or damaged
            known = json.loads((folder / SETTINGS).read_text())
            if known["class_path"] != _path(type(datamodule)):
                continue
            splits = open_prepared(folder).manifest["splits"]
            counts = ", ".join(f"{num_examples(split):,} {name}" for name, split in splits.items())
            options = fit_options(datamodule, own, known["init_args"])
            source = known["init_args"]["source"]
            found.append(
                f"{' '.join(options)} ({counts})" if options else f"{folder}, but {source} has changed or is gone"
            )
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"prepared there: {'; '.join(found[:_SHOWN])}{more}" if found else ""


def _configs(cls: type) -> Iterator[tuple[Path, dict[str, Any], dict[str, Any]]]:
    """Configurations for a dataset, each with the arguments that it gives it and the network."""
    here = Path("configs")
    folder = here if here.is_dir() else Path(lra_ssm.__file__).parents[1] / "configs"
    names = (_path(cls), f"{cls.__module__}.{cls.__name__}", cls.__name__)
    for file in sorted(folder.rglob("*.yaml")):
        with suppress(OSError, ValueError, yaml.YAMLError, AttributeError, TypeError, KeyError):  # or a part of one
            config = yaml.safe_load(file.read_text())
            data, network = config["data"], config["model"]["init_args"]["network"]
            if data["class_path"] in names:
                yield file, data.get("init_args") or {}, network.get("init_args") or {}


def _path(cls: type) -> str:
    return f"lra_ssm.datamodules.{cls.__name__}"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _text(value: Any) -> str:
    """As the command line reads it."""
    return value if isinstance(value, str) else json.dumps(_plain(value), separators=(",", ":"))
