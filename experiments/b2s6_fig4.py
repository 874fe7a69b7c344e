"""B2S6, figure 4: whether a unit keeps the first input when the last one is large.

Source: Yu & Erichson 2025, section 4: u = (u_1 1, 0, …, 0, u_L) in 32 channels, u_1 ~ N(0, σ1), u_L ~ N(0, σ2 I),
target |u_1|, error |G - G̃| / σ1; B2S6 with 8 blocks of 4. Ours, since the paper does not give them: the grid of σ;
length 32; the network of eq. 5 fed directly, since the inputs have its width; ReLU, with which S4D's error depends on
σ2 / σ1 only; no skip D, which would add u_L to every channel; 16 states; fresh batches of 64; AdamW at 0.01 (Δ 0.001)
with a warm-up and a cosine to 0, on the mean square. The error of the best constant is 0.48.

1,500 steps do not train S6 and B2S6 out where σ2 is large: --long has 8,000 steps on a grid of nine.
"""

import numpy as np
import pandas as pd
import torch
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from torch import Tensor, nn

from helper import Cell, Claim, Claims, Rows, Size, batches, beyond, evaluate, grid, main, mean, only, train
from lra_ssm.datamodules import FirstToken
from lra_ssm.models import PlainNetwork
from lra_ssm.tasks import OptimizerSettings, RoleSettings
from units import unit_spec, without_skip

UNITS = ("S4D", "S6", "B2S6")
ROLES = {"recurrent": RoleSettings(lr=0.01), "delta": RoleSettings(lr=0.001)}
OPTIMIZER = OptimizerSettings(lr=0.01, roles=ROLES, weight_decay=0.0, warmup_steps=0.1)
USEFUL = 0.43  # nine tenths of the error of the best constant
SETTLED = 1.5  # trained out: the loss of the fourth fifth of the steps is at most this times that of the last fifth


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
    error = {name: mean(only(hard, unit=name)["error"]) for name in UNITS}
    settled = {name: bool((only(hard, unit=name)["falling"] <= SETTLED).all()) for name in UNITS}
    worst = only(rows, unit="S4D").groupby(["first", "last"])["error"].apply(lambda one: mean(one)[0])
    done = bool((only(rows, unit="S4D")["falling"] <= SETTLED).all())
    yield Claim(
        "S4D is robust in all cases",
        f"mean error below {USEFUL} in every case",
        bool(worst.max() < USEFUL) if done or worst.max() < USEFUL else None,
        {"least error": worst.min(), "greatest": worst.max()},
    )
    for name, fails, statement in (
        ("S6", True, "S6 makes no useful prediction where σ1 is small and σ2 large"),
        ("B2S6", False, "B2S6 makes a useful prediction there"),
    ):
        right = (error[name][0] >= USEFUL) == fails
        yield Claim(
            statement,
            f"mean error {corner} {'at least' if fails else 'below'} {USEFUL}",
            right if settled[name] or error[name][0] < USEFUL else None,
            {name: error[name]},
        )
    over = min(error["S6"][0] - error[other][0] for other in ("S4D", "B2S6"))
    yield Claim(
        "S6 is worse there than S4D and B2S6",
        f"mean error {corner} above both",
        beyond(over, max(spread for _, spread in error.values())) if all(settled.values()) else None,
        dict(error),
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
    bar.ax.text(-0.15, 0.48, "a constant", ha="right", va="center", fontsize=7)


if __name__ == "__main__":
    main()
