"""Draw a run's metrics.csv over the steps as curves.png."""

import math
from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

from lra_ssm.callbacks import LEARNING_RATE
from lra_ssm.files import replacing
from lra_ssm.runs.record import read_metrics

_COLORS = {"train": "#1f77b4", "val": "#d95f02"}
_DASHES = ("-", "--", ":", "-.")
_MAX_MARKED = 60  # points of a curve that are drawn as dots, too


def draw_curves(run: Path, monitor: str = "", mode: Literal["min", "max"] = "max") -> None:
    """Draw a run's metrics.csv as curves.png, whole or not at all: a panel for each metric, then the learning rates.

    The step of the best value of `monitor`, which is best.ckpt's, is marked in each panel. Does nothing if nothing was
    logged.
    """
    curves: dict[str, dict[int, float]] = {}
    for row in read_metrics(run / "metrics.csv"):
        for name, text in row.items():
            if text and name not in ("step", "epoch") and math.isfinite(value := float(text)):
                curves.setdefault(name, {})[int(row["step"])] = value
    panels = {name.partition("/")[2] for name in curves if name.startswith(("train/", "val/"))} - {"samples_per_s"}
    panels -= {f"{name}_epoch" for name in panels}
    rates = {name.removeprefix(LEARNING_RATE): c for name, c in curves.items() if name.startswith(LEARNING_RATE)}
    if not panels and not rates:
        return
    from matplotlib.figure import Figure  # without pyplot, no display is needed

    rows = len(panels) + bool(rates)
    figure = Figure(figsize=(9, 0.8 + 2.4 * rows), layout="tight")
    drawn = figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
    measured = curves.get(monitor)
    best = (max if mode == "max" else min)(measured, key=measured.__getitem__) if measured else None
    for axes, name in zip(drawn, sorted(panels, key=lambda name: (name != "loss", name != "accuracy")), strict=False):
        axes.set_ylabel(name.replace("_", " "))
        _draw_splits(axes, name, curves)
        if best is not None:
            axes.axvline(best, color="#555555", linewidth=0.8, linestyle=":", label=f"best.ckpt, step {best:,}")
    if rates:
        drawn[-1].set_ylabel("learning rate")
        same: dict[tuple[tuple[int, float], ...], list[str]] = {}
        for name, curve in rates.items():
            same.setdefault(tuple(curve.items()), []).append(name)
        for names, dash in zip(same.values(), cycle(_DASHES)):
            _plot(drawn[-1], rates[names[0]], ", ".join(names), linestyle=dash)
    for axes in drawn:
        axes.legend(frameon=False, fontsize=9)
        axes.grid(color="#e5e5e5", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    drawn[-1].set_xlabel("step")
    figure.suptitle("/".join(run.parts[-2:]), fontsize=10)
    with replacing(run / "curves.png", "wb") as file:
        figure.savefig(file, dpi=110, format="png")


def _draw_splits(axes: Any, name: str, curves: Mapping[str, dict[int, float]]) -> None:
    """Draw a metric's train and val; values of single batches are faint if there are means over epochs."""
    for split, color in _COLORS.items():
        curve, means = (curves.get(f"{split}/{name}{end}", {}) for end in ("", "_epoch"))
        if len(means) > 1:
            _plot(axes, curve, f"{split} (a batch)", color=color, alpha=0.25)
            _plot(axes, means, f"{split} (mean of an epoch)", color=color)
        elif curve:
            _plot(axes, curve, split, color=color)


def _plot(axes: Any, curve: dict[int, float], label: str, **look: Any) -> None:
    marker = "o" if len(curve) <= _MAX_MARKED else None
    size = 7 if len(curve) == 1 else 3.5  # a single value is a point that is seen
    axes.plot([*curve], [*curve.values()], marker=marker, markersize=size, linewidth=1.6, label=label, **look)
