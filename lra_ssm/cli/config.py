"""Read and check the configuration of fit, validate, test and predict, and build what it describes."""

import copy
import inspect
import re
import traceback
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import yaml
from jsonargparse import SUPPRESS, ArgumentError, ArgumentParser, Namespace
from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.cli import LightningArgumentParser
from torch import nn

from lra_ssm.cli.command import Help, expected
from lra_ssm.cli.merge import CHOICES, RUN_FOLDER, MergedConfig, check_value, find_class
from lra_ssm.errors import InputError, chain, hint
from lra_ssm.layers import ModuleSpec
from lra_ssm.layers.spec import annotations, import_object, public_path, wants_specification
from lra_ssm.runs import CheckpointSettings
from lra_ssm.runs.compute import ComputeSettings
from lra_ssm.runs.directory import choose_directory
from lra_ssm.runs.identity import SEED, plain, run_identity
from lra_ssm.runs.run import as_list

_SINGLE = {
    SEED: (int, 0, "seed of all random numbers; part of the run's identity"),
    "experiment": (str, "default", "runs/<experiment>/<run_id>/ holds the run"),
    "runs_dir": (str, "runs", "folder of all runs"),
    "init_from": (str | None, None, "weights that a new run starts from: a checkpoint, a saved model, or its name"),
    "init_from_without": (str | None, None, "modules that keep their own initial values: head, or several with commas"),
    "ckpt_path": (str | None, None, "best, last, or a file; default: last.ckpt to resume, best.ckpt to score"),
    "check_layer": (bool, True, "refuse a layer that reads the future in a language model, or padding, before a fit"),
}
# The names at the top of a configuration, and what takes the names below them.
_SECTIONS = {"trainer": Trainer, "model": None, "data": None, "checkpoint": CheckpointSettings,
             "compute": ComputeSettings, **dict.fromkeys(_SINGLE)}  # fmt: skip
# Arguments that the model passes to a class of each kind; a configuration does not set them.
_BUILDER_GIVES = {"layer": {"d_model"}, "block": {"d_model", "layer"}, "pooling": {"d_model"},
                  "head": {"d_model", "num_classes"}, "embedding": {"vocab_size", "d_model"}}  # fmt: skip
_KEY = re.compile(r'Parser key "([^"]+)"')


def read_fit_options(options: Sequence[str]) -> "Config":
    """Read and check the settings of a run, `--name=value`, in their order; this builds and runs nothing.

    Raises InputError if a setting is wrong, SystemExit for `--print_config` and `….help`.
    """
    merged = MergedConfig(_SECTIONS)
    for option in options:
        name, _, text = option.partition("=")
        if name.endswith(".help"):
            _explain(name, text)
        elif name in ("--config", "-c"):
            merged.add_file(text)
        elif name != "--print_config":
            merged.add_option(option)
    config = Config(list(options), merged.finished())
    if "--print_config" in options:
        print(yaml.safe_dump(config.resolved, sort_keys=False, allow_unicode=True), end="")
        raise SystemExit(0)
    return config


def build_data(config: dict[str, Any] | None, options: Sequence[str]) -> Any:
    """Build a data module from `{class_path, init_args}` and options (--data=CLASS, --data.NAME=VALUE) over it.

    Returns None if there is neither. Raises InputError if an option is wrong, or if the class refuses it.
    """
    merged = MergedConfig({"data": None}, {"data": copy.deepcopy(config)} if config else None)
    for option in options:
        merged.add_option(option)
    if not merged.config:
        return None
    parser = LightningArgumentParser(exit_on_error=False)
    parser.add_lightning_class_args(LightningDataModule, "data", subclass_mode=True)
    return _instantiate(parser, _parse(parser, {"data": check_value(merged.config["data"], nn.Module, "data")})).data


def add_sections(parser: Any) -> None:
    """Add all settings of a configuration to a parser."""
    for name, (kind, default, about) in _SINGLE.items():
        parser.add_argument(f"--{name}", type=kind, default=default, help=about)
    parser.add_class_arguments(Trainer, "trainer", fail_untyped=False, instantiate=False, sub_configs=True)
    for action in parser._actions:
        # typing may return float | int if another module wrote it so: then 1 (one batch) would become 1.0 (all).
        if getattr(action, "_typehint", None) == int | float | None:
            action._typehint = int | float | None
    parser.add_subclass_arguments(LightningModule, "model", fail_untyped=False, required=True)
    parser.add_subclass_arguments(LightningDataModule, "data", fail_untyped=False, required=False)
    parser.add_class_arguments(CheckpointSettings, "checkpoint")
    parser.add_class_arguments(ComputeSettings, "compute")
    titles = {"trainer": "Trainer (Lightning's own; its documentation says more)", "model": "Model", "data": "Data"}
    for name, title in titles.items():
        parser.groups[name].title = title


@cache
def _parser() -> LightningArgumentParser:
    """Return the parser that checks a merged configuration."""
    parser = LightningArgumentParser(exit_on_error=False)
    add_sections(parser)
    return parser


def _explain(option: str, name: str) -> NoReturn:
    """Print the options of a class: `--model.network.layer.help=S6`. Raises InputError for an unknown class."""
    key = option.removeprefix("--").removesuffix(".help")
    cls = find_class(name, option)
    if cls is None:
        known_names = [each.__name__ for each in CHOICES.get(f"--{key}", ())]
        raise InputError(f"{option}: no class {name!r}; {hint(name, known_names)}")
    parser = ArgumentParser(prog="", formatter_class=Help, usage=SUPPRESS, add_help=False)
    parser.add_class_arguments(cls, key, skip=_BUILDER_GIVES.get(key.rpartition(".")[2], set()))
    assert parser.groups is not None
    parser.groups[key].title = "options"
    parser.description = f"{public_path(cls)}: {inspect.getdoc(cls) or ''}"
    print(parser.format_help())
    raise SystemExit(0)


class Built(NamedTuple):
    """The objects that a configuration describes."""

    task: LightningModule
    data: Any  # None if the task loads its own
    trainer: dict[str, Any]  # the user's arguments
    checkpoints: CheckpointSettings
    compute: ComputeSettings


class Config:
    """A checked configuration: `given` as a Namespace, `resolved` as plain values with every default.

    Args:
        options: the options as the user gave them.
        merged: the configuration that results from them.
    """

    def __init__(self, options: list[str], merged: dict[str, Any]) -> None:
        if not merged.get("model"):
            remedy = "give --config CONFIG (`lra-ssm configs` lists ours), or --model and --data"
            raise InputError(f"no model is given: {remedy}")
        self.options, self.given = options, _parse(_parser(), merged)
        seed: Any = self.given[SEED]
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**32:
            raise InputError(f"{SEED} is {seed}; give a number from 0 to 2^32 - 1: it is part of the run's identity")
        self.resolved = plain(self.given)
        self.run_config = {name: value for name, value in self.resolved.items() if name != "ckpt_path"}
        self.checkpoints = CheckpointSettings(**self.resolved["checkpoint"])

    @property
    def path(self) -> Path:
        """The directory of this configuration's run."""
        return self.directory()

    def directory(self, fresh: bool = False) -> Path:
        """Return the directory of this configuration's run. fresh: choose a new one next to a finished run."""
        folder = Path(self.given.runs_dir) / self.given.experiment
        return choose_directory(folder, run_identity(self.resolved), fresh)

    def data(self) -> Any:
        """Build the data module; None if the model loads its own data."""
        return _instantiate(_parser(), Namespace(data=self.given.data)).data

    def build(self, run: Path | None) -> Built:
        """Seed all random numbers and build task, data and trainer arguments. run: the directory for TensorBoard.

        Raises InputError if a constructor of this package refuses its arguments.
        """
        config = self.given.clone()
        _freeze_specifications(config.model)
        for logger in as_list(config.trainer.logger):
            if (settings := getattr(logger, "init_args", {})).get("save_dir") == RUN_FOLDER:
                settings["save_dir"] = str(run)
        seed_everything(config[SEED], workers=True, verbose=False)
        built = _instantiate(_parser(), config)
        return Built(built.model, built.data, {**built.trainer}, built.checkpoint, built.compute)


# -- jsonargparse --------------------------------------------------------------------------------------------------


def _parse(parser: LightningArgumentParser, merged: dict[str, Any]) -> Namespace:
    try:
        return parser.parse_object(merged)
    except ArgumentError as error:
        raise InputError(_wrong_value(error)) from error


def _wrong_value(error: BaseException) -> str:
    """Return the keys that lead to a wrong value, and what is wrong with it; jsonargparse repeats both at each level.

    https://github.com/mauvilsa/jsonargparse/issues/695
    """
    errors = chain(error)
    keys = [(i, key[1]) for i, e in enumerate(errors) if type(e) is TypeError and (key := _KEY.match(str(e)))]
    within = [str(each) for each in errors[keys[-1][0] + 1 if keys else 0 :] if isinstance(each, ValueError)]
    unions = [text for text in within if "Subtypes: " in text]
    simple = [text for text in unions if "Problem with" not in text and "expects a" not in text]
    message = expected((simple or within or [str(errors[-1])])[0 if simple else -1])
    return f"{'.'.join(key for _, key in keys)}: {message}" if keys else message


def _instantiate(parser: LightningArgumentParser, config: Namespace) -> Any:
    """Build what a configuration names. Raises InputError if a constructor of ours or Lightning's refuses arguments."""
    try:
        return parser.instantiate_classes(config)
    except (ValueError, ModuleNotFoundError) as error:  # jsonargparse wraps what a constructor said
        errors = chain(error)
        if refusal := next((each for each in errors if _is_refusal(each)), None):
            raise InputError(str(refusal)) from error
        raise errors[-1] from None  # an error in a user's class, with its own traceback


def _is_refusal(error: BaseException) -> bool:
    """Whether this package, Lightning or torch raised the error because of an argument; or a package is missing."""
    if isinstance(error, (InputError, ModuleNotFoundError)):
        return True
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    package = frames[-1].f_globals.get("__name__", "").partition(".")[0] if frames else ""
    return isinstance(error, ValueError) and package in ("lra_ssm", "lightning", "torch", "torchmetrics")


def _freeze_specifications(model: Namespace) -> None:
    """Turn every argument that the model takes as a specification into a ModuleSpec.

    jsonargparse would pass an anonymous function.
    """
    settings, cls = model.get("init_args", {}), import_object(model.class_path)
    known = annotations(cls)
    for name, parameter in inspect.signature(cls).parameters.items():
        value = settings.get(name)
        if parameter.annotation is parameter.empty and isinstance(value, Namespace) and "class_path" in value:
            raise InputError(
                f"{cls.__name__} takes {name!r} without a type, so that it is not built: annotate it, `{name}:"
                " NetworkFactory` (from lra_ssm.layers.spec import NetworkFactory)"
            )
        if value is not None and wants_specification(known.get(name)):
            settings[name] = _specification(value)


def _specification(value: Any) -> Any:
    if isinstance(value, list):
        return [_specification(item) for item in value]
    if isinstance(value, dict):
        return {name: _specification(item) for name, item in value.items()}
    return ModuleSpec.of(value.as_dict()) if isinstance(value, Namespace) else value
