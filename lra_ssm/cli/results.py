"""`lra-ssm results`: what runs gave, as a table beside the published rows, as curves, by a setting."""

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_ssm.cli.output import PlainParser
from lra_ssm.cluster.folder import SweepFolder
from lra_ssm.errors import InputError
from lra_ssm.files import replacing
from lra_ssm.results.collect import collect
from lra_ssm.tables import terminal_width

if TYPE_CHECKING:
    from lra_ssm.results.groups import Group

DESCRIPTION = """\
Shows what tested runs gave: a row per task, model and settings, mean ± standard deviation over seeds, beside the
published row. Task and model are the last two parts of a run's experiment (lra/listops/s4d). Runs of other settings or
data have rows of their own; what is incomplete or mixed is said in notes."""

EXAMPLE = """\
examples:
  lra-ssm results runs/lra
  lra-ssm results runs/lra --grid --out=table.tex
  lra-ssm results runs/lra --curves=curves.png
  lra-ssm results runs/scifar/b2s6 --by=num_blocks,bias --plot=ablation.png
"""
_FORMATS = {".md": "markdown", ".csv": "csv", ".tex": "latex", ".txt": "text"}


def parser() -> PlainParser:
    found = PlainParser("lra-ssm results", DESCRIPTION, EXAMPLE)
    said = "run directories, folders of runs, globs, or a sweep's file or folder"
    found.add_argument("runs", nargs="+", metavar="RUNS", help=said)
    found.add_argument("--metric", help="such as test/loss or val/accuracy; default: the published row's, the task's")
    found.add_argument("--by", metavar="KEY[,KEY]", help="settings that make rows: model.optimizer.lr, or its end, lr")
    found.add_argument("--grid", action="store_true", help="models down, tasks across, with LRA's average")
    found.add_argument("--format", choices=list(_FORMATS.values()), help="default: text, or what --out ends with")
    for form in ("csv", "latex", "markdown"):
        found.add_argument(f"--{form}", dest="format", action="store_const", const=form, help=f"--format={form}")
    found.add_argument("--each", action="store_true", help="of CSV: a row per run, with every setting that differs")
    found.add_argument("--out", type=Path, metavar="FILE", help="written in place of being printed: .md, .csv, .tex")
    found.add_argument("--curves", type=Path, metavar="FILE.png", help="draws the validation metric over the steps")
    found.add_argument("--plot", type=Path, metavar="FILE.png", help="draws the metric over what --by names")
    return found


def main(command: str, arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    form = _format(options)
    by = [*dict.fromkeys(name for name in (options.by or "").split(",") if name)]
    if options.plot is not None and len(by) not in (1, 2):
        raise InputError("--plot draws over one setting or two: name them with --by=KEY or --by=KEY,KEY")
    if options.each and form != "csv":
        raise InputError("--each is of CSV: add --format=csv or --out=FILE.csv")
    if options.grid and form == "csv":
        raise InputError("--grid is a table to be read: text, markdown or latex")
    from lra_ssm.results.groups import group

    groups = group(collect(options.runs, runs_of_sweep), options.metric, by)
    text = _table(groups, by, form, options)
    if options.out is None:
        print(text.rstrip("\n"))
    else:
        with replacing(options.out) as file:
            file.write(text.rstrip("\n") + "\n")
        print(options.out)
    if options.curves is not None:
        from lra_ssm.results.pictures import draw_curves

        draw_curves(groups, options.curves)
        print(options.curves)
    if options.plot is not None:
        from lra_ssm.results.ablation import draw_ablation

        draw_ablation(groups, by, options.plot)
        print(options.plot)
    return 0


def _format(options: Namespace) -> str:
    if options.format is not None or options.out is None:
        return options.format or "text"
    if options.out.suffix not in _FORMATS:
        raise InputError(f"--out {options.out}: what it is to be is not known; end it with {', '.join(_FORMATS)}")
    return _FORMATS[options.out.suffix]


def _table(groups: list["Group"], by: list[str], form: str, options: Namespace) -> str:
    from lra_ssm.results.tables import each_to_csv, grid, results_table, to_csv

    if form == "csv":
        return each_to_csv(groups) if options.each else to_csv(groups, by)
    found = grid(groups) if options.grid else results_table(groups, by)
    if form == "text":
        width = terminal_width() if options.out is None else None
        return found.text(width)
    return found.markdown() if form == "markdown" else found.latex()


def runs_of_sweep(path: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The directories of a sweep's runs, and what each changes, the experiment among it."""
    folder = SweepFolder.find(path)
    base = folder.path.parent.parent
    found = []
    for run in folder.runs:
        path = run.directory.path
        experiment = path.parent.relative_to(base).as_posix()
        found.append((path, {**run.changes, "experiment": experiment}))
    return found
