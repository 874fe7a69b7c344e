"""`lra-ssm submit SWEEP`: a sweep file's runs as one Slurm array, or here, some at a time."""

import argparse
import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from lra_ssm.bars import with_bar
from lra_ssm.cli.options import count
from lra_ssm.cli.output import PlainParser
from lra_ssm.cluster.folder import FolderRun, Resolved, SweepFolder, folder_of, in_common, shown
from lra_ssm.cluster.script import Profile, ranges, read_profile
from lra_ssm.cluster.slurm import PATIENCE, queue_of, submissions, submit, write_scripts
from lra_ssm.cluster.sweep import SweepRun, as_option, read_sweep
from lra_ssm.errors import InputError
from lra_ssm.runs.identity import short_names
from lra_ssm.runs.record import INPUTS
from lra_ssm.shipped import name_of
from lra_ssm.tables import table, terminal_width, wrapped

DESCRIPTION = """\
Submits the runs of a sweep file, or of a sweep's folder, as one array job. Each is trained, resumes after a time limit,
a preemption or a lost node, and is tested. A job before the array prepares the data. A run that is done is left out.
"""

EXAMPLE = """\
examples:
  lra-ssm submit lra --profile one-gpu --dry-run
  lra-ssm submit lra --partition=gpu --gpus=1 --time=24:00:00 --concurrency=8
  lra-ssm submit lra --resume
  lra-ssm submit cpu --local 2
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
    _profile(given)  # an error in it is said before anything is written
    folder = _folder(given.sweep)
    _show_runs(folder)
    done = [run for run in folder.runs if run.done]
    indices = [run.index for run in folder.runs if run not in done]
    if done:
        _show_done(folder, done)
    if not indices:
        print(f"nothing is left to run: lra-ssm results {folder.path}", file=sys.stderr)
        return 0
    if given.local is not None:
        from lra_ssm.cluster.local import run_local

        return run_local(folder, indices, given.local)
    before = submissions(folder)
    earlier = before[-1].get("profile") if before and given.resume else None
    profile = _profile(given, earlier)
    if given.dry_run:
        scripts = write_scripts(folder, indices, profile, given.results)
        print(scripts["submit.sbatch"], end="")
        files = ", ".join(str(folder.path / name) for name in scripts)
        print(wrapped(f"nothing is submitted; written: {files}"), file=sys.stderr)
        return 0
    if before:
        indices = _left_to_submit(folder, indices, given.resume, before[-1])
    if not indices:
        print(f"every run that is not done waits or runs: lra-ssm status {folder.path}", file=sys.stderr)
        return 0
    for name, job in submit(folder, indices, profile, given.results).items():
        print(f"job {job}: {folder.path / name}")
    print(f"{len(indices)} run{'s' if len(indices) > 1 else ''}: lra-ssm status {folder.path}")
    return 0


def _parser() -> PlainParser:
    parser = PlainParser("lra-ssm submit", DESCRIPTION, EXAMPLE)
    parser.add_argument("sweep", metavar="SWEEP", help="a sweep file, or the folder of a sweep")
    parser.add_argument("--dry-run", action="store_true", help="write the scripts, print the array's, submit nothing")
    parser.add_argument("--local", type=count, metavar="N", help="run them here, N at a time, without Slurm")
    parser.add_argument("--resume", action="store_true", help="submit what failed, was stopped or is missing, alone")
    parser.add_argument("--results", action="store_true", help="also a job that writes the table when all have ended")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="settings of a cluster; options go before it")
    for field in fields(Profile):
        kind = str(field.type)
        options: dict[str, Any] = {"help": _HELP.get(field.name), "metavar": field.name.upper()}
        if "int" in kind:
            options |= {"metavar": "N", "type": int}
        elif "tuple" in kind:
            options["action"] = "append"
        parser.add_argument(f"--{field.name}", **options)
    return parser


def _profile(given: argparse.Namespace, before: dict[str, Any] | None = None) -> Profile:
    """The settings of the submission before, over them the file's, and over those the options'."""
    settings = dict(before or {})
    if given.profile:
        settings |= read_profile(given.profile)
    options = {field.name: getattr(given, field.name) for field in fields(Profile)}
    settings |= {name: value for name, value in options.items() if value is not None}
    if not settings.get("before"):
        settings.setdefault("python", sys.executable)
    return Profile(**settings)


def _folder(given: str) -> SweepFolder:
    """The sweep's folder, written where it is not there yet."""
    path = Path(given)
    if path.is_dir() and not name_of("sweep", given):
        return SweepFolder(path)
    sweep = read_sweep(path)
    if folder_of(sweep).is_dir():
        return SweepFolder(folder_of(sweep))
    from lra_ssm.cli.run_options import read_fit_options  # loads the Trainer

    def resolve(run: SweepRun) -> Resolved:
        configured = read_fit_options(run.options(run.config))
        return Resolved(configured.path, configured.stored_data, [])

    return SweepFolder.make(sweep, resolve, lambda runs: with_bar(runs, "checking the runs", len(runs)))


def _show_done(folder: SweepFolder, done: list[FolderRun]) -> None:
    """Says which runs are done, and which of them with data or starting weights that have changed since."""
    indices = ranges([run.index for run in done])
    print(f"{len(done)} of {len(folder.runs)} are done: {indices}", file=sys.stderr)
    known: dict[str, str] = {}  # what is said of inputs, which are looked at once
    found: dict[str, list[int]] = {}
    for run in done:
        inputs = run.directory.record.get(INPUTS) or {}
        key = json.dumps(inputs, sort_keys=True)
        if any(inputs.values()) and key not in known:
            known[key] = _changed_inputs(run)
        if said := known.get(key):
            found.setdefault(said, []).append(run.index)
    again = f"fit --fresh with a line of {folder.path / 'runs.txt'} trains one again"
    for changed, numbers in found.items():
        print(wrapped(f"warning: {ranges(numbers)}: trained with {changed} ({again})"), file=sys.stderr)


def _changed_inputs(run: FolderRun) -> str:
    return ""


def _show_runs(folder: SweepFolder) -> None:
    """A line for each run: what it changes that not all do. On stderr: stdout is for the script."""
    common = in_common([run.changes for run in folder.runs])
    every = dict.fromkeys(key for run in folder.runs for key in run.changes)
    keys = [key for key in every if key not in common]
    short, rows = short_names(keys), []
    for run in folder.runs:
        changes = [as_option(run.changes[key]) if key in run.changes else "" for key in keys]
        config = run.options[0].partition("=")[2]
        rows.append([str(run.index), Path(config).stem, *changes])
    columns = ["run", "config", *(short[key] for key in keys)]
    print(table(columns, rows, len(columns), terminal_width()), file=sys.stderr)
    if common:
        print(wrapped(f"all of them: {shown(common)}"), file=sys.stderr)
    print(f"{len(rows)} runs in {folder.path}", file=sys.stderr)


def _left_to_submit(folder: SweepFolder, indices: list[int], resume: bool, before: dict[str, Any]) -> list[int]:
    """Of the runs that are not done those that Slurm does not have."""
    if not resume:
        submitted = f"{folder.path} was submitted {before['time']} as job {before['job']}"
        raise InputError(f"{submitted}: --resume submits what failed, was stopped or is missing")
    queue = queue_of(folder, PATIENCE)
    if queue.note:
        raise InputError(queue.note)
    has = {*queue.running, *queue.waiting}
    return [index for index in indices if index not in has]
