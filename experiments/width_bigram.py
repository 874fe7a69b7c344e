"""Width, learning-rate transfer: whether the best learning rate of a narrow bigram model is also best for a wide one.

Source: Everett et al. 2024, who train transformers; we train the model of the note on their paper (see width_table3).
Our choices: V = 64, RMSNorm, two hidden layers, batches of 64; 200 steps of Adam (betas 0.9 and 0.95, epsilon 1e-12)
with a learning rate that falls linearly to 0; the loss is the mean of the last 20 steps. At width 64 all
parameterizations give the same model. "one rate" does not scale learning rates with the width: all layers have the same
rate, as is usual in PyTorch. --long runs five widths.
"""

import math

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch.nn import functional as F

from helper import Cell, Claim, Claims, Rows, Size, clearly_positive, grid, main, mean_and_std, means, only
from lra_ssm.width.bigram import Bigram
from lra_ssm.width.parameterizations import PARAMETERIZATIONS, Exponents

V, BASE = 64, 64
VARIANTS = {
    "one rate": {layer: Exponents(a, b, 0) for layer, (a, b, _) in PARAMETERIZATIONS["sp"].items()},
    "SP": PARAMETERIZATIONS["sp"],
    "muP": PARAMETERIZATIONS["mup"],
}


def cells(size: Size) -> list[Cell]:
    if size == "quick":
        return grid(d=(64, 128), variant=VARIANTS, lr=(0.004, 0.008, 0.016), seed=[0], steps=[5])
    widths = (64, 128, 256, 512, 1024) if size == "long" else (64, 256, 1024)
    rates = [0.00025 * 2**i for i in range(8)]
    return grid(d=widths, variant=VARIANTS, lr=rates, seed=range(2), steps=[200])


def run(d: int, variant: str, lr: float, seed: int, steps: int) -> Rows:
    generator = torch.Generator().manual_seed(seed)
    model = Bigram(d, V, VARIANTS[variant], 2, rms_norm=True, base=BASE, generator=generator)
    table = (2 * torch.randn(V, V, generator=torch.Generator().manual_seed(0))).softmax(-1)
    optimizer = torch.optim.Adam(list(model.groups(lr)), betas=(0.9, 0.95), eps=1e-12)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0, steps)
    drawn, losses = torch.Generator().manual_seed(seed), []
    for _ in range(steps):
        x = torch.randint(V, (64,), generator=drawn)
        loss = F.cross_entropy(model(x), torch.multinomial(table[x], 1, generator=drawn)[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    yield {"loss": float(np.mean(losses[-20:]))}


def _losses(rows: pd.DataFrame, variant: str) -> pd.DataFrame:
    """Return mean losses with one row for each learning rate and one column for each width. NaNs are not skipped."""
    return means(only(rows, variant=variant), ["lr", "d"], "loss").unstack()


def _best(rows: pd.DataFrame, variant: str) -> pd.DataFrame:
    """Return the best learning rate with one row for each seed and one column for each width.

    It is the minimum of the parabola through the lowest loss and its two neighbors on the grid, in the logarithm of the
    rate. It is NaN if the lowest loss is at an end of the grid.
    """
    best = pd.DataFrame(dtype=float)
    for (seed, d), group in only(rows, variant=variant).sort_values("lr").groupby(["seed", "d"]):
        losses, log_rates = group["loss"].fillna(np.inf).to_numpy(), np.log(group["lr"].to_numpy())
        lowest = int(losses.argmin())
        three = slice(lowest - 1, lowest + 2)
        best.loc[seed, d] = math.nan
        if 0 < lowest < len(losses) - 1 and np.isfinite(losses[three]).all():
            a, b, _ = np.polyfit(log_rates[three], losses[three], 2)
            best.loc[seed, d] = math.exp(-b / (2 * a))
    return best


def claims(rows: pd.DataFrame) -> Claims:
    for variant, statement in {
        "one rate": "with one rate for all layers, the best rate falls with the width",
        "SP": "with SP's rate for each layer, the best rate does not depend on the width",
        "muP": "with muP's rate for each layer, the best rate does not depend on the width",
    }.items():
        best = _best(rows, variant)
        moved, spread = mean_and_std(np.log2(best.iloc[:, -1] / best.iloc[:, 0]))
        falls = variant == "one rate"
        yield Claim(
            statement,
            f"the interpolated best rate of the widest model is"
            f" {'at most a quarter' if falls else 'within a factor of 2'} of that of the narrowest",
            clearly_positive(-2 - moved if falls else 1 - abs(moved), spread),
            {f"d = {d}:": mean_and_std(values) for d, values in best.items()} | {"log2 of the ratio:": (moved, spread)},
        )
    losses = _losses(rows, "muP")
    at_rate = losses.loc[losses.iloc[:, 0].fillna(np.inf).idxmin()]
    yield Claim(
        "with muP, a wider model is no worse at the same rate",
        "at the best rate of the narrowest model, the loss grows by at most 0.01 from each width to the next",
        bool((np.diff(at_rate.to_numpy()) <= 0.01).all()),
        {f"d = {d}:": loss for d, loss in at_rate.items()},
    )


def draw(rows: pd.DataFrame, figure: Figure) -> None:
    figure.set_size_inches(10, 3.4)
    for axes, variant in zip(figure.subplots(1, 3, sharey=True), VARIANTS, strict=True):
        losses = _losses(rows, variant)
        for shade, (d, curve) in zip(np.linspace(0, 1, len(losses.columns)), losses.items(), strict=True):
            color = (0.85 - 0.8 * shade, 0.35, 0.2 + 0.6 * shade)
            axes.plot(curve, "o-", color=color, markersize=3, linewidth=1, label=f"d = {d}")
            axes.plot(curve.idxmin(), curve.min(), "*", color=color, markersize=11)
        low = losses.min().min()
        axes.set(xscale="log", xlabel="learning rate (best: star)", title=variant, ylim=(low - 0.05, low + 1.5))
        axes.legend(fontsize=7)
    figure.axes[0].set_ylabel("loss, nats")


if __name__ == "__main__":
    main()
