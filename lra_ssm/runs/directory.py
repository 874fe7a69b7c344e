"""Where a run lives: its directory, its lock, its record.

runs/<experiment>/<run_id>/
    config.yaml      the resolved configuration
    run.json         status, versions, git commit, hardware, command, final metrics
    progress.json    while it trains: the step it is at and the steps to make, the rate, the time
    metrics.csv      everything logged
    curves.png       the same as curves, when a fit ends
    checkpoints/     last.ckpt, best.ckpt; while it is not finished, last.previous.ckpt
    own_checkpoints/ of a ModelCheckpoint of the user's that has no dirpath
"""

import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from filelock import FileLock, Timeout

from lra_ssm.errors import InputError
from lra_ssm.files import UNFINISHED, replacing, set_aside, unused, write_json
from lra_ssm.runs.provenance import now
from lra_ssm.runs.record import is_of_the_end, read_object, read_record, same_data

# What whoever holds the directory writes, and nobody else.
_HELD = ("run.json", "config.yaml", "metrics.csv", "progress.json", ".holder.json")
_LOOK = 1.0  # seconds in which whoever merely looks whether the directory is held lets go of it; see `is_held`
_DEAD = 3600  # seconds for which nobody has written to a file that a command beside this one may be writing


class RunDirectory:
    """The directory of one run. Made on first use; `lock()` holds it until `release()` or the process's end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: FileLock | None = None

    @classmethod
    def find(
        cls, runs_dir: str | Path, experiment: str, run_id: str, fresh: bool = False, former: Sequence[str] = ()
    ) -> Self:
        """`<run_id>`, or with `fresh` the first of `<run_id>-2`, `-3`, … that is not finished.

        An unfinished fresh run is resumed by the same command, as any other. former: ids that the run may have had
        before: one stands for `run_id` where a directory is called by it and none by `run_id`."""
        base = Path(runs_dir) / experiment
        run_id = next((i for i in (run_id, *former) if (base / i).is_dir() or (base / f"{i}-2").is_dir()), run_id)
        run, number = cls(base / run_id), 2
        while fresh and (number == 2 or run.finished):
            run = cls(base / f"{run_id}-{number}")
            number += 1
        return run

    @property
    def last(self) -> Path:
        return self.path / "checkpoints" / "last.ckpt"

    @property
    def best(self) -> Path:
        return self.path / "checkpoints" / "best.ckpt"

    @property
    def before_last(self) -> Path:
        """The checkpoint before the last one."""
        return previous(self.last)

    @property
    def record(self) -> dict[str, Any]:
        """What run.json says; nothing where it is damaged."""
        return read_record(self.path / "run.json")[0]

    def set_damaged_record_aside(self) -> None:
        """So that the record is made anew, of the checkpoint and metrics.csv; says so. By who holds the directory."""
        file = self.path / "run.json"
        if problem := read_record(file)[1]:
            aside = set_aside(file)
            print(f"warning: {file} is damaged: {problem}; it is made anew, what was there is in {aside.name}")

    @property
    def finished(self) -> bool:
        return self.record.get("status") == "finished"

    @property
    def tested(self) -> bool:
        """Whether test.json is of what the last attempt ended with."""
        return is_of_the_end(read_object(self.path / "test.json"), self.record.get("starts", []))

    def lock(self) -> None:
        """Takes the directory for this process. Raises InputError naming the holder where another one has it.

        The kernel drops the lock with the process, so that a killed run leaves none."""
        try:
            (self.path / "checkpoints").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"run directory {self.path} cannot be made: {error.strerror}; set --runs_dir") from error
        lock = FileLock(self.path / ".lock")
        holder = self.path / ".holder.json"
        try:
            lock.acquire(timeout=_LOOK)
        except Timeout:
            who = self.holder
            raise InputError(
                f"{self.path} is in use by process {who['pid']} on {who['host']} since {who['since']}; "
                "wait for it, stop it, or start another run with --fresh"
            ) from None
        self._lock = lock
        write_json(holder, {"pid": os.getpid(), "host": socket.gethostname(), "since": now()})
        self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        """What killed processes left of files that they were writing; a `test` beside this fit may write still."""
        for leftover in [*self.path.glob(f"{UNFINISHED}*"), *self.path.glob(f"checkpoints/{UNFINISHED}*")]:
            target = leftover.name.removeprefix(UNFINISHED)
            ours = leftover.parent != self.path or target.startswith(_HELD)
            with suppress(FileNotFoundError):
                if ours or time.time() - leftover.stat().st_mtime > _DEAD:
                    leftover.unlink()

    def write_record(self, **fields: Any) -> None:
        write_json(self.path / "run.json", {**self.record, **fields})

    def record_score(
        self, command: str, checkpoint: str, metrics: dict[str, float], limit: int | float | None, data: Any
    ) -> None:
        """Writes test.json (validate.json) where a result is the run's: of best.ckpt (last.ckpt where there is none)
        and the data that it was trained with; else, told in a line, adds it to test-others.json.

        Args:
            command: "test" or "validate".
            checkpoint: the file that was scored.
            metrics: what was found.
            limit: Lightning's limit_test_batches: batches, or a share of them; None for all.
            data: the data module that was scored.
        """
        result: dict[str, Any] = {"checkpoint": checkpoint, "metrics": metrics, "time": now()}
        if limit is not None and not (isinstance(limit, float) and limit == 1):
            result["limit_batches"] = limit  # it is of a part of the split
        if hasattr(data, "provenance"):
            result["data"] = data.provenance()
        file, trained = self.path / f"{command}.json", self.record.get("data")
        before, own = read_object(file), self.best if self.best.is_file() else self.last
        why = ""
        if trained and hasattr(data, "manifest") and not same_data(trained, data.manifest()):
            why, result["other_data"] = "other data than the run's", True
        elif Path(checkpoint).name != own.name:
            why = f"{Path(checkpoint).name}, not {own.name}"
        elif "limit_batches" in result and before and "limit_batches" not in before:
            why = "a part of the split, and the whole was scored before"
        if why:
            file = file.with_name(f"{command}-others.json")
            result = {"others": [*read_object(file).get("others", []), result]}
            print(f"recorded in {file}, not as the run's result: it is of {why}")
        write_json(file, result)

    def save_config(self, text: str) -> None:
        """Writes config.yaml; one that is there with other text is kept as config.before.yaml, config.before-2.yaml."""
        file = self.path / "config.yaml"
        if file.is_file():
            if file.read_bytes() == text.encode():
                return
            file.rename(unused(self.path / "config.before.yaml"))
        with replacing(file) as partial:
            partial.write(text)

    @property
    def holder(self) -> dict[str, Any]:
        """pid, host and since of who holds the directory or held it last, as far as it can be read: another process may
        have been cut off while it wrote it."""
        return {"pid": "?", "host": "?", "since": "?", **read_object(self.path / ".holder.json")}

    @property
    def held(self) -> bool:
        """Whether this process holds the directory."""
        return self._lock is not None

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def is_held(file: Path) -> bool:
    """Whether a process on this machine, or on another one where the file system tells, holds the lock on the file.

    Looks without taking it: a shared lock, given back at once. False for a file that is not there."""
    import fcntl

    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no locks on this file system
        return False
    finally:
        os.close(descriptor)
    return False


def previous(path: Path) -> Path:
    """Where the checkpoint before the last one is kept."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")
