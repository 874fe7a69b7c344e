"""The tables and the picture of a coordinate check."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lra_ssm.tables import table, wrapped
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
        wrong = {
            slope.name: slope
            for slope in slopes
            if slope.what == what and slope.step == step and slope.verdict(tolerance)
        }
        chosen = rows[(rows["what"] == what) & (rows["step"] == step)]
        means = chosen.groupby(["name", "width"], sort=False)["rms"].mean()
        drawn = means.where(np.isfinite(means)).unstack("width")[widths]
        for series, line in drawn.iterrows():
            style = {"color": "#c0392b", "alpha": 0.9} if series in wrong else {"color": "#555555", "alpha": 0.5}
            axes.plot(widths, line, "o-", markersize=3, linewidth=1, **style)
        axes.set(xscale="log", yscale="log", xlabel="width d_model", ylabel="root mean square")
        axes.set_title(f"{name}\n{len(wrong)} not as promised (red)", fontsize=9)
        axes.set_xticks(widths, [str(width) for width in widths])
        axes.minorticks_off()
        label_heights: list[float] = []  # where names stand: further ones keep off them
        for series, slope in wrong.items():
            last_width = drawn.loc[series].last_valid_index()
            y = math.inf if last_width is None else drawn.loc[series, last_width]
            if (
                0 < y < math.inf
                and all(abs(math.log(y / other)) > 0.35 for other in label_heights)
                and len(label_heights) < 6
            ):
                box = {"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.5}
                axes.annotate(f"{series} {slope.measured:+.2f}", (last_width, y), fontsize=7, ha="right", bbox=box)
                label_heights.append(y)
    figure.suptitle(title, fontsize=10)
    return figure


def slope_tables(slopes: Sequence[Slope], tolerance: float, width: int | None) -> str:
    """Return two tables: of activations at the start, after the steps, and of their changes; and of gradients."""
    by_key = {(slope.what, bool(slope.step), slope.name): slope for slope in slopes}
    names = list(dict.fromkeys(slope.name for slope in slopes if slope.what == "activation"))
    rows = []
    for name in names:
        stages = [by_key.get((*key, name)) for key in (("activation", False), ("activation", True), ("update", True))]
        verdicts = dict.fromkeys(verdict for slope in stages if slope and (verdict := slope.verdict(tolerance)))
        rows.append((name, *(_cell(slope and slope.measured) for slope in stages), " ".join(verdicts)))
    first = table(("activation", "at the start", "after", "change", "verdict"), rows, width=width)
    gradients = [slope for slope in slopes if slope.what == "gradient" and not slope.step]
    rows = [(slope.name, _cell(slope.measured), _cell(slope.promised), slope.verdict(tolerance)) for slope in gradients]
    second = table(("gradient of", "at the start", "promised", "verdict"), rows, width=width)
    wrong = [verdict for slope in slopes if (verdict := slope.verdict(tolerance))]
    diverging = wrong.count("diverges")
    message = f"slopes of log RMS over log width; {len(wrong) - diverging} of {len(slopes)} differ by more than"
    message += f" {tolerance:g} from what is promised"
    if diverging:
        message += f", and {diverging} diverge: a value is NaN or infinite at some width; lower the learning rate"
    return f"{first}\n\n{second}\n\n{wrapped(message)}"


def _cell(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:+.2f}"
