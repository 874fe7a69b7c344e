"""Average runs over seeds, and show them next to the published rows.

A run is a row of one DataFrame (`runs_frame`); runs that differ only in the seed are a row of the table (`Group`).
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pandas as pd

from lra_ssm.results.published import LRA, Row, data_differences, differences, plus_minus, published, row_of
from lra_ssm.results.settings import ABSENT, differing, exact, format_value, matching, resolve, short_names, sort_key
from lra_ssm.runs.record import RunRecord
from lra_ssm.tables import duration, table, wrapped

NONE = "–"


def runs_frame(runs: Sequence[RunRecord], metric: str | None = None, by: Sequence[str] = ()) -> pd.DataFrame:
    """Return a row per run whose settings are known, in the order of LRA's tasks and of published.yaml's models.

    Columns: run, task, model, seed, metric, value (accuracies in percent), why (the reason if the run does not count,
    else empty), parameters, steps, seconds, published (the Row, or None), settings (what separates rows, the
    data and the starting weights included), by (the settings named in `by`) and key (equal in runs of one row of the
    table). Raises InputError for a name that no run has.
    """
    known = [run for run in runs if run.config.get("model")]
    names = {name: resolve(name, {key for run in known for key in run.all_settings}) for name in by}
    models = list(published()["models"])
    lines = []
    for run in known:
        row = row_of(run)
        used = metric or (row.metric if row and run.value(row.metric) is not None else _default_metric(run))
        value = run.value(used)
        lines.append({
            "run": run, "task": run.task, "model": run.model, "seed": format_value(run.seed), "metric": used,
            "value": value if value is None or not used.endswith("accuracy") else 100 * value,
            "why": run.missing or (f"has no {used}" if value is None else ""), "parameters": run.parameters,
            "steps": run.step, "seconds": run.seconds, "published": row,
            "data": _labels("data files", *run.data), "settings": run.settings | _labels("started from", *run.weights),
            "by": {name: run.all_settings.get(key, ABSENT) for name, key in names.items()},
            "order": (LRA.index(run.task) if run.task in LRA else 6, run.task,
                      models.index(run.model) if run.model in models else 999, run.model),
        })  # fmt: skip
    frame = pd.DataFrame(lines, dtype=object)
    if frame.empty:
        return frame
    frame = frame.sort_values("order", kind="stable", ignore_index=True).drop(columns="order")
    keys = [exact([*each]) for each in zip(frame.task, frame.model, frame.settings, frame.by, strict=True)]
    data = dict(sorted(zip(keys, frame.data, strict=True), key=lambda pair: bool(pair[1])))
    # A run that failed early has not recorded its data: use the data of runs with the same settings.
    frame["data"] = [labels or data[key] for key, labels in zip(keys, frame.data, strict=True)]
    frame["settings"] = [data | settings for data, settings in zip(frame.data, frame.settings, strict=True)]
    frame["key"] = [exact([key, data]) for key, data in zip(keys, frame.data, strict=True)]
    counted = frame[frame.why == ""]
    counted = counted.iloc[counted.run.map(lambda run: str(run.last_start.get("time"))).argsort(kind="stable")]
    repeated = counted[counted.duplicated(["key", "seed"], keep="last")].index
    frame.loc[repeated, "why"] = "the same seed again: a later run counts"
    return frame


def _labels(name: str, words: str, digest: str) -> dict[str, str]:
    """Return a run's data or starting weights as a setting: a text and six digits of the digest."""
    return {name: f"{words} {hashlib.sha256(digest.encode()).hexdigest()[:6]}"} if digest else {}


def _default_metric(run: RunRecord) -> str:
    """Return accuracy, else perplexity, else loss; the best validation metric if the data has no test split."""
    metrics = run.tested.get("metrics") or {}
    if run.scored_by == "validate":
        return f"best {run.monitor}"
    named = [name for name in ("test/accuracy", "test/perplexity") if name in metrics]
    return named[0] if named else "test/loss" if metrics else run.monitor.replace("val/", "test/")


class Group:
    """One row of the table: runs that differ only in their seeds, as rows of `runs_frame`."""

    def __init__(self, runs: pd.DataFrame) -> None:
        self.first: RunRecord = runs.run.iloc[0]
        self.task, self.model = self.first.task, self.first.model
        scored = runs[runs.why == ""]
        self.metric: str = (scored if len(scored) else runs).metric.iloc[0]
        self.runs = runs.assign(
            why=runs.why.where((runs.why != "") | (runs.metric == self.metric), "has another metric")
        )
        self.counted = self.runs[self.runs.why == ""]
        values = self.counted.value.astype(float)
        self.mean = None if values.empty else float(values.mean(skipna=False))
        self.std = None if len(values) < 2 else float(values.std(skipna=False))
        # Those that distinguish it, by short name; `_distinguish` adds some.
        self.settings: dict[str, Any] = {name: value for name, value in runs.by.iloc[0].items() if value != ABSENT}
        published_row: Row | None = next((row for row in self.runs.published if row is not None), None)
        comparable = published_row and published_row.metric == self.metric and not published_row.unmatched
        self.row = published_row if comparable else None
        self.difference = None if self.mean is None or self.row is None else self.mean - self.row.value
        fallback = 2 if self.metric.endswith(("accuracy", "perplexity")) else 4
        self.decimals = self.row.decimals if self.row else fallback
        self.parameters = next((count for count in self.runs.parameters if count is not None), None)
        self.notes = self._notes()
        if published_row and published_row.unmatched:
            figure = f"{published_row.where}, {published_row.value:g}"
            self.notes.append(f"not compared with {figure}: {published_row.unmatched}")

    @property
    def label(self) -> str:
        """The model and what distinguishes the row."""
        return ", ".join([self.model, *(f"{name}={format_value(value)}" for name, value in self.settings.items())])

    @property
    def figure(self) -> str:
        return NONE if self.mean is None else plus_minus(self.mean, self.std, self.decimals)

    def average(self, column: str) -> float | None:
        """Return the mean of a column over the runs that count and have a value."""
        values = self.counted[column].dropna().astype(float)
        return None if values.empty else float(values.mean())

    def _notes(self) -> list[str]:
        """Return notes about what is incomplete or mixed in the row."""
        not_counted = self.runs[self.runs.why != ""]
        whys = "; ".join(f"{line.run.path}: {line.why}" for line in not_counted.itertuples())
        notes = [f"{len(not_counted)} of {len(self.runs)} runs not counted: {whys}"] if whys else []
        for what in ("code", "hardware"):
            made_with = self.counted.run.map(lambda run, what=what: getattr(run, what))
            texts = self.counted.groupby(made_with, sort=False).seed.agg(", ".join)
            if len(texts) > 1 or any(", then " in text for text in texts.index):
                text_of_seeds = "; ".join(f"{text}: seeds {seeds}" for text, seeds in texts.items())
                notes.append(f"not all with the same {what}: {text_of_seeds}")
        notes += [f"seed {run.seed} {run.record['stop']}" for run in self.counted.run if run.record.get("stop")]
        if self.first.weights[0]:
            notes.append(f"started from {self.first.weights[0]}")
        return notes + (data_differences(self.first) if self.row else [])


def groups_of(frame: pd.DataFrame) -> list[Group]:
    """Return the rows of the table."""
    if frame.empty:
        return []
    groups = []
    for _, model_frame in frame.groupby(["task", "model"], sort=False):
        model_groups = [Group(runs) for _, runs in model_frame.groupby("key", sort=False)]
        _distinguish(model_groups)
        groups += sorted(model_groups, key=lambda g: [sort_key(value) for value in g.settings.values()])
    for task, several in groupby(groups, key=lambda g: g.task):
        sized = sorted((g for g in several if g.parameters), key=lambda g: g.parameters or 0)
        if sized and (ratio := sized[-1].parameters / sized[0].parameters) > 1.1:  # type: ignore[operator]
            sized[-1].notes.append(
                f"{task}: {sized[-1].label} has {ratio:.2f} times as many parameters as {sized[0].label}"
            )
    return groups


def _distinguish(model_groups: Sequence[Group]) -> None:
    """Give rows of one task and model the settings that distinguish them; note how else a published row differs."""
    varying = differing(g.runs.settings.iloc[0] for g in model_groups)
    short = short_names({key for g in model_groups for key in g.first.settings} | varying.keys())
    known = {key for g in model_groups for key in g.first.all_settings}
    chosen = {key for g in model_groups for name in g.settings for key in matching(name, known)}
    for i, g in enumerate(model_groups):
        columns = {key: values[i] for key, values in varying.items() if key not in chosen}
        # A default is only in the whole configuration.
        columns = {
            key: g.first.all_settings.get(key, value) if value == ABSENT else value for key, value in columns.items()
        }
        g.settings = g.settings | {short[key]: value for key, value in columns.items()}
        config, differ = (differences(g.first, g.row) if g.row else None) or ("", {})
        if texts := [text for key, text in differ.items() if key not in columns and key not in chosen]:
            g.notes.append(f"other settings than configs/…/{config}: {'; '.join(texts)}")


# -- what is printed ---------------------------------------------------------------------------------------------------


@dataclass
class Table:
    """Cells as text; the first `left` columns are words; notes stand below."""

    frame: pd.DataFrame
    left: int
    notes: list[str]

    def text(self, width: int | None = None) -> str:
        rows = self.frame.to_numpy().tolist()
        lines = [] if self.frame.empty else [table(list(self.frame.columns), rows, self.left, width)]
        return "\n".join([*lines, *map(wrapped, self.notes)])

    def markdown(self) -> str:
        lines = [list(self.frame.columns), *self.frame.to_numpy().tolist()]
        lines = [[cell.replace("|", "\\|") for cell in line] for line in lines]
        lines.insert(1, ["---" if i < self.left else "---:" for i in range(len(lines[0]))])
        return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", *(f"- {note}" for note in self.notes)])

    def latex(self) -> str:
        """Return a table for the package booktabs; the notes are comments."""
        form = "l" * self.left + "r" * (len(self.frame.columns) - self.left)
        styled = self.frame.style.hide(axis="index").format(escape="latex").format_index(escape="latex", axis=1)
        drawn = str(styled.to_latex(hrules=True, column_format=form))
        for sign, command in {"±": r"$\pm$", NONE: "--"}.items():
            drawn = drawn.replace(sign, command)
        return "\n".join([drawn.rstrip("\n"), *(f"% {note}" for note in self.notes)])


def results_table(groups: Sequence[Group], records: Iterable[RunRecord]) -> Table:
    """Return a row per task, model and whatever else differs. records: of all runs, also those that have not begun."""
    scored = [g for g in groups if g.mean is not None]
    metrics = list(dict.fromkeys(_metric_name(g.metric) for g in scored or groups))
    figure = f"{metrics[0] if len(metrics) == 1 else 'value'} ± std"
    columns = list(dict.fromkeys(name for g in groups for name in g.settings))
    letters = _letters(groups)
    lines = []
    for g in groups:
        wanted, counted, seconds = g.runs.seed.nunique(), len(g.counted), g.average("seconds")
        settings = {_heading(name): format_value(g.settings[name]) if name in g.settings else "" for name in columns}
        lines.append({
            "task": g.task, "model": g.model, **settings, "metric": _metric_name(g.metric), figure: g.figure,
            "seeds": f"{counted}" if counted == wanted else f"{counted} of {wanted}",
            "parameters": _count(g.parameters), "steps": _count(g.average("steps")),
            "time a run": "?" if seconds is None else duration(seconds),
            "published": g.row.figure if g.row else NONE,
            "difference": NONE if g.difference is None else f"{g.difference:+.{g.decimals}f}",
            "notes": ",".join(sorted(letters[note] for note in g.notes)),
        })  # fmt: skip
    frame = pd.DataFrame(lines)
    unused = ["metric"] * (len(metrics) == 1) + ["published", "difference"] * (not any(g.row for g in groups))
    frame = frame.drop(columns=unused) if lines else frame
    return Table(frame, list(frame.columns).index(figure) if lines else 0, _below(letters, groups, records))


def grid_table(groups: Sequence[Group], records: Iterable[RunRecord]) -> Table:
    """Return models down and tasks across, as papers print LRA, with the average if all six tasks are there."""
    cells: dict[str, dict[str, str]] = {}
    values: dict[str, dict[str, float]] = {}
    for g in groups:
        figures = [(g.label, g.mean, f"{g.figure} ({len(g.counted)})")]
        figures += [(f"{g.model}, published", g.row.value, g.row.figure)] if g.row else []
        for name, value, text in figures:
            if value is not None:
                cells.setdefault(name, {})[g.task] = text
                values.setdefault(name, {})[g.task] = value
    tasks = list(dict.fromkeys(g.task for g in groups))
    frame = pd.DataFrame.from_dict(cells, orient="index").reindex(columns=tasks).fillna(NONE)
    if set(LRA) <= set(tasks):
        means = pd.DataFrame.from_dict(values, orient="index")[list(LRA)].mean(axis=1, skipna=False)
        frame["average"] = [NONE if pd.isna(mean) else f"{mean:.2f}" for mean in means]
    frame.insert(0, "mean ± std (seeds)", frame.index)
    return Table(frame, 1, _below(_letters(groups), groups, records))


def runs_csv(frame: pd.DataFrame) -> str:
    """Return a CSV row per run, counted or not, in numbers, with every setting that differs."""
    if frame.empty:
        return ""
    columns = frame.drop(columns=["data", "settings", "by", "key"]).assign(
        run=[str(run.path) for run in frame.run],
        published=[row and row.value for row in frame.published],
        status=[run.status for run in frame.run],
        code=[run.code for run in frame.run],
        hardware=[run.hardware for run in frame.run],
    )
    for key, values in differing(frame.settings).items():
        columns[_heading(key)] = [format_value(value) for value in values]
    # Convert to text: pandas writes NaN and a missing value in the same way.
    texts = columns.map(lambda cell: None if cell is None else str(cell))
    return str(texts.to_csv(index=False, lineterminator="\n"))


def _heading(setting: str) -> str:
    """Return the heading of a setting's column: `--model` for the task's class, as `model` is the experiment's."""
    return f"--{setting}" if setting in ("task", "model", "metric") else setting


def _metric_name(metric: str) -> str:
    return f"{metric}, %" if metric.endswith("accuracy") else metric


def _count(value: float | None) -> str:
    return "?" if value is None else f"{round(value):,}"


def _letters(groups: Sequence[Group]) -> dict[str, str]:
    """Return a letter for each distinct note: a, b, … z, aa, bb."""
    notes = dict.fromkeys(note for g in groups for note in g.notes)
    return {note: chr(97 + i % 26) * (1 + i // 26) for i, note in enumerate(notes)}


def _below(letters: dict[str, str], groups: Sequence[Group], records: Iterable[RunRecord]) -> list[str]:
    """Return the notes, the runs without settings, the sources of published figures, and data, code and hardware."""
    lines = [f"{letter}: {note}" for note, letter in letters.items()]
    unknown = [record for record in records if not record.config.get("model")]
    lines += [f"{record.path}: {record.problem}" for record in unknown if record.problem]
    if waiting := [record.name for record in unknown if not record.problem]:
        lines.append(f"not started: {', '.join(waiting[:4])}" + f" and {len(waiting) - 4} more" * (len(waiting) > 4))
    compared = [(g.model, g.row) for g in groups if g.row]
    if compared:
        lines.append(f"published: {'; '.join(dict.fromkeys(row.where for _, row in compared))}")
        lines += [f"± of {row.where}: {row.std_from}" for _, row in compared if row.std_from]
        states = dict.fromkeys(f"{model} {row.config}" for model, row in compared if row.config)
        lines.append(f"our config has the row's settings: {', '.join(states)} (docs/reproduction.md)")
    runs = [run for g in groups for run in g.counted.run]
    if data := dict.fromkeys(f"{run.task}: {run.data[0]}" for run in runs if run.data[0]):
        lines.append(f"data: {'; '.join(data)}")
    for what, texts in (("code", {run.code for run in runs}), ("hardware", {run.hardware for run in runs})):
        lines += [f"{what}: {text}" for text in texts if len(texts) == 1]
    return list(dict.fromkeys(lines))
