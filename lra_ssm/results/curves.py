"""Learning curves of many runs: a panel per task, a line per row of the table, a band over its seeds."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from lra_ssm.errors import InputError
from lra_ssm.results.collect import RunRecord
from lra_ssm.results.groups import Group
from lra_ssm.results.pictures import axis_name, line_name, panels_of, save, seeds, styles, tidy

_MOST_MARKED = 40


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
    curves = [curve for run in g.counted if (curve := _scaled(run, metric))]
    label: str | None = f"{line_name(g)} {seeds([len(curves)])}"
    if curves:
        steps = sorted(set.intersection(*map(set, curves)))
        means = [mean(curve[step] for curve in curves) for step in steps]
        marker = "o" if len(steps) <= _MOST_MARKED else None
        axes.plot(steps, means, marker=marker, markersize=3, linewidth=1.6, label=label, **style)
        if len(curves) > 1:
            spread = [stdev(curve[step] for curve in curves) for step in steps]
            low, high = ([m + sign * s for m, s in zip(means, spread, strict=True)] for sign in (-1, 1))
            axes.fill_between(steps, low, high, color=style["color"], alpha=0.18, linewidth=0)
        label = None
    for run in g.runs:
        if run not in g.counted and (curve := _scaled(run, metric)):
            steps = sorted(curve)
            thin = {"marker": ".", "markersize": 3, "linewidth": 0.8, "alpha": 0.7, **style}
            axes.plot(steps, [curve[s] for s in steps], label=label, **thin)
            label = None


def _scaled(run: RunRecord, metric: str) -> dict[int, float]:
    """Finite values by step, accuracies in percent."""
    scale = 100 if metric.endswith("accuracy") else 1
    return {step: scale * value for step, value in run.curve(metric).items() if math.isfinite(value)}
