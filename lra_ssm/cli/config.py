"""The configuration of fit, validate, test and predict: read, checked; and what it describes, built."""

import copy
import inspect
import json
import re
import traceback
from collections.abc import Sequence
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import yaml
from jsonargparse import SUPPRESS, ArgumentError, Namespace
from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.cli import LightningArgumentParser

from lra_ssm.cli.command import expected
from lra_ssm.cli.help import CHOICES, Help, describe
from lra_ssm.cli.merge import MergedConfig, check_value, find_class
from lra_ssm.datamodules.base import PreparedData
from lra_ssm.errors import InputError, chain, hint
from lra_ssm.layers import ModuleSpec
from lra_ssm.layers.spec import annotations, import_object, public_path, wants_specification
from lra_ssm.runs import CheckpointSettings
from lra_ssm.runs.compute import ComputeSettings
from lra_ssm.runs.directory import choose_directory
from lra_ssm.runs.identity import (
    CHECKPOINT_NEUTRAL,
    DATA_NEUTRAL,
    OPTIONS_NEUTRAL,
    SEED,
    plain,
    run_identity,
)

FLAGS = ("--fresh", "--strict-resume", "--allow-pickle")  # of a command, without a value
_OPTIONS = ("--estimate", "--split", "--output")  # of a command, with a value


def read_config(command: str, arguments: Sequence[str]) -> "Config":
    """Read and check the options of a command; nothing is drawn, built or run.

    Raises InputError for what the options say, and SystemExit for `--help`, `--print_config` and `….help`.
    """
    arguments = list(arguments)
    parser = _parser(command)
    if any(each in ("-h", "--help") for each in arguments):
        parser.print_help()
        raise SystemExit(0)
    merged = MergedConfig(_sections())
    flags, printing = dict[str, Any](), False
    # --estimate may be without a value
    pairs = zip(arguments, [*arguments, "--"][1:], strict=True)
    given = iter([f"{a}=H100" if a == "--estimate" and after.startswith("--") else a for a, after in pairs])
    for argument in given:
        option, equals, text = argument.partition("=")
        value: str | None = text
        if option in FLAGS or option.startswith("--print_config"):
            printing |= option.startswith("--print_config")
            flags[option.strip("-").replace("-", "_")] = True
        elif option.endswith(".help"):
            _explain(command, option, text if equals else next(given, ""))
        elif not option.startswith("-"):
            raise InputError(f"unexpected argument {argument!r}; options begin with --")
        else:
            if not equals:
                value = next(given, None)
            text = _check_option(command, option, value)
            if option in ("--config", "-c"):
                merged.add_file(text)
            elif option in _OPTIONS:
                flags[option.strip("-")] = text
            else:
                merged.add_option(option.removeprefix("--"), text)
    config = Config(command, arguments, merged.finished(), flags)
    if printing:
        flags.pop("print_config", None)
        print(yaml.safe_dump(config.resolved, sort_keys=False, allow_unicode=True), end="")
        raise SystemExit(0)
    return config


def read_fit_options(options: Sequence[str]) -> "Config":
    """Read the options of `lra-ssm fit`."""
    return read_config("fit", options)


def build_data(config: dict[str, Any] | None, options: Sequence[str]) -> Any:
    """Build a data module from `{class_path, init_args}` and options (--data=CLASS, --data.NAME=VALUE) over it.

    Returns None if there is neither. Raises InputError for what the options say, or if the class refuses it.
    """
    merged = MergedConfig({"data": None}, {"data": copy.deepcopy(config)} if config else None)
    for option in options:
        name, _, text = option.partition("=")
        merged.add_option(name.removeprefix("--"), text)
    if not merged.config:
        return None
    parser = LightningArgumentParser(exit_on_error=False)
    parser.add_lightning_class_args(LightningDataModule, "data", subclass_mode=True)
    checked = check_value(merged.config["data"], LightningModule, "data")
    return instantiate(parser, _parse(parser, {"data": checked})).data


def _parse(parser: LightningArgumentParser, merged: dict[str, Any]) -> Namespace:
    try:
        return parser.parse_object(merged)
    except ArgumentError as error:
        raise InputError(_wrong_value(error)) from error


def instantiate(parser: LightningArgumentParser, config: Namespace) -> Any:
    """Build what a configuration names. Raises InputError if a constructor of ours or Lightning's refuses arguments."""
    try:
        return parser.instantiate_classes(config)
    except (ValueError, ModuleNotFoundError) as error:  # jsonargparse wraps what a constructor said
        errors = chain(error)
        if refusal := next((each for each in errors if _is_refusal(each)), None):
            raise InputError(str(refusal)) from error
        raise errors[-1] from None  # of a user's class, with its own traceback


def _check_option(command: str, option: str, text: str | None) -> str:
    """Return the option's value. Raises InputError if it has none, or is not one of the command's."""
    own = {"fit": ["--estimate"], "predict": ["--split", "--output"]}.get(command, [])
    name = option.removeprefix("--").rstrip("+").partition(".")[0]
    known = [f"--{each}" for each in _sections()] + ["--config", *own, *FLAGS]
    if f"--{name}" not in known and option not in (*known, "-c"):
        raise InputError(f"unknown option {option}; {hint(f'--{name}', known, 'there are')}")
    if text is None:
        raise InputError(f"{option}: a value is missing")
    return text


@cache
def _sections() -> dict[str, Any]:
    """The names at the top of a configuration and what takes the names below them."""
    groups = {"trainer": Trainer, "model": None, "data": None, "checkpoint": CheckpointSettings}
    return {**groups, "compute": ComputeSettings, **dict.fromkeys((SEED, *_TOP))}


_TOP = {
    "experiment": (str, "default", "runs/<experiment>/<run_id>/ holds the run"),
    "runs_dir": (str, "runs", "folder of all runs"),
    "init_from": (str | None, None, "weights that a new run starts from: a checkpoint, a saved model, or its name"),
    "init_from_without": (str | None, None, "modules that keep their own initial values: head, or several with commas"),
    "ckpt_path": (str | None, None, "best, last, or a file; default: last.ckpt to resume, best.ckpt to score"),
    "check_layer": (bool, True, "refuse a layer that reads the future in a language model, or padding, before a fit"),
}


@cache
def _parser(command: str) -> LightningArgumentParser:
    """The parser that checks a merged configuration; its options are only shown."""
    parser = LightningArgumentParser(
        prog=f"lightning {command}", formatter_class=Help, exit_on_error=False, allow_abbrev=False
    )
    describe(parser, command)
    parser.add_argument(f"--{SEED}", type=int, default=0, help="seed of all random numbers; part of the run's identity")
    for name, (kind, default, about) in _TOP.items():
        parser.add_argument(f"--{name}", type=kind, default=default, help=about)
    parser.add_lightning_class_args(Trainer, "trainer")
    for action in parser._actions:
        # typing may return int | float as another module wrote it, float first: 1 (one batch) would be 1.0 (all).
        if getattr(action, "_typehint", None) == int | float | None:
            action._typehint = int | float | None  # type: ignore[attr-defined]
    parser.add_lightning_class_args(LightningModule, "model", subclass_mode=True)
    parser.add_lightning_class_args(LightningDataModule, "data", subclass_mode=True, required=False)
    parser.add_class_arguments(CheckpointSettings, "checkpoint")
    parser.add_class_arguments(ComputeSettings, "compute")
    titles = {"trainer": "Trainer (Lightning's own; its documentation says more)", "model": "Model", "data": "Data"}
    assert parser.groups is not None
    for name, title in titles.items():
        parser.groups[name].title = title
    return parser


# What the model gives a class of each kind, and a configuration does not.
_BUILDER_GIVES = {"layer": {"d_model"}, "block": {"d_model", "layer"}, "pooling": {"d_model"},
                  "head": {"d_model", "num_classes"}, "embedding": {"vocab_size", "d_model"}}  # fmt: skip


def _explain(command: str, option: str, name: str) -> NoReturn:
    """Print the options of a class: `--model.network.layer.help S6`."""
    key = option.removeprefix("--").removesuffix(".help")
    ours = [cls.__name__ for cls in CHOICES.get(f"--{key}", ())]
    cls = find_class(name, option) if name else None
    if cls is None and ours:
        raise InputError(f"{option}: {f'no class {name!r}; ' if name else 'give a class; '}{hint(name, ours)}")
    if cls is None:
        _parser(command).parse_args([option, name])  # a class of Lightning's by its short name
        raise SystemExit(0)
    parser = LightningArgumentParser(prog="", formatter_class=Help, usage=SUPPRESS, add_help=False)
    parser.add_class_arguments(cls, key, skip=_BUILDER_GIVES.get(key.rpartition(".")[2], set()))
    assert parser.groups is not None
    parser.groups[key].title = "options"
    parser.description = f"{public_path(cls)}: {inspect.getdoc(cls) or ''}"
    print(parser.format_help())
    raise SystemExit(0)


class Built(NamedTuple):
    """What a configuration describes."""

    task: LightningModule
    data: Any  # None if the task loads its own
    trainer: dict[str, Any]  # the user's arguments
    checkpoints: CheckpointSettings
    compute: ComputeSettings


class Config:
    """A checked configuration: `given` as a Namespace, `resolved` as plain values with every default.

    options: what belongs to the command and not to the run (fresh, allow_pickle, split, …).
    """

    def __init__(self, command: str, arguments: list[str], merged: dict[str, Any], options: dict[str, Any]) -> None:
        self.command, self.arguments, self.options, self._parser = command, arguments, options, _parser(command)
        self.given: Any = _parse(self._parser, merged)
        seed = self.given[SEED]
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**32:
            raise InputError(f"{SEED} is {seed}; give a number from 0 to 2^32 - 1: it is part of the run's identity")
        self.resolved = plain(self.given)
        self.run_config = {name: value for name, value in self.resolved.items() if name not in ("config", "ckpt_path")}
        self.checkpoints = CheckpointSettings(**self.resolved["checkpoint"])

    @property
    def neutral(self) -> dict[str, Any]:
        """Names that cannot change a result, by section of the configuration."""
        data = self.given.data  # None if a user's model loads its own
        own = getattr(import_object(data.class_path), "neutral_settings", DATA_NEUTRAL) if data else ()
        return {"": OPTIONS_NEUTRAL, "checkpoint": CHECKPOINT_NEUTRAL, "data": own}

    @property
    def path(self) -> Path:
        """The directory of this configuration's run."""
        folder = Path(self.given.runs_dir) / self.given.experiment
        return choose_directory(folder, run_identity(self.resolved, self.neutral), self.options.get("fresh", False))

    @property
    def data_settings(self) -> dict[str, Any]:
        """The data's settings that decide what is prepared."""
        data = self.resolved["data"]
        affects = getattr(import_object(data["class_path"]), "affects", {})
        return {name: value for name, value in data["init_args"].items() if affects.get(name, "data") == "data"}

    @property
    def stored_data(self) -> str:
        """A text that is the same for runs on the same prepared data; empty if nothing is prepared."""
        data = self.resolved["data"]
        if not data or not issubclass(import_object(data["class_path"]), PreparedData):
            return ""
        return json.dumps([data["class_path"], self.data_settings], sort_keys=True)

    def data(self) -> Any:
        """Build the data module; None if the model loads its own data."""
        return instantiate(self._parser, Namespace(data=self.given.data)).data

    def build(self, run: Path | None) -> Built:
        """Build what is described, once and with the seed. run: the directory in which TensorBoard writes.

        Raises InputError if a constructor of this package refuses its arguments.
        """
        config = self.given.clone()
        freeze_specifications(config.model)
        if run is not None:
            place_tensorboard(config.trainer.logger, run)
        seed_everything(config[SEED], workers=True)
        built = instantiate(self._parser, config)
        return Built(built.model, built.data, {**built.trainer}, built.checkpoint, built.compute)


def _is_refusal(error: BaseException) -> bool:
    """Whether this package, Lightning or torch raised the error because of an argument; or a package is missing."""
    if isinstance(error, (InputError, ModuleNotFoundError)):
        return True
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    package = frames[-1].f_globals.get("__name__", "").partition(".")[0] if frames else ""
    return isinstance(error, ValueError) and package in ("lra_ssm", "lightning", "torch", "torchmetrics")


def _wrong_value(error: BaseException) -> str:
    """The keys that lead to a wrong value, and what is wrong with it: jsonargparse repeats both at each level.

    https://github.com/mauvilsa/jsonargparse/issues/695
    """
    errors = chain(error)
    found = [(i, key[1]) for i, e in enumerate(errors) if type(e) is TypeError and (key := _KEY.match(str(e)))]
    within = [str(each) for each in errors[found[-1][0] + 1 if found else 0 :] if isinstance(each, ValueError)]
    unions = [text for text in within if "Subtypes: " in text]
    simple = [text for text in unions if "Problem with" not in text and "expects a" not in text]
    message = expected((simple or within or [str(errors[-1])])[0 if simple else -1])
    return f"{'.'.join(key for _, key in found)}: {message}" if found else message


_KEY = re.compile(r'Parser key "([^"]+)"')


def freeze_specifications(model: Namespace) -> None:
    """Give the model what it takes as a specification as one, not as jsonargparse's anonymous function."""
    settings, cls = model.get("init_args", {}), import_object(model.class_path)
    known = annotations(cls)
    for name, parameter in inspect.signature(cls).parameters.items():
        value = settings.get(name)
        if parameter.annotation is parameter.empty and isinstance(value, Namespace) and "class_path" in value:
            raise InputError(
                f"{cls.__name__} takes {name!r} without a type, so that it is not built: annotate it, `{name}:"
                " NetworkFactory` (from lra_ssm.layers.spec import NetworkFactory)"
            )
        if name in settings and value is None and is_dataclass(known.get(name)):
            raise InputError(f"model.{name} is null; give its settings, or leave it out for its defaults")
        if value is not None and wants_specification(known.get(name)):
            settings[name] = _specification(value)


def _specification(value: Any) -> Any:
    if isinstance(value, list):
        return [_specification(item) for item in value]
    if isinstance(value, dict):
        return {name: _specification(item) for name, item in value.items()}
    return ModuleSpec.of(value.as_dict()) if isinstance(value, Namespace) else value


def place_tensorboard(given: Any, run: Path) -> None:
    """Let TensorBoard loggers of a configuration write into the run's directory unless it says where."""
    undecided = {"name": "lightning_logs", "version": None, "save_dir": "."}
    ours = {"name": "tensorboard", "version": "", "save_dir": str(run)}
    for logger in given if isinstance(given, list) else [given]:
        if getattr(logger, "class_path", "").rpartition(".")[2] == "TensorBoardLogger":
            for key, value in ours.items():
                if logger.init_args.get(key) == undecided[key]:
                    logger.init_args[key] = value
