"""StableSSM, figure 6: how the scale of the gradient, G_f(w) / |w|, varies over weights, by f.

Source: Wang & Li 2024, section 3.4, appendix E, table 5: G_f = |f'|/f² in continuous time, |f'|/(1 - f)² in discrete
time. Each f is looked at on the same eigenvalues: λ from 0.5 to 0.999 in discrete time, -10 to -0.001 in continuous
time. Over the same weights, as the figure has it, direct is cut at |w| = 1 while others go on to 10. a = 1, b = 0.5 for
best, b = 0.02 in continuous time, which the range of λ needs.
"""

import math

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from helper import FORM_COLORS, Cell, Claim, Claims, Rows, Size, grid, main, only
from lra_ssm.ops import Parameterization

FORMS = {
    "continuous": ("direct", "relu", "exp", "softplus", "best"),
    "discrete": ("direct", "relu", "exp", "softplus", "tanh", "best"),
}


def cells(size: Size) -> list[Cell]:
    return grid(time=FORMS, points=[20 if size == "quick" else 200])


def run(time: str, points: int) -> Rows:
    if time == "continuous":
        values = -torch.logspace(-3, 1, points, dtype=torch.float64)
    else:
        edges = torch.logspace(-3, math.log10(0.5), points + 1, dtype=torch.float64)
        values = 1 - (edges[1:] * edges[:-1]).sqrt()  # not 0.5 itself, where softplus has w = 0
    for form in FORMS[time]:
        f = Parameterization(form, time, b=(0.02 if time == "continuous" else 0.5) if form == "best" else None)
        w = f.inverse(values)
        columns = {"eigenvalue": values, "w": w, "ratio": f.gradient_bound(w) / w.abs()}
        yield from pd.DataFrame({"form": form, **columns}).to_dict("records")


def claims(rows: pd.DataFrame) -> Claims:
    for time in FORMS:
        spread = {
            form: float(np.log10(only(rows, time=time, form=form)["ratio"].to_numpy()).std())
            for form in ("softplus", "direct", "exp")
        }
        yield Claim(
            f"softplus is generally milder than direct and exp ({time} time)",
            "the deviation of log10(G_f/|w|) over equal λ is least for softplus",
            spread["softplus"] < min(spread["direct"], spread["exp"]),
            spread,
        )


def draw(rows: pd.DataFrame, figure: Figure) -> None:
    figure.set_size_inches(9, 3.6)
    for axes, time in zip(figure.subplots(1, 2), FORMS, strict=True):
        for form, own in only(rows, time=time).groupby("form", sort=False):
            distance = 1 - own["eigenvalue"] if time == "discrete" else -own["eigenvalue"]
            axes.plot(distance, own["ratio"], color=FORM_COLORS[str(form)], label=form)
        label = "1 - λ" if time == "discrete" else "-λ"
        axes.set(xscale="log", yscale="log", xlabel=label, ylabel="G / |w|", title=f"{time} time")
    axes.legend(fontsize=8)


if __name__ == "__main__":
    main()
