"""What a fit writes while it trains: metrics.csv, progress.json, and a run of wandb's."""

import csv
import hashlib
import io
import math
import os
import sys
import time
from collections import deque
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
        if new := [key for key in ("step", "epoch", *row) if key not in self._columns]:
            rows = self._read()
            self._columns += list(dict.fromkeys(new))
            self._write(rows)
        with naming_file(self.path), open(self.path, "a", newline="") as file:
            csv.DictWriter(file, self._columns).writerow(row)

    def forget_from(self, step: int) -> None:
        """Drop the rows from this step on, which a killed run logged after the checkpoint it resumes from."""
        rows = [row for row in self._read() if (row["step"] or "").isdecimal() and int(row["step"]) < step]
        if self._columns:
            self._write(rows)

    def latest(self) -> dict[str, float]:
        """Return the last value of each metric."""
        return {name: float(value) for row in self._read() for name, value in row.items() if name and value}

    def _read(self) -> list[dict[str, str]]:
        """Read the whole rows: a kill may leave half of one at the end. Raises InputError if it is not a log."""
        if not self.path.is_file():
            return []
        try:
            text = self.path.read_text(encoding="utf-8")
            reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))
            self._columns, rows = list(reader.fieldnames or []), list(reader)
        except (UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"{self.path} is damaged: {error}; remove it to go on without it") from error
        if not {"step", "epoch"} <= set(self._columns):
            raise InputError(f"{self.path} is damaged: it has no columns step and epoch; remove it to go on without it")
        return rows

    def _write(self, rows: list[dict[str, str]]) -> None:
        with replacing(self.path, newline="") as file:
            writer = csv.DictWriter(file, self._columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)


# -- progress.json -----------------------------------------------------------------------------------------------------

_EVERY_S = 20.0  # between two writes
_MARKS = 20  # writes that the rate is of: about seven minutes, validations included


class WriteProgress(Callback):
    """Writes how far a fit is: at its start and end, and about every 20 seconds between them.

    {"time": UTC, "step": optimizer steps made, "of": steps of the whole fit or null, "rate": recent steps/s,
    validations included, or null, "validating": whether it validates, "monitor": metric of the best checkpoint}

    Args:
        path: of the file.
        monitor: metric of the best checkpoint.
    """

    def __init__(self, path: Path, monitor: str) -> None:
        self.path, self.monitor = path, monitor
        self._marks: deque[tuple[float, int]] = deque(maxlen=_MARKS)
        self._started = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._marks.clear()
        self._started = time.monotonic()
        self._write(trainer)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if self._is_due():  # the first time after the first step, which takes longer than others
            self._write(trainer, mark=True)

    def on_validation_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if self._started and self._is_due():
            self._write(trainer, mark=True, validating=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer, mark=True)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self._started:
            self._write(trainer, mark=True)

    def _is_due(self) -> bool:
        """More often at the beginning: a fit may be over in a minute."""
        if not self._marks:
            return True
        clock, (before, _) = time.monotonic(), self._marks[-1]
        return clock - before >= min(_EVERY_S, max(1.0, (clock - self._started) / 5))

    def _write(self, trainer: Trainer, mark: bool = False, validating: bool = False) -> None:
        if mark:
            self._marks.append((time.monotonic(), trainer.global_step))
        if not trainer.is_global_zero:
            return
        rate, total = None, trainer.estimated_stepping_batches
        if self._marks and (steps := self._marks[-1][1] - self._marks[0][1]) > 0:
            rate = steps / (self._marks[-1][0] - self._marks[0][0])
        of = int(total) if math.isfinite(total) else None
        progress = {"time": now(), "step": trainer.global_step, "of": of, "rate": rate, "validating": validating}
        with suppress(OSError):  # a full disk ends a fit where it saves
            write_json(self.path, {**progress, "monitor": self.monitor})


# -- wandb -------------------------------------------------------------------------------------------------------------

_WANDB_SETTINGS = {
    # wandb waits for days for what is not uploaded at a run's end, and a job for its time limit; `wandb sync` takes it.
    "finish_timeout": 600.0,
    # Seconds between writes of what was logged: a killed run loses that much.
    "x_transaction_log_flush_interval": 1.0,
}


def identify(loggers: Sequence[Any], folder: Path, record: Mapping[str, Any]) -> dict[str, str] | None:
    """Give each WandbLogger the id, name and group under which all starts of a run are one run of wandb's.

    What its user set (also in the environment: a sweep's agent sets WANDB_RUN_ID) stays. Returns what the run's record
    keeps of it, None without such a logger.

    Args:
        loggers: of the Trainer.
        folder: the run's directory.
        record: the run's, its first start included.
    """
    found = None
    for logger in _of_wandb(loggers):
        if logger._experiment is not None or (wandb := sys.modules.get("wandb")) and wandb.run is not None:
            continue  # its user's own
        experiment = record.get("experiment", folder.parent.name)
        ours = {
            "id": os.environ.get("WANDB_RUN_ID") or _wandb_id(folder.name, record),
            "name": None if os.environ.get("WANDB_NAME") else f"{experiment}/{folder.name}",
            "group": None if os.environ.get("WANDB_RUN_GROUP") else experiment,
            "resume": "allow",  # the command line passes None, with which a second start replaces the first one
            "settings": _wandb_settings(),
        }
        given = logger._wandb_init
        given.update({key: value for key, value in ours.items() if given.get(key) is None})
        if given.get("dir") in (None, "."):
            given["dir"] = str(folder.resolve())
        if given.get("anonymous") is None:
            given.pop("anonymous", None)  # or wandb warns that it has no effect
        logger._id, logger._name, logger._save_dir = given["id"], given["name"], given["dir"]
        found = {"id": given["id"]}
    return found


def begin(loggers: Sequence[Any]) -> None:
    """Begin the loggers' runs in wandb. Raises InputError, such as for a missing account."""
    for logger in _of_wandb(loggers):
        try:
            logger.experiment  # noqa: B018
        except sys.modules["wandb"].Error as error:
            remedy = "trainer.logger.offline=true (or WANDB_MODE=offline) needs no account and no server"
            raise InputError(f"wandb: {str(error).rstrip('. ')}; {remedy}") from error


def _wandb_settings() -> dict[str, Any]:
    import wandb

    known = getattr(wandb.Settings, "model_fields", {})
    return {k: v for k, v in _WANDB_SETTINGS.items() if k in known and f"WANDB_{k.upper()}" not in os.environ}


def _wandb_id(run_id: str, record: Mapping[str, Any]) -> str:
    """Return the id of the run's first start: a run that was deleted and trained again is another one."""
    if before := (record.get("wandb") or {}).get("id"):
        return str(before)
    start: dict[str, Any] = next(iter(record.get("starts", [])), {})
    key = f"{record.get('experiment')} {start.get('time')} {start.get('hardware', {}).get('host')}"
    return f"{run_id}-{hashlib.sha256(key.encode()).hexdigest()[:6]}"


def attach(loggers: Sequence[Any], provenance: dict[str, Any]) -> None:
    """Log what made the result next to the configuration: wandb finds runs by `provenance.git.commit`."""
    for logger in _of_wandb(loggers):
        logger.log_hyperparams({"provenance": provenance})
        logger.log_metrics = partial(_log, logger)  # type: ignore[method-assign]


def _log(logger: WandbLogger, metrics: Mapping[str, float], step: int | None = None) -> None:
    """Log as the logger does; go on without wandb if its process has ended: a job's signal reaches that, too."""
    try:
        type(logger).log_metrics(logger, metrics, step)
    except OSError as error:
        print(to_one_line(f"warning: wandb's process has ended ({error}); metrics.csv goes on"), file=sys.stderr)
        logger.log_metrics = lambda *_, **__: None  # type: ignore[method-assign]


def summarize(loggers: Sequence[Any], metrics: Mapping[str, float]) -> None:
    """Set wandb's summary to the final metrics."""
    for logger in _of_wandb(loggers):
        with suppress(sys.modules["wandb"].Error, OSError):  # its user has ended the run already
            logger.experiment.summary.update(dict(metrics))


def finish(loggers: Sequence[Any], code: int) -> None:
    """End the runs that these loggers began, with this exit code; waits for what is not uploaded yet."""
    for logger in _of_wandb(loggers):
        if logger._experiment is not None and logger._experiment.id == logger._id:
            with suppress(sys.modules["wandb"].Error, OSError):
                logger._experiment.finish(exit_code=code)
            logger._experiment = None


def _of_wandb(loggers: Sequence[Any]) -> list[WandbLogger]:
    return [logger for logger in loggers if isinstance(logger, WandbLogger)]
