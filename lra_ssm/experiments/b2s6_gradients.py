"""B2S6's theorem 3 and figure 5: how much harder S6's Δ is to train than S4D's, by the input's scale and length.

Source: Yu & Erichson 2025, section 5. The spread of A, B and C, the number of states and that of the inputs over which
E is taken are not given there.
"""

import math

import pandas as pd
import torch
from matplotlib.figure import Figure

from lra_ssm.analysis import delta_gradient_ratios
from lra_ssm.experiments.base import Cell, Experiment, Form, Judgement, Rows, claim, grid, only, slope

STATES, INPUTS = 16, 64
PANELS = {  # which ratio, over what, the slope that theorem 3 gives it
    "w by c": ("ratio_w", "c", 3.0),
    "b by c": ("ratio_b", "c", 2.0),
    "b by L": ("ratio_b", "L", 0.5),
}


def _means(rows: pd.DataFrame, panel: str) -> "pd.Series[float]":
    """Of a panel's ratio over draws, by what is varied."""
    ratio, over, _ = PANELS[panel]
    return only(rows, varied=over).groupby(over)[ratio].mean()


class DeltaGradients(Experiment):
    """E|∂y_S6/∂w| and E|∂y_S6/∂b| over E|∂y_S4D/∂b| at w = 0, one channel, the mean of 30 draws of A, B and C."""

    @claim(
        "slope of the log of the mean over draws within 0.1",
        "{panel}",
        [{"panel": panel, "over": over, "wanted": wanted} for panel, (_, over, wanted) in PANELS.items()],
    )
    def grows(self, rows: pd.DataFrame, panel: str, over: str, wanted: float) -> Judgement:
        """E|∂y_S6/∂{panel[0]}| / E|∂y_S4D/∂b| grows as {over}^{wanted:g}"""
        means = _means(rows, panel)
        found = slope(means.index, means)
        return Judgement.of(abs(found - wanted) <= 0.1, f"slope {found:.3f}, {wanted:g} in the paper")

    def cells(self, form: Form) -> list[Cell]:
        if form == "quick":
            trials, scales, lengths = 3, [1, 10], [50, 200]
        else:
            trials, scales, lengths = 30, [1, 2, 5, 10, 20, 50, 100], [50, 100, 200, 400, 800, 1600, 3200]
        by_c = grid(varied="c", c=scales, L=[100], trials=[trials])
        return by_c + grid(varied="L", c=[1], L=lengths, trials=[trials])

    def run(self, cell: Cell) -> Rows:
        L = cell["L"]
        for trial in range(cell["trials"]):
            generator = torch.Generator().manual_seed(trial)
            real, imag, *parts = torch.randn(6, STATES, dtype=torch.float64, generator=generator)
            A = torch.complex(-real.abs(), imag)
            B, C = torch.complex(parts[0], parts[1]), torch.complex(parts[2], parts[3])
            u = cell["c"] * torch.randn(INPUTS, L, dtype=torch.float64, generator=generator)
            ratio_w, ratio_b = delta_gradient_ratios(u, A, B, C, b=-math.log(L))  # L exp(b) is 1
            yield {"trial": trial, "ratio_w": ratio_w, "ratio_b": ratio_b}

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        figure.set_size_inches(9.5, 3.2)
        names = {"c": "scale c of the input (L = 100)", "L": "length L (c = 1, L exp(b) = 1)"}
        for axes, (panel, (ratio, over, wanted)) in zip(figure.subplots(1, 3), PANELS.items(), strict=True):
            means, varied = _means(rows, panel), only(rows, varied=over)
            expected = means.iloc[0] * (means.index / means.index[0]) ** wanted
            axes.plot(varied[over], varied[ratio], ".", color="#bbbbbb", markersize=3, label="a draw")
            axes.plot(means, "o-", color="#222222", markersize=4, label="mean")
            axes.plot(means.index, expected, "--", color="#c0392b", label=f"slope {wanted:g}")
            axes.set(xscale="log", yscale="log", xlabel=names[over])
            axes.set_ylabel(rf"|∂y$_{{S6}}$/∂{panel[0]}| over |∂y$_{{S4D}}$/∂b|")
            axes.legend(fontsize=8)
