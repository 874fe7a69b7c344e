"""Runs that may be averaged: the same task, model, settings and data, and nothing but the seed between them."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import mean, stdev
from typing import Any

import pandas as pd

from lra_ssm.results.collect import RunRecord
from lra_ssm.results.published import LRA, Comparison, Row, compare, published, row_of
from lra_ssm.results.settings import ABSENT, Settings, differing, exact, resolve, shown, told_apart
from lra_ssm.runs.identity import short_names

_MOST_NAMED = 4  # differing settings that stand in a row; the others in its note


@dataclass
class Group:
    """One row of a table. Values are in the metric's own unit: accuracies and figures of published rows in percent."""

    task: str
    model: str
    runs: list[RunRecord]
    metric: str
    row: Row | None = None
    by: dict[str, Any] = field(default_factory=dict)  # values of the settings that make rows, by the user's names
    variant: str = ""  # what tells it from other groups of its task and model
    notes: list[str] = field(default_factory=list)
    counted: list[RunRecord] = field(default_factory=list)

    @property
    def percent(self) -> bool:
        return self.metric.endswith("accuracy")

    @property
    def decimals(self) -> int:
        if self.comparable is not None:
            return self.comparable.decimals
        return 2 if self.percent or self.metric.endswith("perplexity") else 4

    @cached_property
    def values(self) -> list[float]:
        scale = 100 if self.percent else 1
        found = [run.value(self.metric) for run in self.counted]
        return [scale * value for value in found if value is not None]

    @property
    def mean(self) -> float | None:
        return mean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """The sample's, of at least two seeds; nan where a value is."""
        if len(self.values) < 2:
            return None
        return stdev(self.values) if all(map(math.isfinite, self.values)) else math.nan

    @property
    def comparable(self) -> Row | None:
        """The published row, where it is of the same metric and can stand beside a run."""
        row = self.row
        if row is None or row.metric != self.metric or row.unmatched:
            return None
        return row

    @property
    def difference(self) -> float | None:
        if self.mean is None or self.comparable is None:
            return None
        return self.mean - self.comparable.value

    @cached_property
    def comparison(self) -> Comparison | None:
        """The settings against the row's config; of any run, as all have the same."""
        run = self.runs[0]
        if self.row is None or not run.config.get("model"):
            return None
        return compare(run, self.row)

    @property
    def settings(self) -> Settings:
        return self.runs[0].settings

    @property
    def parameters(self) -> int | None:
        return next((run.parameters for run in self.runs if run.parameters is not None), None)

    @property
    def steps(self) -> int | None:
        """Of the counted runs: the mean, which is every one's unless something stopped one early."""
        found = [run.step for run in self.counted if run.step is not None]
        return round(mean(found)) if found else None

    @property
    def seconds(self) -> tuple[float, bool] | None:
        """Wall time of a counted run, the mean; and whether it was more."""
        found = [run.seconds for run in self.counted if run.seconds is not None]
        if not found:
            return None
        times, at_least = zip(*found, strict=True)
        return mean(times), any(at_least)


def default_metric(run: RunRecord) -> str:
    """Of a task without a published row: accuracy, of a language model perplexity, else the loss; of data without a
    test split what the best checkpoint is chosen by."""
    metrics = run.tested.get("metrics") or {}
    for name in ("test/accuracy", "test/perplexity"):
        if name in metrics:
            return name
    if run.scored_by == "validate":
        return f"best {run.monitor}"
    return "test/loss" if metrics else run.monitor.replace("val/", "test/")


def group(runs: Sequence[RunRecord], metric: str | None = None, by: Sequence[str] = ()) -> list[Group]:
    """Groups in the order of LRA's tasks and of published.yaml's models.

    metric: of every group, else its row's or its task's.  by: settings that tell groups apart, by a name or the end of
    one. Raises InputError where no setting is called so.
    """
    keys = {key for run in runs for key in run.all_settings}
    names = [resolve(name, keys) for name in by]
    groups = []
    for (task, model), members in _alike(runs, names):
        row = next((row for row in map(row_of, members) if row is not None), None)
        counted = next((run for run in members if not run.missing), members[0])
        used = row.metric if row and counted.value(row.metric) is not None else default_metric(counted)
        settings = members[0].all_settings
        values = {given: settings.get(key, ABSENT) for given, key in zip(by, names, strict=True)}
        groups.append(Group(task, model, members, metric or used, row, values))
    known = {g.task: g.metric for g in groups if any(run.tested for run in g.runs)}
    for one in groups:
        if not any(run.tested for run in one.runs):  # what its task's others have
            one.metric = metric or known.get(one.task, one.metric)
    groups.sort(key=_place)
    _name_variants(groups, names)
    for one in groups:
        _count(one)
    return groups


def _alike(runs: Sequence[RunRecord], names: Sequence[str]) -> Iterator[tuple[tuple[str, str], list[RunRecord]]]:
    """Runs of one task, model, values of these settings, settings and data."""
    told = [f"by {name}" for name in names]  # no setting's name has a blank
    rows = []
    for run in runs:
        known = bool(run.config.get("model"))
        of = (exact(run.settings), run.data[1]) if known else ("", "")
        values = [exact(run.all_settings.get(name, ABSENT)) for name in names]
        rows.append((run, known, run.task, run.model, *values, *of))
    keys = ["task", "model", *told, "settings", "data"]
    frame = pd.DataFrame(rows, columns=["run", "known", *keys]).sort_values("known", ascending=False, kind="stable")
    # Of some nothing says what settings they have: they belong to the one row of their model.
    for (task, model, *values), alike in frame[~frame.known].groupby(keys[:-2]):
        same = frame[frame.known & (frame.task == task) & (frame.model == model)]
        for name, value in zip(told, values, strict=True):
            same = same[(same[name] == value) | (value == exact(ABSENT))]
        same = same[keys].drop_duplicates()
        if len(same) == 1:
            frame.loc[alike.index, keys] = same.iloc[0].to_list()
    for (task, model, *_), members in frame.groupby(keys, sort=False).run:
        yield (task, model), list(members)


def _place(group: Group) -> tuple[Any, ...]:
    models = list(published()["models"])
    task = LRA.index(group.task) if group.task in LRA else len(LRA)
    model = models.index(group.model) if group.model in models else len(models)
    return task, group.task, model, group.model, [sortable(value) for value in group.by.values()]


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def sortable(value: Any) -> tuple[int, float, str]:
    """Numbers by size, then words."""
    return (0, float(value), "") if is_number(value) else (1, 0.0, shown(value))


def _name_variants(groups: list[Group], by: Sequence[str]) -> None:
    """Says in each row what tells it from the others of its task and model; no two rows say the same."""
    known: dict[tuple[str, str], list[Group]] = {}
    for g in groups:
        if g.runs[0].config.get("model"):
            known.setdefault((g.task, g.model), []).append(g)
    for same in known.values():
        told, more = _differences(same, by)
        cells = [[*map(shown, g.by.values())] for g in same]
        for i, one in enumerate(same):
            named = told[:_MOST_NAMED]
            twins = {j for j, cell in enumerate(cells) if cell == cells[i]}
            twins = {j for j in twins if all(column[j] == column[i] for column in named)}
            for column in told[_MOST_NAMED:] + more:
                alike = {j for j in twins if column[j] == column[i]}
                if alike != twins:
                    named.append(column)
                    twins = alike
            one.variant = ", ".join(column[i] for column in named)
            left = [column[i] for column in told if column not in named]
            if left:
                one.variant += f", {len(left)} more"
                one.notes.append(f"differs also in {', '.join(left)}")


def _differences(same: Sequence[Group], by: Sequence[str]) -> tuple[list[list[str]], list[list[str]]]:
    """In what rows of a task and model differ, each a text for every row: what is told of all; and what tells apart
    those that are alike in it (1 and 1.0, what a class has that not all have, data that is not known)."""
    settings = [g.settings | {key: g.runs[0].all_settings.get(key, ABSENT) for key in by} for g in same]
    short = short_names({key for own in settings for key in own})
    columns = {}
    for key in sorted(short):
        texts = told_apart([own.get(key, ABSENT) for own in settings])
        if len({*texts}) > 1:
            columns[key] = [f"{short[key]}={text}" for text in texts]
    differ = differing(g.settings for g in same)
    told = [columns.pop(key) for key in differ if key in columns and key not in by]
    more = [*columns.values()]
    data = [g.runs[0].data for g in same]
    if len({*data}) > 1:
        known = {identity for _, identity in data if identity}
        place = told if len(known) > 1 else more
        place.append([f"data: {words or 'not known'}{_digest(words, identity, data)}" for words, identity in data])
    return told, more


def _digest(words: str, identity: str, data: Sequence[tuple[str, str]]) -> str:
    """What tells data from other data of the same words, where there is some."""
    if len({other for its, other in data if its == words}) == 1:
        return ""
    digest = hashlib.sha256(identity.encode()).hexdigest()
    return f" {digest[:6]}"


def _count(group: Group) -> None:
    """Which runs are averaged, and in notes why others are not and what is mixed in those that are."""
    left_out = [(run, run.missing) for run in group.runs if run.missing]
    candidates = [run for run in group.runs if not run.missing]
    left_out += [(run, f"has no {group.metric}") for run in candidates if run.value(group.metric) is None]
    for run in candidates:
        if "limit_batches" in run.tested:
            limit = run.tested["limit_batches"]
            left_out.append((run, f"tested on a part of the split (limit {limit})"))
    out = [run for run, _ in left_out]
    candidates = [run for run in candidates if run not in out]
    latest: dict[Any, RunRecord] = {}
    for run in sorted(candidates, key=lambda run: str(run.last_start.get("time"))):
        if run.seed in latest:
            left_out.append((latest[run.seed], f"seed {run.seed} again in {run.path.name}, which counts"))
        latest[run.seed] = run
    group.counted = sorted(latest.values(), key=lambda run: sortable(run.seed))
    if left_out:
        whys = "; ".join(f"{run.path}: {why}" for run, why in left_out)
        group.notes.insert(0, f"{len(left_out)} of {len(group.runs)} runs not counted: {whys}")
    for what, of in (("code", lambda r: r.code), ("hardware", lambda r: r.hardware), ("checkpoint", _scored)):
        seeds: dict[str, list[str]] = {}
        for run in group.counted:
            seeds.setdefault(of(run), []).append(shown(run.seed))
        if len(seeds) > 1 or any(", then " in text for text in seeds):
            told = "; ".join(f"{text}: seed{'s' * (len(s) > 1)} {', '.join(s)}" for text, s in seeds.items())
            group.notes.append(f"not all by the same {what}: {told}")
    if text := group.runs[0].contradiction:
        group.notes.append(f"the task is named {group.task}; {text}")
    if group.row is not None and group.row.unmatched:
        group.notes.append(f"not beside {group.row.where}, {group.row.value:g}: {group.row.unmatched}")
    if group.comparison is not None:
        if group.comparison.differences:
            more = "; ".join(group.comparison.differences)
            group.notes.append(f"differs from configs/…/{group.comparison.file}: {more}")
        group.notes += group.comparison.data


def _scored(run: RunRecord) -> str:
    return str(run.tested.get("checkpoint", "?")).replace("\\", "/").rpartition("/")[2]
