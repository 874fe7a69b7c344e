"""The published rows, and whether a run's settings are those of the config that stands beside one."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lra_ssm.results.collect import RunRecord, load_yaml
from lra_ssm.results.settings import ABSENT, Settings, counting, differing, shown
from lra_ssm.runs.identity import DATA_NEUTRAL, ends
from lra_ssm.shipped import FOLDERS, PACKAGE

LRA = ("listops", "text", "retrieval", "image", "pathfinder", "pathx")


def plus_minus(value: float, std: float | None, decimals: int) -> str:
    deviation = "" if std is None else f" ± {std:.{decimals}f}"
    return f"{value:.{decimals}f}{deviation}"


@dataclass(frozen=True)
class Row:
    """A published figure, in the unit it is printed in; std: the deviation between seeds, of whatever is printed."""

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
    std_from: str  # what is printed in the deviation's place: "variance", "standard_error" or nothing
    unmatched: str  # why it can stand beside no run; nothing where it can

    @property
    def figure(self) -> str:
        """63.85 ± 0.45"""
        return plus_minus(self.value, self.std, self.decimals)


@dataclass(frozen=True)
class Comparison:
    """A run against the shipped config that stands beside its row."""

    file: str
    differences: tuple[str, ...]  # "trainer.max_steps 1000 for 80000"
    data: tuple[str, ...]  # where the published figure stands on other data than the config's


@cache
def published() -> dict[str, Any]:
    """published.yaml."""
    found: dict[str, Any] = load_yaml(PACKAGE / "published.yaml")
    return found


@cache
def rows() -> dict[tuple[str, str], list[Row]]:
    """Every published figure that a run measures, by task and model, in the file's order."""
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
    """The standard deviation between seeds, where one is printed or follows from what is."""
    if "standard_error" in row:
        error: float = row["standard_error"] * table["seeds"] ** 0.5
        return error
    return row["variance"] ** 0.5 if "variance" in row else row.get("std")


def rows_for(task: str, model: str, settings: Settings) -> list[Row]:
    """The rows of a task and model whose settings these are, in the file's order. settings: as `counting` has them."""
    return [
        row
        for row in rows().get((task, model), [])
        if all(key is not None and settings[key] == value for key, value in _named(settings, row))
    ]


def row_for(task: str, model: str, settings: Settings, steps: int | None = None) -> Row | None:
    """The one row that stands beside a run or a config of these settings: the first that can, else the first.

    steps: the optimizer steps planned; of a table over steps the row at that step is taken, else its last.
    """
    found = sorted(rows_for(task, model, settings), key=lambda row: row.unmatched != "")
    over_steps = [row for row in found if row.step is not None]
    if over_steps:
        return next((row for row in over_steps if row.step == steps), over_steps[-1])
    return found[0] if found else None


def row_of(run: RunRecord) -> Row | None:
    """The row that a run stands beside."""
    return row_for(run.task, run.model, run.settings, run.planned_steps)


def row_of_config(config: dict[str, Any]) -> Row | None:
    """The row that a config stands beside: that of a run of it as it is."""
    return row_of(RunRecord(Path(), config=config))


def _named(settings: Settings, row: Row) -> list[tuple[str | None, Any]]:
    """What a row fixes, by the names that a run's settings have for it; None for what no setting is called."""
    found = []
    for name, value in row.settings:
        keys = [key for key in settings if name in ends(key)]
        found.append((keys[0] if len(keys) == 1 else None, value))
    return found


def compare(run: RunRecord, row: Row) -> Comparison | None:
    """A run's settings against its row's config, leaf by leaf; None where no such config is at hand."""
    file = config_of(run.task, run.model)
    if file is None:
        return None
    expected = counting(load_yaml(file), run.record.get("neutral", DATA_NEUTRAL))
    expected |= {key: value for key, value in _named(expected, row) if key is not None}
    stands_on = {f"data.{key}": value for key, value in published()["data"].get(run.task, {}).items()}
    data = [
        f"{key} is {shown(run.settings.get(key, ABSENT))}, the published figure stands on {shown(value)}"
        for key, value in stands_on.items()
        if run.settings.get(key) != value
    ]
    found = differing([run.settings, expected])
    told = [f"{key} {shown(ours)} for {shown(theirs)}" for key, (ours, theirs) in found.items() if key not in stands_on]
    return Comparison(f"{file.parent.name}/{file.name}", tuple(told), tuple(data))


def config_of(task: str, model: str) -> Path | None:
    """The shipped config of a task and model."""
    return next(iter(sorted(FOLDERS["config"].glob(f"**/{task}/{model}.yaml"))), None)
