"""Draw a run's metrics.csv over the steps as curves.png."""

import math
from pathlib import Path
from typing import Literal

from lra_ssm.callbacks import LEARNING_RATE
from lra_ssm.files import replacing
from lra_ssm.runs.record import read_metrics

_COLORS = {"train": "#1f77b4", "val": "#d95f02"}
_MAX_MARKED = 60  # points of a curve that are drawn as dots, too


def draw_curves(run: Path, monitor: str = "", mode: Literal["min", "max"] = "max") -> None:
    """Draw a run's metrics.csv as curves.png, whole or not at all: a panel for each metric, then the learning rates.

    Values of single batches are faint next to means over epochs. The step of the best value of `monitor`, which is
    best.ckpt's, is marked in each panel. Does nothing if nothing was logged.
    """
    import pandas as pd
    from matplotlib.figure import Figure  # without pyplot, no display is needed

    frame = pd.DataFrame(read_metrics(run / "metrics.csv"), dtype=object)
    if frame.empty:
        return
    frame = frame.replace("", math.nan).astype(float).replace([math.inf, -math.inf], math.nan).groupby("step").last()
    logged = frame.columns[frame.notna().any()]
    metrics = {name.partition("/")[2].removesuffix("_epoch") for name in logged if name.startswith(("train/", "val/"))}
    panels = {}
    for metric in sorted(metrics - {"samples_per_s"}, key=lambda name: (name != "loss", name != "accuracy", name)):
        possible = (f"train/{metric}", f"train/{metric}_epoch", f"val/{metric}")
        panels[metric.replace("_", " ")] = [name for name in possible if name in logged]
    if rates := [name for name in logged if name.startswith(LEARNING_RATE)]:
        panels["learning rate"] = rates
    if not panels:
        return
    figure = Figure(figsize=(9, 0.8 + 2.4 * len(panels)), layout="tight")
    drawn = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    best = None
    if monitor in logged:
        best = frame[monitor].idxmax() if mode == "max" else frame[monitor].idxmin()
    for axes, (title, names) in zip(drawn, panels.items(), strict=True):
        for name in names:
            curve, color = frame[name].dropna(), _COLORS.get(name.partition("/")[0])
            marker, alpha = "o" if len(curve) <= _MAX_MARKED else None, 0.25 if f"{name}_epoch" in names else 1.0
            axes.plot(curve.index, curve, marker=marker, markersize=3.5, color=color, alpha=alpha, label=name)
        if best is not None:
            axes.axvline(best, color="#555555", linewidth=0.8, linestyle=":", label=f"best.ckpt, step {best:,.0f}")
        axes.set_ylabel(title)
        axes.legend(frameon=False, fontsize=9)
        axes.grid(color="#e5e5e5", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    drawn[-1].set_xlabel("step")
    figure.suptitle("/".join(run.parts[-2:]), fontsize=10)
    with replacing(run / "curves.png", "wb") as file:
        figure.savefig(file, dpi=110, format="png")
