"""metrics.csv of a run: what is logged, a row per call."""

import csv
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from lra_ssm.files import appending, replacing, set_aside
from lra_ssm.runs.logged import read_metrics

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
