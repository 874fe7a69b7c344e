"""What we say to Slurm, and what it answers."""

import json
import re
import shutil
import subprocess
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lra_ssm.cluster.folder import SweepFolder
from lra_ssm.cluster.script import Profile, array_script, collect_script, prepare_script
from lra_ssm.errors import InputError, squeeze
from lra_ssm.files import replacing, write_json
from lra_ssm.runs.provenance import now

_PATIENCE = 120  # seconds for sbatch, which a busy controller may keep waiting
_SHOWN = 8  # partitions


def scripts(folder: SweepFolder, indices: list[int], profile: Profile, collect: bool) -> dict[str, str]:
    """The jobs of a submission, by the file that each is written to, in the order in which they run."""
    found = {"prepare.sbatch": prepare_script(folder, profile)} if folder.prepares else {}
    found["submit.sbatch"] = array_script(folder, indices, profile)
    return found | ({"results.sbatch": collect_script(folder, profile)} if collect else {})


def write_scripts(folder: SweepFolder, indices: list[int], profile: Profile, collect: bool) -> list[str]:
    """Writes them into the folder; returns their names, in the order in which they run."""
    found = scripts(folder, indices, profile, collect)
    folder.log(0).parent.mkdir(exist_ok=True)  # without, where they were removed, Slurm fails every task silently
    for name, text in found.items():
        with replacing(folder.path / name) as file:
            file.write(text)
    return list(found)


def submit(folder: SweepFolder, indices: list[int], profile: Profile, collect: bool) -> dict[str, str]:
    """Submits these runs as one array, after a job that prepares their data; gives the jobs' ids by their scripts.

    Raises InputError with Slurm's own words for what it refuses; nothing stays queued then.
    """
    jobs: dict[str, str] = {}
    for name in write_scripts(folder, indices, profile, collect):
        after = []
        if jobs:
            how = "afterany" if name == "results.sbatch" else "afterok"
            after = [f"--dependency={how}:{list(jobs.values())[-1]}", "--kill-on-invalid-dep=yes"]
        try:
            jobs[name] = _sbatch([*after, str(folder.path / name)])
        except InputError:
            for job in jobs.values():
                with suppress(OSError, subprocess.SubprocessError):
                    subprocess.run(["scancel", job], capture_output=True, timeout=_PATIENCE)
            raise
    entry = {"time": now(), "job": jobs["submit.sbatch"], "indices": indices, "jobs": jobs, "profile": asdict(profile)}
    write_json(folder.path / "submissions.json", [*submissions(folder), entry])
    return jobs


def submissions(folder: SweepFolder) -> list[dict[str, Any]]:
    """What was submitted of a sweep, the last one last."""
    try:
        found = json.loads((folder.path / "submissions.json").read_bytes())
    except (OSError, ValueError):
        return []
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def queued(folder: SweepFolder, patience: float = _PATIENCE) -> dict[int, tuple[str, str]]:
    """Runs that Slurm has, by their index: the job's state and its reason, in Slurm's words.

    Raises InputError where squeue is not here or does not answer within `patience` seconds: nothing is known then.
    """
    jobs = [str(one["job"]) for one in submissions(folder)]
    if not jobs:
        return {}
    command = ["squeue", "--noheader", "--array", f"--jobs={','.join(jobs)}", "--format=%K|%T|%r"]
    done = _asked(command, patience)
    if done.returncode and "Invalid job id" not in done.stderr:  # which Slurm has forgotten: it has ended
        raise InputError(f"squeue fails: {squeeze(done.stderr)}")
    known: dict[int, tuple[str, str]] = {}
    for line in done.stdout.splitlines():
        index, _, rest = line.partition("|")
        state, _, reason = rest.partition("|")
        if index.strip().isdecimal():
            known[int(index)] = (state, reason)
    return known


def partitions(patience: float = 3.0) -> str | None:
    """Slurm's version and its partitions, in one line; None where there is no sbatch.

    Raises InputError where sbatch or sinfo cannot be run, fails, or does not answer within `patience` seconds.
    """
    if shutil.which("sbatch") is None:
        return None
    said = []
    for command in (["sbatch", "--version"], ["sinfo", "--noheader", "--format=%P|%a|%D|%l|%G"]):
        done = _asked(command, patience)
        if done.returncode:
            reasons = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise InputError(f"{command[0]} fails: {reasons[-1].removeprefix(f'{command[0]}: ')}")
        said.append(done.stdout.splitlines())
    found = []
    for line in said[1]:
        name, up, nodes, limit, gpus = (*line.strip().split("|"), "", "", "", "")[:5]
        parts = [
            f"{nodes} nodes",
            limit,
            *([gpus] if gpus not in ("", "(null)") else []),
            *([up] if up != "up" else []),
        ]
        found.append(f"{name} ({', '.join(parts)})")
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return squeeze(f"{' '.join(said[0])}; partitions {', '.join(found[:_SHOWN]) or 'none'}{more}")


def _asked(command: list[str], patience: float) -> subprocess.CompletedProcess[str]:
    """Raises InputError where the command cannot be run, or does not answer in time."""
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=patience, check=False)
    except OSError as error:
        raise InputError(f"{command[0]} cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise InputError(f"{command[0]} did not answer within {patience:g} s") from None


def _sbatch(arguments: list[str]) -> str:
    """The id of the job that sbatch made."""
    try:
        done = subprocess.run(
            ["sbatch", "--parsable", *arguments], capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except FileNotFoundError:
        raise InputError(
            "sbatch is not here: submit from a machine of the cluster, or run here with --local N"
        ) from None
    except subprocess.TimeoutExpired:
        raise InputError(f"sbatch did not answer within {_PATIENCE} s; squeue --me shows what it took") from None
    if done.returncode or not (job := re.match(r"\d+", done.stdout.strip())):
        said = squeeze(done.stderr or done.stdout).removeprefix("sbatch: error: ")
        raise InputError(f"Slurm refuses {Path(arguments[-1]).name}: {said}")
    return job.group()
