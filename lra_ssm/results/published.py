"""Read published rows, and compare a run's settings with those of the config for a row."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lra_ssm.results.settings import ABSENT, format_value, matching
from lra_ssm.runs.identity import DATA_NEUTRAL, NONE_MEANS, PRECISIONS, SEED, result_settings
from lra_ssm.runs.record import RunRecord, flatten, load_yaml
from lra_ssm.shipped import FOLDERS, PACKAGE

LRA = ("listops", "text", "retrieval", "image", "pathfinder", "pathx")
_STD_FROM = {
    "variance": "the square root of the printed variance",
    "standard_error": "the printed standard error times the square root of the number of seeds",
}


def plus_minus(value: float, std: float | None, decimals: int) -> str:
    """Return a text such as 63.85 ± 0.45, or 63.85 if the deviation is None."""
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
    decimals: int
    where: str
    config: str  # whether our config has its settings: see published.yaml
    std_from: str  # how std was computed, if it is not printed
    unmatched: str  # why no run can be compared with it; empty if one can

    @property
    def figure(self) -> str:
        """The value as the paper prints it, such as 63.85 ± 0.45."""
        return plus_minus(self.value, self.std, self.decimals)


@cache
def published() -> dict[str, Any]:
    """Return published.yaml."""
    content: dict[str, Any] = load_yaml(PACKAGE / "published.yaml")
    return content


@cache
def rows() -> dict[tuple[str, str], list[Row]]:
    """Return every published figure that a run measures, by task and model, in the file's order."""
    rows_by_model: dict[tuple[str, str], list[Row]] = {}
    for table in published()["tables"]:
        paper, metric = published()["papers"][table["paper"]], table["metric"]
        for row in table["rows"]:
            std, printed = row.get("std"), next((name for name in _STD_FROM if name in row), "")
            if printed:
                std = row["variance"] ** 0.5 if printed == "variance" else row[printed] * table["seeds"] ** 0.5
            task, model = row.get("experiment", table.get("experiment", f"{row['task']}/{row['model']}")).split("/")
            new_row = Row(
                task=row["task"],
                model=row["model"],
                value=float(row["value"]),
                std=std,
                settings=tuple(row.get("settings", {}).items()),
                step=row.get("step"),
                metric=metric if "/" in metric else f"test/{metric}",
                decimals=table["decimals"],
                where=f"{paper['authors']} {paper['year']}, {table['where']}",
                config=table.get("settings") or published()["models"][row["model"]].get("settings", ""),
                std_from=_STD_FROM.get(printed, ""),
                unmatched=row.get("unmatched", table.get("unmatched", "")),
            )
            rows_by_model.setdefault((task, model), []).append(new_row)
    return rows_by_model


def rows_for(task: str, model: str, settings: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a task and model that have these settings (dotted names), in the file's order."""
    return [
        row
        for row in rows().get((task, model), [])
        if all(key is not None and settings[key] == value for key, value in _named(settings, row))
    ]


def row_of(run: RunRecord) -> Row | None:
    """Return the row that a run is compared with: the first that can be compared, else the first.

    In a table over steps it is the row at the run's planned step, else the last.
    """
    candidates = sorted(rows_for(run.task, run.model, run.all_settings), key=lambda row: row.unmatched != "")
    over_steps = [row for row in candidates if row.step is not None]
    at_planned_step = [row for row in over_steps if row.step == run.planned_steps]
    return next(iter(at_planned_step or over_steps[-1:] or candidates), None)


def row_of_config(config: dict[str, Any]) -> Row | None:
    """Return the row that a run of this config would be compared with."""
    return row_of(RunRecord(Path(), config=config))


def _named(settings: Mapping[str, Any], row: Row) -> list[tuple[str | None, Any]]:
    """Return the settings that a row fixes, by their dotted names; None for a name that matches none or several."""
    named = [(matching(name, settings.keys()), value) for name, value in row.settings]
    return [(matches[0] if len(matches) == 1 else None, value) for matches, value in named]


def differences(run: RunRecord, row: Row) -> tuple[str, dict[str, str]] | None:
    """Compare a run's settings with those of the row's config; None if there is no such config.

    Returns the config's name, and by setting a text such as "trainer.max_steps 1000 instead of 80000". What the config
    leaves out is the default there; `run.settings` are those that the run has beyond the defaults.
    """
    file = next(iter(sorted(FOLDERS["config"].glob(f"**/{run.task}/{run.model}.yaml"))), None)
    if file is None:
        return None
    expected = flatten(result_settings(load_yaml(file)))
    expected |= {key: value for key, value in _named(expected, row) if key is not None}
    actual = run.settings | {key: run.all_settings[key] for key in expected if key in run.all_settings}
    texts: dict[str, str] = {}
    left_out = {*_data_of(run.task), SEED, "experiment", *(f"data.{name}" for name in DATA_NEUTRAL)}
    for key in sorted({*expected, *actual} - left_out):
        run_value, row_value = (_as_lightning_reads(key, settings.get(key, ABSENT)) for settings in (actual, expected))
        # A setting that only one of two classes has follows from the classes.
        if run_value != row_value and not (
            ABSENT in (run_value, row_value) and any(key.startswith(f"{above}.") for above in texts)
        ):
            texts[key] = f"{key} {format_value(run_value)} instead of {format_value(row_value)}"
    return f"{file.parent.name}/{file.name}", texts


def _as_lightning_reads(key: str, value: Any) -> Any:
    """Return a setting of the Trainer in Lightning's spelling, with Lightning's default for None."""
    section, _, name = key.rpartition(".")
    if section != "trainer":
        return value
    return (
        NONE_MEANS.get(name) if value is None else PRECISIONS.get(str(value), value) if name == "precision" else value
    )


def _data_of(task: str) -> dict[str, Any]:
    """Return the data settings of a task's published figures that differ from the shipped configs."""
    return {f"data.{key}": value for key, value in published()["data"].get(task, {}).items()}


def data_differences(run: RunRecord) -> list[str]:
    """Return how a run's data differs from the data of the published figure."""
    return [
        f"{key} is {format_value(run.all_settings.get(key, ABSENT))}, the published figure has {format_value(value)}"
        for key, value in _data_of(run.task).items()
        if run.all_settings.get(key) != value
    ]
