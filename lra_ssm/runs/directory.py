"""The directory of a run: its lock and its scores. Only `Run` writes there; `runs/record.py` reads it.

<runs_dir>/<experiment>/<run_id>/
    config.yaml      the resolved configuration
    run.json         status, versions, git commit, hardware, command, what the run started from, final metrics
    progress.json    during training: the step, the planned steps, the rate, the time
    metrics.csv      everything logged
    curves.png       the logged metrics as curves, drawn when a fit ends
    test.json        the complete score of best.ckpt (validate.json likewise); other scores are in test-others.json
    checkpoints/     last.ckpt, best.ckpt
    own_checkpoints/ a user's ModelCheckpoint without a dirpath writes here
"""

import os
import socket
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from lra_ssm.errors import InputError
from lra_ssm.files import UNFINISHED, write_json
from lra_ssm.runs.provenance import now
from lra_ssm.runs.record import changed_data, read_file, read_object

_LOCK_TIMEOUT_S = 1.0  # a reader may hold the lock for a moment to see whether it is taken


def choose_directory(folder: Path, run_id: str, fresh: bool = False) -> Path:
    """Return <folder>/<run_id>; with `fresh` the first of <run_id>-2, -3, … that is not finished.

    An unfinished fresh run is resumed by the same command, as any other.
    """
    path, number = folder / run_id, 2
    while fresh and (number == 2 or RunDirectory(path).finished):
        path = folder / f"{run_id}-{number}"
        number += 1
    return path


class RunDirectory:
    """The directory of one run; `lock` holds it until `release` or the process's end."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock: FileLock | None = None

    @property
    def last(self) -> Path:
        return self.path / "checkpoints" / "last.ckpt"

    @property
    def best(self) -> Path:
        return self.path / "checkpoints" / "best.ckpt"

    @property
    def record(self) -> dict[str, Any]:
        """The contents of run.json; empty if it does not exist. Raises InputError if it is damaged."""
        return read_file(self.path / "run.json")

    @property
    def began_with(self) -> dict[str, Any]:
        """The contents of config.yaml; empty if it does not exist. Raises InputError if it is damaged."""
        return read_file(self.path / "config.yaml")

    @property
    def finished(self) -> bool:
        return self.record.get("status") == "finished"

    # -- the lock --------------------------------------------------------------------------------------------------

    def lock(self) -> None:
        """Lock the directory for this process. Raises InputError naming the holder if another one has it.

        The kernel drops the lock with the process, so that a killed run leaves none.
        """
        (self.path / "checkpoints").mkdir(parents=True, exist_ok=True)
        lock, holder = FileLock(self.path / ".lock"), self.path / ".holder.json"
        try:
            lock.acquire(timeout=_LOCK_TIMEOUT_S)
        except Timeout:
            who = {"pid": "?", "host": "?", "since": "?", **read_object(holder)}
            raise InputError(
                f"{self.path} is in use by process {who['pid']} on {who['host']} since {who['since']}; "
                "wait for it, stop it, or start another run with --fresh"
            ) from None
        self._lock = lock
        write_json(holder, {"pid": os.getpid(), "host": socket.gethostname(), "since": now()})
        for leftover in self.path.glob(f"checkpoints/{UNFINISHED}*"):  # from a killed process
            leftover.unlink(missing_ok=True)

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # -- scores ----------------------------------------------------------------------------------------------------

    def record_score(self, command: str, score: dict[str, Any], data: Any) -> None:
        """Write test.json (validate.json) if the score is the run's own; else add it to test-others.json and say why.

        A score is the run's own if it is of the whole split and of the best checkpoint of a finished run (the last one
        if there is no best), with the run's data and settings.

        Args:
            command: "test" or "validate".
            score: checkpoint, checkpoint_sha256, began, batches, of_batches, settings (those that differ), metrics.
            data: the data module that was scored.
        """
        record, file = self.record, self.path / f"{command}.json"
        best = record.get("best") or {"file": self.last.name, "sha256": None}
        score = {**score, "time": now()}
        if hasattr(data, "provenance"):
            score["data"] = data.provenance()
        ended_at = (record.get("starts") or [{}])[-1].get("ended") or ""
        why = ""
        if record.get("status") != "finished" or score["began"] < ended_at:
            why = "a run that was not finished"
        elif Path(score["checkpoint"]).name != best["file"] or best["sha256"] not in (None, score["checkpoint_sha256"]):
            why = f"{score['checkpoint']}, not the run's {best['file']}"
        elif hasattr(data, "manifest") and changed_data(record.get("data") or {}, data.manifest()):
            why = "other data than the run's"
        elif score["settings"]:
            why = f"other settings ({', '.join(f'{name} {value}' for name, value in score['settings'].items())})"
        elif score["batches"] != score["of_batches"]:
            why = f"{score['batches']} of {score['of_batches']} batches"
        if why:
            file = file.with_name(f"{command}-others.json")
            score = {"others": [*read_object(file).get("others", []), {**score, "why": why}]}
            print(f"recorded in {file}, not as the run's result: it is of {why}")
        write_json(file, score)
