"""B2S6's figure 3: whether a wider layer learns to tell ten cosines apart.

Source: Yu & Erichson 2025, sections 3 and 6: one layer, ten epochs, B2S6 without its bias, the ratio h / p held. Ours:
g ~ N(0, I), 64 times in one period, 10,000 examples, batches of 64, GELU, 16 real states, widths 16, 64 and 256 with
h = p, AdamW at a rate of 0.01 (0.001 for A, S4D's B and Δ) with a warm-up and a cosine to 0, trained on the mean of
‖g̃ − g‖₂. Without learning anything it is 3.08.
"""

from statistics import fmean
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure

from lra_ssm.datamodules import NoisyCosines
from lra_ssm.experiments.b2s6_units import unit, without_skip
from lra_ssm.experiments.base import Cell, Claim, Experiment, Form, Judgement, by_seed
from lra_ssm.experiments.train import batches, evaluate, l2_error, train
from lra_ssm.models.plain import PlainNetwork
from lra_ssm.tasks.optim import OptimizerSettings

UNITS = ("S4D", "S6", "B2S6")
OPTIMIZER = OptimizerSettings(lr=0.01, recurrent_lr=0.001, weight_decay=0.0, warmup_steps=0.1)
EPOCHS = 10


def _claim(name: str, statement: str, gains: bool) -> Claim:
    def judge(rows: pd.DataFrame) -> Judgement:
        ends = by_seed(rows[(rows["unit"] == name) & rows["test"].notna()], ["d"], "test").sort_values("d")
        ratio = ends["mean"].iloc[-1] / ends["mean"].iloc[0]
        text = ", ".join(f"d {d:g}: {mean:.3g} ± {std:.2g}" for d, mean, std in ends[["d", "mean", "std"]].values)
        return Judgement.of(bool(ratio <= 0.5 if gains else ratio >= 0.8), f"{text}; ratio {ratio:.3g}")

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
        quick = form == "quick"
        widths, seeds, examples = ((4, 16), (0,), 64) if quick else ((16, 64, 256), (0, 1, 2), 10_000)
        return [{"unit": u, "d": d, "seed": s, "examples": examples} for d in widths for s in seeds for u in UNITS]

    def run(self, cell: Cell) -> list[dict[str, Any]]:
        torch.manual_seed(cell["seed"])
        blocks = round(cell["d"] ** 0.5)
        layer = unit(cell["unit"], num_blocks=blocks, bias=False)
        network = without_skip(PlainNetwork(layer, num_outputs=10, d_input=1, d_model=cell["d"]))
        count = cell["examples"]
        data = NoisyCosines(length=64, num_train=count, num_test=min(count, 1000), batch_size=64)
        losses: list[float] = []
        steps = -(-count // data.batch_size)
        order = batches(data, seed=cell["seed"])
        train(network, order, EPOCHS * steps, OPTIMIZER, l2_error, lambda step, loss: losses.append(loss))
        epochs = [fmean(losses[i * steps : (i + 1) * steps]) for i in range(EPOCHS)]
        rows: list[dict[str, Any]] = [{"epoch": i + 1, "loss": loss} for i, loss in enumerate(epochs)]
        rows[-1]["test"] = evaluate(network, data, l2_error)
        return rows

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        figure.set_size_inches(9.5, 3.2)
        for axes, name in zip(figure.subplots(1, 3, sharey=True), UNITS, strict=True):
            chosen = rows[rows["unit"] == name]
            for d, color in zip(sorted(chosen["d"].unique()), ("#9ecae1", "#4292c6", "#08306b"), strict=False):
                curve = by_seed(chosen[chosen["d"] == d], ["epoch"], "loss")
                h = round(d**0.5)
                label = f"d = {d}" + f", h = p = {h}" * (name == "B2S6")
                axes.plot(curve["epoch"], curve["mean"], "o-", color=color, markersize=3, label=label)
                low, high = curve["mean"] - curve["std"], curve["mean"] + curve["std"]
                low = low.clip(lower=curve["mean"] / 10)  # on an axis of logarithms
                axes.fill_between(curve["epoch"], low, high, color=color, alpha=0.25, linewidth=0)
            title = "B2S6 without bias" if name == "B2S6" else name
            axes.set(title=title, xlabel="epoch", yscale="log")
            axes.legend(frameon=False, fontsize=8)
        figure.axes[0].set_ylabel("training loss ‖g̃ − g‖₂\n(mean ± deviation over seeds)")
