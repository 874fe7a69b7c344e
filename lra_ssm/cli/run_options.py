"""The options of fit, validate, test and predict: read, checked, as plain values; and what they describe, made.

LightningCLI reads them and makes the objects; what is done with these is in `run.py`.
"""

import json
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml
from jsonargparse import Namespace, set_dumper
from lightning.pytorch import LightningDataModule, LightningModule, seed_everything
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from lra_ssm.cli import COMMANDS
from lra_ssm.cli.help import Help, description
from lra_ssm.cli.output import add_debug, place_tensorboard
from lra_ssm.cli.parser import RunParser, cause, freeze_specifications
from lra_ssm.cli.prepared_settings import LOADING, other_source
from lra_ssm.datamodules.base import PreparedData
from lra_ssm.errors import InputError, in_user_code
from lra_ssm.layers.spec import import_object
from lra_ssm.progress import quiet
from lra_ssm.runs.checks import check_end
from lra_ssm.runs.compute import ComputeSettings
from lra_ssm.runs.directory import RunDirectory
from lra_ssm.runs.identity import DATA_NEUTRAL, OPTIONS_NEUTRAL, SEED, plain, run_identities
from lra_ssm.runs.saving import CheckpointSettings
from lra_ssm.runs.source import changed_inputs
from lra_ssm.shipped import find

_CONFIG = ("--config", "-c")
set_dumper("plain", lambda values: values)  # plain values are what jsonargparse hands to the dumper of any format


class Made(NamedTuple):
    """What the options describe."""

    task: LightningModule
    data: Any  # None where the task loads its own
    trainer: dict[str, Any]  # the arguments that are the user's
    checkpoints: CheckpointSettings
    compute: ComputeSettings
    method: dict[str, Any]  # further arguments of the Trainer's method


def _configs(arguments: list[str]) -> Iterator[tuple[int, str, str]]:
    """Of every --config its place among the arguments, what stands before its value there, and the value."""
    for i, argument in enumerate(arguments):
        option, equals, value = argument.partition("=")
        if equals and option in _CONFIG:
            yield i, f"{option}=", value
        elif i and arguments[i - 1] in _CONFIG:
            yield i, "", argument


def _with_shipped_configs(arguments: list[str]) -> list[str]:
    """The arguments with files for the names of configs: --config lra/listops/b2s6.

    Raises InputError: neither a file of that name is there nor a config of ours.
    """
    found = [*arguments]
    for i, before, value in _configs(arguments):
        is_there = Path(value).exists() and not Path(value).is_dir()
        if re.fullmatch(r"\w[\w./-]*", value) and not is_there:  # else a file, or YAML itself
            found[i] = f"{before}{find('config', value)}"
    return found


def _check_yaml(arguments: list[str]) -> None:
    """Which config is no YAML, which jsonargparse does not say. Raises InputError."""
    for file in [Path(value) for _, _, value in _configs(arguments) if os.path.isfile(value)]:
        try:
            yaml.compose(file.read_bytes(), yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
            raise InputError(f"{file}{line}: this is no YAML: {error.problem}") from error
        except yaml.YAMLError as error:
            raise InputError(f"{file}: this is no YAML: {error}") from error


class RunOptions(LightningCLI):
    """The options of a command, read and checked; nothing is drawn, made or run yet.

    The methods that begin with _ are private to LightningCLI, seen in Lightning 2.6.6.
    Raises InputError for what the options say, not for files or data.
    """

    resolved: dict[str, Any]  # the configuration as plain values
    other_source = ""  # of the data, where it is prepared from that alone: see `other_source`

    def __init__(self, command: str, arguments: list[str], of_prepare: bool = False) -> None:
        self.command, self.arguments, self._of_prepare = command, arguments, of_prepare
        about = description(COMMANDS[command][1])
        example = f"example: lightning {command} --config quickstart"
        named = f"lra-ssm {command} NAME_OR_RUN"
        if command != "fit":
            example += f"\na run, or a saved model: {named} [--trust module.Class]"
        arguments = _with_shipped_configs(arguments)
        try:
            self._read(command, arguments, about, example)
        except (InputError, UnicodeDecodeError, yaml.YAMLError):
            _check_yaml(arguments)
            raise

    def _read(self, command: str, arguments: list[str], about: str, example: str) -> None:
        super().__init__(
            parser_kwargs={command: {"description": about, "epilog": example}},
            parser_class=RunParser,
            subclass_mode_model=True,
            subclass_mode_data=True,
            model_class=LightningModule,
            datamodule_class=LightningDataModule,
            # The run directory keeps the configuration, and a second start with it is no error.
            save_config_callback=None,
            # `--optimizer` would replace the parameter groups by one flat group.
            auto_configure_optimizers=False,
            seed_everything_default=0,
            args=[command, *arguments],
        )

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]  # a static method there
        """The command that runs: parsers for all four would take longer than reading its arguments."""
        return {self.command: super().subcommands()[self.command]}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        group = parser.add_argument_group("Run")
        said = "runs/<experiment>/<run_id>/ holds the run"
        group.add_argument("--experiment", type=str, default="default", help=said)
        group.add_argument("--runs_dir", type=str, default="runs", help="folder of all runs")
        said = "weights that a new run starts from: a checkpoint, a saved model's folder, or a repository of the Hub"
        group.add_argument("--init_from", type=str | None, help=said)
        group.add_argument("--allow-pickle", action="store_true", help="take a saved model's weights from a pickle too")
        said = "start <run_id>-2, -3, … beside a finished run (of fit alone, as --strict-resume)"
        group.add_argument("--fresh", action="store_true", help=said)
        group.add_argument("--strict-resume", action="store_true", help="refuse to go on with other code")
        add_debug(group)
        parser.add_class_arguments(CheckpointSettings, "checkpoint")
        parser.add_class_arguments(ComputeSettings, "compute")

    def _prepare_subcommand_parser(self, klass: Any, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        if subcommand == "fit":
            said = "say what a training step costs, how long it takes this GPU at least (H100), and train nothing"
            parser.add_argument("--estimate", type=str | None, nargs="?", const="H100", metavar="GPU", help=said)
        if subcommand == "predict":
            said = "split to predict; default: what the data module says, val for ours"
            parser.add_argument("--split", type=Literal["train", "val", "test"] | None, help=said)
            said = "CSV file, replaced where it exists; default: predictions-<split>.csv in the run's directory"
            parser.add_argument("--output", type=str | None, metavar="FILE", help=said)
        return parser

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        asked = [option for text in self.arguments if (option := text.partition("=")[0]).endswith(".help")]
        Help.explained = asked[0].removesuffix(".help") if asked else ""
        with warnings.catch_warnings():
            # It warns of `args` beside sys.argv; ours are sys.argv's.
            warnings.filterwarnings("ignore", message=".*LightningCLI's args parameter.*")
            super().parse_arguments(parser, args)
        seed = self.given.seed_everything
        if isinstance(seed, bool) or not 0 <= seed < 2**32:
            raise InputError(f"{SEED} is {seed}; a run's identity has a seed: give a number from 0 to 2^32 - 1")

    # What LightningCLI does behind the parser is done by `make`, or not at all.

    def _add_instantiators(self) -> None:
        """Lightning would replace the hyperparameters that modules save by the command's; ours are as in Python:
        https://github.com/Lightning-AI/pytorch-lightning/issues/20432"""

    def _parse_ckpt_path(self) -> None:
        """Lightning would prefer the checkpoint's settings to the given ones; we compare:
        https://github.com/Lightning-AI/pytorch-lightning/pull/21455"""

    def _set_seed(self) -> None: ...

    def before_instantiate_classes(self) -> None:
        if self.command == "fit":
            check_end(self.given.trainer)
        if self.given.data and not self._of_prepare:
            settings = self.given.data.get("init_args") or Namespace()
            self.other_source = other_source(self.given.data.class_path, vars(settings))
            if self.other_source:
                settings.source = self.other_source
        dumped: Any = self.parser.dump(self.config, skip_unset=False, skip_validation=True, format="plain")
        self.resolved = plain(dumped[self.command], "the configuration")

    def instantiate_classes(self) -> None: ...

    def _run_subcommand(self, subcommand: str) -> None: ...

    # --- what the options say ---

    @property
    def given(self) -> Any:
        """The options of the command, as a namespace."""
        return self.config[self.command]

    @property
    def neutral(self) -> dict[str, Any]:
        """What cannot change a result, by section of the configuration."""
        data = self.given.data  # None where a user's model loads its own
        own = getattr(import_object(data.class_path), "neutral_settings", DATA_NEUTRAL) if data else ()
        return {"": OPTIONS_NEUTRAL, "checkpoint": CheckpointSettings.neutral, "data": own}

    @property
    def path(self) -> Path:
        """The directory of this configuration's run."""
        given = self.given
        run_id, *former = run_identities(self.resolved, self.neutral)
        return RunDirectory.find(given.runs_dir, given.experiment, run_id, given.fresh, former).path

    @property
    def data_settings(self) -> dict[str, Any]:
        """The data's settings that decide what is prepared."""
        settings = self.resolved["data"].get("init_args", {})
        return {name: value for name, value in settings.items() if name not in LOADING}

    @property
    def stored_data(self) -> str:
        """Of runs on the same prepared data the same text; empty where nothing is prepared."""
        data = self.resolved["data"]
        if not data or not issubclass(import_object(data["class_path"]), PreparedData):
            return ""
        return json.dumps([data["class_path"], self.data_settings], sort_keys=True)

    def changed_inputs(self, record: dict[str, Any]) -> str:
        """Which files of data and which starting weights are others than a recorded run's, as text."""
        return changed_inputs(record, self.data, self.given.init_from)

    # --- what they describe ---

    def data(self) -> Any:
        """The data module; None where the model loads its own data."""
        return self._instantiated(Namespace({self.command: Namespace(data=self.given.data)})).data

    def make(self, run: Path | None) -> Made:
        """Makes what the options describe, once and with their seed. run: the directory in which TensorBoard writes.

        Raises InputError where a constructor refuses its arguments."""
        freeze_specifications(self.given.model)
        if run is not None:
            place_tensorboard(self.given.trainer.logger, run)
        seed_everything(self.given.seed_everything, workers=True)
        made = self._instantiated(self.config)
        names = {*self._subcommand_method_arguments[self.command]} - {"ckpt_path", "weights_only"}
        method = {name: made[name] for name in names if name in made}
        return Made(made.model, made.data, {**made.trainer}, made.checkpoint, made.compute, method)

    def _instantiated(self, config: Namespace) -> Any:
        try:
            return self.parser.instantiate_classes(config)[self.command]
        except ValueError as error:  # jsonargparse wraps what a constructor said
            first = cause(error)
            if isinstance(first, InputError):
                raise InputError(str(first)) from error
            raise in_user_code(error) or InputError(str(first)) from error


def read_fit_options(options: list[str], of_prepare: bool = False) -> RunOptions:
    """The options of `lra-ssm fit`, read and checked; raises InputError as fit does for what they say.

    of_prepare: the data is what the options say, not what is prepared instead."""
    quiet()
    return RunOptions("fit", options, of_prepare)
