"""What Slurm has of a sweep, for who looks at it: no Slurm, and none that answers, is no error."""

import shutil
from dataclasses import dataclass, field

from lra_ssm.cluster.folder import SweepFolder
from lra_ssm.cluster.slurm import queued, submissions
from lra_ssm.errors import InputError

_PATIENCE = 5.0  # seconds for squeue
# Others that squeue shows (REQUEUE_HOLD, SPECIAL_EXIT, …) are of runs that wait.
_RUNNING = {"RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "STAGE_OUT", "SIGNALING", "RESIZING"}


@dataclass(frozen=True)
class Queue:
    """Runs of a sweep, by their index, that Slurm has."""

    running: frozenset[int] = frozenset()
    waiting: dict[int, str] = field(default_factory=dict)  # with Slurm's reason
    gone: frozenset[int] = frozenset()  # submitted once, and not in the queue any more: nothing of them runs there
    note: str = ""  # why nothing is known, where there are jobs to ask about


def queue_of(folder: SweepFolder) -> Queue:
    """Asks squeue once, for a few seconds."""
    indices = frozenset(index for one in submissions(folder) for index in one.get("indices", []))
    if not indices or shutil.which("squeue") is None:
        return Queue()
    try:
        found = queued(folder, _PATIENCE)
    except InputError as error:
        return Queue(note=f"{error}; what stands here is without it")
    running = frozenset(index for index, (state, _) in found.items() if state in _RUNNING)
    waiting = {index: reason for index, (_, reason) in found.items() if index not in running}
    return Queue(running, waiting, indices - running - waiting.keys())
