"""`lra-ssm submit SWEEP`: a sweep file's runs as one Slurm array, or here, some at a time."""

import argparse
import json
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from lra_ssm.cli.output import PlainParser
from lra_ssm.cluster.folder import FolderRun, Resolved, SweepFolder, folder_of, shown
from lra_ssm.cluster.script import Profile, ranges, read_profile
from lra_ssm.cluster.slurm import queued, scripts, submissions, submit, write_scripts
from lra_ssm.cluster.sweep import Sweep, SweepRun, as_option, read_sweep
from lra_ssm.errors import InputError
from lra_ssm.runs.identity import short_names
from lra_ssm.runs.record import INPUTS
from lra_ssm.tables import table, terminal_width, wrapped

DESCRIPTION = """\
Submits the runs of a sweep file, or of a sweep's folder, as one array job: each is trained, goes on after a time limit,
a preemption or a lost node, and is tested. Their data is prepared first, by a job that the array waits for. A run that
is done is not run again.
"""

EXAMPLE = """\
examples:
  lra-ssm submit slurm/sweeps/lra.yaml --profile slurm/profiles/one-gpu.yaml --dry-run
  lra-ssm submit slurm/sweeps/lra.yaml --partition=gpu --gpus=1 --time=24:00:00 --concurrency=8
  lra-ssm submit slurm/sweeps/lra.yaml --resume
  lra-ssm submit slurm/sweeps/cpu.yaml --local 2
"""

_HELP = {
    "partition": "as sbatch takes it; so are account, qos, constraint and mem",
    "time": "limit of one attempt, hours:minutes:seconds",
    "nodes": "of each run; default: 1",
    "gpus": "on each node; default: none",
    "tasks": "processes on each node; default: one on each GPU",
    "cpus": "of each process",
    "concurrency": "runs at the same time",
    "grace": "seconds before the time limit in which a run saves itself; default: 180",
    "python": "interpreter; default: this one, or python where --before sets an environment",
    "before": "line of shell that comes first, such as module load cuda; repeated",
    "extra": "option of sbatch, such as --extra=--exclude=node7; repeated",
}


def main(command: str, arguments: list[str]) -> int:
    given = _parser().parse_args(arguments)
    if given.local is not None and given.local < 1:
        raise InputError(f"--local is {given.local}; it is the number of runs at a time")
    _profile(given)  # what is wrong with it is said before anything is written
    folder, sweep = _folder(given.sweep)
    _show_runs(folder, sweep)
    done = [run for run in folder.runs if run.done]
    indices = [run.index for run in folder.runs if not run.done]
    if done:
        print(f"{len(done)} of {len(folder.runs)} are done: {ranges([run.index for run in done])}", file=sys.stderr)
        again = f"fit --fresh with a line of {folder.path / 'runs.txt'} trains one again"
        for inputs, those in _other_inputs(done).items():
            print(wrapped(f"warning: {ranges(those)}: trained with {inputs} ({again})"), file=sys.stderr)
    if not indices:
        print(f"nothing is left to run: lra-ssm results {folder.path}", file=sys.stderr)
        return 0
    if given.local is not None:
        from lra_ssm.cluster.local import run_local

        return run_local(folder, indices, given.local)
    before = submissions(folder)
    profile = _profile(given, before[-1].get("profile", {}) if given.resume and before else {})
    if given.dry_run:
        write_scripts(folder, indices, profile, given.results)
        print(scripts(folder, indices, profile, given.results)["submit.sbatch"], end="")
        others = [str(folder.path / name) for name in scripts(folder, indices, profile, given.results)]
        print(wrapped(f"nothing is submitted; written: {', '.join(others)}"), file=sys.stderr)
        return 0
    if before:
        indices = _left_to_submit(folder, indices, given.resume, before[-1])
    if not indices:
        print(f"every run that is not done waits or runs: lra-ssm status {folder.path}", file=sys.stderr)
        return 0
    jobs = submit(folder, indices, profile, given.results)
    for name, job in jobs.items():
        print(f"job {job}: {folder.path / name}")
    print(f"{len(indices)} run{'s' if len(indices) > 1 else ''}: lra-ssm status {folder.path}")
    return 0


def _parser() -> PlainParser:
    parser = PlainParser("lra-ssm submit", DESCRIPTION, EXAMPLE)
    parser.add_argument("sweep", metavar="SWEEP", help="a sweep file, or the folder of a sweep")
    parser.add_argument("--dry-run", action="store_true", help="write the scripts, print the array's, submit nothing")
    parser.add_argument("--local", type=int, metavar="N", help="run them here, N at a time, without Slurm")
    parser.add_argument("--resume", action="store_true", help="submit what failed, was stopped or is missing, alone")
    parser.add_argument("--results", action="store_true", help="also a job that writes the table when all have ended")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="settings of a cluster; options go before it")
    for field in fields(Profile):
        kind = str(field.type)
        options: dict[str, Any] = {"metavar": "N" if "int" in kind else field.name.upper()}
        options |= {"type": int} if "int" in kind else {"action": "append"} if "tuple" in kind else {}
        parser.add_argument(f"--{field.name}", help=_HELP.get(field.name), **options)
    return parser


def _profile(given: argparse.Namespace, before: dict[str, Any] | None = None) -> Profile:
    """The settings of the submission before, over them the file's, and over those the options'."""
    settings: dict[str, Any] = {}
    for name, value in (before or {}).items():
        settings[name] = tuple(value) if isinstance(value, list) else value
    settings |= read_profile(given.profile) if given.profile else {}
    for field in fields(Profile):
        if (value := getattr(given, field.name)) is not None:
            settings[field.name] = tuple(value) if isinstance(value, list) else value
    if not settings.get("before"):
        settings.setdefault("python", sys.executable)
    return Profile(**settings)


def _folder(given: str) -> tuple[SweepFolder, Sweep | None]:
    """The sweep's folder, written where it is not there yet."""
    path = Path(given)
    if path.is_dir():
        return SweepFolder(path), None
    sweep = read_sweep(path)
    if folder_of(sweep).is_dir():
        return SweepFolder(folder_of(sweep)), sweep
    from lra_ssm.cli.run_options import read_fit_options  # loads the Trainer

    def resolve(run: SweepRun) -> Resolved:
        configured = read_fit_options(run.options(run.config))
        return Resolved(configured.path, configured.stored_data)

    return SweepFolder.make(sweep, resolve, _bar), sweep


def _bar(runs: list[SweepRun]) -> Iterable[SweepRun]:
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(runs, "checking the runs", console=console, transient=True, disable=not console.is_terminal)


def _other_inputs(done: list[FolderRun]) -> dict[str, list[int]]:
    """Which data and starting weights are others than they were for runs that are done -> those runs."""
    same: dict[str, list[FolderRun]] = {}  # runs by what they were begun with, which is looked at once
    for run in done:
        inputs = run.directory.record.get(INPUTS) or {}
        if any(inputs.values()):
            same.setdefault(json.dumps(inputs, sort_keys=True), []).append(run)
    found: dict[str, list[int]] = {}
    for first, *others in same.values():
        from lra_ssm.cli.run_options import read_fit_options  # loads the Trainer

        with suppress(InputError):  # a config of before
            if said := read_fit_options(first.options).changed_inputs(first.directory.record):
                found.setdefault(said, []).extend(run.index for run in (first, *others))
    return found


def _show_runs(folder: SweepFolder, sweep: Sweep | None) -> None:
    """A line for each run: what it changes that not all do. On stderr: stdout is the script's."""
    every = [run.changes for run in folder.runs]
    common = {k: v for k, v in every[0].items() if all(c.get(k, ...) == v for c in every)}
    keys = list(dict.fromkeys(key for changes in every for key in changes if key not in common))
    short = short_names(keys)
    configs = [run.options[0].rpartition("/")[2].removesuffix(".yaml") for run in folder.runs]
    columns = ["run", "config", *(short[key] for key in keys)]
    rows = [
        [str(run.index), config, *(as_option(run.changes[key]) if key in run.changes else "" for key in keys)]
        for run, config in zip(folder.runs, configs, strict=True)
    ]
    width = terminal_width()
    print(table(columns, rows, len(columns), width), file=sys.stderr)
    if common:
        print(wrapped(f"all of them: {shown(common)}"), file=sys.stderr)
    print(f"{len(rows)} runs in {folder.path}", file=sys.stderr)


def _left_to_submit(folder: SweepFolder, indices: list[int], resume: bool, before: dict[str, Any]) -> list[int]:
    """Of the runs that are not done those that no job has."""
    if not resume:
        raise InputError(
            f"{folder.path} was submitted {before['time']} as job {before['job']}: "
            "--resume submits what failed, was stopped or is missing"
        )
    waiting = queued(folder)
    return [index for index in indices if index not in waiting]
