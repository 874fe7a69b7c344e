"""The scripts for Slurm: an array with a task for each run, a job before it and one after it."""

import shlex
from dataclasses import dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Any

from lra_ssm.cluster.folder import SweepFolder
from lra_ssm.cluster.logs import ATTEMPT
from lra_ssm.cluster.sweep import known, read_file
from lra_ssm.errors import InputError


@dataclass(frozen=True)
class Profile:
    """What a job asks of a cluster; a YAML file in slurm/profiles/ has the same names. None asks for nothing.

    Args:
        partition, account, qos, constraint, mem: as sbatch takes them.
        time: limit of one attempt, as sbatch takes it (hours:minutes:seconds); a run that reaches it continues in
            another attempt.
        nodes: of each run.
        gpus: on each node; a process trains on each of them.
        tasks: processes on each node; None for one on each GPU, or one.
        cpus: of each process.
        concurrency: runs at the same time; None for as many as the cluster gives.
        grace: seconds before the time limit in which a run saves itself.
        python: the interpreter of the jobs.
        before: lines of shell that come first: modules, an environment.
        extra: further options of sbatch, such as --exclude=node7.

    Raises:
        InputError: a value is of the wrong kind, or too small.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    mem: str | None = None
    time: str | None = None
    nodes: int = 1
    gpus: int = 0
    tasks: int | None = None
    cpus: int | None = None
    concurrency: int | None = None
    grace: int = 180
    python: str = "python"
    before: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            name, kind, value = field.name, str(field.type), getattr(self, field.name)
            if value is None and "None" in kind:
                continue
            if "int" in kind:
                least = 0 if name == "gpus" else 1
                if type(value) is not int or value < least:
                    raise InputError(f"{name} is {value!r}; it must be a whole number, at least {least}")
            elif "tuple" in kind:
                if not isinstance(value, (list, tuple)):
                    raise InputError(f"{name} is {value!r}, not a list of lines")
                object.__setattr__(self, name, tuple(map(str, value)))
            elif name == "time" and isinstance(value, int):  # YAML 1.1 reads 24:00:00 as a number in base 60
                raise InputError(f"time is read as {value} seconds by YAML: quote it, time: '24:00:00'")
            else:
                object.__setattr__(self, name, str(value))
        if wrong := [option for option in self.extra if not option.startswith("-")]:
            raise InputError(f"extra has {wrong[0]!r}; these are options of sbatch, such as --exclude=node7")

    @property
    def processes(self) -> int:
        """On each node."""
        return self.tasks or self.gpus or 1


def read_profile(file: Path) -> dict[str, Any]:
    """The settings of a profile, a file or a shipped one's name. Raises InputError if one is unknown or cannot be."""

    def read(file: Path, content: dict[str, Any]) -> dict[str, Any]:
        known(content, [field.name for field in fields(Profile)], "it")
        Profile(**content)
        return content

    return read_file("profile", file, read)


def array_script(folder: SweepFolder, indices: list[int], profile: Profile) -> str:
    """One task for each of these runs."""
    at_once = f"%{profile.concurrency}" if profile.concurrency else ""
    asked = ("partition", "account", "qos", "constraint", "time", "nodes")
    options = {
        "job-name": folder.name,
        "array": f"{ranges(indices)}{at_once}",
        "output": folder.logs / "%a.log",
        "open-mode": "append",
        "requeue": "",
        "signal": f"SIGUSR1@{profile.grace}",
        **{name: getattr(profile, name) for name in asked},
        "ntasks-per-node": profile.processes,
        "gpus-per-node": profile.gpus or None,
        "cpus-per-task": profile.cpus,
        "mem": profile.mem,
    }
    train = test = f"{shlex.quote(profile.python)} -m lra_ssm"
    placed = one = ""
    if profile.processes * profile.nodes > 1:
        train = f"--kill-on-bad-exit=1 {train}"  # else the other processes would wait for the one that died
        placed = f" --trainer.devices={profile.processes} --trainer.num_nodes={profile.nodes}"
        test = f"--nodes=1 --ntasks=1 --ntasks-per-node=1 {test}"
        one = " --trainer.devices=1 --trainer.num_nodes=1 --trainer.strategy=auto"
    runs = f"{len(indices):,} run{'s' if len(indices) > 1 else ''}"
    about = f"{runs}, a task of the array for each; `lra-ssm submit {folder.source}` wrote this."
    lines = f"""\
# The options of this task's run are a line of runs.txt.
options=$(sed -n "${{SLURM_ARRAY_TASK_ID}}p" {shlex.quote(str(folder.path / "runs.txt"))})
eval "options=($options)"

# Trains, or resumes what the attempt before has saved; passes over a run that is trained. Before the time limit
# Slurm's signal makes it save and queue itself again.
srun {train} fit "${{options[@]}}"{placed} || exit

# Scores the best checkpoint on the test split, on one device: no example is counted twice.
srun {test} test "${{options[@]}}"{one}"""
    return _script(f"{folder.path.name}: {about}", options, profile, lines)


def prepare_script(folder: SweepFolder, profile: Profile) -> str:
    """Makes the data of all runs ready, in one job without a GPU."""
    run = f"{shlex.quote(profile.python)} -m lra_ssm prepare"
    options = _small_job(folder, profile, "prepare") | {"time": profile.time, "cpus-per-task": profile.cpus}
    lines = ["set -e", *(f"{run} {shlex.join(options)}" for options in folder.prepares)]
    about = f"The data of {folder.path.name}, which its array waits for."
    return _script(about, options, profile, "\n".join(lines))


def results_script(folder: SweepFolder, profile: Profile) -> str:
    """Writes the table of results when the array has ended."""
    path, run = shlex.quote(str(folder.path)), f"{shlex.quote(profile.python)} -m lra_ssm"
    lines = f"{run} status {path}\n{run} results {path} --out={path}/results.md --curves={path}/curves.png"
    options = _small_job(folder, profile, "results")
    return _script(f"The results of {folder.path.name}.", options, profile, lines)


def _small_job(folder: SweepFolder, profile: Profile, what: str) -> dict[str, Any]:
    """Options of a job beside the array."""
    return {
        "job-name": f"{folder.name}-{what}",
        "output": folder.logs / f"{what}.log",
        "open-mode": "append",
        "partition": profile.partition,
        "account": profile.account,
        "qos": profile.qos,
        "nodes": 1,
        "ntasks": 1,
    }


def _script(about: str, options: dict[str, Any], profile: Profile, lines: str) -> str:
    flags = [f"--{name}={value}" for name, value in options.items() if value is not None]
    head = "\n".join(f"#SBATCH {flag.removesuffix('=')}" for flag in [*flags, *profile.extra])
    before = "".join(f"{line}\n" for line in profile.before)
    return f"""\
#!/bin/bash
# {about}
{head}

echo "{ATTEMPT}$(date -u +%Y-%m-%dT%H:%M:%S+00:00) on $(hostname)"
flock --nonblock 1  # status sees it

{before}export OMP_NUM_THREADS=${{OMP_NUM_THREADS:-${{SLURM_CPUS_PER_TASK:-1}}}}

{lines}
"""


def ranges(indices: list[int]) -> str:
    """Numbers as Slurm's --array has them: 1-4,7."""
    groups = groupby(enumerate(sorted(indices)), lambda pair: pair[1] - pair[0])
    runs = [[index for _, index in group] for _, group in groups]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
