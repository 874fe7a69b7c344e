"""curves.png of a run: what metrics.csv holds, drawn over the steps."""

from __future__ import annotations

import io
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lra_ssm.callbacks import LEARNING_RATE
from lra_ssm.files import replacing

if TYPE_CHECKING:  # pandas takes a second to import, and a fit draws only at its end
    import pandas as pd

_COLORS = {"train": "#1f77b4", "val": "#d95f02"}
_DASHES = ("-", "--", ":", "-.")
_MAX_MARKED = 60  # points of a curve that are drawn as dots, too


def draw_curves(metrics: Path, target: Path, monitor: str = "", mode: Literal["min", "max"] = "max") -> None:
    """Draw a metrics.csv as a PNG file, whole or not at all: a panel for each metric, then the learning rates.

    The step of the best value of `monitor`, which is best.ckpt's, is marked in each panel. Draws nothing if nothing was
    logged.
    """
    curves = _curves(metrics)
    panels = {name.partition("/")[2] for name in curves if name.startswith(("train/", "val/"))} - {"samples_per_s"}
    panels -= {f"{name}_epoch" for name in panels}
    rates = {name.removeprefix(LEARNING_RATE): c for name, c in curves.items() if name.startswith(LEARNING_RATE)}
    if not panels and not rates:
        return
    from matplotlib.figure import Figure  # without pyplot, no display is needed

    rows = len(panels) + bool(rates)
    height = 0.8 + 2.4 * rows
    figure = Figure(figsize=(9, height))
    drawn = figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
    # In inches: layout="constrained" gives much the same but takes half as long again.
    figure.subplots_adjust(left=1 / 9, right=8.85 / 9, bottom=0.5 / height, top=1 - 0.35 / height, hspace=0.07)
    best = getattr(curves[monitor], f"idx{mode}")() if monitor in curves else None
    for axes, name in zip(drawn, sorted(panels, key=lambda name: (name != "loss", name != "accuracy")), strict=False):
        axes.set_ylabel(name.replace("_", " "))
        _draw_splits(axes, name, curves)
        if best is not None:
            axes.axvline(best, color="#555555", linewidth=0.8, linestyle=":", label=f"best.ckpt, step {best:,}")
        axes.legend(frameon=False, fontsize=9)
    if rates:
        drawn[-1].set_ylabel("learning rate")
        same: dict[tuple[tuple[int, float], ...], list[str]] = {}
        for name, curve in rates.items():
            same.setdefault(tuple(curve.items()), []).append(name)
        for names, dash in zip(same.values(), cycle(_DASHES)):
            curve = rates[names[0]]
            marker = "o" if len(curve) == 1 else None
            drawn[-1].plot(curve, dash, marker=marker, linewidth=1.6, label=", ".join(names))
        drawn[-1].legend(frameon=False, fontsize=9)
    for axes in drawn:
        axes.yaxis.set_label_coords(-0.085, 0.5)
        axes.grid(color="#e5e5e5", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    drawn[-1].set_xlabel("step")
    figure.suptitle("/".join(metrics.parts[-3:-1]), fontsize=10, y=1 - 0.1 / height, va="top")
    with replacing(target, "wb") as file:
        figure.savefig(file, dpi=110, format="png")


def _draw_splits(axes: Any, name: str, curves: dict[str, pd.Series]) -> None:
    """Draw a metric's train and val: values of single batches are faint, under their running mean or epochs' means."""
    import pandas as pd

    for split, color in _COLORS.items():
        curve, means = (curves.get(f"{split}/{name}{end}", pd.Series()) for end in ("", "_epoch"))
        width, label = len(curve) // 40 if split == "train" else 0, split
        if len(means) == 1:
            look = {"marker": "D", "markersize": 7, "linestyle": "none"}
            axes.plot(means, color=color, label=f"{split} (mean of the epoch)", **look)
        if len(means) > 1:
            axes.plot(curve, color=color, alpha=0.25, linewidth=0.8, label=f"{split} (a batch)")
            curve, label = means, f"{split} (mean of an epoch)"
        elif width > 1:
            axes.plot(curve, color=color, alpha=0.25, linewidth=0.8)
            curve, label = curve.rolling(width).mean().dropna(), f"{split} (mean of {width} logged)"
        if len(curve):
            marker = "o" if len(curve) <= _MAX_MARKED else None
            size = 7 if len(curve) == 1 else 3.5
            axes.plot(curve, color=color, marker=marker, markersize=size, linewidth=1.6, label=label)


def _curves(metrics: Path) -> dict[str, pd.Series]:
    """Return the finite values of every column by step; a kill may leave half a row at the end."""
    import pandas as pd

    text = metrics.read_text() if metrics.is_file() else ""
    whole = text[: text.rfind("\n") + 1]
    frame = pd.read_csv(io.StringIO(whole)) if whole else pd.DataFrame()
    if frame.empty or not {"step", "epoch"} <= set(frame):
        return {}
    frame = frame.set_index("step").drop(columns="epoch").apply(pd.to_numeric, errors="coerce")
    frame = frame.replace([np.inf, -np.inf], np.nan)
    return {name: curve for name in frame if len(curve := frame[name].dropna())}
