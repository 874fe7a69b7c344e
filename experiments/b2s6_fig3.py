"""B2S6, figure 3: whether a wider layer learns ten cosines better.

Source: Yu & Erichson 2025, sections 3 and 6: one layer, ten epochs, B2S6 without its bias, a fixed ratio h / p; the
theorems assume u_L = 1. Our choices, which the paper does not give: g ~ N(0, I), 64 positions in one period, the last
input set to 1, 10,000 examples, batches of 64, GELU, 16 states, h = p, AdamW at 0.01 (0.001 for A, S4D's B and Δ) with
warm-up and a cosine to 0, and the mean of ‖g̃ - g‖₂ as the loss. A model that learns nothing has a loss of 3.08. --long
adds d = 256.
"""

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from helper import (
    Cell,
    Claim,
    Claims,
    Rows,
    Size,
    batches,
    clearly_positive,
    draw_mean,
    evaluate,
    grid,
    main,
    mean_and_std,
    only,
    train,
)
from lra_ssm.datamodules import NoisyCosines
from lra_ssm.models import PlainNetwork
from lra_ssm.tasks import OptimizerSettings
from units import unit_spec, without_skip

UNITS = ("S4D", "S6", "B2S6")
OPTIMIZER = OptimizerSettings(lr=0.01, weight_decay=0.0, warmup_steps=0.1)
EPOCHS = 10


def cells(size: Size) -> list[Cell]:
    if size == "quick":
        return grid(d=(4, 16), seed=[0], unit=UNITS, examples=[64])
    return grid(d=(16, 64, 256) if size == "long" else (16, 64), seed=range(3), unit=UNITS, examples=[10_000])


def run(d: int, seed: int, unit: str, examples: int) -> Rows:
    torch.manual_seed(seed)
    layer = unit_spec(unit, num_blocks=round(d**0.5), bias=False)
    network = without_skip(PlainNetwork(layer, num_outputs=10, d_input=1, d_model=d))
    data = NoisyCosines(length=64, num_train=examples, num_test=min(examples, 1000), batch_size=64)
    steps = -(-examples // 64)
    network.register_forward_pre_hook(_last_is_one)
    losses = train(network, batches(data), EPOCHS * steps, OPTIMIZER, l2_error)
    means = np.array(losses).reshape(EPOCHS, steps).mean(1).tolist()
    test = evaluate(network, data, l2_error)
    yield from ({"epoch": epoch, "loss": loss, "test": test} for epoch, loss in enumerate(means, 1))


def _last_is_one(network: object, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    u = inputs[0].clone()
    u[:, -1] = 1
    return (u, *inputs[1:])


def l2_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of ‖ŷ - y‖₂ over examples: (B, K), (B, K) -> ()."""
    return (outputs - labels).norm(dim=-1).mean()


def claims(rows: pd.DataFrame) -> Claims:
    for name, statement in {
        "S4D": "S4D gains from width",
        "S6": "S6 gains much less from width than S4D and B2S6",
        "B2S6": "B2S6 without bias gains from width",
    }.items():
        final = only(rows, unit=name, epoch=EPOCHS)
        errors = {d: mean_and_std(group["test"]) for d, group in final.groupby("d")}
        (narrow, narrow_std), (wide, wide_std) = errors[min(errors)], errors[max(errors)]
        numbers = {f"d = {d}:": error for d, error in errors.items()} | {"ratio of the means:": wide / narrow}
        if name == "S6":
            rule = "the mean test error of the widest model is at least 0.95 times that of the narrowest"
            yield Claim(statement, rule, wide / narrow >= 0.95, numbers)
        else:
            rule = "the mean test error of the widest model is below that of the narrowest"
            yield Claim(statement, rule, clearly_positive(narrow - wide, max(narrow_std, wide_std)), numbers)


def draw(rows: pd.DataFrame, figure: Figure) -> None:
    figure.set_size_inches(9.5, 3.2)
    for axes, name in zip(figure.subplots(1, 3, sharey=True), UNITS, strict=True):
        axes.set(title="B2S6 without bias" if name == "B2S6" else name, xlabel="epoch", yscale="log")
        groups = only(rows, unit=name).groupby("d")
        for (d, group), color in zip(groups, ("#9ecae1", "#4292c6", "#08306b"), strict=False):
            label = f"d = {d}" + f", h = p = {round(d**0.5)}" * (name == "B2S6")
            draw_mean(axes, group, "epoch", "loss", color=color, marker="o", markersize=3, label=label)
        axes.legend(fontsize=8)
    figure.axes[0].set_ylabel("training loss ‖g̃ - g‖₂\n(mean ± deviation over seeds)")


if __name__ == "__main__":
    main()
