"""What a fit writes while it trains: metrics.csv, a row per log call, and progress.json, how far it is."""

import csv
import math
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from lra_ssm.files import appending, replacing, set_aside, write_json
from lra_ssm.progress import ends
from lra_ssm.runs.logged import read_metrics
from lra_ssm.runs.provenance import now

ROWS = "lra_ssm_rows"  # in a checkpoint: how many rows of steps before its own metrics.csv had


class CSVRunLogger(Logger):
    """metrics.csv of a run: one row per log call, `step` and `epoch` first; appended to when the run goes on.

    (Lightning's CSVLogger deletes the rows of before.) `forget_from(step)` drops the rows of steps that a killed run
    had logged after the checkpoint it goes on from: they are about to be made again.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._columns, _ = read_metrics(path)
        self._steps: list[str] = []  # of the rows, since `forget_from`

    @property
    def name(self) -> str:
        return self.path.parent.parent.name

    @property
    def version(self) -> str:
        return self.path.parent.name

    @property
    def save_dir(self) -> str:
        return str(self.path.parent)

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """config.yaml has them."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        row = {
            "step": step,
            "epoch": int(metrics.get("epoch", 0)),
            **{k: v for k, v in metrics.items() if k != "epoch"},
        }
        new = [key for key in row if key not in self._columns]
        if new:
            _, rows = read_metrics(self.path)
            self._columns += new
            self._write(rows)
        with appending(self.path, newline="") as file:
            csv.DictWriter(file, self._columns).writerow(row)
        self._steps.append(str(step))

    def rows_before(self, step: int) -> int:
        return sum(_is_before(at, step) for at in self._steps)

    def forget_from(self, step: int, had: int = 0) -> None:
        """had: the rows of steps before it that were there once; a line says so where there are fewer."""
        there = self.path.is_file()
        self._columns, rows = read_metrics(self.path)
        if there and not self._columns:
            aside = set_aside(self.path)
            print(f"warning: {self.path} is damaged: it has no columns step and epoch; it is begun anew, what was "
                  f"there is in {aside.name}")  # fmt: skip
            return
        kept = [row for row in rows if _is_before(row["step"], step)]
        self._steps = [row["step"] for row in kept]
        if there:
            self._write(kept)
        if len(kept) < had:
            print(f"warning: {self.path} has lost rows: {len(kept)} are left of {had} before step {step}; the run goes "
                  "on without them")  # fmt: skip

    def _write(self, rows: list[dict[str, str]]) -> None:
        with replacing(self.path, newline="") as file:
            writer = csv.DictWriter(file, self._columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)


def _is_before(text: str | None, step: int) -> bool:
    return (text or "").isdecimal() and int(text or "") < step


_EVERY = 20.0  # seconds between two writings
_MARKS = 20  # writings that the rate is of: about seven minutes, validations included


class WriteProgress(Callback):
    """Writes how far a fit is, by its first process: at its start and end, and about every 20 seconds between them.

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

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._due():  # the first time after the first step, which takes longer than others
            self._mark(trainer)

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        if self._started and self._due():
            self._mark(trainer, validating=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._mark(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self._started:
            self._mark(trainer)

    def _due(self) -> bool:
        """More often at the beginning: a fit may be over in a minute."""
        if not self._marks:
            return True
        clock, (before, _) = time.monotonic(), self._marks[-1]
        return clock - before >= min(_EVERY, max(1.0, (clock - self._started) / 5))

    def _mark(self, trainer: Trainer, validating: bool = False) -> None:
        self._marks.append((time.monotonic(), trainer.global_step))
        self._write(trainer, validating)

    def _write(self, trainer: Trainer, validating: bool = False) -> None:
        if not trainer.is_global_zero:
            return
        rate, total = None, min(ends(trainer))
        if self._marks and (steps := self._marks[-1][1] - self._marks[0][1]) > 0:
            rate = steps / (self._marks[-1][0] - self._marks[0][0])
        progress = {
            "time": now(),
            "step": trainer.global_step,
            "of": int(total) if math.isfinite(total) else None,
            "rate": rate,
            "validating": validating,
            "monitor": self.monitor,
        }
        with suppress(OSError):  # a full disk ends a fit where it saves
            write_json(self.path, progress)
