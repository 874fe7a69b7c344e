"""B2S6, figure 4: whether a unit remembers the first input when the last one is large.

Source: Yu & Erichson 2025, section 4: u = (u_1 1, 0, …, 0, u_L) in 32 channels, u_1 ~ N(0, σ1), u_L ~ N(0, σ2 I),
target |u_1|, error |G - G̃| / σ1; B2S6 with 8 blocks of 4. Our choices, which the paper does not give: the grid of σ;
length 32; the network of eq. 5 without its encoder, since the inputs already have its width; ReLU, which makes S4D's
error depend on σ2 / σ1 only; no skip D, which would add u_L to every channel; 16 states; fresh batches of 64; AdamW at
0.01 (Δ 0.001) with warm-up and a cosine to 0; mean squared error as the loss. The best constant has an error of 0.48.

Where σ2 is large, S6 and B2S6 have not finished training after 1,500 steps. --long takes 8,000 steps on a grid of nine.
"""

import numpy as np
import pandas as pd
import torch
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from torch import Tensor, nn

from helper import (
    Cell,
    Claim,
    Claims,
    Rows,
    Size,
    batches,
    clearly_positive,
    evaluate,
    grid,
    main,
    mean_and_std,
    means,
    only,
    train,
)
from lra_ssm.datamodules import FirstToken
from lra_ssm.models import PlainNetwork
from lra_ssm.tasks import OptimizerSettings, RoleSettings
from units import unit_spec, without_skip

UNITS = ("S4D", "S6", "B2S6")
ROLES = {"recurrent": RoleSettings(lr=0.01), "delta": RoleSettings(lr=0.001)}
OPTIMIZER = OptimizerSettings(lr=0.01, roles=ROLES, weight_decay=0.0, warmup_steps=0.1)
USEFUL = 0.43  # nine tenths of the error of the best constant prediction
SETTLED = 1.5  # finished training: the fourth fifth of the steps has at most this times the loss of the last fifth


def cells(size: Size) -> list[Cell]:
    first, last = (0.01, 0.1, 1.0), (0.1, 1.0, 10.0)
    steps = {"quick": 5, "default": 1500, "long": 8000}[size]
    if size != "long":
        first, last = first[::2], last[::2]
    return grid(seed=range(1 if size == "quick" else 3), first=first, last=last[::-1], unit=UNITS, steps=[steps])


def run(seed: int, first: float, last: float, unit: str, steps: int) -> Rows:
    torch.manual_seed(seed)
    network = PlainNetwork(unit_spec(unit, num_blocks=8), num_outputs=1, d_input=32, d_model=32, nonlinearity="relu")
    network.encoder = nn.Identity()
    without_skip(network)
    data = FirstToken(length=32, sigma_first=first, sigma_last=last, resample=True, num_test=min(1000, 64 * steps))

    def error(outputs: Tensor, labels: Tensor) -> Tensor:
        return (outputs - labels).abs().mean() / first

    def square(outputs: Tensor, labels: Tensor) -> Tensor:
        return ((outputs - labels) / first).square().mean()

    fifths = np.array(train(network, batches(data), steps, OPTIMIZER, square)).reshape(5, -1).mean(1)
    yield {"error": evaluate(network, data, error), "falling": float(fifths[-2] / fifths[-1])}


def claims(rows: pd.DataFrame) -> Claims:
    hard = only(rows, first=rows["first"].min(), last=rows["last"].max())
    corner = f"at σ1 = {rows['first'].min():g}, σ2 = {rows['last'].max():g}"
    error = {name: mean_and_std(only(hard, unit=name)["error"]) for name in UNITS}
    settled = {name: bool((only(hard, unit=name)["falling"] <= SETTLED).all()) for name in UNITS}
    s4d = only(rows, unit="S4D")
    s4d_errors = means(s4d, ["first", "last"], "error")
    s4d_settled = bool((s4d["falling"] <= SETTLED).all())
    yield Claim(
        "S4D is robust in all cases",
        f"the mean error is below {USEFUL} for every σ1 and σ2",
        bool(s4d_errors.max() < USEFUL) if s4d_settled or s4d_errors.max() < USEFUL else None,
        {"smallest error:": s4d_errors.min(), "largest:": s4d_errors.max()},
    )
    for name, fails, statement in (
        ("S6", True, "S6 makes no useful prediction where σ1 is small and σ2 large"),
        ("B2S6", False, "B2S6 makes a useful prediction where σ1 is small and σ2 large"),
    ):
        as_stated = (error[name][0] >= USEFUL) == fails
        yield Claim(
            statement,
            f"the mean error {corner} is {'at least' if fails else 'below'} {USEFUL}",
            as_stated if settled[name] or error[name][0] < USEFUL else None,
            {f"{name}:": error[name]},
        )
    margin = min(error["S6"][0] - error[other][0] for other in ("S4D", "B2S6"))
    yield Claim(
        "where σ1 is small and σ2 large, S6 is worse than S4D and B2S6",
        f"the mean error of S6 {corner} is above both others",
        clearly_positive(margin, max(std for _, std in error.values())) if all(settled.values()) else None,
        {f"{name}:": value for name, value in error.items()},
    )


def draw(rows: pd.DataFrame, figure: Figure) -> None:
    figure.set_size_inches(9.5, 3.4)
    for axes, name in zip(figure.subplots(1, 3, sharey=True), UNITS, strict=True):
        errors = only(rows, unit=name).pivot_table("error", "last", "first", dropna=False)
        image = axes.imshow(errors, origin="lower", cmap="RdYlGn_r", norm=LogNorm(0.01, 10))
        for (y, x), value in np.ndenumerate(errors):
            color = "white" if value > 4 or value < 0.02 else "black"
            axes.text(x, y, f"{value:.2g}", ha="center", va="center", color=color)
        axes.set_xticks(range(errors.shape[1]), errors.columns)
        axes.set_yticks(range(errors.shape[0]), errors.index)
        axes.set(title=name, xlabel="σ1 of the first input")
    figure.axes[0].set_ylabel("σ2 of the last input")
    bar = figure.colorbar(image, ax=figure.axes, label="|G - G̃| / σ1, mean over seeds")
    bar.ax.axhline(0.48, color="black")
    bar.ax.text(-0.15, 0.48, "constant", ha="right", va="center", fontsize=7)


if __name__ == "__main__":
    main()
