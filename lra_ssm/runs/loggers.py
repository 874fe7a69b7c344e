"""Write metrics.csv, progress.json and a wandb run while a fit trains."""

import csv
import math
import os
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from lra_ssm.errors import InputError, to_one_line
from lra_ssm.files import naming_file, replacing, write_json
from lra_ssm.runs.provenance import now
from lra_ssm.runs.record import read_metrics

# -- metrics.csv -------------------------------------------------------------------------------------------------------


class CSVRunLogger(Logger):
    """metrics.csv: a row per log call, `step` and `epoch` first. A resumed run appends to it.

    (Lightning's CSVLogger deletes an existing file.)
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._columns: list[str] = []

    @property
    def name(self) -> str:
        return self.path.parent.parent.name

    @property
    def version(self) -> str:
        return self.path.parent.name

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """config.yaml has them."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        row = {"step": step, **metrics, "epoch": int(metrics.get("epoch", 0))}
        if row.keys() - set(self._columns):
            self._write(read_metrics(self.path), [*self._columns, *row])
        with naming_file(self.path), open(self.path, "a", newline="") as file:
            csv.DictWriter(file, self._columns).writerow(row)

    def forget_from(self, step: int) -> None:
        """Drop the rows from this step on: a killed run logged them after the checkpoint that it resumes from."""
        if rows := read_metrics(self.path):
            self._write([row for row in rows if int(row["step"]) < step], list(rows[0]))

    def _write(self, rows: list[dict[str, str]], columns: list[str]) -> None:
        before = list(rows[0]) if rows else []
        self._columns = list(dict.fromkeys(["step", "epoch", *before, *columns]))
        with replacing(self.path, newline="") as file:
            writer = csv.DictWriter(file, self._columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)


# -- progress.json -----------------------------------------------------------------------------------------------------


class WriteProgress(Callback):
    """Writes the progress of a fit at its start and end, and every few seconds between them.

    {"time": UTC, "step": optimizer steps made, "of": steps of the whole fit or null, "rate": steps/s since this start,
    validations included, or null}

    Args:
        path: the file to write.
        every_s: seconds between two writes.
    """

    def __init__(self, path: Path, every_s: float = 10.0) -> None:
        self.path, self.every_s = path, every_s
        self._started = self._written = 0.0
        self._first_step = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._started, self._first_step = time.monotonic(), trainer.global_step
        self._write(trainer)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if time.monotonic() - self._written >= self.every_s:
            self._write(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self._started:
            self._write(trainer)

    @rank_zero_only
    def _write(self, trainer: Trainer) -> None:
        self._written, total = time.monotonic(), trainer.estimated_stepping_batches
        steps, seconds = trainer.global_step - self._first_step, self._written - self._started
        progress = {
            "time": now(),
            "step": trainer.global_step,
            "of": int(total) if math.isfinite(total) else None,
            "rate": steps / seconds if steps else None,
        }
        with suppress(OSError):  # a full disk ends a fit where it saves
            write_json(self.path, progress)


# -- wandb -------------------------------------------------------------------------------------------------------------


def identify(loggers: Sequence[Any], folder: Path, record: Mapping[str, Any]) -> dict[str, str] | None:
    """Give each WandbLogger the id, name and group that make all starts of a run one wandb run.

    Values that the user set stay, including those in the environment: a sweep's agent sets WANDB_RUN_ID. Returns the
    entry "wandb" of run.json; None without such a logger.

    Args:
        loggers: the Trainer's loggers.
        folder: the run's directory.
        record: the run's record, with its first start.
    """
    entry = None
    for logger in _of_wandb(loggers):
        if logger._experiment is not None or (wandb := sys.modules.get("wandb")) and wandb.run is not None:
            continue  # the user has begun this wandb run
        experiment = record.get("experiment", folder.parent.name)
        defaults = {
            "id": os.environ.get("WANDB_RUN_ID") or (record.get("wandb") or {}).get("id") or _new_id(folder.name),
            "name": None if os.environ.get("WANDB_NAME") else f"{experiment}/{folder.name}",
            "group": None if os.environ.get("WANDB_RUN_GROUP") else experiment,
            "resume": "allow",  # with None, the command line's default, a second start would replace the first one
        }
        settings = logger._wandb_init
        settings.update({key: value for key, value in defaults.items() if settings.get(key) is None})
        if settings.get("dir") in (None, "."):
            settings["dir"] = str(folder.resolve())
        logger._id, logger._name, logger._save_dir = settings["id"], settings["name"], settings["dir"]
        entry = {"id": settings["id"]}
    return entry


def _new_id(run_id: str) -> str:
    """Return an id that no other run has: a run that was deleted and trained again is another one in wandb."""
    return f"{run_id}-{secrets.token_hex(3)}"


def begin(loggers: Sequence[Any], provenance: dict[str, Any]) -> None:
    """Begin the loggers' wandb runs, and log the provenance: wandb can search for `provenance.git.commit`.

    Raises InputError, such as for a missing account.
    """
    for logger in _of_wandb(loggers):
        try:
            logger.experiment  # noqa: B018
        except sys.modules["wandb"].Error as error:
            remedy = "trainer.logger.offline=true (or WANDB_MODE=offline) needs no account and no server"
            raise InputError(f"wandb: {str(error).rstrip('. ')}; {remedy}") from error
        logger.log_hyperparams({"provenance": provenance})
        logger.log_metrics = partial(_log, logger)  # type: ignore[method-assign]


def _log(logger: WandbLogger, metrics: Mapping[str, float], step: int | None = None) -> None:
    """Log as the logger does; go on without wandb if its process has ended: a job's signal may end it, too."""
    try:
        type(logger).log_metrics(logger, metrics, step)
    except OSError as error:
        print(to_one_line(f"warning: wandb's process has ended ({error}); metrics.csv goes on"), file=sys.stderr)
        logger.log_metrics = lambda *_, **__: None  # type: ignore[method-assign]


def summarize(loggers: Sequence[Any], metrics: Mapping[str, float]) -> None:
    """Set wandb's summary to the final metrics."""
    for logger in _of_wandb(loggers):
        with suppress(sys.modules["wandb"].Error, OSError):  # the user may have ended the run
            logger.experiment.summary.update(dict(metrics))


def finish(loggers: Sequence[Any], code: int) -> None:
    """End the wandb runs that these loggers began, with this exit code. Waits until everything is uploaded."""
    for logger in _of_wandb(loggers):
        if logger._experiment is not None and logger._experiment.id == logger._id:
            with suppress(sys.modules["wandb"].Error, OSError):
                logger._experiment.finish(exit_code=code)
            logger._experiment = None


def _of_wandb(loggers: Sequence[Any]) -> list[WandbLogger]:
    return [logger for logger in loggers if isinstance(logger, WandbLogger)]
