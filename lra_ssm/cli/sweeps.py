"""`lra-ssm submit` starts the runs of a sweep; `lra-ssm results` makes a table of them."""

import re
import shlex
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jsonargparse.typing import PositiveInt

from lra_ssm.cli.status import State, collect_runs, states_table
from lra_ssm.errors import InputError
from lra_ssm.files import replacing
from lra_ssm.runs.identity import SEED, run_identity
from lra_ssm.runs.record import RunRecord
from lra_ssm.shipped import find
from lra_ssm.sweeps.local import run_local
from lra_ssm.sweeps.submit import FolderRun, SweepFolder, is_folder, queue_of, ranges, submit_array, write_script
from lra_ssm.sweeps.sweep import read_sweep
from lra_ssm.tables import terminal_width, wrapped

_FORMATS = {".md": "markdown", ".csv": "csv", ".tex": "latex", ".txt": "text"}


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
        sweep: a sweep file, the name of a shipped one, or a sweep's folder
        template: the script for one run, a file or the name of a shipped one (slurm/*.sbatch); copy one and change it
        sbatch: further options of sbatch, such as "--partition=gpu --time=8:00:00"; they replace the template's
        concurrency: runs at the same time
        dry_run: print the runs and the script, and submit or train nothing
        resume: submit what failed, was stopped or is missing, and is not in the queue
        local: train the runs here without Slurm, this many at a time

    Examples:
        lra-ssm submit lra --dry-run
        lra-ssm submit lra --sbatch="--partition=gpu --time=24:00:00" --concurrency=8
        lra-ssm submit lra --resume
        lra-ssm submit small --local=2
    """
    script_of = find("template", template)
    if is_folder(sweep):
        folder = SweepFolder(Path(sweep))
        checks = _check_all(sweep, [run.options for run in folder.runs])
    else:
        parsed = read_sweep(sweep)
        checks = _check_all(sweep, [run.options(run.config, parsed.runs_dir) for run in parsed.runs])
        folder = SweepFolder.make(parsed, [check.directory for check in checks])
    _log(states_table([State.of(run.record, run, {}) for run in folder.runs], terminal_width(sys.stderr)))
    _log(f"{len(folder.runs)} runs in {folder.path}")
    left = [run for run in folder.runs if run.record.missing]
    if not left:
        _log(f"nothing is left to run: lra-ssm results {folder.path}")
        return 0
    ready = _with_data(left, checks)
    if local is not None:
        return 0 if dry_run else run_local(ready, local) or int(len(ready) < len(left))
    queued = {}
    if not dry_run and (folder.path / "jobs.txt").exists():
        if not resume:
            raise InputError(f"{folder.path} was submitted before: --resume submits what failed, stopped or is missing")
        queued = queue_of(folder)
    indices = [run.index for run in ready if run.index not in queued]
    if not indices:
        _log(f"no run can be submitted now: lra-ssm status {folder.path}")
        return int(not dry_run)
    script = write_script(script_of, folder, indices, sbatch, concurrency)
    if dry_run:
        print(script, end="")
        _log(f"nothing is submitted; the script is {folder.path / 'submit.sbatch'}")
        return 0
    print(f"job {submit_array(folder, indices)}: {len(indices)} runs; lra-ssm status {folder.path}")
    return int(len(ready) < len(left))


def _log(text: str) -> None:
    """Print to stderr: stdout is for the script."""
    print(text, file=sys.stderr)


class _Check(NamedTuple):
    """The results of checking a run's options as `lra-ssm fit` would."""

    directory: Path
    unprepared: str  # where its data should be; empty if it is prepared or fit generates it
    data_note: str  # how its data differs from the data of the published row


def _check_all(sweep: str, options_of_runs: Sequence[list[str]]) -> list[_Check]:
    """Check the options of runs as `lra-ssm fit` does. Raises InputError for the first run with a wrong option."""
    from lra_ssm.cli.config import read_fit_options  # loads torch
    from lra_ssm.results.published import data_differences, row_of

    @cache  # the seeds of a config share its check
    def check(*options: str) -> tuple[Any, str, str]:
        config = read_fit_options(list(options))
        data, unprepared = config.data(), ""
        if hasattr(data, "is_prepared") and not data.is_prepared() and getattr(data, "source", "") != "generated":
            try:
                unprepared = str(data.prepared_folder)
            except InputError as error:  # the source is missing
                unprepared = str(error)
        run = RunRecord(Path(), config=config.resolved)
        return config, unprepared, "; ".join(data_differences(run)) if row_of(run) else ""

    checks = []
    for number, options in enumerate(options_of_runs, 1):
        seeds = [option for option in options if re.fullmatch(rf"--{SEED}=\d+", option)]
        try:
            config, unprepared, note = check(*(option for option in options if option not in seeds))
        except InputError as error:
            raise InputError(f"sweep {sweep}, run {number} ({' '.join(options[1:])}): {error}") from error
        resolved = config.resolved | ({SEED: int(seeds[-1].partition("=")[2])} if seeds else {})
        directory = Path(resolved["runs_dir"], resolved["experiment"], run_identity(resolved))
        checks.append(_Check(directory, unprepared, note))
    return checks


def _with_data(runs: Sequence[FolderRun], checks: Sequence[_Check]) -> list[FolderRun]:
    """Return the runs whose data is prepared or can be generated; name the others with the command that helps."""
    unprepared: dict[str, list[FolderRun]] = {}
    notes: dict[str, list[FolderRun]] = {}
    for run in runs:
        check = checks[run.index - 1]
        unprepared.setdefault(check.unprepared, []).append(run)
        notes.setdefault(check.data_note, []).append(run)
    ready = unprepared.pop("", [])
    for several in unprepared.values():
        command = shlex.join([several[0].options[0], *(o for o in several[0].options if o.startswith("--data"))])
        numbers = ranges(run.index for run in several)
        _log(wrapped(f"not submitted: {numbers}: their data is missing; lra-ssm prepare {command}"))
    for note, several in notes.items():
        if note:
            _log(wrapped(f"note: {ranges(run.index for run in several)}: {note}"))
    return ready


# -- results -----------------------------------------------------------------------------------------------------------


def results(
    *runs: str,
    metric: str | None = None,
    by: str | None = None,
    grid: bool = False,
    format: Literal["text", "markdown", "latex", "csv"] | None = None,
    out: Path | None = None,
    curves: Path | None = None,
    plot: Path | None = None,
) -> None:
    """Show the results of runs: a row per task, model and settings, mean ± standard deviation over seeds, next to the
    published row.

    Task and model are the last two parts of a run's experiment (lra/listops/s4d). Runs with other settings, other data
    or other starting weights are other rows. Only complete scores of a run's own best checkpoint count; notes name what
    is left out or mixed.

    Args:
        runs: sweeps (name, file or folder), run directories, folders of runs or globs; default: runs
        metric: such as test/loss or val/accuracy; default: the published row's, else the task's
        by: settings that have a column, KEY or KEY,KEY: a dotted name or the end of one (lr)
        grid: models down and tasks across, with LRA's average
        format: default: the one that --out ends with, else text; CSV has a row per run, in numbers
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
    output_format = format or (_FORMATS[out.suffix] if out is not None else "text")
    names = list(dict.fromkeys(name for name in (by or "").split(",") if name))
    if plot is not None and len(names) not in (1, 2):
        raise InputError("--plot draws over one setting or two: name them with --by=KEY or --by=KEY,KEY")
    from lra_ssm.results.table import grid_table, groups_of, results_table, runs_csv, runs_frame

    every = [record for _, group in collect_runs(runs or ("runs",)) for record in group]
    records = list({record.path.resolve(): record for record in every}.values())
    frame = runs_frame(records, metric, names)
    groups = groups_of(frame)
    if output_format == "csv":
        text = runs_csv(frame)
    else:
        made_table = (grid_table if grid else results_table)(groups, records)
        width = None if out else terminal_width()
        text = made_table.text(width) if output_format == "text" else getattr(made_table, output_format)()
    if out is None:
        print(text.rstrip("\n"))
    else:
        with replacing(out) as file:
            file.write(text.rstrip("\n") + "\n")
        print(out)
    if curves is not None:
        from lra_ssm.results.plot import draw_curves

        draw_curves(groups, curves)
        print(curves)
    if plot is not None:
        from lra_ssm.results.plot import draw_settings

        draw_settings(groups, names, plot)
        print(plot)
