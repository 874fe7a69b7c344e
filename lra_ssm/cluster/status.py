"""Where each run of a sweep stands: from its directory, its locks and its log, and from Slurm's queue."""

import socket
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from lra_ssm.cluster.folder import FolderRun, SweepFolder
from lra_ssm.cluster.logs import Attempt, last_attempt, timestamp
from lra_ssm.cluster.slurm import NO_QUEUE, Queue
from lra_ssm.runs.directory import is_held
from lra_ssm.runs.logged import latest
from lra_ssm.runs.record import read_object

State = Literal["waiting", "running", "done", "failed", "stopped", "lost"]
STATES: tuple[State, ...] = get_args(State)
BELIEVED = 600.0  # seconds for which a process on another machine, whose lock is not seen, is believed to live
_QUIET = 90.0  # seconds without a sign of it after which the table says so
_SIGNS = ("progress.json", "metrics.csv", "run.json")  # files that a run writes while it trains


@dataclass(frozen=True)
class RunState:
    """One run of a sweep as it stands."""

    index: int
    state: State
    phase: str = ""  # of a run that is running: starting, training, validating or testing
    reason: str = ""  # why it failed, waits, was stopped or is lost
    step: int | None = None  # optimizer steps made
    of: int | None = None  # of the whole fit, where that is known
    rate: float | None = None  # recent steps a second, validations included
    seconds_left: float | None = None  # of a fit that is running
    train: dict[str, float] = field(default_factory=dict)  # the latest loss, by its name
    val: dict[str, float] = field(default_factory=dict)  # and metric of the validation
    test: dict[str, float] = field(default_factory=dict)  # of a run that is trained
    attempts: int = 0
    silent: float | None = None  # seconds without a sign of a run on another machine
    path: Path = Path()
    log: Path = Path()

    @property
    def ended(self) -> bool:
        """Whether it continues only if a user starts it again."""
        return self.state not in ("waiting", "running")

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"path": str(self.path), "log": str(self.log)}


def states(folder: SweepFolder, queue: Queue = NO_QUEUE) -> list[RunState]:
    """Every run of the sweep."""
    return [run_state(folder, run, queue) for run in folder.runs]


def run_state(folder: SweepFolder, run: FolderRun, queue: Queue = NO_QUEUE) -> RunState:
    """One run of the sweep."""
    path, log = run.directory.path, folder.log(run.index)
    record, progress = run.directory.record, read_object(path / "progress.json")
    starts, status = record.get("starts", []), record.get("status")
    found = RunState(run.index, "waiting", attempts=len(starts), path=path, log=log)
    if record:
        found = replace(found, **_reached(path, progress, record))
    if status == "finished" and run.directory.tested:
        return replace(found, state="done")
    began = timestamp(starts[-1].get("time")) if starts else 0.0
    attempt = last_attempt(log)
    if attempt is not None and began > _changed(log) + 1:
        attempt = None  # the run was started by hand after that
    # Whether the record is of the last attempt, which may have ended before it came to the run's directory.
    current = bool(record) and (attempt is None or status == "finished" or began >= attempt.began - 1)
    held = is_held(path / ".lock")
    running = _running(found, status, held or current and status == "started", progress)
    if held or is_held(log) or run.index in queue.running:
        return running
    if run.index in queue.waiting:
        return replace(found, reason=queue.waiting[run.index])
    if not record and (attempt is None or not log.stat().st_size):
        if run.index not in queue.gone:
            return found
        state, reason = _never_started(folder)
    else:
        # A lock on another machine may not be seen here: its files tell for how long it gave no sign.
        host = run.directory.holder["host"] if attempt is None or current else attempt.host
        over = attempt is not None and attempt.over or current and status not in ("started", "finished")
        if not over and host != socket.gethostname() and run.index not in queue.gone:
            silent = time.time() - max(map(_changed, (log, *(path / name for name in _SIGNS))))
            if silent < BELIEVED:
                return replace(running, silent=silent if silent > _QUIET else None)
        state, reason = _end(record if current else {}, attempt or Attempt())
    return replace(found, state=state, reason=reason)


def _running(found: RunState, status: Any, training: bool, progress: dict[str, Any]) -> RunState:
    if not training:
        return replace(found, state="running", phase="testing" if status == "finished" else "starting")
    left = None
    if found.step is not None and found.of is not None and found.rate:
        left = max(0.0, (found.of - found.step) / found.rate)
    phase = "validating" if progress.get("validating") else "training"
    return replace(found, state="running", phase=phase, seconds_left=left)


def _end(record: dict[str, Any], attempt: Attempt) -> tuple[State, str]:
    """State and reason of a run that no process works at and that is not done.

    record: of the last attempt, empty if that did not come so far."""
    status = record.get("status")
    ours = attempt.ours.partition("; the same command")[0]
    how = attempt.ended or attempt.others or ours
    if attempt.error not in ("", "interrupted"):
        return "failed", attempt.error
    if status == "failed":
        return "failed", record.get("reason", "")
    if status == "interrupted":
        return "stopped", ours or attempt.others or attempt.ended or "stopped by a signal"
    if status == "stopped by max_time":
        return "stopped", "trainer.max_time was over"
    if attempt.error or "stopped by" in f"{attempt.ended} {ours}":
        where = "in its test" if status == "finished" else "before it trained"
        return "stopped", f"{ours or attempt.ended or 'stopped by SIGINT'}, {where}"
    if record or attempt.ended or not attempt.last:
        what = "its test" if status == "finished" else "its process"
        return "lost", how or f"{what} ended without a word"
    return "failed", how or f"its log ends with: {attempt.last}"


def _never_started(folder: SweepFolder) -> tuple[State, str]:
    """Of a run that was submitted, and that Slurm no longer has: without its data the array does not start."""
    prepare = folder.logs / "prepare.log"
    if (attempt := last_attempt(prepare)) and attempt.error:
        return "failed", f"its data is not prepared: {attempt.error} ({prepare})"
    return "lost", "Slurm has it no more: cancelled before it started"


def _reached(path: Path, progress: dict[str, Any], record: dict[str, Any]) -> dict[str, Any]:
    """Step, rate and metrics of a run that was started."""
    logged = latest(path / "metrics.csv")
    step, monitor = progress.get("step"), str(progress.get("monitor", ""))
    if step is None and "step" in logged:
        step = int(logged["step"]) + 1
    tested = read_object(path / "test.json").get("metrics") if record.get("status") == "finished" else {}
    return {
        "step": step,
        "of": progress.get("of"),
        "rate": progress.get("rate"),
        "train": {name: logged[name] for name in ("train/loss",) if name in logged},
        "val": _chosen(logged, "val/", monitor),
        "test": _chosen(tested if isinstance(tested, dict) else {}, "test/", monitor.replace("val/", "test/", 1)),
    }


def _chosen(metrics: dict[str, float], prefix: str, monitor: str) -> dict[str, float]:
    """The metric that the best checkpoint is chosen by, else the first one that is no loss."""
    names = [name for name, value in metrics.items() if name.startswith(prefix) and isinstance(value, (int, float))]
    names.sort(key=lambda name: (name != monitor, name.endswith("/loss"), name))
    return {name: metrics[name] for name in names[:1]}


def seconds_left(found: Iterable[RunState]) -> float | None:
    """Until all runs are done, if as many run at once as now; None where nothing tells.

    A run that waits takes as long as the others on average."""
    found = list(found)
    running = [run for run in found if run.state == "running"]
    whole = [run.of / run.rate for run in found if run.of and run.rate]
    if not running or not whole:
        return None
    mean = sum(whole) / len(whole)
    left = [mean if run.seconds_left is None else run.seconds_left for run in running if run.phase != "testing"]
    waiting = sum(run.state == "waiting" for run in found)
    return max([0.0, *left, (sum(left) + mean * waiting) / len(running)])


def _changed(file: Path) -> float:
    return file.stat().st_mtime if file.exists() else 0.0
