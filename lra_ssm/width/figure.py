"""The picture of a coordinate check."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lra_ssm.width.coordinates import Slope


def draw_check(rows: pd.DataFrame, slopes: Sequence[Slope], tolerance: float, title: str) -> Figure:
    """Draw three panels over the width: activations after the last step, their changes, and gradients before the first.

    What is not as promised is red.
    """
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    last = rows["step"].max()
    panels = {
        f"activations after {last} steps": ("activation", last),
        f"their change in {last} steps": ("update", last),
        "gradients of parameters at the start": ("gradient", 0),
    }
    widths = sorted(rows["width"].unique())
    for axes, (name, (what, step)) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        wrong = {one.name: one for one in slopes if one.what == what and one.step == step and one.verdict(tolerance)}
        chosen = rows[(rows["what"] == what) & (rows["step"] == step)]
        means = chosen.groupby(["name", "width"], sort=False)["rms"].mean()
        drawn = means.where(np.isfinite(means)).unstack("width")[widths]
        for each, line in drawn.iterrows():
            style = {"color": "#c0392b", "alpha": 0.9} if each in wrong else {"color": "#555555", "alpha": 0.5}
            axes.plot(widths, line, "o-", markersize=3, linewidth=1, **style)
        axes.set(xscale="log", yscale="log", xlabel="width d_model", ylabel="root mean square")
        axes.set_title(f"{name}\n{len(wrong)} not as promised (red)", fontsize=9)
        axes.set_xticks(widths, [str(width) for width in widths])
        axes.minorticks_off()
        for each in list(wrong)[:6]:
            shown = drawn.loc[each].last_valid_index()
            if shown is not None:
                label = f"{each} {wrong[each].found:+.2f}"
                axes.annotate(label, (shown, drawn.loc[each, shown]), fontsize=7, ha="right")
    figure.suptitle(title, fontsize=10)
    return figure
