"""Deep linear SSMs, figure 1: correlation and variance of the states through ten layers, by proposition 1.

Source: see students.py; section 3.1. A test of lra_ssm.analysis compares proposition 1 with simulated noise. The paper
does not give the values of ρ in figure 1C; we chose them.
"""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from helper import Cell, Claim, Claims, Rows, Size, main
from lra_ssm.analysis import autocorrelations, latent_variances
from students import short

LAYERS = 10
RHOS, GROWTH = (0.0, 0.5, 0.9, 0.99, 1.0), (0.95, 0.4)  # figure 1C; GROWTH has the values of λ


def cells(size: Size) -> list[Cell]:
    shown = [("acf", 0.9, rho) for rho in (0.0, 0.95)] + [("growth", value, rho) for value in GROWTH for rho in RHOS]
    return [{"what": what, "λ": value, "rho": rho} for what, value, rho in shown]


def run(what: str, λ: float, rho: float) -> Rows:
    if what == "growth":
        powers = latent_variances([λ] * LAYERS, rho).tolist()
        yield from ({"layer": k, "power": power} for k, power in enumerate(powers))
    else:
        exact = autocorrelations([λ] * LAYERS, rho, 101)
        for k, R in enumerate(exact / exact[:, :1]):
            yield from ({"layer": k, "lag": lag, "R": short(R[lag])} for lag in range(0, 101, 5))


def claims(rows: pd.DataFrame) -> Claims:
    rises = rows.query("lag > 0").sort_values("layer").groupby(["rho", "lag"])["R"].agg(np.diff).explode().astype(float)
    yield Claim(
        "outputs become more correlated with each layer, for correlated and uncorrelated inputs",
        "R(Δ)/R(0) rises with every layer at each plotted lag up to 100, for λ = 0.9 and ρ = 0 and 0.95",
        bool((rises > 0).all()),
        {"smallest rise:": rises.min(), "pairs of lag and layer:": len(rises)},
    )
    powers = rows.query("what == 'growth'").pivot(index=["λ", "rho"], columns="layer", values="power")
    rate = powers[LAYERS] / powers[LAYERS - 1]
    rate = rate / rate.xs(1.0, level="rho")
    yield Claim(
        "after a few layers the states' variance grows at the same rate for all ρ",
        "R(0) of layer 10 divided by R(0) of layer 9 is within 10 % of its value for ρ = 1",
        bool((abs(rate - 1) <= 0.1).all()),
        {"smallest ratio to ρ = 1:": rate.min(), "largest:": rate.max()},
    )


def draw(rows: pd.DataFrame, figure: Figure) -> None:
    figure.set_size_inches(10, 3.3)
    left, middle, right = figure.subplots(1, 3)
    for axes, rho in ((left, 0.0), (middle, 0.95)):
        for k, group in rows.query("what == 'acf' and rho == @rho").groupby("layer"):
            axes.plot(group["lag"], group["R"], color=f"{0.85 - 0.08 * k:.2f}", linewidth=1.1, label=f"layer {k}")
        axes.set(xlabel="lag Δ in positions", ylabel="R(Δ) / R(0)", title=f"λ = 0.9, inputs with ρ = {rho:g}")
    left.legend(fontsize=6, ncols=2)
    for (value, rho), group in rows.query("what == 'growth'").groupby(["λ", "rho"]):
        style, color = "-" if value == GROWTH[0] else "--", f"C{RHOS.index(rho)}"
        right.plot(group["layer"], group["power"], style, color=color, label=f"λ = {value:g}, ρ = {rho:g}")
    right.set(yscale="log", xlabel="layer (0: the input)", ylabel="variance of the state R(0)", ylim=(None, 1e36))
    right.legend(fontsize=6, ncols=2, loc="upper left")


if __name__ == "__main__":
    main()
