"""fit, validate, test and predict: LightningCLI over a run directory.

The configuration says everything; a checkpoint never changes it. `fit` finds its run by the configuration's identity
and goes on from its last checkpoint; `validate`, `test` and `predict` find the same run and take its best one.
"""

import copy
import json
import logging
import os
import warnings
from pathlib import Path
from typing import Any, Literal

import torch
from jsonargparse import Namespace
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from lra_ssm.callbacks import (
    AtomicCheckpointIO,
    CSVRunLogger,
    SaveLast,
    SeedByStep,
    ShowOptimizerGroups,
    StopOnNonFinite,
    Throughput,
    WritePredictions,
)
from lra_ssm.cli.parser import RunParser
from lra_ssm.cluster import RunDirectory, code_version, environment, run_identity, write_json
from lra_ssm.errors import InputError
from lra_ssm.layers import LayerSpec

# Set by the first process for the ones that Lightning starts beside it (DDP): they share its run directory.
_RUN_PATH = "LRA_SSM_RUN_PATH"


def fit(arguments: list[str]) -> int:
    return _run("fit", arguments)


def validate(arguments: list[str]) -> int:
    return _run("validate", arguments)


def test(arguments: list[str]) -> int:
    return _run("test", arguments)


def predict(arguments: list[str]) -> int:
    return _run("predict", arguments)


class _Done(Exception):
    """Nothing is left to do; the command ends well."""


def _run(command: str, arguments: list[str]) -> int:
    _quiet()
    try:
        RunCLI(args=[command, *arguments])
    except _Done:
        pass
    except MisconfigurationException as error:
        raise InputError(_squeeze(str(error))) from error
    return 0


class RunCLI(LightningCLI):
    """LightningCLI whose optimizer groups, checkpoints and logs are the run directory's."""

    run_directory: RunDirectory | None = None
    checkpoint: Path | None = None

    def __init__(self, args: list[str]) -> None:
        super().__init__(
            parser_class=RunParser,
            subclass_mode_model=True,
            subclass_mode_data=True,
            model_class=LightningModule,
            datamodule_class=LightningDataModule,
            # The run directory keeps the configuration, and a second start with it is no error.
            save_config_callback=None,
            # Our modules' hyperparameters are plain values, the same whether built here or in Python.
            load_from_checkpoint_support=False,
            # `--optimizer` would replace the parameter groups by one flat group.
            auto_configure_optimizers=False,
            # Sharding is the sampler's work; Lightning's would be a second one.
            trainer_defaults={"use_distributed_sampler": False},
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

    def _parse_ckpt_path(self) -> None:
        """Lightning would take the model's settings from the checkpoint, over the file's and the flags'. We compare."""

    @property
    def _config(self) -> Any:
        return self.config[self.subcommand]

    def before_instantiate_classes(self) -> None:
        if self._config.seed_everything is False:
            raise InputError("seed_everything is false; a run's identity has a seed: give a number")
        dumped = self.parser.dump(self.config, skip_none=False, skip_validation=True, format="json")
        self.resolved = json.loads(dumped)[self.subcommand]
        run_id = run_identity(self.resolved)
        if self.subcommand == "fit":
            self._find_own_run(run_id)
        else:
            self._find_trained_run(run_id)
        self._freeze_layers()
        self._place_loggers()

    def _freeze_layers(self) -> None:
        """Layer specifications reach the model as such, not as jsonargparse's anonymous functions."""
        settings = self._config.model.get("init_args", {})
        layer = settings.get("layer")
        if hasattr(layer, "class_path"):
            settings["layer"] = LayerSpec(layer.class_path, **layer.get("init_args", Namespace()).as_dict())

    def _place_loggers(self) -> None:
        """wandb and TensorBoard loggers learn the run's identity where the configuration leaves it open."""
        run, given = self.run_directory, self._config.trainer.logger
        if run is None:
            return
        for logger in given if isinstance(given, list) else [given]:
            name = getattr(logger, "class_path", "").rpartition(".")[2]
            if name == "WandbLogger":  # the fixed id makes a requeued job go on in the same wandb run
                ours = {
                    "id": run.path.name,
                    "name": f"{self._config.experiment}/{run.path.name}",
                    "save_dir": str(run.path),
                }
                defaults: dict[str, Any] = {"id": None, "name": None, "save_dir": "."}
            elif name == "TensorBoardLogger":
                ours, defaults = {"save_dir": str(run.path), "name": "tensorboard", "version": ""}, {
                    "save_dir": ".", "name": "lightning_logs", "version": None}  # fmt: skip
            else:
                continue
            for key, value in ours.items():
                if logger.init_args.get(key) == defaults[key]:
                    logger.init_args[key] = value

    # --- the run directory ---

    def _find_own_run(self, run_id: str) -> None:
        """fit: this configuration's run, new or to be gone on with. Writes nothing yet."""
        config = self._config
        if path := os.environ.get(_RUN_PATH):
            self.run_directory = run = RunDirectory(Path(path))
        else:
            self.run_directory = run = RunDirectory.find(config.runs_dir, config.experiment, run_id, config.fresh)
            if run.finished:
                print(f"{run.path} is finished (--fresh trains it again):")
                for name, value in run.record.get("metrics", {}).items():
                    print(f"  {name:<20} {value:.6g}")
                raise _Done
        given = config.ckpt_path
        if run.last.is_file():
            self.checkpoint = run.last
        elif given == "last":
            raise InputError(f"--ckpt_path=last: {run.path} has no checkpoint yet; leave it out to start the run")
        elif given:
            self.checkpoint = _existing(given)

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
            self.checkpoint = _existing(given)
        if run.path.is_dir():
            self.run_directory = run

    # --- model, data, trainer ---

    def instantiate_classes(self) -> None:
        try:
            self.config_init = self.parser.instantiate_classes(self.config)
        except ValueError as error:  # a constructor refused its arguments; jsonargparse wraps what it said
            raise InputError(_squeeze(str(_first_cause(error)))) from error
        self.datamodule = self._get(self.config_init, "data")
        self.model = self._get(self.config_init, "model")
        if self.checkpoint is not None:
            state = _load(self.checkpoint)
            self._check_settings(state)
            _check_shapes(self.model, state, self.checkpoint)
            if self.subcommand == "fit":
                self._check_code(state)
        elif self.subcommand == "fit" and self._config.init_from:
            source = _existing(self._config.init_from)
            state = _load(source)
            _check_shapes(self.model, state, source)
            self.model.load_state_dict(state["state_dict"])
        self.config_init[self.subcommand]["ckpt_path"] = str(self.checkpoint) if self.checkpoint else None
        self.config_init[self.subcommand]["weights_only"] = True
        self.trainer = self.instantiate_trainer()

    def before_fit(self) -> None:
        """Takes the run directory and writes what the run starts from; bad input has been refused by now."""
        run = self.run_directory
        assert run is not None
        if not _is_first_process():
            return
        if self.datamodule is not None:
            self.datamodule.prepare_data()
        if _RUN_PATH not in os.environ:
            run.lock()
            os.environ[_RUN_PATH] = str(run.path)
            if run.finished or run.last.is_file() != (self.checkpoint == run.last):
                raise InputError(f"{run.path} was trained by another process just now; start again")
        run.save_config(self._dump())
        starts = [*run.record.get("starts", []), environment()]
        run.write_record(run_id=run.path.name, experiment=self._config.experiment, status="started", starts=starts)
        print(f"run {run.path}" + (f", going on from {self.checkpoint}" if self.checkpoint else ""), flush=True)
        for logger in self.trainer.loggers:
            if isinstance(logger, CSVRunLogger):
                logger.forget_from(int(_load(self.checkpoint)["global_step"]) if self.checkpoint else 0)
            logger.log_hyperparams(self.resolved)  # Lightning logs the model's settings alone

    def _check_settings(self, state: dict[str, Any]) -> None:
        """The model's settings in the checkpoint and in the configuration are the same, or one line says which not."""
        ours = dict(self.model.hparams)
        theirs = state.get("hyper_parameters") or {}
        differing = sorted(key for key in ours.keys() & theirs.keys() if ours[key] != theirs[key])
        if not differing:
            return
        pairs = ", ".join(f"{key} {theirs[key]!r} there, {ours[key]!r} here" for key in differing)
        where = f"{self.checkpoint} was made with other settings: {pairs}"
        if self.subcommand == "fit":
            raise InputError(f"{where}; give the same ones to go on with it, or --init_from to start from its weights")
        print(f"note: {where}")

    def _check_code(self, state: dict[str, Any]) -> None:
        before = state.get("lra_ssm_code_version")
        if before == code_version():
            return
        line = f"{self.checkpoint} was made by lra_ssm {before}, this is {code_version()}"
        if self._config.strict_resume:
            raise InputError(f"{line}; --strict-resume refuses to go on")
        print(f"warning: {line}: the run may not end as it would have")

    def _dump(self) -> str:
        """The resolved configuration as YAML that `fit --config` takes."""
        import yaml

        config = copy.deepcopy(self.resolved)
        for key in ("config", "fresh", "ckpt_path", "weights_only", "strict_resume"):
            config.pop(key, None)
        return yaml.safe_dump(config, sort_keys=False)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        config = self._get(self.config_init, "trainer")
        run = self.run_directory
        if run is None:  # a checkpoint from elsewhere: nothing is written
            return super().instantiate_trainer(logger=False, enable_checkpointing=False)
        callbacks = list(config.get("callbacks") or [])
        loggers: Any = False
        if self.subcommand == "fit":
            loggers = self._loggers(config.get("logger"), run)
            callbacks += [
                SeedByStep(self._config.seed_everything),
                StopOnNonFinite(),
                ShowOptimizerGroups(),
                Throughput(),
            ]
            if not config.get("fast_dev_run"):
                callbacks += self._checkpoints(run)
        elif self.subcommand == "predict":
            callbacks.append(WritePredictions(run.path / "predictions.csv"))
        plugins = config.get("plugins") or []
        plugins = [*(plugins if isinstance(plugins, list) else [plugins]), AtomicCheckpointIO()]
        return super().instantiate_trainer(
            callbacks=callbacks, logger=loggers, plugins=plugins, default_root_dir=str(run.path), **kwargs
        )

    def _checkpoints(self, run: RunDirectory) -> list[Any]:
        config = self._config.checkpoint
        best = ModelCheckpoint(
            dirpath=run.best.parent,
            filename=run.best.stem,
            monitor=config.monitor,
            mode=config.mode,
            enable_version_counter=False,
            save_on_train_epoch_end=False,
        )
        return [best, SaveLast(run.last, config.every_n_steps, code_version())]

    def _loggers(self, given: Any, run: RunDirectory) -> Any:
        """metrics.csv always; beside it what the configuration names, told the run's identity."""
        if given is False:
            return False
        more = given if isinstance(given, list) else [given] if given not in (None, True) else []
        return [CSVRunLogger(run.path / "metrics.csv"), *more]

    def after_fit(self) -> None:
        run = self.run_directory
        assert run is not None
        if (
            not self.trainer.is_global_zero
            or self.trainer.interrupted
            or self._get(self.config_init, "trainer").get("fast_dev_run")
        ):
            return
        metrics = {name: float(value) for name, value in sorted(self.trainer.callback_metrics.items())}
        best = self.trainer.checkpoint_callback
        if isinstance(best, ModelCheckpoint) and best.best_model_score is not None:
            metrics[f"best {best.monitor}"] = float(best.best_model_score)
        run.write_record(status="finished", metrics=metrics)
        print(f"finished: {run.path}")

    def _after_evaluation(self) -> None:
        run = self.run_directory
        if run is None or not self.trainer.is_global_zero:
            return
        metrics = {name: float(value) for name, value in sorted(self.trainer.callback_metrics.items())}
        write_json(run.path / f"{self.subcommand}.json", {"checkpoint": str(self.checkpoint), "metrics": metrics})

    after_validate = _after_evaluation
    after_test = _after_evaluation


def _is_first_process() -> bool:
    return getattr(rank_zero_only, "rank", 0) == 0


def _first_cause(error: BaseException) -> BaseException:
    while cause := error.__cause__ or error.__context__:
        error = cause
    return error


def _squeeze(text: str) -> str:
    return " ".join(text.split())


def _existing(path: str) -> Path:
    file = Path(path)
    if not file.is_file():
        raise InputError(f"checkpoint {path} does not exist")
    return file


def _load(path: Path) -> dict[str, Any]:
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise InputError(f"checkpoint {path} cannot be read: {_squeeze(str(error))[:200]}") from error


def _check_shapes(model: LightningModule, state: dict[str, Any], path: Path) -> None:
    ours = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    theirs = {name: tuple(value.shape) for name, value in state.get("state_dict", {}).items()}
    wrong = [
        f"{name} is {theirs.get(name, 'missing')} in the checkpoint, {ours.get(name, 'missing')} in the model"
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name)
    ]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise InputError(f"checkpoint {path} is of another shape: {wrong[0]}{more}")


def _quiet() -> None:
    """Silences what tells a user nothing here."""
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*Checkpoint directory .* exists and is not empty.*")

    class NoAdvertisement(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            # It suggests a package that overwrites the `lightning` command.
            return "litlogger" not in record.getMessage().lower()

    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(NoAdvertisement())
