"""Results as a table: for a terminal, Markdown, LaTeX, CSV."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lra_ssm.results.collect import RunRecord
from lra_ssm.results.groups import Group
from lra_ssm.results.published import LRA
from lra_ssm.results.settings import shown
from lra_ssm.tables import table, wrapped

NONE = "–"
# What published.yaml's `settings` says of the configs beside a row.
_SETTINGS = {
    "yes": "has the row's settings",
    "where published": "has the row's settings where they are published",
    "believed": "has the settings of the code believed behind the row",
    "public code": "has the settings of the authors' public code",
    "not published": "stands beside a row whose settings are not published",
    "no": "has other settings than the row's",
}


@dataclass
class Table:
    """Cells as text, the first `left` columns of words; and what stands below."""

    columns: list[str]
    rows: list[list[str]]
    left: int
    notes: list[str]

    def text(self, width: int | None = None) -> str:
        return "\n".join([table(self.columns, self.rows, self.left, width), *[wrapped(note) for note in self.notes]])

    def markdown(self) -> str:
        lines = [self.columns, ["---" if i < self.left else "---:" for i in range(len(self.columns))], *self.rows]
        cells = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
        return "\n".join([*cells, "", *[f"- {note}" for note in self.notes]]).rstrip()

    def latex(self) -> str:
        """For the package booktabs."""
        lines = [" & ".join(map(_latex, line)) + r" \\" for line in (self.columns, *self.rows)]
        return "\n".join(
            [
                rf"\begin{{tabular}}{{{'l' * self.left}{'r' * (len(self.columns) - self.left)}}}",
                r"\toprule",
                lines[0],
                r"\midrule",
                *lines[1:],
                r"\bottomrule",
                r"\end{tabular}",
                *[rf"\par\footnotesize {_latex(note)}" for note in self.notes],
            ]
        )


def _latex(text: str) -> str:
    escaped = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "≥": r"$\geq$",
               "±": r"$\pm$", "–": "--", "…": r"\dots{}", "×": r"$\times$", "Δ": r"$\Delta$", "−": "$-$"}  # fmt: skip
    return "".join(escaped.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in text)


def results_table(groups: Sequence[Group], by: Sequence[str] = ()) -> Table:
    """A row per task, model and whatever else differs; `by`: names of the groups' own columns."""
    variants, rows_known = any(g.variant for g in groups), any(g.comparable for g in groups)
    metrics = {g.metric for g in groups}
    name = f"{metric_name(groups[0])} ± std" if len(metrics) == 1 else "value ± std"
    columns = ["task", "model", *by, *["settings that differ"] * variants, *["metric"] * (len(metrics) > 1)]
    left = len(columns)
    columns += [name, "seeds", "parameters", "steps", "time a run"]
    columns += ["published", "difference", "settings"] if rows_known else []
    letters = Letters()
    rows = []
    for g in groups:
        cells = [
            g.task,
            g.model,
            *map(shown, g.by.values()),
            *[g.variant] * variants,
            *[metric_name(g)] * (len(metrics) > 1),
        ]
        cells += [spread(g), _seeds(g), _count(g.parameters), _count(g.steps), duration(g.seconds)]
        if rows_known:
            cells += [published_value(g), signed(g.difference, g.decimals), _settings(g)]
        rows.append([*cells, letters.of(g.notes)])
    return Table([*columns, "notes"], rows, left, [*letters.notes(), *_sources(groups)])


def grid(groups: Sequence[Group]) -> Table:
    """Models down, tasks across, as LRA's tables are printed; the published rows below each. The average stands where
    all six tasks of LRA do."""
    tasks = list(dict.fromkeys(g.task for g in groups))
    lra = set(LRA) <= set(tasks)
    letters = Letters()
    rows = []
    lines = dict.fromkeys((g.model, *map(shown, g.by.values()), g.variant) for g in groups)
    for name in lines:
        model = name[0]
        own = {g.task: g for g in groups if (g.model, *map(shown, g.by.values()), g.variant) == name}
        cells = [spread(g) + (f" ({len(g.values)})" if g.values else "") for g in own.values()]
        cells = [f"{cell} {letters.of(g.notes)}".strip() for cell, g in zip(cells, own.values(), strict=True)]
        means = [own[task].mean for task in LRA if task in own]
        label = ", ".join(filter(None, name))
        rows.append([label, *_across(dict(zip(own, cells, strict=True)), tasks), *_average(means, lra)])
        if any(g.comparable for g in own.values()):
            printed = {task: published_value(g) for task, g in own.items()}
            values = [g.comparable.value for task in LRA if (g := own.get(task)) and g.comparable]
            line = [f"{model}, published", *_across(printed, tasks), *_average(values, lra)]
            rows = [row for row in rows if row != line] + [line]  # once, below the last one that it stands beside
    head = ["mean ± std (seeds)", *tasks, *["average"] * lra]
    return Table(head, rows, 1, [*letters.notes(), *_sources(groups)])


def _across(cells: dict[str, str], tasks: Sequence[str]) -> list[str]:
    return [cells.get(task, NONE) for task in tasks]


def _average(values: Sequence[float | None], shown_at_all: bool) -> list[str]:
    if not shown_at_all:
        return []
    found = [value for value in values if value is not None]
    return [f"{sum(found) / 6:.2f}" if len(found) == 6 else NONE]


class Letters:
    """Notes by letter, each text once."""

    def __init__(self) -> None:
        self._letters: dict[str, str] = {}

    def of(self, notes: Sequence[str]) -> str:
        for note in notes:
            number = len(self._letters)
            name = chr(97 + number % 26) * (1 + number // 26)
            self._letters.setdefault(note, name)
        return ", ".join(self._letters[note] for note in notes)

    def notes(self) -> list[str]:
        return [f"{letter}: {text}" for text, letter in self._letters.items()]


def metric_name(g: Group) -> str:
    return f"{g.metric}, %" if g.percent else g.metric


def spread(g: Group) -> str:
    if g.mean is None:
        return NONE
    return f"{g.mean:.{g.decimals}f}" + (f" ± {g.std:.{g.decimals}f}" if g.std is not None else "")


def published_value(g: Group) -> str:
    if g.comparable is None:
        return NONE
    row = g.comparable
    return f"{row.value:.{row.decimals}f}" + (f" ± {row.std:.{row.decimals}f}" if row.std is not None else "")


def signed(value: float | None, decimals: int) -> str:
    return NONE if value is None else f"{value:+.{decimals}f}"


def _seeds(g: Group) -> str:
    """How many count, and of how many where some are left out."""
    wanted = len({str(run.seed) for run in g.runs})
    return f"{len(g.values)}" if len(g.values) == wanted else f"{len(g.values)} of {wanted}"


def _count(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def duration(seconds: tuple[float, bool] | None) -> str:
    """10.3 min; of what is at least so long with ≥."""
    if seconds is None:
        return "?"
    value, least = seconds
    size, unit = next((s, u) for s, u in ((86400, "d"), (3600, "h"), (60, "min"), (0, "s")) if value >= 2 * s)
    return f"{'≥ ' * least}{value / (size or 1):.{int(size > 0)}f} {unit}"


def _settings(g: Group) -> str:
    if g.comparable is None:
        return NONE
    if g.comparison is None:
        return "?"
    return f"{len(g.comparison.differences)} differ" if g.comparison.differences else "as config"


def _sources(groups: Sequence[Group]) -> list[str]:
    """Where the published figures stand, what our configs beside them have, and what the runs were made with."""
    told = []
    compared = [g for g in groups if g.comparable]
    if compared:
        where = dict.fromkeys(g.comparable.where for g in compared if g.comparable)
        told.append(f"published: {'; '.join(where)}; difference: ours less theirs")
        roots = dict.fromkeys(g.comparable.where for g in compared if g.comparable and g.comparable.from_variance)
        told += [f"± of {where}: the root of what is printed, a variance by its size" for where in roots]
        for model, said in dict.fromkeys((g.model, g.comparable.config) for g in compared if g.comparable):
            if said:
                told.append(f"config of {model}: {_SETTINGS[said]} (docs/reproduction.md)")
    runs = [run for g in groups for run in g.counted]
    whats: dict[str, Callable[[RunRecord], str]] = {
        "data": lambda run: f"{run.task}: {run.data[0]}",
        "code": lambda run: run.code,
        "hardware": lambda run: run.hardware,
    }
    for what, of in whats.items():
        counts: dict[str, int] = {}
        for run in runs:
            counts[of(run)] = counts.get(of(run), 0) + 1
        known = {text: n for text, n in counts.items() if not text.endswith(": ")}
        several = len(known) > 1 and what != "data"
        if known:
            told.append(f"{what}: " + "; ".join(f"{t} ({n} runs)" if several else t for t, n in known.items()))
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
        value, (seconds, least) = run.value(g.metric), run.seconds or (None, None)
        value = None if value is None else value * (100 if g.percent else 1)
        first = (run.record.get("starts") or [{}])[0].get("time")
        lines.append(
            [run.path, run.task, run.model, run.seed, run.missing or run.status, run in g.counted, metric_name(g),
             value, run.parameters, run.step, seconds, least, run.data[0], run.code, run.hardware, first,
             *[shown(run.settings[key]) if key in run.settings else None for key in keys]]
        )  # fmt: skip
    return _csv(head, lines)


def _csv(head: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([None if cell is None else str(cell) for cell in line] for line in lines)
    return text.getvalue()
