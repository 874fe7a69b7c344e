"""`lra-ssm status`: how far runs are, of sweeps and of folders, in one table."""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from json import dumps
from typing import Any, Self

from lra_ssm.cli.sweeps import collect_runs
from lra_ssm.errors import InputError
from lra_ssm.results.settings import differing, format_value, short_names
from lra_ssm.runs.identity import SEED
from lra_ssm.runs.record import RunRecord
from lra_ssm.sweeps.local import last_line
from lra_ssm.sweeps.submit import FolderRun, queue_of, ranges
from lra_ssm.tables import duration, table, terminal_width, wrapped

_MAX_SETTINGS = 4  # shown of a run


def status(*runs: str, json: bool = False) -> None:
    """Show how far runs are: of a sweep, or of folders of runs.

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
        own = [None] * len(records) if sweep is None else sweep.runs
        states += [_State.of(record, run, queue) for record, run in zip(records, own, strict=True)]
    if json:
        print(dumps([one.as_json() for one in states], indent=1))
        return
    print(_table(states, terminal_width()))
    reasons: dict[tuple[str, str], list[_State]] = {}
    for one in states:
        if one.reason:
            reasons.setdefault((one.state, one.reason), []).append(one)
    for (state, reason), same in reasons.items():
        numbers = ranges(one.number for one in same if one.number)
        ids = [one.record.path.name for one in same if not one.number]
        told = reason if reason.startswith(state) else f"{state}: {reason}"
        print(wrapped(f"{', '.join(filter(None, [numbers, *ids]))} {told}"))
    counts = Counter(one.state for one in states)
    print(f"{len(states)} in all: {', '.join(f'{count} {state}' for state, count in counts.items())}")


@dataclass(frozen=True)
class _State:
    """How far a run is, from its directory, its log and Slurm's queue."""

    record: RunRecord
    number: int  # in its sweep; 0 outside of one
    state: str
    reason: str
    settings: dict[str, Any]  # by which it may differ from others

    def as_json(self) -> dict[str, Any]:
        record = self.record
        of = {"state": self.state, "reason": self.reason, "step": record.step, "of": record.planned_steps}
        return {"run": str(record.path), **of}

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
            record_file = record.path / "run.json"
            state = "failed" if state == "not started" else state
            if not record_file.exists() or run.log.stat().st_mtime > record_file.stat().st_mtime - 1:
                reason = reason or last_line(run)  # why the last attempt ended before or after the run's own record
        return cls(record, run.index, state, reason, run.changes)


def _table(states: Sequence[_State], width: int | None) -> str:
    columns: dict[str, list[str]] = {
        "run": [str(one.number or one.record.path.name) for one in states],
        "experiment": [one.record.experiment for one in states],
        "settings": _settings(states),
        "state": [one.state for one in states],
        "step": [_step(one.record) for one in states],
        "left": [_left(one) for one in states],
        "validation": [_validation(one.record) for one in states],
        "test": [_test(one.record) for one in states],
        "time": ["" if one.record.seconds is None else duration(*one.record.seconds) for one in states],
    }
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    for name in ("time", "left"):
        if width is not None and sum(max(map(len, [name, *cells])) + 1 for name, cells in columns.items()) > width:
            columns.pop(name, None)
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    return table([*columns], rows, list(columns).index("state") + 1, width)


def _settings(states: Sequence[_State]) -> list[str]:
    """What distinguishes each run from others of its experiment, the seed first."""
    groups: dict[str, list[_State]] = {}
    for one in states:
        groups.setdefault(one.record.experiment, []).append(one)
    found = {}
    for same in groups.values():
        differ = differing(one.settings for one in same)
        short = short_names({key for one in same for key in one.settings})
        keys = sorted(differ.keys() - {"experiment"}, key=lambda key: (key != SEED, key))
        for i, one in enumerate(same):
            values = {key: one.record.all_settings.get(key, differ[key][i]) for key in keys[:_MAX_SETTINGS]}
            told = [f"{short[key]} {format_value(value)}" for key, value in values.items()]
            found[id(one)] = ", ".join(told) + (", …" if len(keys) > _MAX_SETTINGS else "")
    return [found[id(one)] for one in states]


def _step(record: RunRecord) -> str:
    if record.step is None or record.finished or not record.planned_steps:
        return "" if record.step is None else f"{record.step:,}"
    return f"{record.step:,}/{record.planned_steps:,}"


def _left(one: _State) -> str:
    rate, of, step = one.record.progress.get("rate"), one.record.planned_steps, one.record.step
    if one.state != "running" or not rate or of is None or step is None:
        return ""
    return duration(max(0.0, (of - step) / rate))


def _validation(record: RunRecord) -> str:
    """The best monitored metric of a run that has ended, else the last one with …"""
    best = (record.record.get("metrics") or {}).get(f"best {record.monitor}")
    if isinstance(best, (int, float)):
        return _figure(record.monitor, best)
    curve = record.curve(record.monitor)
    return f"… {_figure(record.monitor, curve[max(curve)])}" if curve else ""


def _test(record: RunRecord) -> str:
    metrics = {} if record.missing else record.tested.get("metrics") or {}
    names = [f"test/{name}" for name in ("accuracy", "perplexity", "loss") if f"test/{name}" in metrics]
    return _figure(names[0], metrics[names[0]]) if names else ""


def _figure(metric: str, value: float) -> str:
    """accuracy 63.85 %, loss 2.31"""
    name = metric.rpartition("/")[2]
    return f"{name} {100 * value:.2f} %" if name == "accuracy" else f"{name} {value:.4g}"
