"""A run: a fit in its directory, from a command or from a notebook."""

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, Timer
from lightning.pytorch.utilities import rank_zero_only

from lra_ssm.callbacks import LEARNING_RATE, OVERRIDING, fit_callbacks
from lra_ssm.errors import InputError, describe_error, to_one_line
from lra_ssm.files import replacing, sha256, write_json
from lra_ssm.progress import display_arguments, quiet
from lra_ssm.runs.checkpoints import AtomicCheckpointIO, CheckpointSettings, SaveBest, SaveLast, load_checkpoint
from lra_ssm.runs.checks import check_before_fit, check_begun_from, check_trainer, validate_setup
from lra_ssm.runs.curves import draw_curves
from lra_ssm.runs.directory import RunDirectory
from lra_ssm.runs.identity import (
    SEED,
    TRAINER_NEUTRAL,
    differences,
    neutral_data,
    plain,
    result_settings,
    set_beyond_defaults,
)
from lra_ssm.runs.loggers import CSVRunLogger, WriteProgress, begin, finish, identify, summarize
from lra_ssm.runs.provenance import (
    CONFIG,
    SOURCE,
    VERSION,
    changed_weights,
    code_version,
    environment,
    now,
    other_code,
    user_source,
    weight_digests,
)
from lra_ssm.runs.record import changed_data, read_metrics, read_object
from lra_ssm.runs.stop import StopOnSignal, Stopped, requeue
from lra_ssm.tables import wrapped


class Run(RunDirectory):
    """A fit in its directory, which is locked from its start to its end; nothing is written before.

    In a notebook, where the user chooses its name:

        run = Run("runs/mine/a")
        trainer = Trainer(**run.trainer_arguments(max_epochs=3))
        metrics = run.fit(trainer, task, data)

    Args:
        path: the directory.
        checkpoints: which checkpoints it keeps.
        config: the resolved configuration; None to record the settings of the Trainer, the task and the data.
    """

    def __init__(
        self, path: str | Path, checkpoints: CheckpointSettings | None = None, config: dict[str, Any] | None = None
    ) -> None:
        super().__init__(path)
        self.checkpoints, self.config = checkpoints or CheckpointSettings(), config
        self.source: dict[str, str] = {}  # digests of the user's code
        self._trainer_arguments: dict[str, Any] = {}  # the Trainer's arguments
        self._begun = False  # whether this attempt is in the record
        self._loggers: Sequence[Any] = ()

    def changed_settings(self) -> str:
        """Return which settings differ from those that the run began with, as text. Defaults may have changed, too."""
        if not (before := self.began_with):
            return ""
        began, now_ = (result_settings(each, neutral_data(each)) for each in (before, self.config or {}))
        return ", ".join(differences(began, now_))

    # -- the Trainer -----------------------------------------------------------------------------------------------

    def trainer_arguments(self, **given: Any) -> dict[str, Any]:
        """Return the arguments of a Trainer: the given ones, and those that a run adds.

        A run adds seeds by step, a stop on NaN, the table of groups, throughput, progress.json, best.ckpt and
        last.ckpt. It adds metrics.csv to the given loggers, unless `logger` is False.
        Raises InputError for a Trainer without an end, and for fast_dev_run.
        """
        quiet()
        check_trainer(given)
        if given.get("fast_dev_run"):
            raise InputError("fast_dev_run saves nothing: use it in a Trainer without a run")
        self._trainer_arguments, callbacks = given, as_list(given.get("callbacks"))
        for callback in callbacks:
            # Otherwise Lightning would use a folder named after a logger.
            if isinstance(callback, ModelCheckpoint) and callback.dirpath is None:
                callback.dirpath = str(self.path / "own_checkpoints")
        best = SaveBest(
            dirpath=self.best.parent, filename=self.best.stem, monitor=self.checkpoints.monitor,
            mode=self.checkpoints.mode, enable_version_counter=False, save_on_train_epoch_end=False,
        )  # fmt: skip
        last = SaveLast(self.last, self.checkpoints.every_n_steps)
        seed = int(os.environ.get("PL_GLOBAL_SEED") or 0)
        progress = WriteProgress(self.path / "progress.json")
        added = [*fit_callbacks(seed), progress, best, last, StopOnSignal(last)]
        logger = given.get("logger")
        # Our logger is last, so that `self.logger` in a module is the one that the user chose.
        loggers = logger is not False and [*chosen_loggers(logger), CSVRunLogger(self.path / "metrics.csv")]
        arguments = trainer_arguments(given, added, loggers)
        return {**arguments, "enable_checkpointing": True, "default_root_dir": str(self.path)}

    # -- a fit, from its start to its end --------------------------------------------------------------------------

    def fit(
        self,
        trainer: Trainer,
        task: LightningModule,
        data: LightningDataModule | None,
        *,
        ckpt_path: str | None = None,
        init_from: tuple[str, Any] | None = None,
        prepare: Callable[[], None] | None = None,
        strict: bool = False,
        check_layer: bool = True,
        command: str | None = None,
    ) -> dict[str, float]:
        """Train, or go on from last.ckpt, and return the final metrics; a finished run is not trained again.

        Args:
            trainer: built with `trainer_arguments`.
            ckpt_path: a checkpoint of another run from which a new run continues.
            init_from: a name, and the weights from which a new run starts, with `load(task)` and
                `check_tokenizer(data)`.
            prepare: prepares the data, if not `data.prepare_data`.
            strict: refuse to go on with other code than the checkpoint's.
            check_layer: refuse a layer that looks ahead or lets padding into its outputs.
            command: the command that fits; None in a notebook.

        Raises:
            InputError: something does not fit together; then only prepared data has been written.
            KeyboardInterrupt, SystemExit: a signal came, and the step is saved.
        """
        self._describe(trainer, task, data)
        if changed := self.changed_settings():
            remedy = "give the same to resume it, or --fresh" if command else "give this one another name"
            raise InputError(f"{self.path} began with other settings: {changed}; {remedy}")
        if self.finished:
            return self.report_finished(data, init_from and init_from[0])
        checkpoint = self.last if self.last.is_file() else None
        if checkpoint and init_from and (changed := changed_weights(self.record, init_from[0])):
            print(to_one_line(f"warning: {self.path} began with other weights: {changed}: it goes on from its own"))
        elif checkpoint is None and ckpt_path:
            checkpoint = check_begun_from(Path(ckpt_path), self.config or {})
        name, weights = init_from if init_from and checkpoint is None else (None, None)
        validate_setup(trainer, task, data, checkpoint, weights, prepare, self.source, strict)
        check_before_fit(trainer, task, data, check_layer)
        code = 1
        try:
            self.begin(trainer, task, data, checkpoint, name)
            path = checkpoint and str(checkpoint)
            trainer.fit(task, datamodule=data, ckpt_path=path, weights_only=True)
            metrics, code = self.end(trainer), 0
            return metrics
        except Stopped as stop:
            code = 128 + stop.signum
            self.close("interrupted")
            if trainer.is_global_zero:
                print(f"lra-ssm: {stop}; the same command resumes from {self.last}", file=sys.stderr, flush=True)
                requeue(trainer, stop.signum)
            if command is None and stop.signum == signal.SIGINT:
                raise KeyboardInterrupt from None
            raise
        except SystemExit as end:
            if not isinstance(end.__context__, KeyboardInterrupt):
                raise
            signal.signal(signal.SIGINT, signal.default_int_handler)  # Lightning ignores the signal from then on
            raise KeyboardInterrupt from None
        except Exception as error:
            self.close("failed", reason=to_one_line(describe_error(error)))
            raise
        finally:
            self.close("interrupted")
            finish(self._loggers, code)  # last: it may wait for a server

    def _describe(self, trainer: Trainer, task: LightningModule, data: Any) -> None:
        """Set the configuration of a notebook's run, and the digests of the user's code. Raises InputError."""
        callbacks = trainer.callbacks  # type: ignore[attr-defined]  # set when the trainer is built
        last = next((each for each in callbacks if isinstance(each, SaveLast) and each.path == self.last), None)
        if last is None:
            raise InputError("this Trainer saves nothing in the run: build it with run.trainer_arguments(…)")
        if self.config is None:
            seed = os.environ.get("PL_GLOBAL_SEED")
            if not seed:
                raise InputError("a run records its seed: call lightning.seed_everything(…) before the task is built")
            self.config = {
                "experiment": self.path.parent.name,
                SEED: int(seed),
                "trainer": {k: plain(v) for k, v in self._trainer_arguments.items() if k not in TRAINER_NEUTRAL},
                "model": _described(task),
                "data": _described(data),
                "checkpoint": plain(self.checkpoints),
            }
        self.source = user_source(self.config)
        last.made_by = {VERSION: code_version(), SOURCE: self.source, CONFIG: self.config}

    def report_finished(self, data: Any = None, init_from: str | None = None) -> dict[str, float]:
        """Print and return a finished run's metrics; also print whether its data, weights or code differ from now."""
        record = self.record
        manifest = data.manifest() if hasattr(data, "manifest") and data.is_prepared() else {}
        others = {
            "data": changed_data(record.get("data") or {}, manifest),
            "weights": changed_weights(record, init_from),
            "code": other_code(record, self.source),
        }
        message = f"{self.path} is finished (--fresh trains it again)"
        if any(others.values()):
            what = "; ".join(f"other {kind}: {changes}" for kind, changes in others.items() if changes)
            message = f"{self.path} was trained with {what}; --fresh trains with the current ones"
        if stop := record.get("stop"):
            message += f"; it {stop}"
        print(to_one_line(message))
        metrics = record.get("metrics", {})
        show_metrics(metrics)
        return metrics

    def begin(
        self, trainer: Trainer, task: LightningModule, data: Any, checkpoint: Path | None, init_from: str | None
    ) -> None:
        """Lock the directory and write the start of the run: config.yaml and run.json. Only the first process does.

        Raises InputError if another process holds the directory or has trained it meanwhile, or if the run began with
        other data.
        """
        if not is_first_process():
            return
        before, resumes = self.record, checkpoint == self.last
        manifest = data.manifest() if hasattr(data, "manifest") else {}
        if resumes and (changed := changed_data(before.get("data") or {}, manifest)):
            raise InputError(f"{self.path} was started on other data ({changed}); use --fresh to start over")
        self.lock()
        if self.finished or self.last.is_file() != resumes:
            self.release()
            raise InputError(f"{self.path} was trained by another process just now; start again")
        with replacing(self.path / "config.yaml") as file:
            yaml.safe_dump(self.config, file, sort_keys=False)
        record = self._record_of_start(before, task, checkpoint, init_from, manifest)
        self._loggers = trainer.loggers
        if in_wandb := identify(trainer.loggers, self.path, {**before, **record}) or before.get("wandb"):
            record["wandb"] = in_wandb
        used = data.provenance() if hasattr(data, "provenance") else None
        begin(trainer.loggers, {"run": str(self.path), **record["starts"][-1], "data": used})
        write_json(self.path / "run.json", record)  # without the reason or the metrics of an earlier start
        self._begun = True
        if hasattr(data, "describe"):
            print(wrapped(to_one_line(data.describe())))
        print(f"run {self.path}" + (f", going on from {checkpoint}" if checkpoint else ""), flush=True)
        *attempts, start = record["starts"]
        if attempts and (changes := differences(attempts[-1].get("compute"), start["compute"], name="compute")):
            print(f"note: it computes in another way than before: {', '.join(changes)}")
        step = int(load_checkpoint(checkpoint).get("global_step", 0)) if checkpoint else 0
        for logger in trainer.loggers:
            if isinstance(logger, CSVRunLogger):
                logger.forget_from(step)
            logger.log_hyperparams(self.config)  # type: ignore[arg-type]  # Lightning logs only the model's settings

    def _record_of_start(
        self, before: dict[str, Any], task: LightningModule, checkpoint: Path | None, init_from: str | None, data: Any
    ) -> dict[str, Any]:
        """Return run.json at the start of an attempt. before: its contents until now; data: the manifest."""
        assert self.config is not None
        resumes = checkpoint == self.last
        attempts = before.get("starts", [])
        for killed in attempts[-1:]:  # it has not recorded its end; use the time of its last progress.json
            killed.setdefault("ended", read_object(self.path / "progress.json").get("time"))
        record = {
            "run_id": self.path.name,
            "experiment": self.config["experiment"],
            "identity": set_beyond_defaults(self.config),
            "status": "started",
            "starts": [*attempts, {**environment(), "source": self.source, "compute": self.config.get("compute")}],
            "parameters": sum(p.numel() for p in task.parameters()),
            "weights": before.get("weights", {}) if resumes else weight_digests(init_from),
            "data": data,
        }
        if checkpoint and not resumes:
            record["ckpt_path"] = {"file": str(checkpoint), "sha256": sha256(checkpoint)}
        elif resumes and "ckpt_path" in before:
            record["ckpt_path"] = before["ckpt_path"]
        return record

    def end(self, trainer: Trainer) -> dict[str, float]:
        """Record how the fit ended; return its metrics, including the best value of the monitored one."""
        metrics = final_metrics(trainer)
        if not metrics:  # the run was killed after its last step, so nothing is logged now: read metrics.csv
            rows = read_metrics(self.path / "metrics.csv")
            metrics = _results(
                {k: float(v) for row in rows for k, v in row.items() if v and k not in ("step", "epoch")}
            )
        if not trainer.is_global_zero:
            return metrics
        callbacks = trainer.callbacks  # type: ignore[attr-defined]
        for each in callbacks:
            if isinstance(each, SaveBest) and each.best_model_score is not None:
                metrics[f"best {each.monitor}"] = float(each.best_model_score)
        left = [each.time_remaining() for each in callbacks if isinstance(each, Timer)]
        status = "stopped by max_time" if any(t is not None and t <= 0 for t in left) else "finished"
        stop = next((each.reason for each in callbacks if isinstance(each, SaveLast)), "")
        best = {"file": self.best.name, "sha256": sha256(self.best)} if self.best.is_file() else None
        self.close(status, metrics=metrics, **({"stop": stop} if stop else {}), **({"best": best} if best else {}))
        summarize(trainer.loggers, metrics)
        print(f"{status}: {self.path}" + (f" ({stop})" if stop else ""))
        show_metrics(metrics)
        return metrics

    def close(self, status: str, **fields: Any) -> None:
        """Record how this attempt ended, draw the curves and release the directory, if this process holds it."""
        if self._lock is None:
            return
        try:
            record = self.record
            if self._begun:
                for start in record.get("starts", [])[-1:]:  # none if run.json was deleted meanwhile
                    start.setdefault("ended", now())
            write_json(self.path / "run.json", {**record, **fields, "status": status})
        except (OSError, InputError):  # such as a full disk, which may be why the run ends
            if status == "finished":
                raise
        finally:
            self.release()
        if not self._begun:
            return
        try:
            draw_curves(self.path, self.checkpoints.monitor, self.checkpoints.mode)
        except Exception as error:  # a picture that cannot be drawn is not a reason for a run to fail
            print(to_one_line(f"warning: {self.path / 'curves.png'} could not be drawn: {error}"))


def trainer_arguments(given: Mapping[str, Any], added: Sequence[Any], loggers: Any) -> dict[str, Any]:
    """Return the user's arguments of a Trainer, with our callbacks after the user's and atomic checkpoints.

    Raises InputError for a callback that overrides the configuration.
    """
    callbacks = as_list(given.get("callbacks"))
    for name in (type(each).__name__ for each in callbacks if isinstance(each, OVERRIDING)):
        raise InputError(f"trainer.callbacks: {name} sets other rates, groups or batches than the configuration")
    return {
        **given,
        **display_arguments(given, [*callbacks, *added]),
        "logger": loggers,
        "plugins": [*as_list(given.get("plugins")), AtomicCheckpointIO()],
    }


def is_first_process() -> bool:
    """Return whether this is the first of the processes that train together: only that one writes."""
    return getattr(rank_zero_only, "rank", 0) == 0


def chosen_loggers(logger: Any) -> list[Any]:
    """Return the loggers that a configuration names."""
    return [] if logger in (None, True, False) else as_list(logger)


def as_list(value: Any) -> list[Any]:
    """Return one value, several values or None as a list."""
    return list(value) if isinstance(value, (list, tuple)) else [] if value is None else [value]


def final_metrics(trainer: Trainer) -> dict[str, float]:
    """Return logged values by name, without learning rates and values of batches that have a mean over the epoch."""
    return _results({name: float(value) for name, value in trainer.callback_metrics.items()})


def _results(logged: Mapping[str, float]) -> dict[str, float]:
    left_out = {name for name in logged if name.startswith(LEARNING_RATE) or f"{name}_epoch" in logged}
    return {name: logged[name] for name in sorted(logged.keys() - left_out)}


def show_metrics(metrics: Mapping[str, float]) -> None:
    """Print a line for each metric, with aligned values."""
    width = max(map(len, metrics), default=0)
    for name, value in metrics.items():
        print(f"  {name:<{width}}  {value:.6g}")


def _described(thing: Any) -> dict[str, Any] | None:
    """Return a task or data module as in a configuration: what its `record` returns, else its hyperparameters."""
    if thing is None:
        return None
    settings = thing.record() if hasattr(thing, "record") else dict(thing.hparams)
    return {"class_path": f"{type(thing).__module__}.{type(thing).__qualname__}", "init_args": plain(settings)}
