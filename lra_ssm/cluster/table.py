"""The states of a sweep's runs as text: a table, the reasons why runs do not continue, and one line for all."""

import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from lra_ssm.cluster.folder import SweepFolder, in_common, shown
from lra_ssm.cluster.script import ranges
from lra_ssm.cluster.status import STATES, RunState, seconds_left
from lra_ssm.errors import squeeze
from lra_ssm.tables import table

_FIRST = ("running", "failed", "lost", "stopped", "waiting", "done")  # where there is no room for all
_DROPPED = ("train loss", "attempts", "steps/s")  # columns, where a terminal is too narrow for all
_WHAT = 24  # characters that a run's name needs, if it has so many
_REASONS = 12  # that are shown under a table


def titles(folder: SweepFolder) -> dict[int, str]:
    """Each run in a few words: its experiment or config, if they differ, and what tells it from others of that name."""
    experiments = [run.directory.path.parent for run in folder.runs]
    above = os.path.commonpath([experiment.parent for experiment in experiments])
    names = [os.path.relpath(experiment, above) for experiment in experiments]
    if len(set(names)) == 1:
        names = [Path(run.options[0].partition("=")[2]).stem for run in folder.runs]
    changes = [{k: v for k, v in run.changes.items() if k != "experiment"} for run in folder.runs]
    groups = defaultdict[str, list[dict[str, Any]]](list)
    for name, own in zip(names, changes, strict=True):
        groups[name].append(own)
    common = {name: in_common(every) for name, every in groups.items()}  # the name stands for it
    found = {}
    for run, name, own in zip(folder.runs, names, changes, strict=True):
        words = [name if len(groups) > 1 else "", shown(own, common[name])]
        found[run.index] = " ".join(filter(None, words)) or name
    return found


def status_table(
    folder: SweepFolder,
    found: Sequence[RunState],
    every: Sequence[RunState],
    width: int | None,
    height: int | None = None,
) -> str:
    """The table of `found`, and the line for `every` run, in a terminal of width × height."""
    below = [*_reasons(found), f"log of run N: {folder.logs}/N.log", summary(every)]
    first = sorted(found, key=lambda run: _FIRST.index(run.state))
    lines: list[str] = []
    most = len(found) if height is None else min(len(found), max(0, height - len(below) - 1))
    for count in range(most, -1, -1):
        rows = sorted(first[:count], key=lambda run: run.index)
        more = [f"… {len(found) - count:,} more runs"] if count < len(found) else []
        lines = [*_table(folder, rows, width).splitlines(), *more, *below]
        if height is None or sum(-(-len(line) // (width or len(line))) for line in lines) <= height:
            break
    return "\n".join(lines)


@contextmanager
def redrawn(folder: SweepFolder) -> Iterator[Callable[[Sequence[RunState], Sequence[RunState], str], None]]:
    """Gives a function that draws in the terminal, in place of what it drew before: the table of some of all runs, and
    a note below it."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(), auto_refresh=False, vertical_overflow="crop") as live:

        def draw(found: Sequence[RunState], every: Sequence[RunState], note: str) -> None:
            columns, height = shutil.get_terminal_size()
            text = status_table(folder, found, every, columns, height - bool(note))
            live.update(Text("\n".join(filter(None, [text, note])), overflow="fold"), refresh=True)

        yield draw


def _table(folder: SweepFolder, found: Sequence[RunState], width: int | None) -> str:
    what = titles(folder)
    val, test = ({name for run in found for name in getattr(run, kind)} for kind in ("val", "test"))
    rows = [
        {
            "run": str(run.index),
            "what": what[run.index],
            "state": run.phase if run.phase not in ("", "training") else run.state,
            "step": "" if run.step is None else f"{run.step}/{'?' if run.of is None else run.of}",
            "steps/s": _rate(run),
            "left": "" if run.seconds_left is None else duration(run.seconds_left),
            _head("val", val): _metric(run.val, val),
            _head("test", test): _metric(run.test, test),
            "train loss": _metric(run.train, run.train),
            "attempts": str(run.attempts or ""),
        }
        for run in found
    ]
    columns = [name for name in rows[0] if any(row[name] for row in rows)] if rows else ["run", "what", "state"]

    def least(name: str) -> int:
        cells = max(len(row[name]) for row in rows)
        return max(min(cells, _WHAT) if name == "what" else cells, len(name)) + 1

    for name in _DROPPED:
        if width is not None and name in columns and sum(map(least, columns)) > width + 1:
            columns.remove(name)
    return table(columns, [[row[name] for name in columns] for row in rows], 3, width)


def _head(kind: str, names: Collection[str]) -> str:
    """Over a column of metrics: the metric's name too where all have the same."""
    return f"{kind} {next(iter(names)).partition('/')[2]}" if len(names) == 1 else kind


def _metric(metrics: Mapping[str, float], names: Collection[str]) -> str:
    """A cell of that column."""
    return "".join(
        f"{value:.4g}" if len(names) == 1 else f"{name.partition('/')[2]} {value:.4g}"
        for name, value in metrics.items()
    )


def _rate(run: RunState) -> str:
    if run.rate is None or run.state != "running" or run.phase == "testing":
        return ""
    return f"{run.rate:.0f}" if run.rate >= 100 else f"{run.rate:.2f}"


def reason(run: RunState) -> str:
    """Why it does not continue, or how long there was no sign of it."""
    return run.reason if run.silent is None else f"no sign for {duration(run.silent)}"


def _reasons(found: Sequence[RunState]) -> list[str]:
    """A line for each reason, with the runs that have it."""
    groups = defaultdict[tuple[str, str], list[int]](list)
    for run in found:
        if why := reason(run):
            groups[run.state, why].append(run.index)
    said = [squeeze(f"{ranges(runs)} {state}: {why.removeprefix(state).strip()}")
            for (state, why), runs in groups.items()]  # fmt: skip
    more = [f"… {len(said) - _REASONS} more reasons: --json has them all"] if len(said) > _REASONS else []
    return [*said[:_REASONS], *more]


def summary(found: Sequence[RunState]) -> str:
    """`12 runs: 7 done, 2 running, 3 waiting; about 0:40:00 left`"""
    counts = Counter[str](run.state for run in found)
    order = sorted(STATES, key="done".__ne__)
    parts = ", ".join(f"{counts[state]:,} {state}" for state in order if counts[state])
    left = seconds_left(found)
    about = "" if left is None else f"; about {duration(left)} left"
    return f"{len(found):,} run{'' if len(found) == 1 else 's'}: {parts}{about}"


def duration(seconds: float) -> str:
    """1:02:03, or `2 days, 1:02:03`."""
    return str(timedelta(seconds=round(seconds)))
