"""Learning curves of many runs: a panel per task, a line per row of the table, a band over its seeds."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from lra_ssm.errors import InputError
from lra_ssm.results.collect import RunRecord
from lra_ssm.results.groups import Group
from lra_ssm.results.pictures import axis_name, line_style, save, tidy

_MOST_MARKED = 40


def draw_curves(groups: Sequence[Group], path: Path) -> None:
    """Draws what each task's runs monitored on the validation split over the steps.

    A line is the mean over the seeds that count, where all of them were validated; the band is one standard deviation
    of the sample. A run that does not count is a thin line of its row's color. Raises InputError where nothing was
    logged.
    """
    from matplotlib.figure import Figure

    drawn = [g for g in groups if any(run.curve(run.monitor) for run in g.runs)]
    if not drawn:
        raise InputError("no run has logged a validation metric yet: nothing to draw")
    tasks = list(dict.fromkeys(g.task for g in drawn))
    columns = min(len(tasks), 3)
    rows = -(-len(tasks) // columns)
    figure = Figure(figsize=(max(7.0, 5.2 * columns), 0.6 + 3.9 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    names = list(dict.fromkeys(_name(g) for g in drawn))
    for axes, task in zip(panels, tasks, strict=False):
        own = [g for g in drawn if g.task == task]
        metrics = list(dict.fromkeys(g.runs[0].monitor for g in own))
        for g in own:
            if g.runs[0].monitor == metrics[0]:
                _draw(axes, g, metrics[0], line_style(names.index(_name(g))))
        axes.set(title=task, xlabel="training step", ylabel=axis_name(metrics[0]))
        if metrics[0].endswith("perplexity"):
            axes.set_yscale("log")
        tidy(axes)
        axes.legend(frameon=False, fontsize=8)
    for axes in panels[len(tasks) :]:
        axes.set_visible(False)
    figure.suptitle("mean over seeds; band: ± one standard deviation over seeds; thin: runs that do not count", fontsize=9)  # fmt: skip
    save(figure, path)


def _name(g: Group) -> str:
    return ", ".join([g.model, *map(str, g.by), *[g.variant] * bool(g.variant)])


def _draw(axes: Any, g: Group, metric: str, style: dict[str, Any]) -> None:
    scale = 100 if metric.endswith("accuracy") else 1
    curves = [_scaled(run, metric, scale) for run in g.counted if run.curve(metric)]
    label = f"{_name(g)} ({len(curves)} seed{'s' * (len(curves) != 1)})"
    if curves:
        steps = sorted(set.intersection(*map(set, curves)))
        means = [mean(curve[step] for curve in curves) for step in steps]
        marker = "o" if len(steps) <= _MOST_MARKED else None
        axes.plot(steps, means, marker=marker, markersize=3, linewidth=1.6, label=label, **style)
        if len(curves) > 1:
            spread = [stdev(curve[step] for curve in curves) for step in steps]
            low, high = ([m + sign * s for m, s in zip(means, spread, strict=True)] for sign in (-1, 1))
            axes.fill_between(steps, low, high, color=style["color"], alpha=0.18, linewidth=0)
        label = ""
    for run in g.runs:
        if run not in g.counted and (curve := _scaled(run, metric, scale)):
            steps = sorted(curve)
            axes.plot(steps, [curve[s] for s in steps], linewidth=0.8, alpha=0.7, label=label or None, **style)
            label = ""


def _scaled(run: RunRecord, metric: str, scale: float) -> dict[int, float]:
    return {step: scale * value for step, value in run.curve(metric).items()}
