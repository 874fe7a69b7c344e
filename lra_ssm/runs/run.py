"""A run: a fit in its directory, from a command or from a notebook."""

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import yaml
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, Timer

from lra_ssm.callbacks import fit_callbacks
from lra_ssm.errors import InputError, describe_error, to_one_line
from lra_ssm.files import replacing, sha256, write_json
from lra_ssm.progress import quiet
from lra_ssm.runs import start
from lra_ssm.runs.checkpoints import (
    DEFAULT_CHECKPOINTS,
    CheckpointSettings,
    SaveBest,
    SaveLast,
    load_checkpoint,
)
from lra_ssm.runs.checks import check_trainer
from lra_ssm.runs.curves import draw_curves
from lra_ssm.runs.directory import RunDirectory
from lra_ssm.runs.identity import (
    CHECKPOINT_NEUTRAL,
    DATA_NEUTRAL,
    OPTIONS_NEUTRAL,
    SEED,
    TRAINER_NEUTRAL,
    differences,
    plain,
    set_beyond_defaults,
    what_counts,
)
from lra_ssm.runs.loggers import CSVRunLogger, WriteProgress, attach, begin, finish, identify, summarize
from lra_ssm.runs.provenance import (
    SOURCE,
    VERSION,
    changed_inputs,
    changed_weights,
    code_version,
    environment,
    input_digests,
    now,
    other_code,
    user_source,
    with_end,
)
from lra_ssm.runs.record import INPUTS, data_digests, read_object
from lra_ssm.runs.stop import StopOnSignal, Stopped, requeue
from lra_ssm.runs.trainer import (
    as_list,
    changed_compute,
    chosen_loggers,
    final_metrics,
    is_first_process,
    results,
    show_metrics,
    trainer_arguments,
)
from lra_ssm.tables import wrapped


class Weights(Protocol):
    """Weights that a new run starts from, if not a checkpoint's that the Trainer loads."""

    def load(self, task: LightningModule) -> None: ...

    def check_tokenizer(self, data: LightningDataModule) -> None: ...


class Run(RunDirectory):
    """A fit in its directory, which is locked from its start to its end; nothing is written before.

    From a notebook, where its user names it:

        run = Run("runs/mine/a")
        trainer = Trainer(**run.trainer_arguments(max_epochs=3))
        metrics = run.fit(trainer, task, data)

    Args:
        path: the directory.
        checkpoints: which checkpoints it keeps.
        config: the resolved configuration; None to record what the Trainer, the task and the data say of themselves.
        neutral: names that cannot change a result, by section of the configuration.
    """

    def __init__(
        self,
        path: str | Path,
        checkpoints: CheckpointSettings = DEFAULT_CHECKPOINTS,
        config: dict[str, Any] | None = None,
        neutral: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        super().__init__(path)
        self.checkpoints, self.config = checkpoints, config
        self.neutral = neutral or {"": OPTIONS_NEUTRAL, "checkpoint": CHECKPOINT_NEUTRAL, "data": DATA_NEUTRAL}
        self.checkpoint: Path | None = None  # that the fit goes on from
        self.source: dict[str, str] = {}  # digests of the user's code
        self._given: dict[str, Any] = {}  # the Trainer's arguments
        self._begun = False  # whether this attempt is in the record
        self._loggers: Sequence[Any] = ()

    # -- the Trainer -----------------------------------------------------------------------------------------------

    def trainer_arguments(self, **given: Any) -> dict[str, Any]:
        """Return the arguments of a Trainer: those that are given, and what a run adds to them.

        Seeds by step, a stop on NaN, the table of groups, throughput; progress.json, best.ckpt and last.ckpt;
        metrics.csv next to the loggers that are given, unless `logger` is False.
        Raises InputError for a callback that overrules the configuration, a Trainer without an end, and fast_dev_run.
        """
        quiet()
        check_trainer(given)
        if given.get("fast_dev_run"):
            raise InputError("fast_dev_run leaves nothing: give it to a Trainer without a run")
        self._given, callbacks = given, as_list(given.get("callbacks"))
        for callback in callbacks:
            if isinstance(callback, ModelCheckpoint) and callback.dirpath is None:  # else one below a logger's name
                callback.dirpath = str(self.path / "own_checkpoints")
        best = SaveBest(
            dirpath=self.best.parent, filename=self.best.stem, monitor=self.checkpoints.monitor,
            mode=self.checkpoints.mode, enable_version_counter=False, save_on_train_epoch_end=False,
        )  # fmt: skip
        last = SaveLast(self.last, self.checkpoints.every_n_steps)
        progress = WriteProgress(self.path / "progress.json", self.checkpoints.monitor)
        seed = int(os.environ.get("PL_GLOBAL_SEED") or 0)
        added = [*fit_callbacks(seed, callbacks), progress, best, last, StopOnSignal(last)]
        logger = given.get("logger")
        # Ours is last: `self.logger` in a module is the one that its user chose.
        loggers = logger is not False and [*chosen_loggers(logger), CSVRunLogger(self.path / "metrics.csv")]
        return {
            **trainer_arguments(given, added, loggers),
            "enable_checkpointing": True,
            "default_root_dir": str(self.path),
        }

    # -- a fit, from its start to its end --------------------------------------------------------------------------

    def fit(
        self,
        trainer: Trainer,
        task: LightningModule,
        data: LightningDataModule | None,
        *,
        ckpt_path: str | None = None,
        init_from: tuple[str, Weights] | None = None,
        prepare: Callable[[], None] | None = None,
        strict: bool = False,
        check_layer: bool = True,
        command: str | None = None,
    ) -> dict[str, float]:
        """Train, or go on from last.ckpt, and return the final metrics; a finished run is not trained again.

        Args:
            trainer: made of `trainer_arguments`.
            ckpt_path: a checkpoint of another run that a new run goes on from.
            init_from: a name and the weights that a new run starts from.
            prepare: prepares the data, if not `data.prepare_data`.
            strict: refuse to go on with other code than the checkpoint's.
            check_layer: refuse a layer that looks ahead or lets padding into its outputs.
            command: the command that fits; None in a notebook.

        Raises:
            InputError: something does not fit together; nothing is written then but prepared data.
            KeyboardInterrupt, SystemExit: a signal came, and the step is saved.
        """
        self._describe(trainer, task, data)
        if changed := self.changed_settings():
            remedy = "give the same to resume it, or --fresh" if command else "give this one another name"
            raise InputError(f"{self.path} began with other settings: {changed}; {remedy}")
        if self.finished:
            return self.report_finished(data, init_from and init_from[0])
        self.checkpoint = self.last if self.last.is_file() else None
        own = self.checkpoint is not None
        if own and init_from and (changed := changed_weights(self.record, init_from[0])):
            print(to_one_line(f"warning: {self.path} began with {changed}: it goes on from its own"))
        elif not own and ckpt_path:
            self.checkpoint = start.check_begun_from(Path(ckpt_path), self.config or {}, self.neutral)
        weights = init_from[1] if init_from and self.checkpoint is None else None
        start.make_ready(trainer, task, data, self.checkpoint, weights, prepare, self.source, strict)
        start.check_before_fit(trainer, task, data, check_layer)
        code = 1
        try:
            self.begin(trainer, task, data, own, init_from[0] if weights and init_from else None)
            path = self.checkpoint and str(self.checkpoint)
            trainer.fit(task, datamodule=data, ckpt_path=path, weights_only=True)
            metrics, code = self.end(trainer), 0
            return metrics
        except Stopped as stop:
            code = 128 + stop.signum
            self._report_stop(trainer, stop)
            if command is None and stop.signum == signal.SIGINT:
                raise KeyboardInterrupt from None
            raise
        except SystemExit as end:
            if not isinstance(end.__context__, KeyboardInterrupt):
                raise
            signal.signal(signal.SIGINT, signal.default_int_handler)  # Lightning ignores the signal from then on
            raise KeyboardInterrupt from None
        except Exception as error:
            self.fail(describe_error(error))
            raise
        finally:
            self.close()
            finish(self._loggers, code)  # last: it may wait for a server

    def _report_stop(self, trainer: Trainer, stop: Stopped) -> None:
        """Record and print that a signal stopped the fit; under Slurm, queue its job again."""
        if not trainer.is_global_zero:
            return
        self.close()
        print(f"lra-ssm: {stop}; the same command resumes from {self.last}", file=sys.stderr, flush=True)
        requeue(trainer, stop.signum)
        self.draw_curves()

    def _describe(self, trainer: Trainer, task: LightningModule, data: Any) -> None:
        """Set the configuration of a notebook's run, and the digests of the user's code. Raises InputError."""
        if not any(isinstance(c, SaveLast) and c.path == self.last for c in trainer.callbacks):  # type: ignore[attr-defined]
            raise InputError("this Trainer keeps nothing in the run: make it of run.trainer_arguments(…)")
        if self.config is None:
            seed = os.environ.get("PL_GLOBAL_SEED")
            if not seed:
                raise InputError("a run records its seed: call lightning.seed_everything(…) before the task is built")
            self.config = {
                "experiment": self.path.parent.name,
                SEED: int(seed),
                "trainer": {name: plain(value) for name, value in self._given.items() if name not in TRAINER_NEUTRAL},
                "model": _described(task),
                "data": _described(data),
                "checkpoint": plain(self.checkpoints),
            }
            self.neutral = {**self.neutral, "data": getattr(data, "neutral_settings", DATA_NEUTRAL)}
        objects = [task, *task.modules(), *([data] if data is not None else [])]
        self.source = user_source(self.config, objects)
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, SaveLast):
                callback.made_by = {VERSION: code_version(), SOURCE: self.source, start.CONFIG: self.config}

    def changed_settings(self) -> str:
        """Return which settings differ from those that the run began with, as text: a default may have changed."""
        if not (before := self.began_with):
            return ""
        began, now_ = (what_counts({"trainer": {}, **each}, self.neutral) for each in (before, self.config or {}))
        return ", ".join(differences(began, now_))

    def report_finished(self, data: Any = None, init_from: str | None = None) -> dict[str, float]:
        """Print and return a finished run's metrics, and say if its data, weights or code differ from what there is."""
        record = self.record
        again = "--fresh trains it again"
        message = f"{self.path} is finished ({again})"
        code = other_code(record, self.source)
        differing = [changed_inputs(record, data, init_from), code and f"other code: {code}"]
        if differing := [text for text in differing if text]:
            message = f"{self.path} was trained with {'; '.join(differing)}; --fresh trains with what there is now"
        if stop := record.get("stop"):
            message += f"; it {stop}"
        print(to_one_line(message))
        metrics = record.get("metrics", {})
        show_metrics(metrics, record.get("of_last_batch", ()))
        return metrics

    def begin(self, trainer: Trainer, task: LightningModule, data: Any, own: bool, init_from: str | None) -> None:
        """Lock the directory and write what the run starts from: config.yaml and run.json. Only the first process does.

        Raises InputError if another process holds the directory or has trained it meanwhile, or if the run began with
        other data.
        """
        if not is_first_process():
            return
        manifest = data.manifest() if hasattr(data, "manifest") else None
        if own and manifest is not None:
            before, now_ = data_digests(self.record.get("data") or {}), data_digests(manifest)
            if before and (names := sorted(name for name in before | now_ if before.get(name) != now_.get(name))):
                message = f"{self.path} was started on other data ({', '.join(names)} differ)"
                raise InputError(f"{message}; use --fresh to start over")
        self.lock()
        if self.finished or self.last.is_file() != own:
            self.release()
            raise InputError(f"{self.path} was trained by another process just now; start again")
        with replacing(self.path / "config.yaml") as file:
            yaml.safe_dump(self.config, file, sort_keys=False)
        record = self._record_of_start(task, data, own, init_from)
        self._loggers = trainer.loggers
        if in_wandb := identify(trainer.loggers, self.path, {**self.record, **record}) or self.record.get("wandb"):
            record["wandb"] = in_wandb
        begin(trainer.loggers)
        if manifest is not None:
            record["data"] = manifest
            print(wrapped(to_one_line(data.describe())))
        write_json(self.path / "run.json", record)  # without the reason or the metrics of a start before
        self._begun = True
        print(f"run {self.path}" + (f", going on from {self.checkpoint}" if self.checkpoint else ""), flush=True)
        if changed := changed_compute(record["starts"]):
            print(f"note: it computes in another way than before: {changed}")
        state = load_checkpoint(self.checkpoint) if self.checkpoint else {}
        for logger in trainer.loggers:
            if isinstance(logger, CSVRunLogger):
                logger.forget_from(int(state.get("global_step", 0)))
            logger.log_hyperparams(self.config)  # type: ignore[arg-type]  # Lightning logs only the model's settings
        used = data.provenance() if hasattr(data, "provenance") else None
        attach(trainer.loggers, {"run": str(self.path), **record["starts"][-1], "data": used})

    def _record_of_start(self, task: LightningModule, data: Any, own: bool, init_from: str | None) -> dict[str, Any]:
        assert self.config is not None
        before = self.record
        # A killed attempt has left no end, but the time when it last wrote how far it was.
        attempts = with_end(before.get("starts", []), read_object(self.path / "progress.json").get("time"))
        inputs = input_digests(data, init_from)
        if own:
            inputs["weights"] = before.get(INPUTS, {}).get("weights", {})
        began_from = before.get("ckpt_path") if own else None
        if self.checkpoint and not own:
            began_from = {"file": str(self.checkpoint), "sha256": sha256(self.checkpoint)}
        return {
            INPUTS: inputs,
            "run_id": self.path.name,
            "experiment": self.config["experiment"],
            "identity": set_beyond_defaults(self.config, self.neutral),
            "status": "started",
            "starts": [*attempts, {**environment(), "source": self.source, "compute": self.config.get("compute")}],
            "parameters": sum(p.numel() for p in task.parameters()),
            "neutral": list(self.neutral["data"]),  # of the data's settings
            **({"ckpt_path": began_from} if began_from else {}),
        }

    def end(self, trainer: Trainer) -> dict[str, float]:
        """Record how the fit ended; return its metrics, the best one by name among them."""
        # Nothing is logged if the last step was made before a kill: then metrics.csv has it.
        metrics = final_metrics(trainer) or results(CSVRunLogger(self.path / "metrics.csv").latest(), "step", "epoch")
        batch = [name for name in metrics if f"{name}_epoch" in metrics]
        if not trainer.is_global_zero or trainer.interrupted:
            return metrics
        best = next((c for c in trainer.callbacks if isinstance(c, SaveBest)), None)  # type: ignore[attr-defined]
        if best is not None and best.best_model_score is not None:
            metrics[f"best {best.monitor}"] = float(best.best_model_score)
        timers = [c for c in trainer.callbacks if isinstance(c, Timer)]  # type: ignore[attr-defined]
        left = [timer.time_remaining() for timer in timers]
        status = "stopped by max_time" if any(t is not None and t <= 0 for t in left) else "finished"
        result: dict[str, Any] = {"status": status, "metrics": metrics, "of_last_batch": batch}
        if stop := next((c.reason for c in trainer.callbacks if getattr(c, "reason", "")), ""):  # type: ignore[attr-defined]
            result["stop"] = stop
        if self.best.is_file():
            result["best"] = {"file": self.best.name, "sha256": sha256(self.best)}
        self.write_record(**result, **self._ended())
        summarize(trainer.loggers, metrics)
        self.draw_curves()
        print(f"{status}: {self.path}" + (f" ({stop})" if stop else ""))
        show_metrics(metrics, batch)
        return metrics

    def draw_curves(self) -> None:
        """Draw metrics.csv as curves.png. A picture that cannot be drawn is not a reason for a run to fail."""
        if not self._begun:
            return
        try:
            monitor, mode = self.checkpoints.monitor, self.checkpoints.mode
            draw_curves(self.path / "metrics.csv", self.path / "curves.png", monitor, mode)
        except Exception as error:
            print(to_one_line(f"warning: {self.path / 'curves.png'} could not be drawn: {error}"))

    def fail(self, reason: str) -> None:
        """Record why the run cannot go on, if this process holds it."""
        if self.held:
            with suppress(OSError):  # such as the full disk that is the reason
                self.write_record(status="failed", reason=to_one_line(reason), **self._ended())
            self.draw_curves()

    def _ended(self) -> dict[str, Any]:
        """For the record: its attempts, this one ended; nothing before it began."""
        return {"starts": with_end(self.record.get("starts", []), now())} if self._begun else {}

    def close(self) -> None:
        """Release the directory; a run that began and has not ended is recorded as interrupted."""
        try:
            if self.held and self.record.get("status") == "started":
                self.write_record(status="interrupted", **self._ended())
        except (OSError, InputError):
            pass
        finally:
            self.release()


def _described(thing: Any) -> dict[str, Any] | None:
    """A task or a data module as a configuration has it: what it records of itself, else its hyperparameters."""
    if thing is None:
        return None
    settings = thing.record() if hasattr(thing, "record") else dict(thing.hparams)
    return {"class_path": f"{type(thing).__module__}.{type(thing).__qualname__}", "init_args": plain(settings)}
