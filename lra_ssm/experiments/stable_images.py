"""StableSSM's tables 2 and 3, reduced: the test loss on MNIST and CIFAR-10 by learning rate and by f of λ = f(w).

Source: Wang & Li 2024, section 4.3; of its public code (radarFudan/StableSSM): three seeds, width 64, S4D's states with
f on Re A, all from Re A = -1/2, AdamW with decay 0.01 on everything at one rate, a cosine to 0, batches of 128. Reduced
to what a CPU does in under two hours: images of half the side (196 and 256 pixels), for 10 epochs of 6,400 (MNIST) and
3,200 (CIFAR-10), 2,000 for testing; 1 layer for MNIST, as there, 2 for CIFAR-10, 6 there. The cosine goes by steps. The
public code starts direct at Re A = +1/2, unstable from the first step: a column of its own here, "direct, +1/2".
In full: slurm/sweeps/stable-ssm.yaml.
"""

import math
from functools import cache
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import nn
from torch.nn import functional as F

from lra_ssm.datamodules import MNIST, SCIFAR
from lra_ssm.datamodules.batches import Batch
from lra_ssm.experiments.base import Cell, Experiment, Form, Judgement, Rows, by_seed, claim, grid
from lra_ssm.experiments.images import Images, batches_of, images_of, logits, made_up
from lra_ssm.experiments.stable_bounds import COLORS
from lra_ssm.experiments.train import train
from lra_ssm.layers import LayerSpec, S4Block, StableSSM
from lra_ssm.models import Classifier
from lra_ssm.tasks.optim import OptimizerSettings

Dataset = Literal["MNIST", "CIFAR-10"]
LAYERS: dict[Dataset, int] = {"MNIST": 1, "CIFAR-10": 2}
IN_TRAINING: dict[Dataset, int] = {"MNIST": 6400, "CIFAR-10": 3200}
RATES = (5e-6, 5e-5, 5e-4, 5e-3, 5e-2, 5e-1, 5e0)
FORMS = ("direct", "softplus", "exp", "best")
UNSTABLE = "direct, +1/2"
BATCH = 128
CHANCE = math.log(10)
TRAINED = CHANCE - 0.1  # a loss below it is more than guessing


@cache
def _images(dataset: Dataset, count: int) -> Images:
    """`count` prepared ones in training, or a few that are made up for 0."""
    data = MNIST(mean=0.1307, std=0.3081) if dataset == "MNIST" else SCIFAR(std=(0.2023, 0.1994, 0.201))
    found = images_of(data) if count else made_up(data, 20)
    counts = {"train": count or 20, "test": 2000}
    return Images({name: _halved(found.splits[name], count) for name, count in counts.items()}, found.pixels)


def _halved(batch: Batch, count: int) -> Batch:
    """The first `count` images, of half the side: (n, L, C) -> (n, L/4, C)."""
    inputs, side = batch.inputs[:count], math.isqrt(batch.inputs.shape[1])
    pixels = F.avg_pool2d(inputs.transpose(1, 2).unflatten(2, (side, side)), 2)
    return Batch(pixels.flatten(2).transpose(1, 2).contiguous(), None, batch.labels[:count])


def _network(form: str, d_input: int, layers: int) -> nn.Module:
    layer = LayerSpec(StableSSM, d_state=64, parameterization=form.removesuffix(", +1/2"), learn_B=False)
    block = LayerSpec(S4Block, norm="layer")
    network = Classifier(layer, num_classes=10, d_input=d_input, d_model=64, n_layers=layers, block=block)
    for name, parameter in network.named_parameters():
        if form == UNSTABLE and name.endswith("A_log"):
            parameter.data.neg_()
    return network


def _stop_at_no_number(step: int, loss: float) -> None:
    if not math.isfinite(loss):
        raise FloatingPointError(f"step {step}: the loss is {loss}")


def _losses(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Test losses by form: a row a rate, a column a seed; what is no number is infinite."""
    return {
        str(form): own.pivot(index="lr", columns="seed", values="loss").fillna(math.inf)
        for form, own in rows.groupby("form")
    }


def _largest_rate(losses: pd.DataFrame) -> float:
    """At which every seed learns something; 0 where there is none."""
    return max(losses.index[(losses < TRAINED).all(axis=1)], default=0.0)


def _clearly_lower(one: pd.DataFrame, other: pd.DataFrame) -> "pd.Series[bool]":
    """By rate: in the mean, by more than the larger deviation; a loss that is no number is higher than any."""
    spread = np.maximum(one.std(axis=1, ddof=0), other.std(axis=1, ddof=0)).fillna(0)
    return np.isfinite(one).all(axis=1) & (other.mean(axis=1) - one.mean(axis=1) > spread)


class _ByRate(Experiment):
    """Test losses by learning rate and f."""

    dataset: ClassVar[Dataset]

    @claim(
        f"the largest rate at which all seeds end below a test loss of {TRAINED:.2f} is larger for best than for "
        "softplus, exp and direct; undecided where another's is the same",
        "largest rate",
    )
    def largest_rate(self, rows: pd.DataFrame) -> Judgement:
        """best can be trained with larger learning rates than the others"""
        losses = _losses(rows)
        largest = {form: _largest_rate(losses[form]) for form in FORMS}
        others = max(rate for form, rate in largest.items() if form != "best")
        said = ", ".join(f"{form} {rate:g}" for form, rate in largest.items())
        return Judgement.beyond(largest["best"] - others, 0, said)

    @claim("all test losses of best are finite there, and not all of softplus, nor of exp", "rate 5")
    def highest(self, rows: pd.DataFrame) -> Judgement:
        """at a rate of 5 softplus and exp diverge and best does not"""
        losses = _losses(rows)
        finite = {form: np.isfinite(losses[form].iloc[-1]) for form in ("softplus", "exp", "best")}
        said = ", ".join(f"{form} {kept.sum()} of {len(kept)} finite" for form, kept in finite.items())
        return Judgement.of(finite["best"].all() and not finite["exp"].all() and not finite["softplus"].all(), said)

    @claim(
        "its mean test loss is lower than both, by more than the larger deviation over seeds, at more than half of the "
        "rates; does not hold where it is higher so than one of them at more than half",
        "lowest loss",
    )
    def lowest(self, rows: pd.DataFrame) -> Judgement:
        """best outperforms softplus and exp across learning rates"""
        losses = _losses(rows)
        best, softplus, exp = (losses[form] for form in ("best", "softplus", "exp"))
        better = int((_clearly_lower(best, softplus) & _clearly_lower(best, exp)).sum())
        worse = int((_clearly_lower(softplus, best) | _clearly_lower(exp, best)).sum())
        said = f"lower than both at {better} of {len(best)} rates, higher than one at {worse}"
        half = len(best) / 2
        return Judgement("holds" if better > half else "does not hold" if worse > half else "undecided", said)

    @claim("mean test losses within 5 %", "low rates")
    def alike(self, rows: pd.DataFrame) -> Judgement:
        """at rates up to 5e-4 softplus, exp and best do about the same"""
        low = rows[rows["form"].isin(("softplus", "exp", "best")) & (rows["lr"] <= 5e-4)].fillna({"loss": math.inf})
        means = low.pivot_table("loss", "lr", "form")
        worst = float((means.max(axis=1) / means.min(axis=1)).max()) - 1
        return Judgement.of(worst <= 0.05, f"at most {100 * worst:.2g} % apart")

    @claim("at each of them some seed of direct, from Re A = -1/2, ends above that loss")
    def direct(self, rows: pd.DataFrame) -> Judgement:
        """without reparameterization nothing is learned at rates from 5e-3 on"""
        losses = _losses(rows)
        high = losses["direct"][losses["direct"].index >= 5e-3]
        said = [f"{form} learns up to a rate of {_largest_rate(losses[form]):g}" for form in ("direct", UNSTABLE)]
        return Judgement.of((high >= TRAINED).any(axis=1).all(), "; ".join(said))

    def cells(self, form: Form) -> list[Cell]:
        forms = (*FORMS, UNSTABLE)
        if form == "quick":
            return grid(form=forms, lr=[5e-4], seed=[0], images=[0], steps=[1])
        count = IN_TRAINING[self.dataset]
        cells = grid(seed=range(3), lr=RATES, form=forms)
        return [{**cell, "images": count, "steps": 10 * count // BATCH} for cell in cells]

    def run(self, cell: Cell) -> Rows:
        images, lr, seed = _images(self.dataset, cell["images"]), cell["lr"], cell["seed"]
        torch.manual_seed(seed)
        network = _network(cell["form"], images.splits["train"].inputs.shape[-1], LAYERS[self.dataset])
        optimizer = OptimizerSettings(
            lr=lr, recurrent_lr=lr, delta_lr_factor=1.0, weight_decay=0.01, decay_biases_and_norms=True,
            recurrent_weight_decay=0.01, delta_weight_decay=0.01, warmup_steps=0,
        )  # fmt: skip
        data, test = batches_of(images.splits["train"], BATCH, seed), images.splits["test"]
        try:
            train(network, data, cell["steps"], optimizer, F.cross_entropy, _stop_at_no_number)
            loss = float(F.cross_entropy(logits(network, test), test.labels))
        except FloatingPointError:
            loss = math.nan
        return [{"loss": loss, "pixels": images.pixels}]

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        axes = figure.subplots()
        for place, (form, own) in enumerate(rows.groupby("form", sort=False)):
            color, line = COLORS[str(form).split(",")[0]], ":" if form == UNSTABLE else "-"
            means, beside = by_seed(own.dropna(subset="loss"), ["lr"], "loss"), 1.12 ** (place - 2)
            axes.errorbar(
                beside * means["lr"], means["mean"], means["std"], fmt=f"o{line}", markersize=3, label=form, color=color
            )
            for lr, count in own[own["loss"].isna()].groupby("lr").size().items():
                axes.plot(
                    beside * lr, 0.96, "x", color=color, markersize=3 + count, transform=axes.get_xaxis_transform()
                )
        axes.axhline(CHANCE, color="#bbbbbb", linewidth=1, linestyle=":")
        axes.text(
            0.5, CHANCE, "guessing", transform=axes.get_yaxis_transform(), fontsize=8, color="#7f7f7f", va="bottom"
        )
        axes.set(xscale="log", yscale="log", xlabel="learning rate (points of one rate side by side)")
        axes.set_ylabel("test loss, mean ± deviation of seeds")
        bottom, top = axes.get_ylim()
        axes.set_ylim(bottom, top * (top / bottom) ** 0.15)
        axes.legend(fontsize=8, title="× : seeds that diverged", title_fontsize=8, loc="lower left")


class MNISTByRate(_ByRate):
    """Table 2."""

    dataset = "MNIST"


class CIFAR10ByRate(_ByRate):
    """Table 3."""

    dataset = "CIFAR-10"
