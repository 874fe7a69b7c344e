"""The states of a sweep's runs as text: a table, why some do not go on, and one line for all."""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from lra_ssm.cluster.folder import SweepFolder, shown
from lra_ssm.cluster.script import ranges
from lra_ssm.cluster.status import STATES, RunState, seconds_left
from lra_ssm.errors import squeeze
from lra_ssm.tables import table

_FIRST = ("running", "failed", "lost", "stopped", "waiting", "done")  # where there is no room for all
_DROPPED = ("train loss", "attempts", "steps/s")  # columns, where a terminal is too narrow for all
_WHAT = 24  # characters that a run's name needs, if it has so many
_REASONS = 12  # that are shown under a table


def titles(folder: SweepFolder) -> dict[int, str]:
    """What each run is, in a few words: its experiment or config where they are not all the same, and what tells it
    from the others of that name."""
    runs, base = folder.runs, folder.path.parent.parent
    experiments = [run.directory.path.relative_to(base).parent.parts for run in runs]
    while len({parts[:1] for parts in experiments}) == 1 and experiments[0][1:]:
        experiments = [parts[1:] for parts in experiments]
    names = ["/".join(parts) for parts in experiments]
    if len(set(names)) == 1:
        names = [Path(run.options[0].partition("=")[2]).stem for run in runs]
    groups: dict[str, list[dict[str, Any]]] = {}
    for name, run in zip(names, runs, strict=True):
        groups.setdefault(name, []).append({k: v for k, v in run.changes.items() if k != "experiment"})
    # What all runs of one name have in common the name stands for.
    common = {
        name: {k: v for k, v in every[0].items() if all(c.get(k, ...) == v for c in every)}
        for name, every in groups.items()
    }
    own = [shown({k: v for k, v in run.changes.items() if k != "experiment"}, common[name])
           for name, run in zip(names, runs, strict=True)]  # fmt: skip
    said = [
        " ".join(filter(None, [name if len(groups) > 1 else "", what])) for name, what in zip(names, own, strict=True)
    ]
    return {run.index: words or name for run, words, name in zip(runs, said, names, strict=True)}


def lines(
    folder: SweepFolder,
    found: Sequence[RunState],
    every: Sequence[RunState],
    width: int | None,
    height: int | None = None,
) -> str:
    """The table of `found`, and the line for `every` run, in a terminal of width × height."""
    below = [*_reasons(found, width), f"log of run N: {folder.path / 'logs'}/N.log", summary(every)]
    taken = sum(len(line) // (width or len(line) + 1) + 1 for line in below)
    rows = list(found)
    while True:
        more = [f"… {len(found) - len(rows):,} more runs"] if len(rows) < len(found) else []
        room = len(rows) if height is None else max(1, height - taken - len(more) - 2)  # the head may take two lines
        drawn = _table(folder, rows, width) if len(rows) <= room else ""
        if drawn and (height is None or len(rows) == 1 or drawn.count("\n") + 1 + len(more) + taken <= height):
            return "\n".join([drawn, *more, *below])
        rows = sorted(rows, key=lambda run: _FIRST.index(run.state))[: min(len(rows) - 1, room)]
        rows.sort(key=lambda run: run.index)


def _table(folder: SweepFolder, found: Sequence[RunState], width: int | None) -> str:
    what, metrics = titles(folder), {kind: {n for r in found for n in getattr(r, kind)} for kind in ("val", "test")}

    def metric(run: RunState, kind: str) -> str:
        said = [f"{value:.4g}" if len(metrics[kind]) == 1 else f"{name.partition('/')[2]} {value:.4g}"
                for name, value in getattr(run, kind).items()]  # fmt: skip
        return said[0] if said else ""

    def head(kind: str) -> str:
        return f"{kind} {next(iter(metrics[kind])).partition('/')[2]}" if len(metrics[kind]) == 1 else kind

    columns = ["run", "what", "state", "step", "steps/s", "left", head("val"), head("test"), "train loss", "attempts"]
    rows = []
    for run in found:
        going = run.state == "running"
        step = "" if run.step is None else f"{run.step}/{'?' if run.of is None else run.of}"
        state = run.phase if going and run.phase != "training" else run.state  # testing says that it is running
        rate = (
            ""
            if run.rate is None or not going or run.phase == "testing"
            else f"{run.rate:.{0 if run.rate >= 100 else 2}f}"
        )
        left = "" if run.seconds_left is None or not going else duration(run.seconds_left)
        loss = "".join(f"{value:.4g}" for value in run.train.values())
        rows.append([str(run.index), what[run.index], state, step, rate, left, metric(run, "val"), metric(run, "test"),
                     loss, str(run.attempts or "")])  # fmt: skip
    kept = [i for i in range(len(columns)) if i < 3 or any(row[i] for row in rows)]

    def least(i: int) -> int:
        cells = max((len(row[i]) for row in rows), default=0)
        return max(min(cells, _WHAT) if i == 1 else cells, len(columns[i])) + 1

    for name in _DROPPED:
        if width is not None and sum(map(least, kept)) > width + 1 and columns.index(name) in kept:
            kept.remove(columns.index(name))
    return table([columns[i] for i in kept], [[row[i] for i in kept] for row in rows], 3, width)


def reason(run: RunState) -> str:
    """Why it does not go on, or what else there is to say of it."""
    if run.silent is not None:
        return f"no sign for {duration(run.silent)}"
    return run.reason


def _reasons(found: Sequence[RunState], width: int | None) -> list[str]:
    """A line for each reason, with the runs that have it."""
    groups: dict[tuple[str, str], list[int]] = {}
    for run in found:
        if reason(run):
            groups.setdefault((run.state, reason(run)), []).append(run.index)
    said = [squeeze(f"{ranges(indices)} {state}: {why.removeprefix(state).strip()}")
            for (state, why), indices in groups.items()]  # fmt: skip
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
