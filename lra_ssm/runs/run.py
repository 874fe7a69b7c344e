"""A run: a fit in its directory. What the Trainer gets, what is recorded at its start and at its end."""

import os
import signal
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self
from weakref import WeakSet

import yaml
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, Timer
from lightning.pytorch.utilities import rank_zero_only

from lra_ssm.callbacks import LEARNING_RATE, fit_callbacks
from lra_ssm.errors import InputError, UserCodeError, squeeze
from lra_ssm.files import write_json
from lra_ssm.progress import of_one_batch, quiet, shown_by_us
from lra_ssm.runs.checkpoints import AtomicCheckpointIO
from lra_ssm.runs.checks import check_callbacks, check_end, check_same_data, load_checkpoint, newest
from lra_ssm.runs.curves import draw_curves
from lra_ssm.runs.directory import RunDirectory
from lra_ssm.runs.ending import ending
from lra_ssm.runs.identity import DATA_NEUTRAL, SEED, described, plain, plain_trainer, run_identities
from lra_ssm.runs.logged import latest
from lra_ssm.runs.metrics import ROWS, CSVRunLogger, WriteProgress
from lra_ssm.runs.provenance import code_version, ended, environment, now
from lra_ssm.runs.record import INPUTS, read_object
from lra_ssm.runs.saving import DEFAULT_CHECKPOINTS, CheckpointSettings, SaveBest, SaveLast
from lra_ssm.runs.signals import Ended, Stopped
from lra_ssm.runs.source import changed_inputs, data_fingerprint, other_code, user_source, weights_fingerprint
from lra_ssm.runs.start import fit
from lra_ssm.runs.stopping import EndFit
from lra_ssm.runs.wandb_logging import attach, finish, identify, summarize
from lra_ssm.tables import wrapped

# Set by the first process for the ones that Lightning starts beside it (DDP): they share its run directory.
_RUN_PATH = "LRA_SSM_RUN_PATH"


class Run(RunDirectory):
    """A fit in its run directory. Nothing is written before `begin`, which holds the directory until `close`."""

    config: dict[str, Any] = {}  # what its identity is made of, as plain values
    given: dict[str, Any] = {}  # its Trainer's arguments, without what a run adds
    seed: int = 0
    checkpoints: CheckpointSettings = DEFAULT_CHECKPOINTS
    checkpoint: Path | None = None  # where it starts from, if not anew
    begun_from: str | None = None  # whose weights a new run takes
    source: dict[str, str] = {}  # digests of the user's code
    _outer: str | None = None
    _begun = False  # whether this attempt stands in the record
    _loggers: Sequence[Any] = ()

    @classmethod
    def find(
        cls, runs_dir: str | Path, experiment: str, run_id: str, fresh: bool = False, former: Sequence[str] = ()
    ) -> Self:
        """See `RunDirectory.find`; in a process that Lightning started beside this run (DDP), the first one's."""
        path = Path(os.environ.get(_RUN_PATH, ""))
        beside = int(os.environ.get("LOCAL_RANK") or 0) > 0 and path.parent == Path(runs_dir) / experiment
        same = any(path.name == i or path.name.startswith(f"{i}-") for i in (run_id, *former))
        return cls(path) if beside and same else super().find(runs_dir, experiment, run_id, fresh, former)

    @classmethod
    def of_config(
        cls,
        config: dict[str, Any],
        neutral: Mapping[str, Sequence[str]],
        runs_dir: str | Path = "runs",
        fresh: bool = False,
        objects: Sequence[Any] = (),
    ) -> Self:
        """The run of a resolved configuration, new or to be resumed.

        Args:
            config, neutral: as of `run_identity`; "experiment" and the seed are in the configuration.
            fresh: as of `RunDirectory.find`.
            objects: whose classes decide the result beside those that the configuration names.
        """
        run_id, *former = run_identities(config, neutral)
        run = cls.find(runs_dir, config["experiment"], run_id, fresh, former)
        run.config, run.seed, run.source = config, config[SEED], user_source(config, objects)
        return run

    @classmethod
    def of(
        cls,
        task: LightningModule,
        data: LightningDataModule,
        trainer: dict[str, Any],
        experiment: str = "default",
        runs_dir: str | Path = "runs",
        checkpoints: CheckpointSettings = DEFAULT_CHECKPOINTS,
        settings: dict[str, Any] | None = None,
        fresh: bool = False,
    ) -> Self:
        """The run of these objects, new or to be resumed; of `fit` below.

        Its identity is made of the seed, the task's hyperparameters, the data's `record()` or hyperparameters, the
        Trainer's arguments, and `settings`: whatever else decides the result.
        Raises InputError where `lightning.seed_everything` was not called before, where something could not be told
        apart from another of its kind, and for a Trainer without an end or with fast_dev_run, which leaves nothing.
        """
        quiet()
        seed = os.environ.get("PL_GLOBAL_SEED")
        if not seed:
            raise InputError("a run's identity has a seed: call lightning.seed_everything(…) before the task is built")
        check_end(trainer)
        if trainer.get("fast_dev_run"):
            raise InputError("fast_dev_run leaves nothing: give it to a Trainer without a run")
        config = {
            "experiment": experiment,
            SEED: int(seed),
            "trainer": plain_trainer(trainer),
            "model": described(task, "the task", settings),
            "data": described(data, "the data", settings),
            "checkpoint": plain(asdict(checkpoints), "checkpoint"),
            "settings": plain(settings or {}, "settings"),
        }
        own = () if hasattr(data, "record") else getattr(data, "neutral_settings", DATA_NEUTRAL)
        neutral = {"": ("experiment",), "checkpoint": checkpoints.neutral, "data": own}
        run = cls.of_config(config, neutral, runs_dir, fresh, [task, *task.modules(), data])
        run.given, run.checkpoints = trainer, checkpoints
        return run

    def trainer_arguments(self) -> dict[str, Any]:
        """Arguments of a Trainer of one's own: those that `of` was given, with what a run adds to them.

        Seeds by step, stop on NaN, the table of groups, throughput; progress.json, best.ckpt and last.ckpt; metrics.csv
        beside the loggers that are given, which False switches off."""
        best = SaveBest(
            dirpath=self.best.parent,
            filename=self.best.stem,
            monitor=self.checkpoints.monitor,
            mode=self.checkpoints.mode,
            enable_version_counter=False,
            save_on_train_epoch_end=False,
        )
        last = SaveLast(self.last, self.checkpoints.every_n_steps, code_version(), self.source)
        progress = WriteProgress(self.path / "progress.json", self.checkpoints.monitor)
        given = as_list(self.given.get("callbacks"))
        for callback in given:
            if isinstance(callback, ModelCheckpoint) and callback.dirpath is None:  # else one below a logger's name
                callback.dirpath = str(self.path / "own_checkpoints")
        own = fit_callbacks(self.seed, given)
        logger = self.given.get("logger")
        # Ours is last: `self.logger` in a module is the one that its user chose.
        loggers = logger is not False and [*chosen_loggers(logger), CSVRunLogger(self.path / "metrics.csv")]
        added = [*own, progress, best, last, EndFit(last)]
        ours = trainer_arguments(self.given, added, loggers)
        return {**ours, "enable_checkpointing": True, "default_root_dir": str(self.path)}

    # -- a fit, from its start to its end --------------------------------------------------------------------------

    def fit(self, trainer: Trainer, task: LightningModule, data: LightningDataModule) -> dict[str, float]:
        """Trains, or goes on from last.ckpt, in the run's directory; a finished run is not trained again.

        Returns the final metrics. Raises InputError for what does not fit together, before anything is written.
        Interrupted from the keyboard, it saves the step and raises KeyboardInterrupt; by another signal SystemExit.
        """
        if self.finished:
            return self.say_finished("fresh=True", changed_inputs(self.record, lambda: data, None))
        self._check_parts(trainer, task, data)
        self.checkpoint = newest(self.last, self.before_last)
        if self.checkpoint is None and task in _fitted:
            raise InputError("this task was trained before, and there is no checkpoint to go on from: build it anew")
        _fitted.add(task)
        try:
            with ending() as signals:
                return fit(trainer, task, data, signals, self)
        except UserCodeError as failure:
            if failure.__cause__ is None:
                raise
            theirs = failure.__cause__
            theirs.add_note(str(failure))  # the traceback ends with what says most
        except Ended as end:
            keyboard = isinstance(end, Stopped) and end.signum == signal.SIGINT
            raise (KeyboardInterrupt if keyboard else SystemExit(end.code)) from None
        raise theirs  # out here, where it keeps its own context

    def _check_parts(self, trainer: Trainer, task: LightningModule, data: LightningDataModule) -> None:
        """These are what the run was made of. Raises InputError."""
        if not self.config:
            raise InputError("Run.of makes the runs that fit takes")
        for what, thing in {"model": task, "data": data}.items():
            if described(thing, what, self.config["settings"]) != self.config[what]:
                raise InputError(
                    f"{self.path} is a run of another {type(thing).__name__}: Run.of was given other settings"
                )
        if not any(isinstance(c, SaveLast) and c.path == self.last for c in trainer.callbacks):  # type: ignore[attr-defined]
            raise InputError("this Trainer keeps nothing in the run: make it of run.trainer_arguments()")
        for name, default in _DEFAULTS.items():
            expected = default if self.given.get(name) is None else self.given[name]
            if expected is not ... and getattr(trainer, name) != expected:
                raise InputError(f"this Trainer's {name} is {getattr(trainer, name)}, the run's another")
        if os.environ.get("PL_GLOBAL_SEED") != str(self.seed):
            raise InputError(f"the seed is {os.environ.get('PL_GLOBAL_SEED')}, the run's is {self.seed}")

    def say_finished(self, again: str, inputs: str = "") -> dict[str, float]:
        """Prints and returns a finished run's metrics.

        again: what trains it again; inputs: which data or weights are others than those that it was trained with."""
        said = f"is finished ({again} trains it again)"
        if inputs:
            said = f"was trained with {inputs}; {again} trains with what there is now"
        print(f"{self.path} {said}{other_code(self.record, self.source)}")
        metrics = self.record.get("metrics", {})
        show_metrics(metrics, self.record.get("of_last_batch", ()))
        return metrics

    def begin(self, trainer: Trainer, task: LightningModule, data: Any = None) -> None:
        """Takes the directory and writes what the run starts from: config.yaml, and the record.

        In the first process alone. Raises InputError where another process holds the directory or has trained it
        meanwhile, or where the run was begun with other data.
        """
        if not is_first_process():
            return
        manifest = data.manifest() if hasattr(data, "manifest") else None
        own = self.checkpoint in (self.last, self.before_last)
        if own and manifest is not None:
            check_same_data(self.path, self.record.get("data") or {}, manifest)
        self.lock()
        if self.finished or (self.last.is_file() or self.before_last.is_file()) != own:
            self.release()
            raise InputError(f"{self.path} was trained by another process just now; start again")
        self._outer, os.environ[_RUN_PATH] = os.environ.get(_RUN_PATH), str(self.path)
        self.save_config(yaml.safe_dump(self.config, sort_keys=False))
        self.set_damaged_record_aside()
        record = self._record_of_start(task, data)
        self._loggers = trainer.loggers
        if in_wandb := identify(trainer.loggers, self, {**self.record, **record}) or self.record.get("wandb"):
            record["wandb"] = in_wandb
        if manifest is not None:
            record["data"] = manifest
            print(wrapped(squeeze(data.describe())))
        write_json(self.path / "run.json", record)  # without the reason or the metrics of a start before
        self._begun = True
        print(f"run {self.path}" + (f", going on from {self.checkpoint}" if self.checkpoint else ""), flush=True)
        if changed := _changed_compute(record["starts"]):
            print(f"note: it computes in another way than before: {changed}")
        state = load_checkpoint(self.checkpoint) if self.checkpoint else {}
        for logger in trainer.loggers:
            if isinstance(logger, CSVRunLogger):
                logger.forget_from(int(state.get("global_step", 0)), state.get(ROWS, 0) if own else 0)
            logger.log_hyperparams(self.config)  # Lightning logs the model's settings alone
        used = data.provenance() if hasattr(data, "provenance") else None
        attach(trainer.loggers, {"run": str(self.path), **record["starts"][-1], "data": used})

    def _record_of_start(self, task: LightningModule, data: Any) -> dict[str, Any]:
        # A killed attempt has left no end, but when it wrote last how far it was.
        before = ended(self.record.get("starts", []), read_object(self.path / "progress.json").get("time"))
        resumed = self.checkpoint in (self.last, self.before_last)
        recorded = self.record.get(INPUTS, {}).get("weights", {})
        weights = recorded if resumed else weights_fingerprint(self.begun_from)
        return {
            INPUTS: {"data": data_fingerprint(data), "weights": weights},
            "run_id": self.path.name,
            "experiment": self.config["experiment"],
            "status": "started",
            "starts": [*before, {**environment(), "source": self.source, "compute": self.config.get("compute")}],
            "parameters": sum(p.numel() for p in task.parameters()),
            "neutral": list(getattr(data, "neutral_settings", DATA_NEUTRAL)),  # of data's settings
        }

    def end(self, trainer: Trainer) -> dict[str, float]:
        """Records how the fit ended; returns its metrics, the best one by name among them."""
        # Nothing is logged where the last step was done before: its record was lost with a kill, or damaged.
        metrics = final_metrics(trainer) or _results(latest(self.path / "metrics.csv"), "step", "epoch")
        batch = sorted(of_one_batch(trainer) & metrics.keys())
        if not trainer.is_global_zero or trainer.interrupted:
            return metrics
        best = next((c for c in trainer.callbacks if isinstance(c, SaveBest)), None)  # type: ignore[attr-defined]
        if best is not None and best.best_model_score is not None:
            metrics[f"best {best.monitor}"] = float(best.best_model_score)
        timers = [c for c in trainer.callbacks if isinstance(c, Timer)]  # type: ignore[attr-defined]
        left = [timer.time_remaining() for timer in timers]
        status = "stopped by max_time" if any(t is not None and t <= 0 for t in left) else "finished"
        self.write_record(status=status, metrics=metrics, of_last_batch=batch, **self._ended())
        summarize(trainer.loggers, metrics)
        self.draw_curves()
        if status == "finished":
            self.before_last.unlink(missing_ok=True)
        print(f"{status}: {self.path}")
        show_metrics(metrics, batch)
        return metrics

    def draw_curves(self) -> None:
        """Draws metrics.csv as curves.png. A picture that cannot be drawn is no reason for a run to fail."""
        if not self._begun:
            return
        try:
            draw_curves(self.path / "metrics.csv", self.path / "curves.png")
        except Exception as error:
            print(squeeze(f"warning: {self.path / 'curves.png'} could not be drawn: {error}"))

    def fail(self, reason: str) -> None:
        """Records why the run cannot go on, where this process holds it."""
        if self.held:
            with suppress(OSError):  # such as the full disk that is the reason
                self.write_record(status="failed", reason=reason, **self._ended())
            self.draw_curves()

    def _ended(self) -> dict[str, Any]:
        """For the record: its attempts, this one ended; nothing before it was begun."""
        if not self._begun:
            return {}
        return {"starts": ended(self.record.get("starts", []), now())}

    def close(self) -> None:
        """Gives the directory back; a run that was begun and has not ended is recorded as interrupted."""
        if not self.held:
            return
        os.environ.pop(_RUN_PATH, None)
        if self._outer is not None:  # of a run within which this one was begun
            os.environ[_RUN_PATH] = self._outer
        try:
            if self.record.get("status") == "started":
                self.write_record(status="interrupted", **self._ended())
        except OSError:
            pass
        finally:
            self.release()

    def finish_loggers(self, code: int) -> None:
        """Ends wandb's run, if there is one. It may wait for a server: everything else is done before, and given back.

        code: 0 where the run came to its end, by which wandb calls it finished; else it is failed there."""
        finish(self._loggers, code)


_fitted: WeakSet[LightningModule] = WeakSet()  # tasks that a run has begun to train
# What a Trainer may not have otherwise than the run: with the default where none is given (... where it depends).
_DEFAULTS = {"max_epochs": ..., "max_steps": -1, "accumulate_grad_batches": 1, "gradient_clip_val": None}


def is_first_process() -> bool:
    """Whether this is the process that writes, of those that train together."""
    return getattr(rank_zero_only, "rank", 0) == 0


def trainer_arguments(
    given: Mapping[str, Any], added: Sequence[Any], loggers: Any, scoring: bool = False
) -> dict[str, Any]:
    """What a Trainer of ours is given: the user's arguments, with our callbacks behind theirs, and checkpoints that
    are written whole; scoring: as of `AtomicCheckpointIO`.

    Raises InputError for a callback that would overrule the configuration."""
    own = as_list(given.get("callbacks"))
    check_callbacks(own)
    return {
        **given,
        "callbacks": [*own, *shown_by_us(given, own), *added],
        "enable_model_summary": False,  # ours is among the callbacks, or the user's
        "logger": loggers,
        "plugins": [*as_list(given.get("plugins")), AtomicCheckpointIO(scoring)],
    }


def final_metrics(trainer: Trainer) -> dict[str, float]:
    """What was logged, by name."""
    return _results({name: float(value) for name, value in trainer.callback_metrics.items()})


def _results(logged: Mapping[str, float], *others: str) -> dict[str, float]:
    """By name; learning rates are no result."""
    return {n: logged[n] for n in sorted(logged) if n not in others and not n.startswith(LEARNING_RATE)}


def chosen_loggers(logger: Any) -> list[Any]:
    """The loggers that a configuration names."""
    return [] if logger in (None, True, False) else as_list(logger)


def as_list(value: Any) -> list[Any]:
    """What a Trainer takes as one or several, or None, as a list."""
    return list(value) if isinstance(value, (list, tuple)) else [] if value is None else [value]


def show_metrics(metrics: dict[str, float], of_last_batch: Collection[str] = ()) -> None:
    """One line each, values under each other; those of one batch are marked."""
    width = max(map(len, metrics), default=0)
    for name, value in metrics.items():
        print(f"  {name:<{width}}  {value:<10.6g}{'of the last batch' if name in of_last_batch else ''}".rstrip())


def _changed_compute(starts: Sequence[dict[str, Any]]) -> str:
    """Which settings of how it computes are others at the last start than at the one before, as text."""
    if len(starts) < 2:
        return ""
    before, now = (start.get("compute") or {} for start in starts[-2:])
    changed = [name for name in now if before.get(name, now[name]) != now[name]]
    return ", ".join(f"compute.{name} {before[name]} -> {now[name]}" for name in changed)
