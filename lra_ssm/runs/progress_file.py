"""progress.json: how far a fit is, for those who look at it from outside (lra-ssm status)."""

import math
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lra_ssm.files import write_json
from lra_ssm.progress import ends
from lra_ssm.runs.provenance import now

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
