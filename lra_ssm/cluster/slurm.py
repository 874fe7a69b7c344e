"""Submits a sweep to Slurm, and asks Slurm about it."""

import json
import re
import shutil
import subprocess
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from lra_ssm.cluster.folder import SweepFolder
from lra_ssm.cluster.script import Profile, array_script, prepare_script, results_script
from lra_ssm.errors import InputError, squeeze
from lra_ssm.files import replacing, write_json
from lra_ssm.runs.provenance import now

PATIENCE = 120.0  # seconds for sbatch: a busy controller may keep it waiting
_SHOWN = 8  # partitions
# Runs in other states that squeue shows (REQUEUE_HOLD, SPECIAL_EXIT, …) wait.
_RUNNING = {"RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "STAGE_OUT", "SIGNALING", "RESIZING"}


@dataclass(frozen=True)
class Queue:
    """What Slurm says about a sweep's runs, by their index; empty without a Slurm."""

    running: frozenset[int] = frozenset()
    waiting: dict[int, str] = field(default_factory=dict)  # with Slurm's reason
    gone: frozenset[int] = frozenset()  # submitted before, and no longer in the queue
    note: str = ""  # why Slurm could not be asked


NO_QUEUE = Queue()


def write_scripts(folder: SweepFolder, indices: list[int], profile: Profile, results: bool) -> dict[str, str]:
    """Writes the jobs of a submission into the folder; gives them by their files, in the order in which they run."""
    scripts = {"prepare.sbatch": prepare_script(folder, profile)} if folder.prepares else {}
    scripts["submit.sbatch"] = array_script(folder, indices, profile)
    if results:
        scripts["results.sbatch"] = results_script(folder, profile)
    folder.logs.mkdir(exist_ok=True)  # a user may have removed it; without it every task fails silently
    for name, text in scripts.items():
        with replacing(folder.path / name) as file:
            file.write(text)
    return scripts


def submit(folder: SweepFolder, indices: list[int], profile: Profile, results: bool) -> dict[str, str]:
    """Submits these runs as one array, after a job that prepares their data; gives the jobs' ids by their scripts.

    Raises InputError with Slurm's own words if it refuses one; nothing stays queued then.
    """
    if shutil.which("sbatch") is None:
        raise InputError("sbatch is not here: submit from a machine of the cluster, or run here with --local N")
    jobs: dict[str, str] = {}
    for name in write_scripts(folder, indices, profile, results):
        after = []
        if jobs:
            how = "afterany" if name == "results.sbatch" else "afterok"
            after = [f"--dependency={how}:{list(jobs.values())[-1]}", "--kill-on-invalid-dep=yes"]
        try:
            command = ["sbatch", "--parsable", *after, str(folder.path / name)]
            said = _ask(command, PATIENCE, f"Slurm refuses {name}")
            jobs[name] = said.strip().partition(";")[0]  # the cluster's name may follow
        except InputError:
            for job in jobs.values():
                with suppress(InputError):
                    _ask(["scancel", job], PATIENCE)
            raise
    entry = {
        "time": now(),
        "job": jobs["submit.sbatch"],
        "indices": indices,
        "jobs": jobs,
        "profile": asdict(profile),
    }
    write_json(folder.path / "submissions.json", [*submissions(folder), entry])
    return jobs


def submissions(folder: SweepFolder) -> list[dict[str, Any]]:
    """The submissions of a sweep, the last one last. Raises InputError where their file is damaged."""
    file = folder.path / "submissions.json"
    try:
        return json.loads(file.read_bytes()) if file.is_file() else []
    except ValueError as error:
        raise InputError(
            f"{file} is damaged ({error}); move it away, and status shows what the runs recorded"
        ) from error


def queue_of(folder: SweepFolder, patience: float = 5.0) -> Queue:
    """Asks squeue once, for at most `patience` seconds."""
    jobs = submissions(folder)
    if not jobs or shutil.which("squeue") is None:
        return NO_QUEUE
    ids = ",".join(str(job["job"]) for job in jobs)
    try:
        out = _ask(["squeue", "--noheader", "--array", f"--jobs={ids}", "--format=%K|%T|%r"], patience)
    except InputError as error:
        if "Invalid job id" not in str(error):  # Slurm has forgotten jobs that ended long ago
            return Queue(note=str(error))
        out = ""
    found = [(int(index), *words) for index, *words in re.findall(r"^(\d+)\|(.*?)\|(.*)$", out, re.MULTILINE)]
    running = frozenset(index for index, state, _ in found if state in _RUNNING)
    waiting = {index: reason for index, _, reason in found if index not in running}
    submitted = frozenset(index for job in jobs for index in job["indices"])
    return Queue(running, waiting, submitted - running - waiting.keys())


def partitions() -> str | None:
    """Slurm's version and its partitions, in one line; None where there is no sbatch.

    Raises InputError where sbatch or sinfo cannot be run, fails, or does not answer within 3 seconds.
    """
    if shutil.which("sbatch") is None:
        return None
    version = _ask(["sbatch", "--version"], 3.0)
    found = _ask(["sinfo", "--noheader", "--format=%P (%D nodes, %l, %G, %a)"], 3.0).splitlines()
    names = ", ".join(line.strip() for line in found[:_SHOWN]).replace(", (null)", "").replace(", up)", ")")
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return squeeze(f"{version.strip()}; partitions {names or 'none'}{more}")


def _ask(command: list[str], patience: float, fails: str = "") -> str:
    """What a command of Slurm prints.

    Raises InputError, with Slurm's words behind `fails`, if it fails, cannot be run, or needs over `patience` seconds.
    """
    name = command[0]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=patience, check=False)
    except OSError as error:
        raise InputError(f"{name} cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise InputError(f"{name} did not answer within {patience:g} s") from None
    if done.returncode:
        said = re.sub(rf"^{name}: (?:error: )?", "", done.stderr or done.stdout, flags=re.MULTILINE)
        raise InputError(f"{fails or f'{name} fails'}: {said or f'exit code {done.returncode}'}")
    return done.stdout
