"""What Slurm says of a sweep's jobs, where there is a Slurm: one call, and no answer is no error."""

import json
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from lra_ssm.errors import squeeze

_PATIENCE = 5.0  # seconds for squeue
_RUNNING = {"RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "STAGE_OUT", "SIGNALING", "RESIZING"}
_WAITING = {"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"}


@dataclass(frozen=True)
class Queue:
    """Runs of a sweep in Slurm's queue."""

    running: dict[int, str] = field(default_factory=dict)  # index -> job
    waiting: dict[int, str] = field(default_factory=dict)  # index -> Slurm's reason
    submitted: frozenset[int] = frozenset()  # every run that was ever submitted
    answered: bool = False  # whether Slurm was asked, and said so
    note: str = ""  # why not, where there are jobs to ask about


def queue_of(folder: Path) -> Queue:
    """Slurm's queue for the jobs of a sweep's folder."""
    try:
        submissions = json.loads((folder / "submissions.json").read_bytes())
        jobs = [str(submission["job"]) for submission in submissions]
        submitted = frozenset(int(index) for submission in submissions for index in submission["indices"])
    except (OSError, ValueError, KeyError, TypeError):
        return Queue()
    if not jobs or shutil.which("squeue") is None:
        return Queue(submitted=submitted)
    # The long format's columns are cut off; %i of an array that waits is one line only with --array.
    command = ["squeue", "--noheader", "--array", "--jobs=" + ",".join(jobs), "--format=%i|%T|%r"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        return Queue(submitted=submitted, note=f"squeue did not answer within {_PATIENCE:.0f} s")
    except OSError as error:
        return Queue(submitted=submitted, note=f"squeue cannot be run: {error.strerror}")
    if answer.returncode and "Invalid job id" not in answer.stderr:  # it knows none of them any more
        return Queue(submitted=submitted, note=f"squeue failed: {squeeze(answer.stderr)}")
    running, waiting = {}, {}
    for line in answer.stdout.splitlines():
        job, _, rest = line.strip().partition("|")
        state, _, reason = rest.partition("|")
        number, _, task = job.partition("_")
        if number not in jobs or not task.isdecimal():
            continue
        if state in _RUNNING:
            running[int(task)] = job
        elif state in _WAITING:
            waiting[int(task)] = reason
    return Queue(running, waiting, submitted, True)
