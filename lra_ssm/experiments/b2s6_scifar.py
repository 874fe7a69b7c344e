"""B2S6 on sequential CIFAR-10, reduced: what S4D's own B and C are worth (section 3), and B2S6's parts (table 1).

Source: Yu & Erichson 2025. Ours, and much less than theirs: images of 16 × 16 pixels, 2 layers of 64 channels and 16
real states in one direction, 900 or 1,800 steps with batches of 50 (one epoch, two), S4's block with batch norm, AdamW
at 0.004 (0.001 for A and S4D's B, 0.0004 for Δ), as configs/cpu/scifar16.yaml has it. In full: slurm/sweeps/.
Section 3 has gray images, table 1 does not say.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

from lra_ssm.datamodules import SCIFAR
from lra_ssm.datamodules.loading.batches import Batch
from lra_ssm.experiments.base import Cell, Claim, Experiment, Form, Judgement, by_seed
from lra_ssm.experiments.images import Images, images_of, made_up
from lra_ssm.experiments.train import train
from lra_ssm.layers import B2S6, S4D, S4Block
from lra_ssm.layers.spec import LayerSpec
from lra_ssm.models import Classifier
from lra_ssm.tasks.optim import OptimizerSettings

BATCH = 50
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
    train(network, _batches(images.splits["train"], cell["seed"]), cell["steps"], OPTIMIZER, _cross_entropy)
    network.eval()
    test = images.splits["test"]
    with torch.no_grad():
        right = [
            (network(inputs).argmax(-1) == labels).sum()
            for inputs, labels in zip(test.inputs.split(200), test.labels.split(200), strict=True)
        ]
    return {"accuracy": 100 * float(sum(right)) / len(test.labels), "pixels": images.pixels}


def _cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs, labels)


def _batches(split: Batch, seed: int) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        for part in torch.randperm(len(split.labels), generator=generator).split(BATCH):
            yield Batch(split.inputs[part], None, split.labels[part])


def _gain(rows: pd.DataFrame, better: "pd.Series[bool]", worse: "pd.Series[bool]", least: float = 0.0) -> Judgement:
    """Whether one part's mean accuracy is above another's by `least`, and by more than the larger deviation."""
    found = [rows[chosen]["accuracy"] for chosen in (better, worse)]
    (mean, std), (other, other_std) = [(one.mean(), one.std() if len(one) > 1 else 0.0) for one in found]
    pixels = ", ".join(rows["pixels"].unique())
    text = f"{mean:.2f} ± {std:.2f} against {other:.2f} ± {other_std:.2f} %, {pixels} pixels"
    if abs(mean - other - least) <= max(std, other_std):
        return Judgement("undecided", text)
    return Judgement.of(bool(mean - other > least), text)


# -- section 3 ---------------------------------------------------------------------------------------------------------

TIED = {"B and C by channel": False, "B and C tied": True}


def _drop(least: float) -> Any:
    return lambda rows: _gain(rows, ~rows["tied"], rows["tied"], least)


class TiedS4D(Experiment):
    """S4D's accuracy with B and C of each channel's own, and tied as S6 has them; A is tied in both."""

    claims = [
        Claim(
            "loses",
            "S4D loses accuracy where B and C are tied across channels",
            "mean over seeds lower by more than the larger deviation",
            _drop(0.0),
        ),
        Claim(
            "8 points",
            "it loses 8 points and more (about 88 % to below 80 % at full size)",
            "mean over seeds lower by 8 points; undecided within the larger deviation of it",
            _drop(8.0),
        ),
    ]

    def cells(self, form: Form) -> list[Cell]:
        size = _sizes(form, steps=900)
        seeds = (0,) if form == "quick" else (0, 1, 2)
        return [{"tied": tied, "seed": seed, **size} for seed in seeds for tied in TIED.values()]

    def run(self, cell: Cell) -> list[dict[str, Any]]:
        tied = cell["tied"]
        layer = LayerSpec(S4D, d_state=16, tie_A=True, tie_B=tied, tie_C=tied)
        return [accuracy(layer, cell, grayscale=True)]

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        figure.set_size_inches(4.5, 3.5)
        axes = figure.subplots()
        for place, tied in enumerate(TIED.values()):
            found = rows[rows["tied"] == tied]["accuracy"]
            color = "#c0392b" if tied else "#1f6fb4"
            axes.errorbar(place, found.mean(), found.std() if len(found) > 1 else 0, fmt="o", color=color, capsize=4)
            axes.plot([place + 0.08] * len(found), found, ".", color=color, alpha=0.5)
            axes.annotate(f"{found.mean():.1f} %", (place - 0.1, found.mean()), ha="right", va="center", color=color)
        axes.set(xticks=range(len(TIED)), xticklabels=list(TIED), xlim=(-0.6, 1.4))
        axes.set_ylabel("test accuracy in %, gray 16 × 16\n(mean ± deviation; dots: seeds)")
        axes.set_title("S4D", fontsize=10)


# -- table 1 -----------------------------------------------------------------------------------------------------------

VARIANTS = {  # complex, bias
    "complex, with bias": (True, True),
    "complex, without bias": (True, False),
    "real, with bias": (False, True),
}
VARIANT_COLORS = ["#2e8b57", "#e08a1e", "#c0392b"]


def _by_part(better: str, worse: str) -> Any:
    return lambda rows: _gain(_block_means(rows), *(_block_means(rows)["variant"] == name for name in (better, worse)))


def _block_means(rows: pd.DataFrame) -> pd.DataFrame:
    """The mean over numbers of blocks, for every seed and variant."""
    return rows.groupby(["variant", "seed", "pixels"], sort=False)["accuracy"].mean().reset_index()


def _blocks(rows: pd.DataFrame) -> Judgement:
    chosen = rows[rows["variant"] == "complex, with bias"]
    return _gain(chosen, chosen["h"] == 8, chosen["h"] == 1)


BY_PART = "mean over numbers of blocks, then over seeds, higher by more than the larger deviation over seeds"


class Ablation(Experiment):
    """B2S6's accuracy by number of blocks, complex or real, with its bias or without."""

    claims = [
        Claim("bias", "B2S6 needs its bias", BY_PART, _by_part("complex, with bias", "complex, without bias")),
        Claim("complex", "complex is better than real", BY_PART, _by_part("complex, with bias", "real, with bias")),
        Claim("blocks", "8 blocks are better than 1", "mean higher by more than the larger deviation", _blocks),
    ]

    def cells(self, form: Form) -> list[Cell]:
        size, quick = _sizes(form, steps=1800), form == "quick"
        blocks: Sequence[int] = (1, 8) if quick else (1, 8, 64)
        seeds = (0,) if quick else (0, 1, 2)
        return [
            {"variant": variant, "h": h, "seed": seed, **size} for seed in seeds for h in blocks for variant in VARIANTS
        ]

    def run(self, cell: Cell) -> list[dict[str, Any]]:
        complex_A, bias = VARIANTS[cell["variant"]]
        layer = LayerSpec(B2S6, d_state=16, num_blocks=cell["h"], complex_A=complex_A, bias=bias)
        return [accuracy(layer, cell, grayscale=False)]

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        axes = figure.subplots()
        for (name, color), shift in zip(zip(VARIANTS, VARIANT_COLORS, strict=True), (-0.06, 0, 0.06), strict=True):
            found = by_seed(rows[rows["variant"] == name], ["h"], "accuracy")
            places = found["h"].map({h: place for place, h in enumerate(sorted(rows["h"].unique()))}) + shift
            axes.errorbar(places, found["mean"], found["std"], fmt="o-", color=color, capsize=3, label=name)
        blocks = sorted(rows["h"].unique())
        axes.set(xticks=range(len(blocks)), xticklabels=[f"{h} × {rows['d'].iloc[0] // h}" for h in blocks])
        axes.set_xlabel("blocks × channels of each")
        axes.set_ylabel("test accuracy in %, RGB 16 × 16\n(mean ± deviation over seeds)")
        axes.legend(frameon=False)


def _sizes(form: Form, steps: int) -> Cell:
    if form == "quick":  # without data, and of a stand-in
        return {"images": "made up", "d": 8, "steps": 2}
    return {"images": "real", "d": 64, "steps": steps}
