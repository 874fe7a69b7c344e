"""StableSSM, figure 6: how the scale of the gradient, G_f(w) / |w|, varies over weights, for each f.

Source: Wang & Li 2024, section 3.4, appendix E, table 5: G_f = |f'|/f² in continuous time, |f'|/(1 - f)² in discrete
time. We compare each f at the same eigenvalues: λ from 0.5 to 0.999 in discrete time, -10 to -0.001 in continuous time.
The figure compares them at the same weights, where direct ends at |w| = 1 while others go on to 10. best has a = 1 and
b = 0.5, in continuous time b = 0.02, because larger b do not reach this range of λ.
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
        values = 1 - (edges[1:] * edges[:-1]).sqrt()  # excludes 0.5, where softplus has w = 0
    for form in FORMS[time]:
        f = Parameterization(form, time, b=(0.02 if time == "continuous" else 0.5) if form == "best" else None)
        w = f.inverse(values)
        columns = {"eigenvalue": values, "w": w, "ratio": f.gradient_bound(w) / w.abs()}
        yield from pd.DataFrame({"form": form, **columns}).to_dict("records")


def claims(rows: pd.DataFrame) -> Claims:
    for time in FORMS:
        deviation = {
            form: float(np.log10(only(rows, time=time, form=form)["ratio"].to_numpy()).std())
            for form in ("softplus", "direct", "exp")
        }
        yield Claim(
            f"softplus is generally milder than direct and exp ({time} time)",
            "at equal λ, log10(G_f/|w|) has the smallest standard deviation for softplus",
            deviation["softplus"] < min(deviation["direct"], deviation["exp"]),
            {f"{form}:": value for form, value in deviation.items()},
        )


def draw(rows: pd.DataFrame, figure: Figure) -> None:
    figure.set_size_inches(9, 3.6)
    for axes, time in zip(figure.subplots(1, 2), FORMS, strict=True):
        for form, group in only(rows, time=time).groupby("form", sort=False):
            distance = 1 - group["eigenvalue"] if time == "discrete" else -group["eigenvalue"]
            axes.plot(distance, group["ratio"], color=FORM_COLORS[str(form)], label=form)
        label = "1 - λ" if time == "discrete" else "-λ"
        axes.set(xscale="log", yscale="log", xlabel=label, ylabel="G / |w|", title=f"{time} time")
    axes.legend(fontsize=8)


if __name__ == "__main__":
    main()
