"""A sweep's folder, and its runs as one Slurm array.

<runs_dir>/sweeps/<name>-<digest>/
    sweep.yaml, configs/   copies: editing a config later does not change a waiting run
    runs.txt               a line per run: its directory below <runs_dir> and the options of `lra-ssm fit`
    submit.sbatch          the array's script
    jobs.txt               a line per submission: the time, Slurm's job, the runs
    logs/<number>.log      what run <number> printed, in all its attempts

The digest covers the options and the contents of the configs.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path

from lra_ssm import shipped
from lra_ssm.errors import InputError, to_one_line
from lra_ssm.files import new_folder, replacing, sha256
from lra_ssm.runs.provenance import now
from lra_ssm.runs.record import RunRecord
from lra_ssm.sweeps.sweep import Sweep, read_sweep


@dataclass(frozen=True)
class FolderRun:
    """A run of a sweep's folder."""

    index: int  # from 1: the array's task
    path: Path  # the run's directory
    experiment: str
    options: list[str]  # of `lra-ssm fit` and `lra-ssm test`
    log: Path

    @property
    def changes(self) -> dict[str, str]:
        """The settings that the run changes in its config."""
        return {name.lstrip("-"): value for name, _, value in (o.partition("=") for o in self.options[1:])}

    @cached_property
    def record(self) -> RunRecord:
        record = RunRecord.read(self.path)
        record.config.setdefault("experiment", self.experiment)  # for a run that has not begun
        return record

    def last_line(self) -> str:
        """Return the last lra-ssm line in the log of the last attempt, else the last line; empty without a log."""
        try:
            text = self.log.read_text(errors="replace").rpartition("== attempt")[2]
        except OSError:
            return ""
        lines = text.strip().splitlines()[1:]  # the first one is the rest of the line `== attempt …`
        own_lines = [line for line in lines if line.startswith("lra-ssm: ")]  # srun repeats its exit code after it
        return (own_lines or lines or [""])[-1].removeprefix("lra-ssm: ").removeprefix("error: ")


class SweepFolder:
    """A sweep's folder on the disk. Raises InputError if `path` is not one."""

    def __init__(self, path: Path) -> None:
        self.path, self.logs = path.absolute(), path / "logs"
        try:
            lines = [shlex.split(line) for line in (path / "runs.txt").read_text().splitlines()]
        except OSError as error:
            raise InputError(f"{path} is not a sweep's folder: runs.txt cannot be read ({error.strerror})") from error
        runs_dir = Path(os.path.normpath(path / "../.."))  # not path.parent.parent: path may be "."
        self.runs = [
            FolderRun(index, runs_dir / directory, str(Path(directory).parent), options, self.logs / f"{index}.log")
            for index, (directory, *options) in enumerate(lines, 1)
        ]

    @classmethod
    def find(cls, name: str) -> "SweepFolder":
        """Return the folder of a sweep: `name` if it is one, else the folder that its sweep file was submitted to.

        Raises InputError if the sweep was not submitted from here.
        """
        if is_folder(name):
            return cls(Path(name))
        sweep = read_sweep(name)
        path = folder_of(sweep)
        if not path.is_dir():
            others = sorted(path.parent.glob(f"{sweep.name}-*"))
            changed = f" as it is now (give {others[-1]} for its runs before it or a config changed)" if others else ""
            raise InputError(f"sweep {name} was not submitted from here{changed}: lra-ssm submit {name}")
        return cls(path)

    @classmethod
    def make(cls, sweep: Sweep, directories: Sequence[Path]) -> "SweepFolder":
        """Write the folder, all of it or nothing; an existing one stays as it is. directories: one for each run.

        Raises InputError if two runs have the same directory.
        """
        path = folder_of(sweep)
        if path.is_dir():
            return cls(path)
        repeated = next((number for number, each in enumerate(directories) if each in directories[:number]), None)
        if repeated is not None:
            first = directories.index(directories[repeated]) + 1
            raise InputError(f"sweep {sweep.file}: run {repeated + 1} is the same as run {first}")
        configs = list(dict.fromkeys(run.config for run in sweep.runs))
        copies = {
            config: f"{i}-{config.parent.name}-{config.name}".replace("--", "-") for i, config in enumerate(configs, 1)
        }
        lines = [
            [str(directory.relative_to(sweep.runs_dir)),
             *run.options(path.absolute() / "configs" / copies[run.config], sweep.runs_dir)]
            for run, directory in zip(sweep.runs, directories, strict=True)
        ]  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(path) as partial:
            for name in ("logs", "configs"):
                (partial / name).mkdir()
            for config, name in copies.items():
                shutil.copyfile(config, partial / "configs" / name)
            shutil.copyfile(sweep.file, partial / "sweep.yaml")
            (partial / "runs.txt").write_text("".join(f"{shlex.join(line)}\n" for line in lines))
        return cls(path)


def is_folder(name: str) -> bool:
    """Return whether a sweep is given as its folder, not as a file or the name of a shipped sweep."""
    return Path(name).is_dir() and not shipped.name_of("sweep", name)


def folder_of(sweep: Sweep) -> Path:
    """Return where a sweep's folder is, or will be."""
    contents = {config: sha256(config) for config in {run.config for run in sweep.runs}}
    what = [
        [contents[run.config], run.options(shipped.in_a_checkout(run.config), sweep.runs_dir)] for run in sweep.runs
    ]
    digest = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:8]
    return Path(sweep.runs_dir) / "sweeps" / f"{sweep.name}-{digest}"


# -- Slurm -------------------------------------------------------------------------------------------------------------


def write_script(
    template: Path, folder: SweepFolder, indices: Sequence[int], sbatch: str = "", at_once: int | None = None
) -> str:
    """Make the script of an array from a template, with one task per run; write it and return it.

    Args:
        template: a script for `sbatch` that trains one run with the options that it is given, as "$@".
        sbatch: further options of sbatch, which override the template's.
        at_once: tasks that run at the same time, at most.

    Raises:
        InputError: the template has no #SBATCH line, or an option of sbatch is not one that a user may set.
    """
    lines = template.read_text().splitlines()
    places = [i for i, line in enumerate(lines) if line.startswith("#SBATCH")]
    if not places:
        raise InputError(f"{template} has no #SBATCH line: copy slurm/one-gpu.sbatch and change it")
    if sbatch and not sbatch.lstrip().startswith("-"):
        raise InputError(f"--sbatch={sbatch}: an option of sbatch begins with -, such as --partition=gpu")
    if ours := re.search(r"(?<!\S)(--(job-name|array|output|chdir)|-[JaoD])\b", sbatch):
        raise InputError(f"--sbatch={sbatch}: {ours[0]} is set by the sweep (--concurrency limits the runs at a time)")
    array = ranges(indices) + (f"%{at_once}" if at_once else "")
    output, here = folder.path / "logs/%a.log", Path.cwd()
    # Of an option that is given twice, sbatch takes the last.
    options = [" ".join(sbatch.split())] * bool(sbatch) + [
        f"--job-name={folder.path.name}", f"--array={array}", f'--output="{output}"', f'--chdir="{here}"'
    ]  # fmt: skip
    script = "\n".join([
        "#!/bin/bash",
        f"# {folder.path.name}: {len(indices):,} runs, a task each. Written by lra-ssm submit from {template}.",
        *(lines[i] for i in places),
        *(f"#SBATCH {option}" for option in options),
        "",
        "# This task's run is a line of runs.txt: its directory, and the options of `lra-ssm fit`.",
        f'eval "set -- $(sed -n "${{SLURM_ARRAY_TASK_ID}}p" {shlex.quote(str(folder.path / "runs.txt"))})" && shift',
        'echo "== attempt at $(date -u +%FT%TZ) on $(hostname)"',
        f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH",
        *lines[places[-1] + 1 :],
        "",
    ])  # fmt: skip
    with replacing(folder.path / "submit.sbatch") as file:
        file.write(script)
    return script


def submit_array(folder: SweepFolder, indices: Sequence[int]) -> str:
    """Submit the folder's script, which was written for these runs; return the number of Slurm's job.

    Raises InputError with Slurm's words if it refuses.
    """
    if shutil.which("sbatch") is None:
        raise InputError("there is no sbatch here: submit from a machine of the cluster, or use --local N")
    folder.logs.mkdir(exist_ok=True)  # without it every task fails silently
    job = _run_slurm(["sbatch", "--parsable", str(folder.path / "submit.sbatch")]).strip().partition(";")[0]
    with open(folder.path / "jobs.txt", "a") as file:
        file.write(f"{now()} job {job}: runs {ranges(indices)}\n")
    return job


def queue_of(folder: SweepFolder) -> dict[int, str]:
    """Ask squeue once for the sweep's tasks; return by run the reason why it waits, or "" if it runs.

    Returns an empty dict without Slurm. Raises InputError if squeue fails.
    """
    if shutil.which("squeue") is None or not (folder.path / "jobs.txt").exists():
        return {}
    out = _run_slurm(["squeue", "--noheader", "--array", "--me", f"--name={folder.path.name}", "--format=%K|%T|%r"])
    tasks = re.findall(r"^(\d+)\|(.*?)\|(.*)$", out, re.MULTILINE)
    return {int(index): reason if state == "PENDING" else "" for index, state, reason in tasks}


def _run_slurm(command: list[str]) -> str:
    """Return what a command of Slurm prints. Raises InputError with Slurm's words if it fails."""
    name = command[0]
    result = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if result.returncode:
        message = re.sub(rf"^{name}: (?:error: )?", "", result.stderr or result.stdout, flags=re.MULTILINE)
        raise InputError(f"{name} refuses: {to_one_line(message) or f'exit code {result.returncode}'}")
    return result.stdout


def ranges(indices: Iterable[int]) -> str:
    """Return numbers as Slurm's --array has them: 1-4,7."""
    groups = groupby(enumerate(sorted(indices)), lambda pair: pair[1] - pair[0])
    runs = [[index for _, index in group] for _, group in groups]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
