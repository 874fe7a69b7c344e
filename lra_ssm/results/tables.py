"""Results as a table: for a terminal, Markdown, LaTeX, CSV."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from lra_ssm.results.groups import Group
from lra_ssm.results.published import LRA, plus_minus
from lra_ssm.results.settings import shown
from lra_ssm.tables import duration, table, wrapped

NONE = "–"
# What published.yaml's `settings` says of the configs beside a row.
_SETTINGS = {
    "yes": "has the row's settings",
    "where published": "has the row's settings where they are published",
    "believed": "has the settings of the code believed behind the row",
    "public code": "has the settings of the authors' public code",
    "its authors' code's": "has the settings of its authors' code",
    "not published": "stands beside a row whose settings are not published",
    "no": "has other settings than the row's",
}
# What is printed in the place of a deviation, which is shown.
_DEVIATION = {
    "variance": "the root of what is printed, a variance by its size",
    "standard_error": "the standard error that is printed times the root of the number of seeds",
}
_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "≥": r"$\geq$",
          "±": r"$\pm$", "–": "--", "…": r"\dots{}", "×": r"$\times$", "Δ": r"$\Delta$", "−": "$-$",
          **{c: f"\\{c}" for c in "&%$#_{}"}}  # fmt: skip


@dataclass
class Table:
    """Cells as text, the first `left` columns of words; and what stands below."""

    frame: pd.DataFrame
    left: int
    notes: list[str]

    def text(self, width: int | None = None) -> str:
        columns, *rows = self._lines()
        return "\n".join([table(columns, rows, self.left, width), *map(wrapped, self.notes)])

    def markdown(self) -> str:
        columns, *rows = ([cell.replace("|", "\\|") for cell in line] for line in self._lines())
        rule = ["---" if i < self.left else "---:" for i in range(len(columns))]
        lines = [f"| {' | '.join(line)} |" for line in (columns, rule, *rows)]
        return "\n".join([*lines, "", *[f"- {note}" for note in self.notes]]).rstrip()

    def latex(self) -> str:
        """For the package booktabs."""
        escaped = self.frame.map(_latex).set_axis(self.frame.columns.map(_latex), axis=1)
        form = "l" * self.left + "r" * (len(escaped.columns) - self.left)
        drawn = escaped.to_latex(index=False, escape=False, column_format=form).rstrip("\n")
        return "\n".join([drawn, *[rf"\par\footnotesize {_latex(note)}" for note in self.notes]])

    def _lines(self) -> list[list[str]]:
        return [list(self.frame.columns), *self.frame.to_numpy().tolist()]


def _latex(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in text)


def results_table(groups: Sequence[Group], by: Sequence[str] = ()) -> Table:
    """A row per task, model and whatever else differs; `by`: names of the groups' own columns."""
    variants = any(g.variant for g in groups)
    rows_known = any(g.comparable for g in groups)
    metrics = {g.metric for g in groups}
    name = f"{metric_name(groups[0])} ± std" if len(metrics) == 1 else "value ± std"
    columns = ["task", "model", *by, *["settings that differ"] * variants, *["metric"] * (len(metrics) > 1)]
    left = len(columns)
    columns += [name, "seeds", "parameters", "steps", "time a run"]
    columns += ["published", "difference", "settings"] if rows_known else []
    letters = _letters(groups)
    rows = []
    for g in groups:
        cells = [g.task, g.model, *map(shown, g.by.values()), *[g.variant] * variants]
        cells += [metric_name(g)] * (len(metrics) > 1)
        time = "?" if g.seconds is None else duration(*g.seconds)
        cells += [spread(g), _seeds(g), _count(g.parameters), _count(g.steps), time]
        if rows_known:
            cells += [published_value(g), signed(g.difference, g.decimals), _settings(g)]
        rows.append([*cells, ", ".join(letters[note] for note in g.notes)])
    frame = pd.DataFrame(rows, columns=[*columns, "notes"])
    return Table(frame, left, _below(letters, groups))


def grid(groups: Sequence[Group]) -> Table:
    """Models down, tasks across, as LRA prints them, published rows below; the average where all six tasks stand."""
    tasks = list(dict.fromkeys(g.task for g in groups))
    lines: dict[tuple[str, ...], list[Group]] = {}
    for g in groups:
        lines.setdefault((g.model, *map(shown, g.by.values()), g.variant), []).append(g)
    letters = _letters([g for own in lines.values() for g in own])
    title, average = "mean ± std (seeds)", "average"
    rows = []
    for name, own in lines.items():
        cells = {g.task: _marked(g, letters) for g in own}
        means = {g.task: g.mean for g in own}
        rows.append({title: ", ".join(filter(None, name)), **cells, average: _average(means)})
        if any(g.comparable for g in own):
            printed = {g.task: published_value(g) for g in own}
            values = {g.task: g.comparable.value for g in own if g.comparable}
            rows.append({title: f"{name[0]}, published", **printed, average: _average(values)})
    head = [title, *tasks, *[average] * (set(LRA) <= set(tasks))]
    frame = pd.DataFrame(rows).reindex(columns=head).fillna(NONE)
    # A published row stands once, below the last one that it stands beside.
    return Table(frame.drop_duplicates(keep="last"), 1, _below(letters, groups))


def _marked(g: Group, letters: dict[str, str]) -> str:
    seeds = f" ({len(g.values)})" if g.values else ""
    return f"{spread(g)}{seeds} {', '.join(letters[note] for note in g.notes)}".rstrip()


def _average(values: Mapping[str, float | None]) -> str:
    """Of LRA's tasks, where all have a value."""
    found = [value for task in LRA if (value := values.get(task)) is not None]
    return f"{sum(found) / 6:.2f}" if len(found) == 6 else NONE


def _letters(groups: Sequence[Group]) -> dict[str, str]:
    """A letter for each note of theirs, each text once: a, b, … z, aa, bb."""
    notes = dict.fromkeys(note for g in groups for note in g.notes)
    return {note: chr(97 + i % 26) * (1 + i // 26) for i, note in enumerate(notes)}


def _below(letters: dict[str, str], groups: Sequence[Group]) -> list[str]:
    return [*(f"{letter}: {note}" for note, letter in letters.items()), *_sources(groups)]


def metric_name(g: Group) -> str:
    return f"{g.metric}, %" if g.percent else g.metric


def spread(g: Group) -> str:
    return NONE if g.mean is None else plus_minus(g.mean, g.std, g.decimals)


def published_value(g: Group) -> str:
    row = g.comparable
    return NONE if row is None else row.figure


def signed(value: float | None, decimals: int) -> str:
    return NONE if value is None else f"{value:+.{decimals}f}"


def _seeds(g: Group) -> str:
    """How many count, and of how many where some are left out."""
    wanted = len({str(run.seed) for run in g.runs})
    return f"{len(g.values)}" if len(g.values) == wanted else f"{len(g.values)} of {wanted}"


def _count(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _settings(g: Group) -> str:
    if g.comparable is None:
        return NONE
    if g.comparison is None:
        return "?"
    return f"{len(g.comparison.differences)} differ" if g.comparison.differences else "as config"


def _sources(groups: Sequence[Group]) -> list[str]:
    """Where the published figures stand, what our configs beside them have, and what the runs were made with."""
    told = []
    compared = [(g.model, g.comparable) for g in groups if g.comparable]
    if compared:
        where = dict.fromkeys(row.where for _, row in compared)
        told.append(f"published: {'; '.join(where)}; difference: ours less theirs")
        spreads = dict.fromkeys((row.where, row.std_from) for _, row in compared if row.std_from)
        told += [f"± of {source}: {_DEVIATION[printed]}" for source, printed in spreads]
        for model, said in dict.fromkeys((model, row.config) for model, row in compared):
            if said:
                told.append(f"config of {model}: {_SETTINGS[said]} (docs/reproduction.md)")
    runs = [run for g in groups for run in g.counted]
    data = dict.fromkeys(f"{run.task}: {run.data[0]}" for run in runs if run.data[0])
    if data:
        told.append(f"data: {'; '.join(data)}")
    for what, of in (("code", [run.code for run in runs]), ("hardware", [run.hardware for run in runs])):
        known = Counter(of)
        if len(known) == 1:
            told.append(f"{what}: {of[0]}")
        elif known:
            told.append(f"{what}: {'; '.join(f'{text} ({n} runs)' for text, n in known.items())}")
    return told


def to_csv(groups: Sequence[Group], by: Sequence[str] = ()) -> str:
    """A row per group, in numbers; a deviation of one seed is empty."""
    head = ["task", "model", *by, "variant", "metric", "mean", "std", "seeds", "parameters", "steps", "seconds"]
    head += ["seconds_at_least", "published", "published_std", "difference", "config", "settings_that_differ", "notes"]
    lines = []
    for g in groups:
        seconds, least = g.seconds or (None, None)
        row, c = g.comparable, g.comparison
        lines.append(
            [g.task, g.model, *map(shown, g.by.values()), g.variant, metric_name(g), g.mean, g.std, len(g.values),
             g.parameters, g.steps, seconds, least, row and row.value, row and row.std, g.difference, c and c.file,
             "; ".join(c.differences) if c else None, " | ".join(g.notes)]
        )  # fmt: skip
    return _csv(head, lines)


def each_to_csv(groups: Sequence[Group]) -> str:
    """A row per run, counted or not, with every setting that differs."""
    runs = [(g, run) for g in groups for run in g.runs]
    keys = sorted({key for _, run in runs for key in run.settings})
    keys = [key for key in keys if len({repr(run.settings.get(key)) for _, run in runs}) > 1]
    head = ["run", "task", "model", "seed", "status", "counted", "metric", "value", "parameters", "steps", "seconds",
            "seconds_at_least", "data", "code", "hardware", "started", *keys]  # fmt: skip
    lines = []
    for g, run in runs:
        value = run.value(g.metric)
        if value is not None and g.percent:
            value *= 100
        seconds, least = run.seconds or (None, None)
        first = (run.record.get("starts") or [{}])[0].get("time")
        lines.append(
            [run.path, run.task, run.model, run.seed, run.missing or run.status, run in g.counted, metric_name(g),
             value, run.parameters, run.step, seconds, least, run.data[0], run.code, run.hardware, first,
             *[shown(run.settings[key]) if key in run.settings else None for key in keys]]
        )  # fmt: skip
    return _csv(head, lines)


def _csv(head: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    # As text: pandas has no other number for what is nan than for what is not there.
    texts = [[None if cell is None else str(cell) for cell in line] for line in lines]
    return pd.DataFrame(texts, columns=head).to_csv(index=False, lineterminator="\n")
