"""Draw learning curves of many runs, and plot a metric over one or two settings."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lra_ssm.errors import InputError
from lra_ssm.files import replacing
from lra_ssm.results.settings import format_value, is_number, sort_key
from lra_ssm.results.table import Group
from lra_ssm.runs.record import RunRecord

_COLORS = ("#1f77b4", "#d95f02", "#2a9d5c", "#8b4fbf", "#c0392b", "#8c6d31", "#e377c2", "#5f6b76", "#b5bd00", "#17becf")
_DASHES = ("-", "--", ":", "-.")
_MAX_TICKS = 10  # values that each have a tick
_MAX_INSIDE = 4  # entries of a legend inside its panel


def draw_curves(groups: Sequence[Group], path: Path) -> None:
    """Draw the monitored validation metric over the steps, a panel per task and a line per row of the table.

    A line is the mean over the seeds that count, with a band of one standard deviation; a star is a run's best
    checkpoint, a thin line a run that does not count. Raises InputError if nothing was logged.
    """
    drawn = [g for g in groups if any(run.curve(run.monitor) for run in g.runs.run)]
    if not drawn:
        raise InputError("no run has logged a validation metric yet: nothing to draw")
    figure, panels = _panels([g.task for g in drawn])
    for task, axes in panels.items():
        task_groups = [g for g in drawn if g.task == task]
        metric = task_groups[0].first.monitor
        for g, style in zip(task_groups, _styles(len(task_groups)), strict=True):
            curves = [_curve(run, metric) for run in g.counted.run]
            label = f"{g.label} {_seeds([len(curves)])}"
            frame = pd.concat(curves, axis=1).dropna().sort_index() if curves else pd.DataFrame()
            if len(frame):
                mean, std = frame.mean(axis=1), frame.std(axis=1)
                axes.plot(mean.index, mean, linewidth=1.6, label=label, **style)
                if len(curves) > 1:
                    axes.fill_between(mean.index, mean - std, mean + std, color=style["color"], alpha=0.18, linewidth=0)
            for curve in filter(len, curves):
                best = curve.idxmax() if g.first.highest_is_best else curve.idxmin()
                axes.plot([best], [curve[best]], "*", color=style["color"], markersize=9, markeredgecolor="white")
            for run in g.runs.run[g.runs.why != ""]:
                thin, name = _curve(run, metric), None if len(frame) else label
                axes.plot(thin.index, thin, marker=".", markersize=3, linewidth=0.8, alpha=0.7, label=name, **style)
        axes.set(title=task, xlabel="training step", ylabel=_axis_name(metric))
        if metric.endswith("perplexity"):
            axes.set_yscale("log")
    figure.suptitle("mean over seeds; band: ± one standard deviation; star: best checkpoint; thin: not counted", size=9)
    _save(figure, path)


def draw_settings(groups: Sequence[Group], by: list[str], path: Path) -> None:
    """Draw the metric over the first setting of `by`, a line per combination of the model and the other settings.

    Rows of models without the setting are left out. An error bar is one standard deviation over seeds. Raises
    InputError if no row has a value.
    """
    name = by[0]
    drawn = [g for g in groups if g.mean is not None and name in g.settings]
    if not drawn:
        raise InputError("no run that counts is finished and tested: nothing to draw")
    figure, panels = _panels([(g.task, g.metric) for g in drawn])
    for (task, metric), axes in panels.items():
        panel_groups = sorted(
            (g for g in drawn if (g.task, g.metric) == (task, metric)), key=lambda g: sort_key(g.settings[name])
        )
        values = list({format_value(g.settings[name]): g.settings[name] for g in panel_groups}.values())
        numbers = all(map(is_number, values))
        place = {format_value(value): value if numbers else i for i, value in enumerate(values)}
        lines: dict[str, list[Group]] = {}
        for g in panel_groups:
            others = [f"{other}={format_value(value)}" for other, value in g.settings.items() if other != name]
            lines.setdefault(", ".join([g.model, *others]), []).append(g)
        for (label, members), style in zip(lines.items(), _styles(len(lines)), strict=True):
            x = [place[format_value(g.settings[name])] for g in members]
            errors = [math.nan if g.std is None else g.std for g in members]
            axes.errorbar(
                x, [g.mean for g in members], errors if np.isfinite(errors).any() else None, marker="o", markersize=4,
                capsize=3, label=f"{label} {_seeds(len(g.counted) for g in members)}",
                **style | ({} if numbers else {"linestyle": "none"}),
            )  # fmt: skip
        if numbers and (scale := spacing(values)) != "linear":
            axes.set_xscale(scale, **({"linthresh": min(v for v in values if v > 0)} if scale == "symlog" else {}))
        if not numbers or len(values) <= _MAX_TICKS:
            axes.set_xticks([*place.values()], [*place])
            axes.minorticks_off()
        axes.set_title(
            task + ("; ± one standard deviation over seeds" if any(g.std for g in panel_groups) else ""), size=9
        )
        axes.set(xlabel=name, ylabel=_axis_name(metric))
    _save(figure, path)


def spacing(values: Sequence[float]) -> str:
    """Return the scale for sorted values: log, or symlog if one of them is 0, if they grow by factors; else linear.

    They grow by factors if their median is nearer to the geometric mean of the extremes than to the arithmetic one.
    """
    positive = [value for value in values if value > 0]
    if values[0] < 0 or not positive:
        return "linear"
    first, last = positive[0], positive[-1]
    if 2 * np.median(positive) >= (first * last) ** 0.5 + (first + last) / 2:
        return "linear"
    return "symlog" if values[0] == 0 else "log"


def _curve(run: RunRecord, metric: str) -> "pd.Series[float]":
    """Return the finite values by step, accuracies in percent."""
    curve = pd.Series(run.curve(metric), dtype=float).sort_index()
    return curve[np.isfinite(curve)] * (100 if metric.endswith("accuracy") else 1)


def _styles(count: int) -> list[dict[str, Any]]:
    """Return a color and dash for each line; lines beyond the number of colors are dashed."""
    return [{"color": _COLORS[i % 10], "linestyle": _DASHES[i // 10 % 4]} for i in range(count)]


def _seeds(counts: Iterable[int]) -> str:
    """Return a text such as (3 seeds) or (1 to 3 seeds)."""
    least, most = min(numbers := [*counts]), max(numbers)
    return f"({least} to {most} seeds)" if least != most else "(1 seed)" if most == 1 else f"({most} seeds)"


def _panels(keys: Iterable[Any]) -> tuple[Figure, dict[Any, Any]]:
    """Return a figure with a panel per distinct key, at most three in a row."""
    names = list(dict.fromkeys(keys))
    columns = min(len(names), 3)
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(max(7.0, 5.2 * columns), 0.6 + 4.0 * rows), layout="constrained")
    return figure, {name: figure.add_subplot(rows, columns, i) for i, name in enumerate(names, 1)}


def _axis_name(metric: str) -> str:
    """Return a label for a metric: `validation accuracy, %` for val/accuracy."""
    split, _, name = metric.rpartition("/")
    words = {"val": "validation", "test": "test", "train": "training"}.get(split.rpartition(" ")[2], split)
    return f"{words} {name.replace('_', ' ')}{', %' if name.endswith('accuracy') else ''}".strip()


def _save(figure: Figure, path: Path) -> None:
    """Write the figure; place a long legend next to its panel."""
    for axes in figure.axes:
        axes.grid(color="#e5e5e5", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        is_long = len(axes.get_legend_handles_labels()[1]) > _MAX_INSIDE
        outside: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if is_long else {}
        axes.legend(frameon=False, fontsize=8, **outside)
    with replacing(path, "wb") as file:
        figure.savefig(file, format="png", dpi=110, metadata={"Software": None})
