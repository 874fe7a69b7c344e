"""Average runs over seeds, and show them next to the published rows.

A run is a row of one DataFrame (`runs_frame`); runs that differ only in the seed are a row of the table (`Group`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from lra_ssm.results.published import LRA, Row, data_differences, differences, plus_minus, published, row_of
from lra_ssm.results.settings import ABSENT, differing, exact, format_value, resolve, short_names, sort_key
from lra_ssm.runs.record import RunRecord
from lra_ssm.tables import duration, table, wrapped

NONE = "–"
_MAX_NAMED = 4  # of the settings that differ, a cell names this many, or more to be unique; a note has the others
_KEYS = ["task", "model", "by", "settings", "data", "weights"]  # runs of one row have the same
# What published.yaml's `settings` says of the config of a row.
_CONFIG_HAS = {
    "yes": "the row's settings",
    "where published": "the row's settings where they are published",
    "believed": "the settings of the code that is believed to have produced the row",
    "public code": "the settings of the authors' public code",
    "its authors' code's": "the settings of its authors' code",
    "not published": "settings of our own: the row's are not published",
    "no": "other settings than the row's",
}
_DEVIATION = {
    "variance": "the square root of the printed variance",
    "standard_error": "the printed standard error times the square root of the number of seeds",
}
_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "≥": r"$\geq$",
          "±": r"$\pm$", "–": "--", "…": r"\dots{}", "×": r"$\times$", "Δ": r"$\Delta$", "−": "$-$",
          **{c: f"\\{c}" for c in "&%$#_{}"}}  # fmt: skip


def runs_frame(runs: Sequence[RunRecord], metric: str | None = None, by: Sequence[str] = ()) -> pd.DataFrame:
    """Return a row per run whose settings are known, in the order of LRA's tasks and of published.yaml's models.

    Columns: run, task, model, seed, metric, published (the Row, or None), the keys of a table's row, value (accuracies
    in percent), parameters, steps, seconds, at_least, why (the reason if the run does not count, else empty), and a
    column "by NAME" per name of `by`: settings that separate rows. Raises InputError for a name that no run has.
    """
    known = [run for run in runs if run.config.get("model")]
    names = {name: resolve(name, {key for run in known for key in run.all_settings}) for name in by}
    lines = []
    for run in known:
        row, values = row_of(run), {name: run.all_settings.get(key, ABSENT) for name, key in names.items()}
        used = metric or (row.metric if row and run.value(row.metric) is not None else _default_metric(run))
        value = run.value(used)
        why = run.missing or (f"has no {used}" if value is None else "")
        value = value if value is None or not used.endswith("accuracy") else 100 * value
        seconds, at_least = run.seconds or (None, False)
        own = {"run": run, "task": run.task, "model": run.model, "seed": format_value(run.seed), "metric": used,
               "published": row, "by": exact([*values.values()]), "settings": exact(run.settings),
               "data": run.data[1], "weights": run.weights[1], "value": value, "parameters": run.parameters,
               "steps": run.step, "seconds": seconds, "at_least": at_least, "why": why}  # fmt: skip
        lines.append(own | {f"by {name}": each for name, each in values.items()})
    frame = pd.DataFrame(lines, dtype=object)
    if frame.empty:
        return frame
    same = frame.groupby(_KEYS[:4]).data.transform("max")  # a run that failed early does not know its data
    frame["data"] = frame.data.where((frame.data != "") | (frame.why == ""), same)
    models = list(published()["models"])
    frame["order"] = [
        (LRA.index(task) if task in LRA else 6, task, models.index(model) if model in models else 999, model)
        for task, model in zip(frame.task, frame.model, strict=True)
    ]
    frame = frame.sort_values("order", kind="stable").drop(columns="order")
    started = [str(run.last_start.get("time")) for run in frame.run]
    counted = frame.assign(started=started)[frame.why == ""].sort_values("started", kind="stable")
    again = counted[counted.duplicated([*_KEYS, "seed"], keep="last")]
    frame.loc[again.index, "why"] = "the same seed again: a later run counts"
    return frame.reset_index(drop=True)


def _default_metric(run: RunRecord) -> str:
    """Accuracy, else perplexity, else the loss; the best validation if the data has no test split."""
    metrics = run.tested.get("metrics") or {}
    if run.scored_by == "validate":
        return f"best {run.monitor}"
    named = [name for name in ("test/accuracy", "test/perplexity") if name in metrics]
    return named[0] if named else "test/loss" if metrics else run.monitor.replace("val/", "test/")


class Group:
    """One row of the table: runs that differ only in their seeds.

    Args:
        runs: their rows in `runs_frame`.
        metric: its metric.
        by: the values of the settings that separate rows, by the user's names.
    """

    def __init__(self, runs: pd.DataFrame, metric: str, by: dict[str, Any]) -> None:
        self.runs, self.metric, self.by = runs, metric, by
        self.variant = ""  # the settings that distinguish it from others of its task and model
        self.order = [sort_key(value) for value in by.values()]  # among them
        self.first: RunRecord = self.runs.run.iloc[0]
        self.task, self.model = self.first.task, self.first.model
        self.counted = self.runs[self.runs.why == ""]
        values = self.counted.value.astype(float)
        self.mean = None if values.empty else float(values.mean(skipna=False))
        self.std = None if len(values) < 2 else float(values.std(skipna=False))
        self.row: Row | None = next((row for row in self.runs.published if row is not None), None)
        if self.row and (self.row.metric != self.metric or self.row.unmatched):
            self.row = None
        self.difference = None if self.mean is None or self.row is None else self.mean - self.row.value
        fallback = 2 if self.metric.endswith(("accuracy", "perplexity")) else 4
        self.decimals = self.row.decimals if self.row else fallback
        self.differences = differences(self.first, self.row) if self.row else None
        self.parameters = next((count for count in self.runs.parameters if count is not None), None)
        steps, seconds = (self.counted[name].dropna() for name in ("steps", "seconds"))
        self.steps = None if steps.empty else round(steps.astype(float).mean())
        self.seconds = None if seconds.empty else float(seconds.astype(float).mean())
        self.at_least = bool(self.counted.at_least.any())
        self.notes = self._notes()

    @property
    def label(self) -> str:
        """The model and what distinguishes the row."""
        values = [f"{name}={format_value(value)}" for name, value in self.by.items()]
        return ", ".join(filter(None, (self.model, *values, self.variant)))

    @property
    def figure(self) -> str:
        return NONE if self.mean is None else plus_minus(self.mean, self.std, self.decimals)

    def _notes(self) -> list[str]:
        """What is incomplete or mixed in the row."""
        out = self.runs[self.runs.why != ""]
        whys = "; ".join(f"{line.run.path}: {line.why}" for line in out.itertuples())
        notes = [f"{len(out)} of {len(self.runs)} runs not counted: {whys}"] if whys else []
        for what in ("code", "hardware"):
            made_with = self.counted.run.map(lambda run, what=what: getattr(run, what))
            texts = self.counted.groupby(made_with, sort=False).seed.agg(", ".join)
            if len(texts) > 1 or any(", then " in text for text in texts.index):
                told = "; ".join(f"{text}: seeds {seeds}" for text, seeds in texts.items())
                notes.append(f"not all with the same {what}: {told}")
        for run in self.counted.run:
            notes += [f"seed {run.seed} {run.record['stop']}"] if run.record.get("stop") else []
        if self.first.weights[0]:
            notes.append(f"started from {self.first.weights[0]}")
        unmatched = next((row for row in self.runs.published if row is not None and row.unmatched), None)
        if unmatched:
            notes.append(f"not compared with {unmatched.where}, {unmatched.value:g}: {unmatched.unmatched}")
        return notes + (data_differences(self.task, self.first.all_settings) if self.row else [])


def groups_of(frame: pd.DataFrame, by: Sequence[str] = ()) -> list[Group]:
    """Return the rows of the table."""
    if frame.empty:
        return []
    groups = []
    known = frame[frame.why == ""].groupby("task").metric.first()  # for rows that have no score yet
    for _, members in frame.groupby(_KEYS, sort=False):
        counted = members[members.why == ""]
        metric = counted.metric.iloc[0] if len(counted) else known.get(members.task.iloc[0], members.metric.iloc[0])
        others = members[(members.why == "") & (members.metric != metric)]
        members = members.assign(why=members.why.where(~members.index.isin(others.index), f"has no {metric}"))
        groups.append(Group(members, metric, {name: members[f"by {name}"].iloc[0] for name in by}))
    several = _by_task_and_model(groups).values()
    for same in several:
        _name_variants(same, by)
        _note_differences(same)
    groups = [g for same in several for g in sorted(same, key=lambda g: g.order)]
    for task in dict.fromkeys(g.task for g in groups):
        counts = {g.label: g.parameters for g in groups if g.task == task and g.parameters}
        if counts and max(counts.values()) > 1.1 * min(counts.values()):
            least, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
            note = f"{task}: {most} has {counts[most] / counts[least]:.2f} times as many parameters as {least}"
            next(g for g in groups if g.label == most and g.task == task).notes.append(note)
    return groups


def _note_differences(same: Sequence[Group]) -> None:
    """Name the settings that differ from the row's config: those of all rows in one note, which they share."""
    compared = [(g, *g.differences) for g in same if g.differences]
    common = [text for text in compared[0][2] if all(text in told for _, _, told in compared)] if compared else []
    for g, config, told in compared:
        for texts in filter(None, (common, [text for text in told if text not in common])):
            g.notes.append(f"other settings than configs/…/{config}: {'; '.join(texts)}")


def _by_task_and_model(groups: Sequence[Group]) -> dict[tuple[str, str], list[Group]]:
    found: dict[tuple[str, str], list[Group]] = {}
    for g in groups:
        found.setdefault((g.task, g.model), []).append(g)
    return found


def _name_variants(same: Sequence[Group], by: Sequence[str]) -> None:
    """Write into each row what distinguishes it from the others of its task and model."""
    columns = []
    for what, values in (("data", [g.first.data for g in same]), ("weights", [g.first.weights for g in same])):
        if len({digest for _, digest in values}) > 1:
            columns.append(
                [f"{what}: {words or 'unknown'}{_digest(words, digest, values)}" for words, digest in values]
            )
    found = differing(g.first.settings for g in same)
    short = short_names({key for g in same for key in g.first.settings})
    given = {resolve(name, {key for g in same for key in g.first.all_settings}) for name in by}
    for key, values in found.items():
        if key not in given:
            # A default is only in the whole configuration.
            pairs = zip(same, values, strict=True)
            values = [g.first.all_settings.get(key, ABSENT) if value == ABSENT else value for g, value in pairs]
            columns.append([f"{short[key]}={text}" for text in disambiguate(values)])
            for g, value in zip(same, values, strict=True):
                g.order.append(sort_key(value))

    def labels(count: int) -> list[str]:
        return [", ".join(column[i] for column in columns[:count]) for i in range(len(same))]

    # More than _MAX_NAMED if two rows are the same in the first ones: the grid has a line per label.
    by_values = [exact([*g.by.values()]) for g in same]
    enough = (n for n in range(_MAX_NAMED, len(columns)) if len({*zip(by_values, labels(n), strict=True)}) == len(same))
    named = next(enough, len(columns))
    for i, (g, variant) in enumerate(zip(same, labels(named), strict=True)):
        g.variant = variant
        if more := [column[i] for column in columns[named:]]:
            g.variant += f", {len(more)} more"
            g.notes.append(f"differs also in {', '.join(more)}")


def _digest(words: str, digest: str, values: Sequence[tuple[str, str]]) -> str:
    """Six digits that distinguish data from other data with the same words."""
    import hashlib

    alone = len({other for its, other in values if its == words}) == 1
    return "" if alone else f" {hashlib.sha256(digest.encode()).hexdigest()[:6]}"


def disambiguate(values: Sequence[Any]) -> list[str]:
    """Return values as tables show them, or in full if two that differ look the same (two classes of one name)."""
    short = [format_value(value) for value in values]
    full = [exact(value) for value in values]
    return short if len({*short}) == len({*full}) else full


# -- what is printed ---------------------------------------------------------------------------------------------------


@dataclass
class Table:
    """Cells as text; the first `left` columns are words; notes stand below."""

    frame: pd.DataFrame
    left: int
    notes: list[str]

    def text(self, width: int | None = None) -> str:
        rows = self.frame.to_numpy().tolist()
        return "\n".join([table(list(self.frame.columns), rows, self.left, width), *map(wrapped, self.notes)])

    def markdown(self) -> str:
        lines = [list(self.frame.columns), *self.frame.to_numpy().tolist()]
        lines = [[cell.replace("|", "\\|") for cell in line] for line in lines]
        lines.insert(1, ["---" if i < self.left else "---:" for i in range(len(lines[0]))])
        return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", *(f"- {note}" for note in self.notes)])

    def latex(self) -> str:
        """For the package booktabs."""
        escaped = self.frame.map(_latex).set_axis(self.frame.columns.map(_latex), axis=1)
        form = "l" * self.left + "r" * (len(escaped.columns) - self.left)
        drawn = escaped.to_latex(index=False, escape=False, column_format=form).rstrip("\n")
        return "\n".join([drawn, *[rf"\par\footnotesize {_latex(note)}" for note in self.notes]])

    def csv(self) -> str:
        return str(self.frame.to_csv(index=False, lineterminator="\n"))


def _latex(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in text)


def results_table(groups: Sequence[Group], more: Sequence[str] = ()) -> Table:
    """Return a row per task, model and whatever else differs. more: further notes."""
    metrics = list(dict.fromkeys(metric_name(g.metric) for g in groups))
    figure = f"{metrics[0] if len(metrics) == 1 else 'value'} ± std"
    letters = _letters(groups)
    lines = []
    for g in groups:
        wanted, seeds = g.runs.seed.nunique(), len(g.counted)
        time = "?" if g.seconds is None else duration(g.seconds, g.at_least)
        differ = g.differences and len(g.differences[1])
        line = {"task": g.task, "model": g.model, **{name: format_value(value) for name, value in g.by.items()},
                "settings that differ": g.variant, "metric": metric_name(g.metric), figure: g.figure,
                "seeds": f"{seeds}" if seeds == wanted else f"{seeds} of {wanted}", "parameters": _count(g.parameters),
                "steps": _count(g.steps), "time a run": time, "published": g.row.figure if g.row else NONE,
                "difference": NONE if g.difference is None else f"{g.difference:+.{g.decimals}f}",
                "settings": "?" if differ is None else f"{differ} differ" if differ else "as config",
                "notes": ", ".join(letters[note] for note in g.notes)}  # fmt: skip
        lines.append(line)
    frame = pd.DataFrame(lines)
    if len(metrics) == 1:
        frame = frame.drop(columns="metric")
    if not any(g.variant for g in groups):
        frame = frame.drop(columns="settings that differ")
    if not any(g.row for g in groups):
        frame = frame.drop(columns=["published", "difference", "settings"])
    return Table(frame, list(frame.columns).index(figure), _below(letters, groups, more))


def grid(groups: Sequence[Group], more: Sequence[str] = ()) -> Table:
    """Return models down and tasks across, as papers print LRA, with the average if all six tasks are there."""
    letters = _letters(groups)
    cells: dict[str, dict[str, str]] = {}
    means: dict[str, dict[str, float]] = {}
    for g in groups:
        name = g.label
        seeds = f" ({len(g.counted)})" if len(g.counted) else ""
        text = f"{g.figure}{seeds} {', '.join(letters[note] for note in g.notes)}".rstrip()
        cells.setdefault(name, {})[g.task] = text
        cells.setdefault(f"{g.model}, published", {})[g.task] = g.row.figure if g.row else NONE
        for line, value in ((name, g.mean), (f"{g.model}, published", g.row.value if g.row else None)):
            if value is not None:
                means.setdefault(line, {})[g.task] = value
    cells = {name: line for name, line in cells.items() if {*line.values()} != {NONE} or name in means}
    tasks = list(dict.fromkeys(g.task for g in groups))
    frame = pd.DataFrame.from_dict(cells, orient="index").reindex(columns=tasks).fillna(NONE)
    if set(LRA) <= set(tasks):
        frame["average"] = [_average(means.get(name, {})) for name in cells]
    frame.insert(0, "mean ± std (seeds)", frame.index)
    return Table(frame, 1, _below(letters, groups, more))


def _average(values: Mapping[str, float]) -> str:
    found = [values[task] for task in LRA if task in values]
    return f"{sum(found) / 6:.2f}" if len(found) == 6 else NONE


def runs_to_csv(frame: pd.DataFrame) -> str:
    """Return a row per run, counted or not, with every setting that differs."""
    drop = ["run", "published", "by", "settings", "data", "weights"]
    found = frame.drop(columns=drop).assign(
        run=[str(run.path) for run in frame.run],
        status=[run.status for run in frame.run],
        source=[run.data[0] for run in frame.run],
        code=[run.code for run in frame.run],
        hardware=[run.hardware for run in frame.run],
    )
    for key, values in differing(run.settings for run in frame.run).items():
        found[key] = [format_value(value) for value in values]
    # As text: pandas writes a value that is nan and one that is missing alike.
    texts = found.map(lambda cell: None if cell is None else str(cell))
    return str(texts.to_csv(index=False, lineterminator="\n"))


def metric_name(metric: str) -> str:
    return f"{metric}, %" if metric.endswith("accuracy") else metric


def _count(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _letters(groups: Sequence[Group]) -> dict[str, str]:
    """A letter for each note, each text once: a, b, … z, aa, bb."""
    notes = dict.fromkeys(note for g in groups for note in g.notes)
    return {note: chr(97 + i % 26) * (1 + i // 26) for i, note in enumerate(notes)}


def _below(letters: dict[str, str], groups: Sequence[Group], more: Sequence[str]) -> list[str]:
    """The notes, where the published figures come from, and what the runs were made with."""
    told = [f"{letter}: {note}" for note, letter in letters.items()] + list(more)
    compared = [g for g in groups if g.row]
    if compared:
        told.append(f"published: {'; '.join(dict.fromkeys(g.row.where for g in compared if g.row))}")
    for g in compared:
        assert g.row is not None
        if g.row.std_from:
            told.append(f"± of {g.row.where}: {_DEVIATION[g.row.std_from]}")
        if g.row.config:
            told.append(f"the config of {g.model} has {_CONFIG_HAS[g.row.config]} (docs/reproduction.md)")
    runs = [run for g in groups for run in g.counted.run]
    data = dict.fromkeys(f"{run.task}: {run.data[0]}" for run in runs if run.data[0])
    told += [f"data: {'; '.join(data)}"] if data else []
    for what, texts in (("code", [run.code for run in runs]), ("hardware", [run.hardware for run in runs])):
        if len({*texts}) == 1:
            told.append(f"{what}: {texts[0]}")
    return list(dict.fromkeys(told))
