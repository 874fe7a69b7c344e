"""The figure of a coordinate check."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lra_ssm.width.coordinates import Slope


def draw_check(rows: pd.DataFrame, slopes: Sequence[Slope], tolerance: float, title: str) -> Figure:
    """Draw three panels over the width: activations after the last step, their changes, and gradients before the first.

    Slopes that break a promise are red.
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
        named: list[float] = []  # where names stand: further ones keep off them
        for each, one in wrong.items():
            last_width = drawn.loc[each].last_valid_index()
            y = math.inf if last_width is None else drawn.loc[each, last_width]
            if 0 < y < math.inf and all(abs(math.log(y / other)) > 0.35 for other in named) and len(named) < 6:
                box = {"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.5}
                axes.annotate(f"{each} {one.found:+.2f}", (last_width, y), fontsize=7, ha="right", bbox=box)
                named.append(y)
    figure.suptitle(title, fontsize=10)
    return figure
