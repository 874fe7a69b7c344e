"""`lra-ssm status`: show the progress of sweeps and folders of runs in one table."""

import glob
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import Any, Self

from lra_ssm.errors import InputError
from lra_ssm.results.settings import differing, format_value, short_names
from lra_ssm.runs.identity import SEED
from lra_ssm.runs.record import RunRecord, find_runs
from lra_ssm.shipped import name_of
from lra_ssm.sweeps.submit import FolderRun, SweepFolder, queue_of, ranges
from lra_ssm.tables import duration, table, terminal_width, wrapped

_MAX_SETTINGS = 4  # that the table shows for a run


def status(*runs: str, json: bool = False) -> None:
    """Show the progress of the runs of a sweep, or of folders of runs.

    A run is waiting, running, done (trained and tested), finished (not tested), failed, stopped by a signal (its step
    is saved), killed, or not started. The runs' directories are read and squeue is asked once. A validation metric
    with … is the last one of a run that has not ended.

    Args:
        runs: a sweep (its name, file or folder), run directories or folders of runs; default: runs
        json: print a list of records, for scripts

    Examples:
        lra-ssm status lra
        lra-ssm status runs/lra/listops
        watch -n 10 lra-ssm status lra
    """
    states = []
    for sweep, records in collect_runs(runs or ("runs",)):
        queue: dict[int, str] = {}
        try:
            queue = {} if sweep is None else queue_of(sweep)
        except InputError as error:
            print(f"{error}; the table is without it", file=sys.stderr)
        sweep_runs = [None] * len(records) if sweep is None else sweep.runs
        states += [State.of(record, run, queue) for record, run in zip(records, sweep_runs, strict=True)]
    if json:
        print(dumps([one.as_json() for one in states], indent=1))
        return
    print(states_table(states, terminal_width()))
    reasons: dict[str, list[State]] = defaultdict(list)
    for one in states:
        if one.reason:
            text = one.reason if one.reason.startswith(one.state) else f"{one.state}: {one.reason}"
            reasons[text].append(one)
    for text, affected in reasons.items():
        numbers = ranges(one.number for one in affected if one.number)
        names = [numbers] * bool(numbers) + [one.name for one in affected if not one.number]
        print(wrapped(f"{', '.join(names)} {text}"))
    counts = Counter(one.state for one in states)
    print(f"{len(states)} in all: {', '.join(f'{count} {state}' for state, count in counts.items())}")


def collect_runs(names: Iterable[str]) -> Iterator[tuple[SweepFolder | None, list[RunRecord]]]:
    """Yield the sweep of each argument, None for a folder of runs, and its runs. Raises InputError without runs."""
    for name in names:
        paths = [Path(name)] if Path(name).exists() else [Path(path) for path in sorted(glob.glob(name))]
        if name_of("sweep", name) or (len(paths) == 1 and (paths[0].is_file() or (paths[0] / "runs.txt").is_file())):
            folder = SweepFolder.find(name)
            yield folder, [run.record for run in folder.runs]
            continue
        records = [RunRecord.read(run) for path in paths for run in find_runs(path)]
        if not records:
            raise InputError(f"{name}: no runs there; give run directories, folders of runs, or a sweep")
        yield None, sorted(records, key=lambda record: (record.experiment, record.path.name))


@dataclass(frozen=True)
class State:
    """The progress of a run, from its directory, its log and Slurm's queue."""

    record: RunRecord
    number: int  # in its sweep; 0 outside of one
    state: str
    reason: str
    settings: dict[str, Any]  # those that may differ from other runs

    @classmethod
    def of(cls, record: RunRecord, run: FolderRun | None, queue: dict[int, str]) -> Self:
        state = record.status.partition(" by ")[0].replace("interrupted", "stopped")
        reason = record.problem or str(record.record.get("reason") or record.record.get("stop") or "")
        if state == "finished" and not record.missing:
            state = "done"
        elif state == "finished":
            reason = record.missing.removeprefix("finished, ")
        if run is None:
            return cls(record, 0, state, reason, {SEED: record.seed, **record.settings})
        if run.index in queue and state != "done":
            state, reason = ("waiting", queue[run.index]) if queue[run.index] else ("running", "")
        elif state not in ("done", "running") and run.log.exists():
            written = record.path / "run.json"
            state = "failed" if state == "not started" else state
            if not written.exists() or run.log.stat().st_mtime > written.stat().st_mtime - 1:
                reason = reason or run.last_line()  # why the last attempt ended before or after the run's own record
        return cls(record, run.index, state, reason, run.changes)

    @property
    def name(self) -> str:
        return str(self.number or self.record.path.name)

    def as_json(self) -> dict[str, Any]:
        how_far = {"step": self.record.step, "of": self.record.planned_steps}
        return {"run": str(self.record.path), "state": self.state, "reason": self.reason, **how_far}

    def cells(self) -> dict[str, str]:
        """Return the columns after the settings; a cell without information is empty."""
        record, step, planned = self.record, self.record.step, self.record.planned_steps
        rate, metrics = record.progress.get("rate"), {} if record.missing else record.tested.get("metrics") or {}
        tested = [f"test/{name}" for name in ("accuracy", "perplexity", "loss") if f"test/{name}" in metrics]
        best = (record.record.get("metrics") or {}).get(f"best {record.monitor}")
        validation = "" if best is None else _figure(record.monitor, best)
        if best is None and (curve := record.curve(record.monitor)):
            validation = f"… {_figure(record.monitor, curve[max(curve)])}"
        is_open = step is not None and planned is not None and not record.finished
        left = max(0, planned - step) / rate if is_open and rate and self.state == "running" else None  # type: ignore[operator]
        return {
            "state": self.state,
            "step": ("" if step is None else f"{step:,}") + (f"/{planned:,}" if is_open else ""),
            "left": "" if left is None else duration(left),
            "validation": validation,
            "test": _figure(tested[0], metrics[tested[0]]) if tested else "",
            "time": "" if record.seconds is None else duration(record.seconds),
        }


def _figure(metric: str, value: float) -> str:
    """63.85 %, loss 2.31"""
    name = metric.rpartition("/")[2]
    return f"{100 * value:.2f} %" if name == "accuracy" else f"{name} {value:.4g}"


def states_table(states: Sequence[State], width: int | None) -> str:
    """Return a line per run, with the settings in which it differs from others of its experiment, the seed first."""
    groups: dict[str, list[State]] = defaultdict(list)
    for one in states:
        groups[one.record.experiment].append(one)
    settings = {}
    for group in groups.values():
        differences = differing(one.settings for one in group)
        short = short_names({key for one in group for key in one.settings})
        keys = sorted(differences.keys() - {"experiment"}, key=lambda key: (key != SEED, key))
        for i, one in enumerate(group):
            values = {key: one.record.all_settings.get(key, differences[key][i]) for key in keys[:_MAX_SETTINGS]}
            texts = [f"{short[key]} {format_value(value)}" for key, value in values.items()]
            settings[id(one)] = ", ".join(texts + ["…"] * (len(keys) > _MAX_SETTINGS))
    lines = [
        {"run": one.name, "experiment": one.record.experiment, "settings": settings[id(one)], **one.cells()}
        for one in states
    ]
    columns = [name for name in lines[0] if any(line[name] for line in lines)]
    return table(columns, [[line[name] for name in columns] for line in lines], columns.index("state") + 1, width)
