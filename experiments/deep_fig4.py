"""Deep linear SSMs, figure 4 and table 1: LRU students of one, two and three layers with equal parameter counts.

Source: see students.py; section 4.3 and appendix C.1: Adam at 10^-3, about 2,400 parameters, five seeds, teachers for
several ν. Our choices, which the paper does not give: widths and states; the nonlinearity after each layer (both none
and GELU); the teacher: ten states, |λ| uniform in [ν, (1 + ν)/2], uniform phases, B and C of N(0, 1) scaled to outputs
of variance 1; length 128, 8 sequences per step, 1,000 steps (--long: 6,000); and the ν of table 1, here 0.9. We leave
out the rows of table 1 with fixed B and C: in our copy its column of layers is not readable.
"""

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch.nn import functional as F

from helper import Cell, Claim, Claims, Rows, Size, batches, clearly_positive, evaluate, grid, main, means, only, train
from lra_ssm.datamodules import TeacherStudent
from lra_ssm.layers import LRU, LayerSpec
from lra_ssm.models import PlainNetwork
from lra_ssm.tasks import OptimizerSettings
from students import short

STATES, LENGTH = 10, 128  # of the teacher
ADAM = OptimizerSettings(lr=1e-3, weight_decay=0.0, warmup_steps=0, min_lr_factor=1.0)
STUDENTS = {1: (24, 23), 2: (16, 17), 3: (13, 14)}  # number of layers to (d_model, d_state)
PRINTED = {1: 0.00709, 2: 0.00034}  # table 1: final test loss with 2,374 and 2,446 parameters
TABLE_NU = 0.9
NAMES = {"none": "linear", "gelu": "with GELU"}
SETTLED = 1.5  # finished training: the fourth fifth of the steps has at most this times the loss of the last fifth


def cells(size: Size) -> list[Cell]:
    steps = {"quick": 5, "default": 1000, "long": 6000}[size]
    nus, seeds = ((TABLE_NU,), 1) if size == "quick" else ((0.5, 0.9, 0.99), 5)
    return grid(between=NAMES, nu=nus, layers=STUDENTS, seed=range(seeds), steps=[steps])


def run(between: str, nu: float, layers: int, seed: int, steps: int) -> Rows:
    torch.manual_seed(seed)
    d_model, d_state = STUDENTS[layers]
    layer, plain = LayerSpec(LRU, d_state=d_state), {"nonlinearity": between, "bias": between != "none"}
    network = PlainNetwork(layer, num_outputs=1, d_input=1, d_model=d_model, n_layers=layers, pooling=None, **plain)
    data = _teacher(nu, seed, 8 if steps == 5 else 128)
    fifths = np.array(train(network, batches(data), steps, ADAM)).reshape(5, -1).mean(1)
    loss = evaluate(network, data, F.mse_loss)
    yield {"loss": short(loss), "falling": short(fifths[-2] / fifths[-1])}


def _teacher(nu: float, seed: int, tests: int) -> TeacherStudent:
    """Return a random teacher whose outputs on white noise have variance 1, averaged over positions."""
    draw = np.random.default_rng(seed)
    moduli, phases = draw.uniform(nu, (1 + nu) / 2, STATES), draw.uniform(0, 2 * np.pi, STATES)
    B, C = draw.standard_normal((2, STATES))

    def data(C: np.ndarray) -> TeacherStudent:
        systems = {"eigenvalues": moduli, "phases": phases, "B": B, "C": C}
        sizes = {"length": LENGTH, "batch_size": 8, "num_train": 8000, "num_val": 8, "num_test": tests}
        return TeacherStudent(**{name: [v.tolist()] for name, v in systems.items()}, **sizes, generator_seed=seed)

    variance = ((1 - np.arange(LENGTH) / LENGTH) * data(C).response() ** 2).sum()
    return data(C / np.sqrt(variance))


def _gain(rows: pd.DataFrame, nu: float, layers: int) -> float:
    """Return by how many standard errors the mean log loss of `layers` layers is below that of one layer."""
    one, other = (np.log10(only(rows, nu=nu, layers=n)["loss"].to_numpy()) for n in (1, layers))
    error = np.hypot(one.std(ddof=1), other.std(ddof=1)) / len(one) ** 0.5
    return float((one.mean() - other.mean()) / error)


def claims(rows: pd.DataFrame) -> Claims:
    for between, name in NAMES.items():
        group = only(rows, between=between)
        nus, loss = sorted(group["nu"].unique()), means(group, ["nu", "layers"], "loss")
        gains = {(nu, n): _gain(group, nu, n) for nu in nus for n in (2, 3)}
        falling = means(group, ["nu", "layers"], "falling")
        settled = bool((falling <= SETTLED).all())
        gained = {clearly_positive(gain, 2) for gain in gains.values()}
        yield Claim(
            f"two and three layers of LRU end at lower losses than one, at every ν ({name})",
            "at every ν, the mean log loss of each is lower by more than two standard errors (the numbers are counts of"
            " standard errors)",
            True if gained == {True} else False if False in gained and settled else None,
            {f"ν = {nu:g}, {n} layers:": gain for (nu, n), gain in gains.items()}
            | {"largest factor by which a loss still falls:": falling.max(skipna=False)},
        )
        ratios = loss.xs(nus[-1], level="nu") / loss.xs(nus[0], level="nu")
        yield Claim(
            f"all students get worse as ν goes to 1 ({name})",
            "for each depth, the mean loss at the largest ν is above that at the smallest (the numbers are ratios)",
            bool((ratios > 1).all()),
            {f"{n} layer{'s' * (int(n) > 1)}:": ratio for n, ratio in ratios.items()},
        )
        one, two = loss[TABLE_NU, 1], loss[TABLE_NU, 2]
        yield Claim(
            f"two layers outperform one (table 1, {name})",
            f"the mean log loss at ν = {TABLE_NU} is lower by more than two standard errors",
            clearly_positive(_gain(group, TABLE_NU, 2), 2),
            {"one layer:": one, "two:": two, "ratio:": one / two, "printed ratio:": PRINTED[1] / PRINTED[2]},
        )


def draw(rows: pd.DataFrame, figure: Figure) -> None:
    figure.set_size_inches(7, 3.6)
    for axes, (between, name) in zip(figure.subplots(1, 2, sharey=True), NAMES.items(), strict=True):
        for layers, own in only(rows, between=between).groupby("layers"):
            found = own.groupby("nu")["loss"].agg(["mean", "std"])
            line = {"fmt": "o-", "markersize": 4, "capsize": 2, "label": f"{layers} layers"}
            axes.errorbar(range(len(found)), found["mean"], found["std"], **line)
        axes.set_xticks(range(len(found)), [f"{nu:g}" for nu in found.index])
        axes.set(yscale="log", xlabel="timescale ν of the teacher", title=name)
    figure.axes[0].set_ylabel("test loss (variance of outputs: 1)")
    figure.axes[0].legend(fontsize=8)


if __name__ == "__main__":
    main()
