"""Learning curves of many runs; and what they share with the pictures of ablations."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lra_ssm.errors import InputError
from lra_ssm.files import replacing
from lra_ssm.results.collect import RunRecord
from lra_ssm.results.groups import Group
from lra_ssm.results.settings import shown

INK = "#222222"
_COLORS = ("#1f77b4", "#d95f02", "#2a9d5c", "#8b4fbf", "#c0392b", "#8c6d31", "#e377c2", "#5f6b76", "#b5bd00", "#17becf")
# Of lines; the last ones are strokes and gaps in line widths.
DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (9, 3)), (0, (1, 4)))
_MOST_MARKED = 40  # points of a line
_MOST_INSIDE = 4  # entries of a legend that stands in its panel


def draw_curves(groups: Sequence[Group], path: Path) -> None:
    """Draws what each task's runs monitored on the validation split over the steps.

    A line is the mean over the seeds that count, where all of them were validated; the band is one standard deviation
    of the sample. A run that does not count is a thin line of its row's color. Raises InputError where nothing was
    logged.
    """
    drawn = [g for g in groups if any(run.curve(run.monitor) for run in g.runs)]
    if not drawn:
        raise InputError("no run has logged a validation metric yet: nothing to draw")
    tasks = list(dict.fromkeys(g.task for g in drawn))
    style = styles(drawn, by=True)
    figure, panels = panels_of(len(tasks), 3.9)
    for axes, task in zip(panels, tasks, strict=True):
        own = [g for g in drawn if g.task == task]
        metric = own[0].runs[0].monitor
        for g in own:
            _draw(axes, g, metric, style[line_name(g)])
        axes.set(title=task, xlabel="training step", ylabel=axis_name(metric))
        if metric.endswith("perplexity"):
            axes.set_yscale("log")
        tidy(axes)
    said = "mean over seeds; band: ± one standard deviation over seeds; thin: runs that do not count"
    figure.suptitle(said, fontsize=9)
    save(figure, path)


def _draw(axes: Any, g: Group, metric: str, style: dict[str, Any]) -> None:
    curves = pd.DataFrame(curve for run in g.counted if (curve := _scaled(run, metric))).T.dropna().sort_index()
    label: str | None = f"{line_name(g)} {seeds([len(curves.columns)])}"
    if len(curves.columns):
        means, spread = curves.mean(axis=1), curves.std(axis=1)
        marker = "o" if len(curves) <= _MOST_MARKED else None
        axes.plot(means, marker=marker, markersize=3, linewidth=1.6, label=label, **style)
        if len(curves.columns) > 1:
            band = (means.index, means - spread, means + spread)
            axes.fill_between(*band, color=style["color"], alpha=0.18, linewidth=0)
        label = None
    for run in g.runs:
        if run not in g.counted and (curve := _scaled(run, metric)):
            thin = {"marker": ".", "markersize": 3, "linewidth": 0.8, "alpha": 0.7, **style}
            axes.plot(pd.Series(curve).sort_index(), label=label, **thin)
            label = None


def _scaled(run: RunRecord, metric: str) -> dict[int, float]:
    """Finite values by step, accuracies in percent."""
    scale = 100 if metric.endswith("accuracy") else 1
    return {step: scale * value for step, value in run.curve(metric).items() if math.isfinite(value)}


def styles(groups: Sequence[Group], by: bool) -> dict[str, dict[str, Any]]:
    """Of every line's name how it is drawn: a dash for each line, and a color for each model, or for each line where
    there is one model; of more lines than dashes a model's variants still have one each."""
    models = list(dict.fromkeys(g.model for g in groups))
    lines = list(dict.fromkeys((g.model, line_name(g, by)) for g in groups))
    variants = {model: [name for m, name in lines if m == model] for model in models}
    by_model = len(models) > 1 and max(map(len, variants.values())) <= len(DASHES)
    few = len(lines) <= len(DASHES)
    found = {}
    for number, (model, name) in enumerate(lines):
        color = models.index(model) if by_model else number
        dash = number if few or not by_model else models.index(model) + variants[model].index(name)
        dash += color // len(_COLORS)
        found[name] = {"color": _COLORS[color % len(_COLORS)], "linestyle": DASHES[dash % len(DASHES)]}
    return found


def line_name(g: Group, by: bool = True) -> str:
    """A group's model and what tells it from others; by: with its values of the settings that make rows."""
    values = [f"{name}={shown(value)}" for name, value in g.by.items()] if by else []
    return ", ".join(filter(None, (g.model, *values, g.variant)))


def seeds(counts: Iterable[int]) -> str:
    """(3 seeds), (1 to 3 seeds)."""
    found = sorted(counts)
    if found[0] != found[-1]:
        return f"({found[0]} to {found[-1]} seeds)"
    return "(1 seed)" if found[0] == 1 else f"({found[0]} seeds)"


def panels_of(count: int, height: float) -> tuple[Any, list[Any]]:
    """A figure and so many panels in it, at most three beside each other."""
    from matplotlib.figure import Figure

    columns = min(count, 3)
    rows = -(-count // columns)
    figure = Figure(figsize=(max(7.0, 5.2 * columns), 0.6 + height * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flatten())
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, panels[:count]


def axis_name(metric: str) -> str:
    """val/accuracy as `validation accuracy, %`; a loss has no unit that we know."""
    split, _, name = metric.rpartition("/")
    words = {"val": "validation", "test": "test", "train": "training"}.get(split.rpartition(" ")[2], split)
    unit = ", %" if name.endswith("accuracy") else ""
    return f"{words} {name.replace('_', ' ')}{unit}".strip()


def tidy(axes: Any) -> None:
    """A grid, no frame, and a legend: beside the panel where it would cover much of it."""
    axes.grid(color="#e5e5e5", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    count = len(axes.get_legend_handles_labels()[1])
    outside = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if count > _MOST_INSIDE else {}
    axes.legend(frameon=False, fontsize=8, handlelength=4, **outside)  # so long that a dash is known by it


def save(figure: Any, path: Path) -> None:
    """Writes a PNG file, whole or not at all. Raises InputError where it cannot be written."""
    try:
        with replacing(path, "wb") as file:
            figure.savefig(file, format="png", dpi=110, metadata={"Software": None})
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from error
