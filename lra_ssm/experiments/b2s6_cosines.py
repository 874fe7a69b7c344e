"""B2S6's figure 3: whether a wider layer learns to tell ten cosines apart.

Source: Yu & Erichson 2025, sections 3 and 6: one layer, ten epochs, B2S6 without its bias, the ratio h / p held. Ours:
g ~ N(0, I), 64 times in one period, 10,000 examples, batches of 64, GELU, 16 real states, widths 16, 64 and 256 with
h = p, AdamW at a rate of 0.01 (0.001 for A, S4D's B and Δ) with a warm-up and a cosine to 0, trained on the mean of
‖g̃ − g‖₂. Without learning anything it is 3.08.
"""

from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lra_ssm.datamodules import NoisyCosines
from lra_ssm.experiments.b2s6_units import unit, without_skip
from lra_ssm.experiments.base import Cell, Claim, Experiment, Form, Judgement, Rows, by_seed, draw_mean, grid, only
from lra_ssm.experiments.train import batches, evaluate, train
from lra_ssm.models.plain import PlainNetwork
from lra_ssm.tasks.optim import OptimizerSettings

UNITS = ("S4D", "S6", "B2S6")
OPTIMIZER = OptimizerSettings(lr=0.01, recurrent_lr=0.001, weight_decay=0.0, warmup_steps=0.1)
EPOCHS = 10
COLORS = ("#9ecae1", "#4292c6", "#08306b")  # by width


def l2_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """The mean of ‖ŷ − y‖₂ over examples: (B, K), (B, K) -> ()."""
    return (outputs - labels).norm(dim=-1).mean()


def _claim(name: str, statement: str, gains: bool) -> Claim:
    def judge(_: Experiment, rows: pd.DataFrame) -> Judgement:
        ends = by_seed(only(rows, unit=name, epoch=EPOCHS), ["d"], "test").sort_values("d")
        ratio = ends["mean"].iloc[-1] / ends["mean"].iloc[0]
        text = ", ".join(f"d {d:g}: {mean:.3g} ± {std:.2g}" for d, mean, std in ends[["d", "mean", "std"]].values)
        return Judgement.of(ratio <= 0.5 if gains else ratio >= 0.8, f"{text}; ratio {ratio:.3g}")

    rule = "at most half of" if gains else "at least 0.8 of"
    return Claim(name, statement, f"mean test error of the widest {rule} the narrowest's", judge)


class EffectiveWidth(Experiment):
    """‖g̃ − g‖₂ over epochs, by unit and width."""

    claims = [
        _claim("S4D", "S4D gains much from width", gains=True),
        _claim("S6", "S6 stays nearly the same as its width grows", gains=False),
        _claim("B2S6", "B2S6 without bias gains much from width", gains=True),
    ]

    def cells(self, form: Form) -> list[Cell]:
        if form == "quick":
            return grid(d=(4, 16), seed=[0], unit=UNITS, examples=[64])
        return grid(d=(16, 64, 256), seed=range(3), unit=UNITS, examples=[10_000])

    def run(self, cell: Cell) -> Rows:
        torch.manual_seed(cell["seed"])
        blocks = round(cell["d"] ** 0.5)
        layer = unit(cell["unit"], num_blocks=blocks, bias=False)
        network = without_skip(PlainNetwork(layer, num_outputs=10, d_input=1, d_model=cell["d"]))
        data = NoisyCosines(length=64, num_train=cell["examples"], num_test=min(cell["examples"], 1000), batch_size=64)
        steps, order = -(-cell["examples"] // data.batch_size), batches(data, seed=cell["seed"])
        losses = train(network, order, EPOCHS * steps, OPTIMIZER, l2_error)
        means = np.array(losses).reshape(EPOCHS, steps).mean(1).tolist()
        rows: list[dict[str, Any]] = [{"epoch": epoch, "loss": loss} for epoch, loss in enumerate(means, 1)]
        rows[-1]["test"] = evaluate(network, data, l2_error)
        return rows

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        figure.set_size_inches(9.5, 3.2)
        for axes, name in zip(figure.subplots(1, 3, sharey=True), UNITS, strict=True):
            axes.set(title="B2S6 without bias" if name == "B2S6" else name, xlabel="epoch", yscale="log")
            for (d, own), color in zip(only(rows, unit=name).groupby("d"), COLORS, strict=False):
                label = f"d = {d}" + f", h = p = {round(d**0.5)}" * (name == "B2S6")
                draw_mean(axes, own, "epoch", "loss", "o-", color=color, markersize=3, label=label)
            axes.legend(fontsize=8)
        figure.axes[0].set_ylabel("training loss ‖g̃ − g‖₂\n(mean ± deviation over seeds)")
