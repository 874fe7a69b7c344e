"""fit, validate, test and predict: LightningCLI over a run directory.

The configuration says everything; a checkpoint never changes it. `fit` finds its run by the configuration's identity
and goes on from its last checkpoint; `validate`, `test` and `predict` find the same run and take its best one.
"""

import copy
import json
import os
import warnings
from pathlib import Path
from typing import Any, Literal

import yaml
from jsonargparse import Namespace
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar, RichProgressBar, Timer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import MisconfigurationException, SIGTERMException

from lra_ssm.callbacks import (
    AtomicCheckpointIO,
    CSVRunLogger,
    SaveBest,
    SaveLast,
    SeedByStep,
    ShowOptimizerGroups,
    StopOnNonFinite,
    Throughput,
    WritePredictions,
)
from lra_ssm.cli.checks import (
    cause,
    check_data,
    check_same_data,
    check_shapes,
    check_vocabulary,
    differing_settings,
    existing,
    load_checkpoint,
    squeeze,
)
from lra_ssm.cli.output import place_loggers, quiet, show_metrics
from lra_ssm.cli.parser import RunParser, without_trainer_defaults
from lra_ssm.cluster import RunDirectory, code_version, environment, run_identity, write_json
from lra_ssm.errors import InputError
from lra_ssm.layers import LayerSpec

# Set by the first process for the ones that Lightning starts beside it (DDP): they share its run directory.
_RUN_PATH = "LRA_SSM_RUN_PATH"


class _Done(Exception):
    """Nothing is left to do; the command ends well."""


def main(command: str, arguments: list[str]) -> int:
    quiet()
    held: list[RunDirectory] = []
    try:
        RunCLI([command, *arguments], held)
    except _Done:
        pass
    except (InputError, MisconfigurationException, PermissionError) as error:
        reason = squeeze(str(error))
        if isinstance(error, PermissionError):
            reason = f"{error.filename}: cannot be read or written ({error.strerror})"
        for run in held:
            run.write_record(status="failed", reason=reason)
        raise InputError(reason) from error
    except SIGTERMException:  # Slurm, before the time is up: the run goes on when it is started again
        return 143
    finally:  # the same process may run another command
        for run in held:
            if run.record.get("status") == "started":
                run.write_record(status="interrupted")
            os.environ.pop(_RUN_PATH)
            run.release()
    return 0


class RunCLI(LightningCLI):
    """LightningCLI whose optimizer groups, checkpoints and logs are the run directory's."""

    run_directory: RunDirectory | None = None
    checkpoint: Path | None = None

    def __init__(self, args: list[str], held: list[RunDirectory]) -> None:
        """args: the command and its arguments; held: takes the run directory that this process locks."""
        self.held = held
        epilog = "example: lightning {} --config configs/quickstart.yaml"
        super().__init__(
            parser_kwargs={command: {"epilog": epilog.format(command)} for command in self.subcommands()},
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

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        group = parser.add_argument_group("Run")
        group.add_argument(
            "--experiment", type=str, default="default", help="runs/<experiment>/<run_id>/ holds the run"
        )
        group.add_argument("--runs_dir", type=str, default="runs", help="folder of all runs")
        group.add_argument("--init_from", type=str | None, help="checkpoint whose weights a new run starts from")
        group.add_argument("--fresh", action="store_true", help="start <run_id>-2, -3, … beside a finished run")
        group.add_argument("--strict-resume", action="store_true", help="refuse to go on with other code")
        group.add_argument("--checkpoint.every_n_steps", type=int, default=500, help="steps between saves of last.ckpt")
        group.add_argument("--checkpoint.monitor", type=str, default="val/accuracy", help="metric of best.ckpt")
        group.add_argument("--checkpoint.mode", type=Literal["min", "max"], default="max", help="what is best")

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
        if self.subcommand != "fit" and (config.fresh or config.init_from or config.strict_resume):
            raise InputError(
                f"--fresh, --init_from and --strict-resume belong to fit; tell {self.subcommand} --ckpt_path"
            )
        if config.checkpoint.every_n_steps < 1:
            raise InputError(f"checkpoint.every_n_steps is {config.checkpoint.every_n_steps}; it must be at least 1")
        trainer = config.trainer
        endless = trainer.max_epochs == -1 or (trainer.max_epochs is None and trainer.max_time is not None)
        if self.subcommand == "fit" and endless and trainer.max_steps == -1:
            raise InputError("the schedule spans the run, so give trainer.max_epochs or trainer.max_steps")
        dumped = self.parser.dump(self.config, skip_unset=False, skip_validation=True, format="json")
        self.resolved = json.loads(dumped)[self.subcommand]
        run_id = run_identity(without_trainer_defaults(self.resolved))
        if self.subcommand != "fit":
            self._find_trained_run(run_id)
        elif not config.trainer.fast_dev_run:  # which leaves nothing
            self._find_own_run(run_id)
        self._freeze_layers()
        if self.run_directory is not None:
            place_loggers(self._config.trainer.logger, self.run_directory.path, self._config.experiment)

    def _freeze_layers(self) -> None:
        """Layer specifications reach the model as such, not as jsonargparse's anonymous functions."""
        settings = self._config.model.get("init_args", {})
        layer = settings.get("layer")
        if hasattr(layer, "class_path"):
            settings["layer"] = LayerSpec(layer.class_path, **layer.get("init_args", Namespace()).as_dict())

    # --- the run directory ---

    def _find_own_run(self, run_id: str) -> None:
        """fit: this configuration's run, new or to be gone on with. Writes nothing yet."""
        config = self._config
        if path := os.environ.get(_RUN_PATH):
            self.run_directory = run = RunDirectory(Path(path))
        else:
            self.run_directory = run = RunDirectory.find(config.runs_dir, config.experiment, run_id, config.fresh)
            if run.finished:
                print(f"{run.path} is finished (--fresh trains it again)")
                show_metrics(run.record.get("metrics", {}))
                raise _Done
        given = config.ckpt_path
        if run.last.is_file():
            self.checkpoint = run.last
        elif given == "last":
            raise InputError(f"--ckpt_path=last: {run.path} has no checkpoint yet; leave it out to start the run")
        elif given:
            self.checkpoint = existing(given)

    def _find_trained_run(self, run_id: str) -> None:
        """validate, test, predict: the checkpoint to score, and its run where it is this configuration's."""
        config = self._config
        run = RunDirectory.find(config.runs_dir, config.experiment, run_id)
        given = config.ckpt_path
        if given in (None, "best", "last"):
            self.checkpoint = run.last if given == "last" else run.best
            if not self.checkpoint.is_file():
                raise InputError(
                    f"no run of this configuration has {self.checkpoint}; "
                    "fit it first with the same options, or give --ckpt_path=FILE"
                )
        else:
            self.checkpoint = existing(given)
            run = RunDirectory(self.checkpoint.absolute().parent.parent)
        if run.record:
            self.run_directory = run

    # --- model, data, trainer ---

    def instantiate_classes(self) -> None:
        try:
            self.config_init = self.parser.instantiate_classes(self.config)
        except ValueError as error:  # a constructor refused its arguments; jsonargparse wraps what it said
            raise InputError(squeeze(str(cause(error)))) from error
        self.datamodule = self._get(self.config_init, "data")
        self.model = self._get(self.config_init, "model")
        check_data(self.model, self.datamodule)
        if self.checkpoint is not None:
            self._check_checkpoint(self.checkpoint, load_checkpoint(self.checkpoint))
        elif self.subcommand == "fit" and self._config.init_from:
            source = existing(self._config.init_from)
            state = load_checkpoint(source)
            check_shapes(self.model, state, source)
            self.model.load_state_dict(state["state_dict"])
        self.config_init[self.subcommand]["ckpt_path"] = str(self.checkpoint) if self.checkpoint else None
        self.config_init[self.subcommand]["weights_only"] = True
        try:
            self.trainer = self.instantiate_trainer()
        except ValueError as error:
            raise InputError(squeeze(str(error))) from error

    def before_fit(self) -> None:
        """Takes the run directory and writes what the run starts from; bad input has been refused by now."""
        run = self.run_directory
        self._prepare_data()
        if run is None or not _is_first_process():
            return
        if self.checkpoint == run.last and hasattr(self.datamodule, "manifest"):
            check_same_data(run.path, run.record.get("data") or {}, self.datamodule.manifest())
        if _RUN_PATH not in os.environ:
            run.lock()
            if run.finished or run.last.is_file() != (self.checkpoint == run.last):
                run.release()
                raise InputError(f"{run.path} was trained by another process just now; start again")
            self.held.append(run)
            os.environ[_RUN_PATH] = str(run.path)
        run.save_config(self._dump())
        starts = [*run.record.get("starts", []), environment()]
        record = {"run_id": run.path.name, "experiment": self._config.experiment, "status": "started", "starts": starts}
        if hasattr(self.datamodule, "manifest"):
            record["data"] = self.datamodule.manifest()
            print(self.datamodule.describe())
        run.write_record(**record)
        print(f"run {run.path}" + (f", going on from {self.checkpoint}" if self.checkpoint else ""), flush=True)
        for logger in self.trainer.loggers:
            if isinstance(logger, CSVRunLogger):
                logger.forget_from(int(load_checkpoint(self.checkpoint)["global_step"]) if self.checkpoint else 0)
            logger.log_hyperparams(self.resolved)  # Lightning logs the model's settings alone

    def _prepare_data(self) -> None:
        """By every process: those that come second wait for the first here, where nothing times out, and a node with
        a data root of its own prepares it."""
        if self.datamodule is not None:
            self.datamodule.prepare_data()
            check_vocabulary(self.model, self.datamodule)

    before_validate = _prepare_data
    before_test = _prepare_data
    before_predict = _prepare_data

    def _check_checkpoint(self, path: Path, state: dict[str, Any]) -> None:
        """Settings and code of the checkpoint against ours: an error for fit, else a note."""
        fit = self.subcommand == "fit"
        if differing := differing_settings(self.model, state):
            line = f"{path} was made with other settings: {differing}"
            if fit:
                raise InputError(f"{line}; give the same to go on with it, or --init_from to start from its weights")
            print(f"note: {line}")
        check_shapes(self.model, state, path)
        made_by = state.get("lra_ssm_code_version")
        if fit and made_by != code_version():
            line = f"{path} was made by lra_ssm {made_by}, this is {code_version()}"
            if self._config.strict_resume:
                raise InputError(f"{line}; --strict-resume refuses to go on")
            print(f"warning: {line}: the run may not end as it would have")

    def _dump(self) -> str:
        """The resolved configuration as YAML that `fit --config` takes."""
        config = copy.deepcopy(self.resolved)
        for key in ("config", "fresh", "ckpt_path", "weights_only", "strict_resume"):
            config.pop(key, None)
        return yaml.safe_dump(config, sort_keys=False)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        config = self._get(self.config_init, "trainer")
        run = self.run_directory
        given = config.get("callbacks") or []
        callbacks = list(given) if isinstance(given, list) else [given]
        loggers: Any = False
        if config.get("enable_progress_bar") is not False and not any(isinstance(c, ProgressBar) for c in callbacks):
            callbacks.append(RichProgressBar())
        if self.subcommand == "fit":
            callbacks += [
                SeedByStep(self._config.seed_everything),
                StopOnNonFinite(),
                ShowOptimizerGroups(),
                Throughput(),
            ]
            if run is not None:
                loggers = self._loggers(config.get("logger"), run)
                callbacks += self._checkpoints(run)
        else:
            loggers = _chosen(config.get("logger"))
        if self.subcommand == "predict":
            # A checkpoint from outside a run directory gets its predictions into the working folder.
            callbacks.append(WritePredictions((run.path if run else Path()) / "predictions.csv"))
        plugins = config.get("plugins") or []
        plugins = [*(plugins if isinstance(plugins, list) else [plugins]), AtomicCheckpointIO()]
        root = str(run.path) if run else None
        return super().instantiate_trainer(
            callbacks=callbacks,
            logger=loggers,
            plugins=plugins,
            default_root_dir=root,
            enable_checkpointing=run is not None and self.subcommand == "fit",
            **kwargs,
        )

    def _checkpoints(self, run: RunDirectory) -> list[Any]:
        config = self._config.checkpoint
        best = SaveBest(
            dirpath=run.best.parent,
            filename=run.best.stem,
            monitor=config.monitor,
            mode=config.mode,
            enable_version_counter=False,
            save_on_train_epoch_end=False,
        )
        return [best, SaveLast(run.last, config.every_n_steps, code_version())]

    def _loggers(self, given: Any, run: RunDirectory) -> Any:
        """metrics.csv, and what the configuration names beside it; nothing for `logger: false`."""
        if given is False:
            return False
        # Ours is last: `self.logger` in a module is the one that its user chose.
        return [*_chosen(given), CSVRunLogger(run.path / "metrics.csv")]

    def after_fit(self) -> None:
        run = self.run_directory
        if run is None or not self.trainer.is_global_zero or self.trainer.interrupted:
            return
        metrics = {name: float(value) for name, value in sorted(self.trainer.callback_metrics.items())}
        best = self.trainer.checkpoint_callback
        if isinstance(best, ModelCheckpoint) and best.best_model_score is not None:
            metrics[f"best {best.monitor}"] = float(best.best_model_score)
        timers = [c for c in self.trainer.callbacks if isinstance(c, Timer)]  # type: ignore[attr-defined]
        left = [timer.time_remaining() for timer in timers]
        status = "stopped by max_time" if any(t is not None and t <= 0 for t in left) else "finished"
        run.write_record(status=status, metrics=metrics)
        print(f"{status}: {run.path}")
        show_metrics(metrics)

    def _after_evaluation(self) -> None:
        run = self.run_directory
        if run is None or not self.trainer.is_global_zero:
            return
        metrics = {name: float(value) for name, value in sorted(self.trainer.callback_metrics.items())}
        result: dict[str, Any] = {"checkpoint": str(self.checkpoint), "metrics": metrics}
        if hasattr(self.datamodule, "provenance"):
            result["data"] = self.datamodule.provenance()
        write_json(run.path / f"{self.subcommand}.json", result)

    after_validate = _after_evaluation
    after_test = _after_evaluation


def _chosen(logger: Any) -> list[Any]:
    """The loggers that a configuration names."""
    return logger if isinstance(logger, list) else [] if logger in (None, True, False) else [logger]


def _is_first_process() -> bool:
    return getattr(rank_zero_only, "rank", 0) == 0
