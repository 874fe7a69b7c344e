"""StableSSM, figure 3 (a): |gradient| / |weight| of recurrent weights in training, by f.

Source: Wang & Li 2024, section 4.1, appendix F.1: linear functionals of ρ(t) = (t + 1)^-1.1, length 100, tanh in the
readout, batches of 512, rate 0.01; each f, of discrete time, starts from the same eigenvalues. Ours, since the paper
does not give them: 8 states, timescales evenly from 4 to 1,000 steps in their logarithms (at 2 steps softplus has
w = 0, at 1.6 exp, where the ratio has a pole), AdamW at a constant rate with decay 0.01, as in the public code, 4,000
steps, three seeds.
"""

import math
from itertools import cycle, islice

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from helper import (
    FORM_COLORS,
    Cell,
    Claim,
    Claims,
    Rows,
    Size,
    batches,
    beyond,
    draw_mean,
    grid,
    main,
    mean,
    only,
    train,
)
from lra_ssm.datamodules import LinearFunctional
from lra_ssm.layers import StableSSM
from lra_ssm.tasks import OptimizerSettings, RoleSettings

FORMS = ("direct", "relu", "exp", "softplus", "tanh", "best")
ROLES = {"recurrent": RoleSettings(lr=0.01, weight_decay=0.01), "no_decay": RoleSettings(weight_decay=0.01)}
OPTIMIZER = OptimizerSettings(lr=0.01, weight_decay=0.01, roles=ROLES, warmup_steps=0, min_lr_factor=1.0)
SETTLED = 1000  # the step at which the figure begins
BIN = 100


def cells(size: Size) -> list[Cell]:
    steps, seeds, batch = (1200, 1, 2) if size == "quick" else (4000, 3, 512)
    return grid(seed=range(seeds), form=FORMS, steps=[steps], batch=[batch])


def run(seed: int, form: str, steps: int, batch: int) -> Rows:
    torch.manual_seed(seed)
    network = StableSSM(1, d_state=8, form="real", parameterization=form, readout="tanh")
    weight = network.get_parameter("system.eigenvalue_weight")
    start = 1 - 1 / torch.logspace(math.log10(4), 3, len(weight), dtype=torch.float64)
    weight.data.copy_(network.system.parameterization.inverse(start))
    data = LinearFunctional(num_train=250 * batch, batch_size=batch, generator_seed=seed)
    seen: list[tuple[float, float]] = []

    def watch(step: int, loss: float) -> None:
        seen.append((float((weight.grad / weight.detach()).abs().max()), loss))

    train(network, cycle(list(islice(batches(data), 250))), steps, OPTIMIZER, watch=watch)
    ratio, loss = np.array(seen).reshape(-1, BIN, 2).transpose(2, 0, 1)
    for i in range(steps // BIN):
        logs = {"log_ratio": np.log10(ratio[i]).mean(), "log_peak": np.log10(ratio[i].max()), "loss": loss[i].mean()}
        yield {"step": i * BIN, **{name: float(value) for name, value in logs.items()}}


def claims(rows: pd.DataFrame) -> Claims:
    late = rows[rows["step"] >= SETTLED]
    runs = late.groupby(["form", "seed"]).agg(
        level=("log_ratio", lambda one: one.mean(skipna=False)),
        peak=("log_peak", lambda one: one.max(skipna=False)),
        loss=("loss", lambda one: one.iloc[-1]),
    ).reset_index()  # fmt: skip
    for value, statement in {
        "level": "in training best has the smallest ratios of relu, softplus, exp, best and tanh",
        "peak": "of these f, best has the smallest maximum of the ratio",
    }.items():
        found = {form: mean(only(runs, form=form)[value]) for form in FORMS}
        pairs = [beyond(found[b][0] - found["best"][0], found["best"][1] + found[b][1]) for b in FORMS[1:-1]]
        yield Claim(
            statement,
            f"the {'mean' if value == 'level' else 'maximum'} of log10 max |gradient|/|weight| from step 1,000 on is"
            " smallest under best",
            False if False in pairs else None if None in pairs else True,
            found,
        )
    losses = {form: mean(only(runs, form=form)["loss"]) for form in FORMS[1:]}
    yield Claim(
        "training losses are similar across these f",
        "the mean losses of the last 100 steps are within a factor of 2",
        max(losses.values())[0] <= 2 * min(losses.values())[0],
        losses,
    )


def draw(rows: pd.DataFrame, figure: Figure) -> None:
    figure.set_size_inches(9, 3.6)
    left, right = figure.subplots(1, 2)
    left.set(xlabel="step", ylabel="log₁₀ of max |gradient| / |weight|")
    right.set(yscale="log", xlabel="step", ylabel="training loss")
    for form, own in rows.groupby("form", sort=False):
        for axes, name in ((left, "log_ratio"), (right, "loss")):
            draw_mean(axes, own, "step", name, color=FORM_COLORS[str(form)], label=form)
    right.legend(fontsize=8, title="mean ± deviation of seeds,\nof 100 steps", title_fontsize=8)


if __name__ == "__main__":
    main()
