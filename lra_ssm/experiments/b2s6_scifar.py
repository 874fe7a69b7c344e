"""B2S6 on sequential CIFAR-10, reduced: what S4D's own B and C are worth (section 3), and B2S6's parts (table 1).

Source: Yu & Erichson 2025. Ours, and much less than theirs: images of 16 × 16 pixels, 2 layers of 64 channels and 16
real states in one direction, 900 or 1,800 steps with batches of 50 (one epoch, two), S4's block with batch norm, AdamW
at 0.004 (0.001 for A and S4D's B, 0.0004 for Δ), as configs/cpu/scifar16.yaml has it. In full: slurm/sweeps/.
Section 3 has gray images, table 1 does not say.
"""

from functools import lru_cache
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch.nn import functional as F

from lra_ssm.datamodules import SCIFAR
from lra_ssm.experiments.base import Cell, Experiment, Form, Judgement, Rows, by_seed, claim, grid, only
from lra_ssm.experiments.images import Images, batches_of, images_of, logits, made_up
from lra_ssm.experiments.train import train
from lra_ssm.layers import B2S6, S4D, S4Block
from lra_ssm.layers.spec import LayerSpec
from lra_ssm.models import Classifier
from lra_ssm.tasks.optim import OptimizerSettings

OPTIMIZER = OptimizerSettings(lr=0.004, recurrent_lr=0.001, delta_lr_factor=0.1, weight_decay=0.01, warmup_steps=0.1)


@lru_cache(maxsize=1)
def _images(grayscale: bool, real: bool) -> Images:
    data = SCIFAR(resolution=16, grayscale=grayscale)
    return images_of(data) if real else made_up(data)


def accuracy(layer: LayerSpec, cell: Cell, grayscale: bool) -> dict[str, Any]:
    """Test accuracy in percent of two blocks with `layer`, trained for the cell's steps from its seed."""
    torch.manual_seed(cell["seed"])
    images = _images(grayscale, cell["images"] == "real")
    network = Classifier(
        num_classes=10, d_input=1 if grayscale else 3, d_model=cell["d"], n_layers=2, layer=layer,
        block=LayerSpec(S4Block, norm="batch", prenorm=True, dropout=0.0),
    )  # fmt: skip
    data, test = batches_of(images.splits["train"], 50, cell["seed"]), images.splits["test"]
    train(network, data, cell["steps"], OPTIMIZER, F.cross_entropy)
    right = logits(network, test).argmax(-1) == test.labels
    return {"accuracy": 100 * float(right.sum()) / len(right), "pixels": images.pixels}


def _gain(rows: pd.DataFrame, by: str, better: Any, worse: Any, least: float = 0.0) -> Judgement:
    """Whether one part's mean accuracy is above another's by `least`, and by more than the larger deviation."""
    found = by_seed(rows, [by], "accuracy").set_index(by)
    (mean, std, _), (other, other_std, _) = found.loc[better], found.loc[worse]
    pixels = ", ".join(rows["pixels"].unique())
    text = f"{mean:.2f} ± {std:.2f} against {other:.2f} ± {other_std:.2f} %, {pixels} pixels"
    return Judgement.beyond(mean - other - least, max(std, other_std), text)


def _sizes(form: Form, steps: int) -> dict[str, list[Any]]:
    if form == "quick":  # without data, and of a stand-in
        return {"seed": [0], "images": ["made up"], "d": [8], "steps": [2]}
    return {"seed": [0, 1, 2], "images": ["real"], "d": [64], "steps": [steps]}


# -- section 3 ---------------------------------------------------------------------------------------------------------


class TiedS4D(Experiment):
    """S4D's accuracy with B and C of each channel's own, and tied as S6 has them; A is tied in both."""

    @claim("mean over seeds lower by more than the larger deviation")
    def loses(self, rows: pd.DataFrame) -> Judgement:
        """S4D loses accuracy where B and C are tied across channels"""
        return _gain(rows, "tied", False, True)

    @claim("mean over seeds lower by 8 points; undecided within the larger deviation of it", "8 points")
    def loses_much(self, rows: pd.DataFrame) -> Judgement:
        """it loses 8 points and more (about 88 % to below 80 % at full size)"""
        return _gain(rows, "tied", False, True, least=8.0)

    def cells(self, form: Form) -> list[Cell]:
        return grid(**_sizes(form, steps=900), tied=[False, True])

    def run(self, cell: Cell) -> Rows:
        tied = cell["tied"]
        layer = LayerSpec(S4D, d_state=16, tie_A=True, tie_B=tied, tie_C=tied)
        return [accuracy(layer, cell, grayscale=True)]

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        figure.set_size_inches(4.5, 3.5)
        axes = figure.subplots()
        axes.plot(rows["tied"] + 0.08, rows["accuracy"], ".", color="#bbbbbb")
        for place, mean, std, _ in by_seed(rows, ["tied"], "accuracy").itertuples(index=False):
            axes.errorbar(place, mean, std, fmt="o", color=f"C{place:d}", capsize=4)
            axes.annotate(f"{mean:.1f} %", (place - 0.1, mean), ha="right", va="center")
        axes.set(xticks=[0, 1], xticklabels=["B and C by channel", "B and C tied"], xlim=(-0.6, 1.4), title="S4D")
        axes.set_ylabel("test accuracy in %, gray 16 × 16\n(mean ± deviation; dots: seeds)")


# -- table 1 -----------------------------------------------------------------------------------------------------------

WHOLE = "complex, with bias"
VARIANTS = {  # complex, bias
    WHOLE: (True, True),
    "complex, without bias": (True, False),
    "real, with bias": (False, True),
}


class Ablation(Experiment):
    """B2S6's accuracy by number of blocks, complex or real, with its bias or without."""

    @claim(
        "mean over numbers of blocks, then over seeds, higher by more than the larger deviation over seeds",
        "{part}",
        [
            {"part": "bias", "statement": "B2S6 needs its bias", "other": "complex, without bias"},
            {"part": "complex", "statement": "complex is better than real", "other": "real, with bias"},
        ],
    )
    def parts(self, rows: pd.DataFrame, other: str, **_: str) -> Judgement:
        """{statement}"""
        means = rows.groupby(["variant", "seed", "pixels"], sort=False)["accuracy"].mean().reset_index()
        return _gain(means, "variant", WHOLE, other)

    @claim("mean higher by more than the larger deviation")
    def blocks(self, rows: pd.DataFrame) -> Judgement:
        """8 blocks are better than 1"""
        return _gain(only(rows, variant=WHOLE), "h", 8, 1)

    def cells(self, form: Form) -> list[Cell]:
        blocks = (1, 8) if form == "quick" else (1, 8, 64)
        return grid(**_sizes(form, steps=1800), h=blocks, variant=VARIANTS)

    def run(self, cell: Cell) -> Rows:
        complex_A, bias = VARIANTS[cell["variant"]]
        layer = LayerSpec(B2S6, d_state=16, num_blocks=cell["h"], complex_A=complex_A, bias=bias)
        return [accuracy(layer, cell, grayscale=False)]

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        axes = figure.subplots()
        for shift, (name, own) in zip((0.94, 1, 1.06), rows.groupby("variant", sort=False), strict=True):
            found = by_seed(own, ["h"], "accuracy")
            axes.errorbar(found["h"] * shift, found["mean"], found["std"], fmt="o-", capsize=3, label=name)
        blocks = sorted(rows["h"].unique())
        axes.set_xscale("log")
        axes.minorticks_off()
        axes.set_xticks(blocks, [f"{h} × {rows['d'].iloc[0] // h}" for h in blocks])
        axes.set_xlabel("blocks × channels of each")
        axes.set_ylabel("test accuracy in %, RGB 16 × 16\n(mean ± deviation over seeds)")
        axes.legend()
