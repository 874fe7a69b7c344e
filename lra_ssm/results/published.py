"""Published rows, and how a run's settings differ from those of the config that belongs to one."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lra_ssm.results.settings import ABSENT, format_value, matching
from lra_ssm.runs.record import RunRecord, flatten, load_yaml, result_settings
from lra_ssm.shipped import FOLDERS, PACKAGE

LRA = ("listops", "text", "retrieval", "image", "pathfinder", "pathx")


def plus_minus(value: float, std: float | None, decimals: int) -> str:
    """63.85 ± 0.45; without the deviation if there is none."""
    return f"{value:.{decimals}f}" + ("" if std is None else f" ± {std:.{decimals}f}")


@dataclass(frozen=True)
class Row:
    """A published figure, in the unit it is printed in; std: the deviation between seeds, computed if necessary."""

    task: str
    model: str
    value: float
    std: float | None
    settings: tuple[tuple[str, Any], ...]
    step: int | None
    metric: str
    percent: bool
    decimals: int
    where: str
    config: str  # whether our config has its settings: see published.yaml
    std_from: str  # what is printed in place of the deviation: "variance", "standard_error" or nothing
    unmatched: str  # why no run can be compared with it; empty if one can

    @property
    def figure(self) -> str:
        """63.85 ± 0.45"""
        return plus_minus(self.value, self.std, self.decimals)


@cache
def published() -> dict[str, Any]:
    """Return published.yaml."""
    found: dict[str, Any] = load_yaml(PACKAGE / "published.yaml")
    return found


@cache
def rows() -> dict[tuple[str, str], list[Row]]:
    """Return every published figure that a run measures, by task and model, in the file's order."""
    found: dict[tuple[str, str], list[Row]] = {}
    for table in published()["tables"]:
        paper = published()["papers"][table["paper"]]
        metric = table["metric"] if "/" in table["metric"] else f"test/{table['metric']}"
        for row in table["rows"]:
            task, model = row.get("experiment", table.get("experiment", f"{row['task']}/{row['model']}")).split("/")
            found.setdefault((task, model), []).append(
                Row(
                    row["task"],
                    row["model"],
                    float(row["value"]),
                    _deviation(row, table),
                    tuple(row.get("settings", {}).items()),
                    row.get("step"),
                    metric,
                    table.get("unit") == "percent",
                    table["decimals"],
                    f"{paper['authors']} {paper['year']}, {table['where']}",
                    table.get("settings") or published()["models"][row["model"]].get("settings", ""),
                    next((name for name in ("variance", "standard_error") if name in row), ""),
                    row.get("unmatched", table.get("unmatched", "")),
                )
            )
    return found


def _deviation(row: dict[str, Any], table: dict[str, Any]) -> float | None:
    """The standard deviation between seeds, if it is printed or follows from what is."""
    if "standard_error" in row:
        error: float = row["standard_error"] * table["seeds"] ** 0.5
        return error
    return row["variance"] ** 0.5 if "variance" in row else row.get("std")


def rows_for(task: str, model: str, settings: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a task and model that have these settings (dotted names), in the file's order."""
    return [
        row
        for row in rows().get((task, model), [])
        if all(key is not None and settings[key] == value for key, value in _named(settings, row))
    ]


def row_for(task: str, model: str, settings: Mapping[str, Any], steps: int | None = None) -> Row | None:
    """Return the row of a run or config: the first that can be compared, else the first.

    steps: the planned optimizer steps. In a table over steps the row at that step is taken, else its last.
    """
    found = sorted(rows_for(task, model, settings), key=lambda row: row.unmatched != "")
    over_steps = [row for row in found if row.step is not None]
    if over_steps:
        return next((row for row in over_steps if row.step == steps), over_steps[-1])
    return found[0] if found else None


def row_of(run: RunRecord) -> Row | None:
    """Return the row that a run is compared with."""
    return row_for(run.task, run.model, run.all_settings, run.planned_steps)


def row_of_config(config: dict[str, Any]) -> Row | None:
    """Return the row that a run of this config would be compared with."""
    return row_of(RunRecord(Path(), config=config))


def _named(settings: Mapping[str, Any], row: Row) -> list[tuple[str | None, Any]]:
    """What a row fixes, by the dotted names of these settings; None for a name that none or several of them have."""
    found = []
    for name, value in row.settings:
        keys = matching(name, settings.keys())
        found.append((keys[0] if len(keys) == 1 else None, value))
    return found


def config_of(task: str, model: str) -> Path | None:
    """Return the shipped config of a task and model."""
    return next(iter(sorted(FOLDERS["config"].glob(f"**/{task}/{model}.yaml"))), None)


def differences(run: RunRecord, row: Row) -> tuple[str, list[str]] | None:
    """Compare a run's settings with those of the row's config; None if there is no such config.

    Returns the config's name, and texts such as "trainer.max_steps 1000 instead of 80000". What the config leaves out
    is the default there; `run.settings` are those that the run has beyond the defaults.
    """
    file = config_of(run.task, run.model)
    if file is None:
        return None
    expected = flatten(result_settings(load_yaml(file), run.record.get("neutral")))
    expected |= {key: value for key, value in _named(expected, row) if key is not None}
    ours = run.settings | {key: run.all_settings[key] for key in expected if key in run.all_settings}
    told = []
    for key in sorted(expected.keys() | ours.keys()):
        mine, theirs = ours.get(key, ABSENT), expected.get(key, ABSENT)
        if mine != theirs and key not in (*data_of(run.task), "seed_everything", "experiment"):
            told.append(f"{key} {format_value(mine)} instead of {format_value(theirs)}")
    return f"{file.parent.name}/{file.name}", told


def data_of(task: str) -> dict[str, Any]:
    """Return the data settings that a task's published figures have, where the shipped configs have others."""
    return {f"data.{key}": value for key, value in published()["data"].get(task, {}).items()}


def data_differences(task: str, settings: Mapping[str, Any]) -> list[str]:
    """Return how a run's data differs from the data of the published figure."""
    return [
        f"{key} is {format_value(settings.get(key, ABSENT))}, the published figure has {format_value(value)}"
        for key, value in data_of(task).items()
        if settings.get(key) != value
    ]
