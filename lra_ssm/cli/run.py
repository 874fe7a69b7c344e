"""fit, validate, test and predict: LightningCLI over a run directory.

The configuration says everything; a checkpoint never changes it. `fit` finds its run by the configuration's identity
and goes on from its last checkpoint; `validate`, `test` and `predict` find the same run and take its best one.
"""

import json
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from jsonargparse import Namespace
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from lra_ssm.callbacks import WritePredictions, fit_callbacks
from lra_ssm.checkpoints import ModelFiles
from lra_ssm.cli import COMMANDS
from lra_ssm.cli.help import description
from lra_ssm.cli.output import add_debug, place_tensorboard, quiet
from lra_ssm.cli.parser import RunParser, cause, freeze_specifications
from lra_ssm.cli.prepared import what_is_prepared
from lra_ssm.cli.starting import check_start_tokenizer, start_from
from lra_ssm.cli.trained import options_of_named
from lra_ssm.datamodules.base import PreparedDataModule
from lra_ssm.errors import InputError, in_user_code, squeeze
from lra_ssm.layers.spec import import_object
from lra_ssm.progress import shown_by_us
from lra_ssm.runs.checkpoints import AtomicCheckpointIO
from lra_ssm.runs.checks import (
    check_batches,
    check_callbacks,
    check_checkpoint,
    check_data,
    check_end,
    check_strategy,
    check_tokenizer,
    check_vocabulary,
    existing,
    load_checkpoint,
    newest,
)
from lra_ssm.runs.directory import RunDirectory
from lra_ssm.runs.failures import input_error
from lra_ssm.runs.identity import DATA_NEUTRAL, OPTIONS_NEUTRAL, run_identities
from lra_ssm.runs.inputs import changed_inputs, changed_weights
from lra_ssm.runs.run import Run, as_list, chosen_loggers, final_metrics, show_metrics
from lra_ssm.runs.saving import CheckpointSettings
from lra_ssm.runs.scores import record_score
from lra_ssm.runs.signals import Signals, Stopped, listening
from lra_ssm.runs.source import other_code, user_source
from lra_ssm.runs.trial import try_network
from lra_ssm.runs.wandb_logging import finish, identify, summarize

_OF_A_RUN = (None, "best", "last")  # values of --ckpt_path
# Of the command, not of the run that it starts.
_OF_THE_COMMAND = ("config", "fresh", "ckpt_path", "weights_only", "strict_resume", "allow_pickle")


class _Done(Exception):
    """Nothing is left to do; the command ends well."""


def main(command: str, arguments: list[str]) -> int:
    quiet()
    held: list[Run] = []
    with listening() as signals:
        patience: float | None = 0.0  # seconds that the processes beside this one have to end by themselves
        code = 2
        try:
            if command != "fit" and arguments and not arguments[0].startswith("-"):
                arguments = options_of_named(arguments[0], arguments[1:])
            RunCLI([command, *arguments], held, signals)
            patience, code = None, 0
        except _Done:
            pass
        except Stopped as stop:
            _close(held)
            signals.say_stopped(stop)
            if command != "fit":  # a fit has asked, if it has made a step; one that has not would be queued for ever
                signals.ask_for_requeue(stop.signum)
            signals.queue_again()
            for run in held:
                run.draw_curves()
            patience = 0.0 if signals.stopped_at is None else 10.0
            return stop.code
        except Exception as error:
            if isinstance(error, RuntimeError) and signals.lost_peer(error):
                return signals.say_lost()
            failure = input_error(error)
            for run in held:
                run.fail(str(failure or repr(error)))
            if failure in (None, error):
                raise
            raise failure from error
        finally:  # the same process may run another command
            signals.leave(code)
            _close(held)
            if patience is not None:
                signals.end_children(patience)
            for run in held:
                run.finish_loggers(code)
    return 0


def _close(held: list[Run]) -> None:
    for run in held:
        run.close()


class RunCLI(LightningCLI):
    """LightningCLI over a `Run`: what is fitted is one, what is scored belongs to one."""

    run: Run | None = None  # of a fit
    scored: RunDirectory | None = None  # of the other commands
    checkpoint: Path | None = None
    start: str | None = None  # what --init_from names, or the saved model that another command's --ckpt_path names
    initial: ModelFiles | None = None  # its files, where it is a saved model

    def __init__(self, args: list[str], held: list[Run], signals: Signals) -> None:
        """args: the command and its arguments; held: takes the run whose directory this process locks."""
        self.command, self.held, self.signals = args[0], held, signals
        about = description(COMMANDS[self.command][1])
        example = f"example: lightning {self.command} --config configs/quickstart.yaml"
        named = f"lra-ssm {self.command} NAME_OR_RUN"
        if self.command != "fit":
            example += f"\na run, or a saved model: {named} [--trust module.Class]"
        if self.command == "predict":
            example += f"\nfiles of your own: {named} FILE… (--help behind them says which)"
        super().__init__(
            parser_kwargs={self.command: {"description": about, "epilog": example}},
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
            args=args,
        )

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]  # a static method there
        """The command that runs: parsers for all four would take longer than reading its arguments."""
        return {self.command: super().subcommands()[self.command]}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        group = parser.add_argument_group("Run")
        group.add_argument(
            "--experiment", type=str, default="default", help="runs/<experiment>/<run_id>/ holds the run"
        )
        group.add_argument("--runs_dir", type=str, default="runs", help="folder of all runs")
        said = "weights that a new run starts from: a checkpoint, a saved model's folder, or a repository of the Hub"
        group.add_argument("--init_from", type=str | None, help=said)
        group.add_argument("--allow-pickle", action="store_true", help="take a saved model's weights from a pickle too")
        said = "start <run_id>-2, -3, … beside a finished run (of fit alone, as --strict-resume)"
        group.add_argument("--fresh", action="store_true", help=said)
        group.add_argument("--strict-resume", action="store_true", help="refuse to go on with other code")
        add_debug(group)
        parser.add_class_arguments(CheckpointSettings, "checkpoint")

    def _prepare_subcommand_parser(self, klass: Any, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        if subcommand == "predict":
            said = "split to predict; default: what the data module says, val for ours"
            parser.add_argument("--split", type=Literal["train", "val", "test"] | None, help=said)
        return parser

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        with warnings.catch_warnings():
            # It warns of `args` beside sys.argv; ours are sys.argv's.
            warnings.filterwarnings("ignore", message=".*LightningCLI's args parameter.*")
            super().parse_arguments(parser, args)
        seed = self.config[self.config.subcommand].seed_everything
        if isinstance(seed, bool) or not 0 <= seed < 2**32:
            raise InputError(
                f"seed_everything is {seed}; a run's identity has a seed: give a number from 0 to 2^32 - 1"
            )

    def _add_instantiators(self) -> None:
        """Lightning would replace the hyperparameters that modules save by the command's. Ours are plain values, the
        same whether built here or in Python. (An argument says so from Lightning 2.5.2 on.)"""

    def _parse_ckpt_path(self) -> None:
        """Lightning would take the model's settings from the checkpoint, over the file's and the flags'. We compare."""

    @property
    def _config(self) -> Any:
        return self.config[self.subcommand]

    def before_instantiate_classes(self) -> None:
        config = self._config
        # --init_from is one of the settings that a trained run is found by.
        of_fit = config.fresh or config.strict_resume
        if self.subcommand != "fit" and (of_fit or config.allow_pickle and config.ckpt_path in _OF_A_RUN):
            raise InputError(
                f"--fresh, --allow-pickle and --strict-resume belong to fit; tell {self.subcommand} --ckpt_path"
            )
        ids = self.resolve()
        if self.subcommand != "fit":
            self._find_trained_run(*ids)
        elif not config.trainer.fast_dev_run:  # which leaves nothing
            self._find_own_run(*ids)
        freeze_specifications(config.model)
        if directory := self.run or self.scored:
            place_tensorboard(config.trainer.logger, directory.path)

    def resolve(self) -> list[str]:
        """Takes the configuration as plain values; returns its run's id, and those that it may have had before."""
        if self.subcommand == "fit":
            check_end(self._config.trainer)
        dumped = self.parser.dump(self.config, skip_unset=False, skip_validation=True, format="json")
        self.resolved = json.loads(dumped)[self.subcommand]
        return run_identities(self.resolved, self._neutral())

    def _neutral(self) -> dict[str, Any]:
        """What cannot change a result, by section of the configuration."""
        data = self._config.data  # None where a user's model loads its own
        own = getattr(import_object(data.class_path), "neutral_settings", DATA_NEUTRAL) if data else ()
        return {"": OPTIONS_NEUTRAL, "checkpoint": CheckpointSettings.neutral, "data": own}

    # --- the run directory ---

    def _find_own_run(self, run_id: str, *former: str) -> None:
        """fit: this configuration's run, new or to be resumed. Writes nothing yet."""
        config = self._config
        self.run = run = Run.find(config.runs_dir, config.experiment, run_id, config.fresh, former)
        run.seed, run.source = config.seed_everything, user_source(self.resolved)
        if run.finished:
            inputs = self.changed_inputs(run.record)
            others = other_code(run.record, run.source) + (inputs and f"; warning: it was trained with {inputs}")
            print(f"{run.path} is finished (--fresh trains it again){others}")
            show_metrics(run.record.get("metrics", {}), run.record.get("of_last_batch", ()))
            raise _Done
        given = config.ckpt_path
        if own := newest(run.last, run.before_last):
            run.checkpoint = own
            if weights := changed_weights(run.record, config.init_from):
                print(squeeze(f"warning: {run.path} was begun with {weights}: it goes on from its own"))
        elif given == "last":
            raise InputError(f"--ckpt_path=last: {run.path} has no checkpoint yet; leave it out to start the run")
        elif given:
            run.checkpoint = existing(given)
        self.checkpoint = run.checkpoint
        self.start = run.begun_from = config.init_from if own is None and not given else None

    def changed_inputs(self, record: dict[str, Any]) -> str:
        """Which files of data and which starting weights are others than a recorded run's, as text."""
        command, config = self.subcommand, self._config
        alone = Namespace({command: Namespace(data=config.data)})
        return changed_inputs(record, lambda: self.parser.instantiate_classes(alone)[command].data, config.init_from)

    def _find_trained_run(self, run_id: str, *former: str) -> None:
        """validate, test, predict: the checkpoint to score, and its run where it is this configuration's."""
        config = self._config
        run = RunDirectory.find(config.runs_dir, config.experiment, run_id, former=former)
        given = config.ckpt_path
        if given in _OF_A_RUN:
            self.checkpoint = run.last if given == "last" else run.best
            if not self.checkpoint.is_file():
                raise InputError(
                    f"no run of this configuration has {self.checkpoint}; "
                    "fit it first with the same options, or give --ckpt_path=FILE"
                )
        elif Path(given).is_file() or given.endswith(".ckpt"):
            self.checkpoint = existing(given)
            run = RunDirectory(self.checkpoint.absolute().parent.parent)
        else:
            self.start = given
            return
        if (run.path / "run.json").is_file():
            self.scored = run

    # --- model, data, trainer ---

    def instantiate_classes(self) -> None:
        try:
            self.config_init = self.parser.instantiate_classes(self.config)
        except ValueError as error:  # a constructor refused its arguments; jsonargparse wraps what it said
            first = cause(error)
            refused = None if isinstance(first, InputError) else in_user_code(error)
            raise refused or InputError(str(first)) from error
        self.datamodule = self._get(self.config_init, "data")
        self.model = self._get(self.config_init, "model")
        check_data(self.model, self.datamodule)
        if self.subcommand == "predict" and self._config.split:
            if not hasattr(self.datamodule, "predict_split"):
                named = type(self.datamodule).__name__ if self.datamodule else "the model, which loads its own data,"
                raise InputError(f"--split: {named} has no predict_split; its predict_dataloader decides")
            self.datamodule.predict_split = self._config.split
        try:
            self.trainer = self.instantiate_trainer()
        except ValueError as error:
            raise InputError(squeeze(str(error))) from error
        check_strategy(self.trainer)
        self.signals.watch(self.trainer, self.run)
        self.signals.meet()  # before what takes long: weights that are fetched, data that is prepared
        if self.checkpoint is not None:
            code = user_source(self.resolved)
            check_checkpoint(self.checkpoint, self.model, self._config.strict_resume, self.subcommand == "fit", code)
        elif self.start:
            self.initial = start_from(self.start, self.model, self._config.allow_pickle)
        self.config_init[self.subcommand]["ckpt_path"] = str(self.checkpoint) if self.checkpoint else None
        self.config_init[self.subcommand]["weights_only"] = True

    def before_fit(self) -> None:
        """Takes the run directory and writes what the run starts from; bad input has been refused by now."""
        self._prepare_data()
        check_batches(self.trainer, self.datamodule)
        try_network(self.model, self.datamodule, self.trainer)
        if self.run is not None:
            config = {key: value for key, value in self.resolved.items() if key not in _OF_THE_COMMAND}
            self.held.append(self.run)
            self.run.begin(config, self.trainer, self.model, self.datamodule)

    def _prepare_data(self) -> None:
        """By every process: those that come second wait for the first here, where nothing times out, and a node with
        a data root of its own prepares it."""
        if self.datamodule is not None:
            prepared = ""
            if isinstance(self.datamodule, PreparedDataModule) and not self.datamodule.is_prepared():
                prepared = what_is_prepared(self.datamodule, self.resolved["data"].get("init_args", {}))
            if prepared and self.datamodule.source == "generated":
                print(squeeze(f"note: generating what this configuration says; {prepared}"), file=sys.stderr)
            try:
                self.datamodule.prepare_data()
            except InputError as error:
                raise InputError(f"{error}; {prepared}" if prepared else str(error)) from error
            check_vocabulary(self.model, self.datamodule)
            if self.checkpoint is not None:
                check_tokenizer(self.checkpoint, self.datamodule)
            elif self.start:
                check_start_tokenizer(self.start, self.initial, self.datamodule)

    def _before_scoring(self) -> None:
        self._prepare_data()
        if self.trainer.loggers and self.checkpoint is not None:
            with suppress(Exception):  # a checkpoint from elsewhere has none, or others
                # What is logged belongs to the step that is scored; Lightning would say 0.
                self.trainer.fit_loop.load_state_dict(load_checkpoint(self.checkpoint)["loops"]["fit_loop"])

    before_validate = _before_scoring
    before_test = _before_scoring
    before_predict = _prepare_data

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        config, run, fit = self._get(self.config_init, "trainer"), self.run, self.subcommand == "fit"
        callbacks = as_list(config.get("callbacks"))
        check_callbacks(callbacks)
        callbacks += shown_by_us(config, callbacks)
        loggers: Any = False
        if run is not None:
            run.checkpoints = self._get(self.config_init, "checkpoint")
            callbacks += run.callbacks(callbacks)
            loggers = run.loggers(config.get("logger"))
        elif fit:
            callbacks += fit_callbacks(self._config.seed_everything, callbacks)
        else:
            loggers = chosen_loggers(config.get("logger"))
            if self.scored is not None:
                identify(loggers, self.scored, self.scored.record)
        directory = run or self.scored
        if self.subcommand == "predict":
            # A checkpoint from outside a run directory gets its predictions into the working folder.
            split = getattr(self.datamodule, "predict_split", None)
            name = f"predictions-{split}.csv" if split else "predictions.csv"
            callbacks.append(WritePredictions((directory.path if directory else Path()) / name))
        return super().instantiate_trainer(
            callbacks=callbacks,
            logger=loggers,
            plugins=[*as_list(config.get("plugins")), AtomicCheckpointIO(scoring=not fit)],
            default_root_dir=str(directory.path) if directory else None,
            enable_checkpointing=run is not None,
            enable_model_summary=False,  # ours is among the callbacks, or the user's
            **kwargs,
        )

    def after_fit(self) -> None:
        if self.run is not None:
            self.run.end(self.trainer)

    def _after_evaluation(self) -> None:
        if not self.trainer.is_global_zero:
            return
        if self.scored is not None:
            metrics = final_metrics(self.trainer)
            part = "val" if self.subcommand == "validate" else self.subcommand
            limit = getattr(self._config.trainer, f"limit_{part}_batches")
            record_score(self.scored, self.command, str(self.checkpoint), metrics, limit, self.datamodule)
            # The fit's again: synced after it, an offline piece's summary takes the place of the one before.
            summarize(self.trainer.loggers, {**self.scored.record.get("metrics", {}), **metrics})
        finish(self.trainer.loggers, 0)

    after_validate = _after_evaluation
    after_test = _after_evaluation
