"""`lra-ssm submit` and `lra-ssm results`: many runs, from a sweep file to a table."""

import glob
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jsonargparse.typing import PositiveInt

from lra_ssm.errors import InputError
from lra_ssm.files import replacing
from lra_ssm.results.settings import format_value, short_names
from lra_ssm.runs.identity import SEED, run_identity
from lra_ssm.runs.record import RunRecord, find_runs
from lra_ssm.shipped import find, name_of
from lra_ssm.sweeps.local import run_local
from lra_ssm.sweeps.submit import FolderRun, SweepFolder, array_script, queue_of, ranges, submit_array, write_script
from lra_ssm.sweeps.sweep import SweepRun, read_sweep
from lra_ssm.tables import table, terminal_width, wrapped

_FORMATS = {".md": "markdown", ".csv": "csv", ".tex": "latex", ".txt": "text"}
_MAX_SETTINGS = 4  # that status shows of a run


# -- submit ------------------------------------------------------------------------------------------------------------


def submit(
    sweep: str,
    *,
    template: str = "one-gpu",
    sbatch: str = "",
    concurrency: PositiveInt | None = None,
    dry_run: bool = False,
    resume: bool = False,
    local: PositiveInt | None = None,
) -> int:
    """Submit the runs of a sweep as one Slurm array, or train them here with --local.

    Every config is checked before anything is queued. A run that is done is left out, and so is one whose data is not
    prepared. An interrupted run goes on from its last saved step.

    Args:
        sweep: a sweep file, the name of one of ours, or a sweep's folder
        template: the script for one run, a file or the name of one of ours (slurm/*.sbatch); copy one and change it
        sbatch: further options of sbatch, such as "--partition=gpu --time=8:00:00"; they replace the template's
        concurrency: runs at the same time
        dry_run: print the runs and the script, and submit nothing
        resume: submit what failed, was stopped or is missing, and is not in the queue
        local: train the runs here without Slurm, so many at a time

    Examples:
        lra-ssm submit lra --dry-run
        lra-ssm submit lra --sbatch="--partition=gpu --time=24:00:00" --concurrency=8
        lra-ssm submit lra --resume
        lra-ssm submit small --local=2
    """
    checks = _Checks()
    script_of = find("template", template)
    if Path(sweep).is_dir() and not name_of("sweep", sweep):
        folder = SweepFolder(Path(sweep))
    else:
        read = read_sweep(sweep)
        folder = SweepFolder.make(read, lambda runs: checks.paths(runs, read.runs_dir, sweep))
    _print_runs(folder)
    left = [run for run in folder.runs if run.record.missing]
    if len(left) < len(folder.runs):
        done = ranges(run.index for run in folder.runs if run not in left)
        print(f"{len(folder.runs) - len(left)} of {len(folder.runs)} are done: {done}", file=sys.stderr)
    ready = checks.with_data(left)
    indices = [run.index for run in ready]
    if not left:
        print(f"nothing is left to run: lra-ssm results {folder.path}", file=sys.stderr)
        return 0
    if local is not None:
        return 0 if dry_run else run_local(folder, indices, local) or int(len(ready) < len(left))
    if not dry_run and (folder.path / "jobs.txt").exists():
        if not resume:
            raise InputError(f"{folder.path} was submitted before: --resume submits what failed, stopped or is missing")
        queued = queue_of(folder)
        indices = [index for index in indices if index not in queued]
    if not indices:
        print(f"no run can be submitted now: lra-ssm status {folder.path}", file=sys.stderr)
        return int(not dry_run)
    script = array_script(script_of, folder, indices, sbatch, concurrency)
    file = write_script(folder, script)
    if dry_run:
        print(script, end="")
        print(f"nothing is submitted; the script is {file}", file=sys.stderr)
        return 0
    print(f"job {submit_array(folder, indices)}: {len(indices)} runs; lra-ssm status {folder.path}")
    return int(len(ready) < len(left))


@dataclass(frozen=True)
class _Check:
    """What a config with its changes comes to, the seed apart."""

    options: Any
    missing: str  # the command that prepares its data, if that is missing
    generated: str  # how its data differs from the data of the published row


class _Checks:
    """Checks options as `lra-ssm fit` does, once for all seeds of a config."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], _Check] = {}
        self._prepare: dict[str, str] = {}  # prepared folder -> the first command that makes it

    def paths(self, runs: Iterable[SweepRun], runs_dir: str, sweep: str) -> Iterator[Path]:
        """Yield each run's directory. Raises InputError that names the first run whose options are wrong."""
        for number, run in enumerate(runs, 1):
            try:
                options = self._check(run.options(run.config, runs_dir)).options
            except InputError as error:
                changes = ", ".join(f"{key} {format_value(value)}" for key, value in run.changes.items())
                raise InputError(f"sweep {sweep}, run {number} ({changes}): {error}") from error
            resolved = options.resolved | ({SEED: run.changes[SEED]} if SEED in run.changes else {})
            yield Path(runs_dir, resolved["experiment"], run_identity(resolved, options.neutral))

    def with_data(self, runs: Sequence[FolderRun]) -> list[FolderRun]:
        """Return the runs whose data is prepared or can be generated; name the others with the command that helps."""
        missing: dict[str, list[int]] = {}
        notes: dict[str, list[int]] = {}
        for run in runs:
            check = self._check(run.options)
            missing.setdefault(check.missing, []).append(run.index)
            notes.setdefault(check.generated, []).append(run.index)
        ready = {*missing.pop("", [])}
        for command, indices in missing.items():
            print(wrapped(f"not submitted: {ranges(indices)}: their data is missing; {command}"), file=sys.stderr)
        for note, indices in notes.items():
            if note:
                print(wrapped(f"note: {ranges(indices)}: {note}"), file=sys.stderr)
        return [run for run in runs if run.index in ready]

    def _check(self, options: list[str]) -> _Check:
        """Read the options of a fit. The key is without the seed, and with a copy of a config as the config."""
        kept = [option for option in options[1:] if not option.startswith(f"--{SEED}=")]
        key = (Path(options[0].partition("=")[2]).read_text(), *kept)
        if key not in self._known:
            from lra_ssm.results.published import data_differences, row_for
            from lra_ssm.runs.record import flatten

            read = _read_options(options)
            data, missing, generated = read.data(), "", ""
            task, _, model = str(read.resolved["experiment"]).rpartition("/")
            task, settings = task.rpartition("/")[2], flatten(read.resolved)
            if hasattr(data, "is_prepared") and not data.is_prepared() and getattr(data, "source", "") != "generated":
                words = shlex.join([options[0], *(option for option in kept if option.startswith("--data"))])
                missing = self._prepare.setdefault(_folder_of(data), f"lra-ssm prepare {words}")
            if row_for(task, model, settings):
                generated = "; ".join(data_differences(task, settings))
            self._known[key] = _Check(read, missing, generated)
        return self._known[key]


def _folder_of(data: Any) -> str:
    try:
        return str(data.prepared_folder)
    except InputError as error:  # its source is missing
        return str(error)


def _read_options(options: list[str]) -> Any:
    from lra_ssm.cli.config import read_fit_options  # loads torch

    return read_fit_options(options)


def _print_runs(folder: SweepFolder) -> None:
    """Print each run's changes, on stderr: stdout is for the script."""
    every = dict.fromkeys(key for run in folder.runs for key in run.changes)
    common = {key: value for key, value in folder.runs[0].changes.items()
              if all(run.changes.get(key) == value for run in folder.runs)}  # fmt: skip
    keys = [key for key in every if key not in common]
    short = short_names(every)
    rows = [[str(run.index), _config_name(run), *(run.changes.get(key, "") for key in keys)] for run in folder.runs]
    columns = ["run", "config", *(short[key] for key in keys)]
    print(table(columns, rows, len(columns), terminal_width(sys.stderr)), file=sys.stderr)
    if common:
        told = ", ".join(f"{short[key]} {value}" for key, value in common.items())
        print(wrapped(f"all of them: {told}"), file=sys.stderr)
    print(f"{len(rows)} runs in {folder.path}", file=sys.stderr)


def _config_name(run: FolderRun) -> str:
    return Path(run.options[0].partition("=")[2]).stem


# -- results -----------------------------------------------------------------------------------------------------------


def results(
    *runs: str,
    metric: str | None = None,
    by: str | None = None,
    grid: bool = False,
    each: bool = False,
    format: Literal["text", "markdown", "latex", "csv"] | None = None,
    out: Path | None = None,
    curves: Path | None = None,
    plot: Path | None = None,
) -> None:
    """Show what runs gave: a row per task, model and settings, mean ± standard deviation over seeds, next to the
    published row.

    Task and model are the last two parts of a run's experiment (lra/listops/s4d). Runs with other settings, other data
    or other starting weights are other rows. Only complete scores of a run's own best checkpoint count; notes name what
    is left out or mixed.

    Args:
        runs: sweeps (name, file or folder), run directories, folders of runs or globs; default: runs
        metric: such as test/loss or val/accuracy; default: the published row's, else the task's
        by: settings that make rows, KEY or KEY,KEY: a dotted name or the end of one (lr)
        grid: models down and tasks across, with LRA's average
        each: a CSV row per run, with every setting that differs
        format: default: text, or what the end of --out says
        out: a file in place of the screen: .md, .tex, .csv or .txt
        curves: a PNG file: the validation metric over the steps
        plot: a PNG file: the metric over what --by names

    Examples:
        lra-ssm results lra
        lra-ssm results runs/lra --grid --out=table.tex
        lra-ssm results runs/lra --curves=curves.png
        lra-ssm results runs/scifar/b2s6 --by=num_blocks --plot=ablation.png
    """
    if out is not None and format is None and out.suffix not in _FORMATS:
        raise InputError(f"--out {out}: end it with {', '.join(_FORMATS)}, or give --format")
    form = format or (_FORMATS[out.suffix] if out is not None else "text")
    names = list(dict.fromkeys(name for name in (by or "").split(",") if name))
    if plot is not None and len(names) not in (1, 2):
        raise InputError("--plot draws over one setting or two: name them with --by=KEY or --by=KEY,KEY")
    if each and form != "csv":
        raise InputError("--each needs CSV: add --format=csv or --out=FILE.csv")
    from lra_ssm.results import table as tables

    every = [record for _, found in collect_runs(runs or ("runs",)) for record in found]
    records = list({record.path.resolve(): record for record in every}.values())
    frame = tables.runs_frame(records, metric, names)
    groups = tables.groups_of(frame, names)
    unknown = [record for record in records if not record.config.get("model")]
    notes = [f"{record.path}: {record.missing}" for record in unknown if record.problem]
    if waiting := [record for record in unknown if not record.problem]:
        named = ", ".join(record.name for record in waiting[:4])
        more = f" and {len(waiting) - 4} more" if len(waiting) > 4 else ""
        notes.append(f"not started: {named}{more}")
    if not groups:
        text = "\n".join(notes)
    elif each:
        text = tables.runs_to_csv(frame)
    else:
        made = tables.grid(groups, notes) if grid else tables.results_table(groups, notes)
        text = made.text(None if out else terminal_width()) if form == "text" else getattr(made, form)()
    if out is None:
        print(text.rstrip("\n"))
    else:
        with replacing(out) as file:
            file.write(text.rstrip("\n") + "\n")
        print(out)
    if curves is not None or plot is not None:
        from lra_ssm.results.plot import draw_curves, draw_settings

        if curves is not None:
            draw_curves(groups, curves)
            print(curves)
        if plot is not None:
            draw_settings(groups, names, plot)
            print(plot)


def collect_runs(given: Iterable[str]) -> Iterator[tuple[SweepFolder | None, list[RunRecord]]]:
    """Yield for each argument its sweep, if it is one, and its runs. Raises InputError if there are none."""
    for name in given:
        paths = [Path(name)] if Path(name).exists() else [Path(path) for path in sorted(glob.glob(name))]
        if name_of("sweep", name) or (len(paths) == 1 and (paths[0].is_file() or (paths[0] / "runs.txt").is_file())):
            folder = SweepFolder.find(name)
            yield folder, [run.record for run in folder.runs]
            continue
        found = [RunRecord.read(run) for path in paths for run in find_runs(path)]
        if not found:
            raise InputError(f"{name}: no runs there; give run directories, folders of runs, or a sweep")
        yield None, sorted(found, key=lambda record: (record.experiment, record.path.name))
