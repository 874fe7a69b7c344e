"""The scripts that Slurm gets: an array with a task for each run, what comes before it and what after."""

import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from lra_ssm.cluster.folder import SweepFolder
from lra_ssm.cluster.logs import ATTEMPT
from lra_ssm.errors import InputError, hint


@dataclass(frozen=True)
class Profile:
    """What a job asks of a cluster; a YAML file in slurm/profiles/ has the same names. None asks for nothing.

    Args:
        partition, account, qos, constraint, mem: as sbatch takes them.
        time: limit of a run's attempt, as sbatch takes it (hours:minutes:seconds); a run that reaches it goes on in
            another attempt.
        nodes: of each run.
        gpus: on each node; a process trains on each of them.
        tasks: processes on each node; None for one on each GPU, or one.
        cpus: of each process.
        concurrency: runs at the same time; None for as many as the cluster gives.
        grace: seconds before the time limit in which a run saves itself.
        python: the interpreter that runs us there.
        before: lines of shell that come first: modules, an environment.
        extra: further options of sbatch, such as --exclude=node7.

    Raises:
        InputError: values that cannot be.
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
        for name in ("nodes", "tasks", "cpus", "concurrency", "grace"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; it must be at least 1")
        if self.gpus < 0:
            raise InputError(f"gpus is {self.gpus}; it must be at least 0")
        if wrong := [option for option in self.extra if not option.startswith("-")]:
            raise InputError(f"extra has {wrong[0]!r}; these are options of sbatch, such as --exclude=node7")

    @property
    def processes(self) -> int:
        """On each node."""
        return self.tasks or self.gpus or 1


def read_profile(file: Path) -> dict[str, Any]:
    """The settings of a profile's file. Raises InputError for what none has, or is of another kind."""
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise InputError(f"profile {file} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"profile {file} is no YAML: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"profile {file} holds no settings")
    kinds = {field.name: str(field.type) for field in fields(Profile)}
    for name, value in content.items():
        if name not in kinds:
            raise InputError(f"profile {file} has {name!r}; {hint(str(name), kinds, 'it takes')}")
        if "tuple" in kinds[name]:
            if not isinstance(value, list) or not all(isinstance(line, str) for line in value):
                raise InputError(f"profile {file}: {name} is {value!r}, not a list of lines")
            content[name] = tuple(value)
        elif "int" in kinds[name]:
            if type(value) is not int and not (value is None and "None" in kinds[name]):
                raise InputError(f"profile {file}: {name} is {value!r}, not a whole number")
        elif isinstance(value, int) and name == "time":  # YAML 1.1 reads 24:00:00 as a number in base 60
            raise InputError(f"profile {file}: time is read as {value} seconds by YAML: quote it, time: '24:00:00'")
        elif value is not None and not isinstance(value, str):
            content[name] = str(value)
    return content


def array_script(folder: SweepFolder, indices: list[int], profile: Profile) -> str:
    """One task for each of these runs."""
    at_once = f"%{profile.concurrency}" if profile.concurrency else ""
    runs = len(indices)
    options = {
        "job-name": folder.name,
        "array": f"{ranges(indices)}{at_once}",
        "output": folder.path / "logs" / "%a.log",
        "open-mode": "append",
        "requeue": None,
        "signal": f"SIGUSR1@{profile.grace}",
        "partition": profile.partition,
        "account": profile.account,
        "qos": profile.qos,
        "constraint": profile.constraint,
        "time": profile.time,
        "nodes": profile.nodes,
        "ntasks-per-node": profile.processes,
        "gpus-per-node": profile.gpus or None,
        "cpus-per-task": profile.cpus,
        "mem": profile.mem,
    }
    run = f"{shlex.quote(profile.python)} -m lra_ssm"
    several = profile.processes * profile.nodes > 1
    placed = f" --trainer.devices={profile.processes} --trainer.num_nodes={profile.nodes}" if several else ""
    together = " --kill-on-bad-exit=1" if several else ""  # what is left of a run would wait for the one that died
    alone = " --nodes=1 --ntasks=1 --ntasks-per-node=1" if several else ""
    one = " --trainer.devices=1 --trainer.num_nodes=1 --trainer.strategy=auto" if several else ""
    what = f"{runs:,} run{'s' if runs > 1 else ''}, a task of the array for each"
    return _script(
        f"{folder.path.name}: {what}; `lra-ssm submit {folder.source}` wrote this.",
        options,
        profile,
        [
            "# The options of this task's run are a line of runs.txt.",
            f'options=$(sed -n "${{SLURM_ARRAY_TASK_ID}}p" {shlex.quote(str(folder.path / "runs.txt"))})',
            'eval "options=($options)"',
            "",
            "# Trains, or goes on where the attempt before was stopped; a run that is trained is passed over. Slurm's",
            "# signal before the time limit makes it save and queue itself again.",
            f'srun{together} {run} fit "${{options[@]}}"{placed} || exit',
            "",
            "# Scores the best checkpoint on the test split, on one device: no example is counted twice.",
            f'srun{alone} {run} test "${{options[@]}}"{one}',
        ],
    )


def prepare_script(folder: SweepFolder, profile: Profile) -> str:
    """Makes the data of all runs ready, in one job without a GPU."""
    run = f"{shlex.quote(profile.python)} -m lra_ssm prepare"
    options = _small(folder, profile, "prepare") | {"time": profile.time, "cpus-per-task": profile.cpus}
    lines = ["set -e"]
    lines += [f"{run} {shlex.join(options)}" for options in folder.prepares]
    return _script(f"The data of {folder.path.name}, which its array waits for.", options, profile, lines)


def collect_script(folder: SweepFolder, profile: Profile) -> str:
    """Writes the table of results when the array has ended."""
    path = shlex.quote(str(folder.path))
    run = f"{shlex.quote(profile.python)} -m lra_ssm"
    lines = [f"{run} status {path}", f"{run} results {path} --out={path}/results.md --curves={path}/curves.png"]
    return _script(f"The results of {folder.path.name}.", _small(folder, profile, "results"), profile, lines)


def _small(folder: SweepFolder, profile: Profile, what: str) -> dict[str, Any]:
    """Options of a job beside the array."""
    return {
        "job-name": f"{folder.name}-{what}",
        "output": folder.path / "logs" / f"{what}.log",
        "open-mode": "append",
        "partition": profile.partition,
        "account": profile.account,
        "qos": profile.qos,
        "nodes": 1,
        "ntasks": 1,
    }


def _script(about: str, options: dict[str, Any], profile: Profile, lines: list[str]) -> str:
    flags = [f"--{name}" + ("" if value is None else f"={value}") for name, value in options.items()
             if value is not None or name == "requeue"]  # fmt: skip
    head = ["#!/bin/bash", f"# {about}", *(f"#SBATCH {flag}" for flag in [*flags, *profile.extra])]
    begin = [
        f'echo "{ATTEMPT}$(date -u +%Y-%m-%dT%H:%M:%S+00:00) on $(hostname)"',
        "flock --nonblock 1  # status sees it",
    ]
    threads = ["export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}"]
    return "\n".join([*head, "", *begin, "", *profile.before, *threads, "", *lines, ""])


def ranges(indices: list[int]) -> str:
    """Numbers as Slurm's --array has them: 1-4,7."""
    parts: list[list[int]] = []
    for index in sorted(indices):
        if parts and parts[-1][1] == index - 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
