"""B2S6, theorem 3 and figure 5: how the gradients of S6's Δ grow with the input's scale and length, relative to S4D's.

Source: Yu & Erichson 2025, section 5: E|∂y_S6/∂w| and E|∂y_S6/∂b|, each divided by E|∂y_S4D/∂b|, at w = 0 for one
channel and 30 random draws of A, B and C. Our choices, which the paper does not give: the distributions of A, B and C,
16 states, 64 input sequences N(0, c²).
"""

import math

import pandas as pd
import torch
from matplotlib.figure import Figure

from helper import Cell, Claim, Claims, Rows, Size, main, means, only, slope
from lra_ssm.analysis import delta_gradient_ratios

PANELS = {  # the ratio, what varies, and the exponent of the theorem
    "w by c": ("ratio_w", "c", 3.0), "b by c": ("ratio_b", "c", 2.0), "b by L": ("ratio_b", "L", 0.5),
}  # fmt: skip


def cells(size: Size) -> list[Cell]:
    trials, scales, lengths = 30, [1, 2, 5, 10, 20, 50, 100], [50, 100, 200, 400, 800, 1600, 3200]
    if size == "quick":
        trials, scales, lengths = 3, [1, 10], [50, 200]
    points = [("c", c, 100) for c in scales] + [("L", 1, L) for L in lengths]
    return [{"varied": varied, "c": c, "L": L, "trials": trials} for varied, c, L in points]


def run(varied: str, c: float, L: int, trials: int) -> Rows:
    for trial in range(trials):
        generator = torch.Generator().manual_seed(trial)
        real, imag, *parts = torch.randn(6, 16, dtype=torch.float64, generator=generator)
        A, B, C = torch.complex(-real.abs(), imag), torch.complex(*parts[:2]), torch.complex(*parts[2:])
        u = c * torch.randn(64, L, dtype=torch.float64, generator=generator)
        ratio_w, ratio_b = delta_gradient_ratios(u, A, B, C, b=-math.log(L))  # L exp(b) is 1
        yield {"trial": trial, "ratio_w": ratio_w, "ratio_b": ratio_b}


def _means(rows: pd.DataFrame, panel: str) -> "pd.Series[float]":
    """Return the mean ratio of a panel for each value on its x-axis."""
    ratio, x, _ = PANELS[panel]
    return means(only(rows, varied=x), x, ratio)


def claims(rows: pd.DataFrame) -> Claims:
    for panel, (_, x, exponent) in PANELS.items():
        curve = _means(rows, panel)
        measured = slope(curve.index, curve)
        yield Claim(
            f"E|∂y_S6/∂{panel[0]}| / E|∂y_S4D/∂b| grows as {x}^{exponent:g}",
            "the log-log slope of the mean over draws is within 0.1 of this exponent",
            abs(measured - exponent) <= 0.1,
            {"slope:": measured},
        )


def draw(rows: pd.DataFrame, figure: Figure) -> None:
    figure.set_size_inches(9.5, 3.2)
    names = {"c": "scale c of the input (L = 100)", "L": "length L (c = 1, L exp(b) = 1)"}
    for axes, (panel, (ratio, x, exponent)) in zip(figure.subplots(1, 3), PANELS.items(), strict=True):
        curve, varied = _means(rows, panel), only(rows, varied=x)
        expected = curve.iloc[0] * (curve.index / curve.index[0]) ** exponent
        axes.plot(varied[x], varied[ratio], ".", color="#bbbbbb", markersize=3, label="single draw")
        axes.plot(curve, "o-", color="#222222", markersize=4, label="mean")
        axes.plot(curve.index, expected, "--", color="#c0392b", label=f"slope {exponent:g}")
        axes.set(xscale="log", yscale="log", xlabel=names[x])
        axes.set_ylabel(rf"|∂y$_{{S6}}$/∂{panel[0]}| / |∂y$_{{S4D}}$/∂b|")
        axes.legend(fontsize=8)


if __name__ == "__main__":
    main()
