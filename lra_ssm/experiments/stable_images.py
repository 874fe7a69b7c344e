"""StableSSM's tables 2 and 3, reduced: the test loss on MNIST and CIFAR-10 by learning rate and by f of λ = f(w).

Source: Wang & Li 2024, section 4.3; of its public code (radarFudan/StableSSM): three seeds, width 64, S4D's states with
f on Re A, all from Re A = -1/2, AdamW with decay 0.01 on everything at one rate, a cosine to 0, batches of 128. Reduced
to what a CPU does in under two hours: images of half the side (196 and 256 pixels), for 10 epochs of 6,400 (MNIST) and
3,200 (CIFAR-10), 2,000 for testing; 1 layer for MNIST, as there, 2 for CIFAR-10, 6 there. The cosine goes by steps. The
public code starts direct at Re A = +1/2, unstable from the first step: a column of its own here, "direct, +1/2".
In full: slurm/sweeps/stable-ssm.yaml.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import nn
from torch.nn import functional as F

from lra_ssm.datamodules import MNIST, SCIFAR
from lra_ssm.datamodules.images.published import PublishedImages
from lra_ssm.datamodules.loading.batches import Batch
from lra_ssm.experiments.base import Cell, Claim, Experiment, Form, Judgement, by_seed
from lra_ssm.experiments.images import Images, images_of, made_up
from lra_ssm.experiments.stable_bounds import COLORS
from lra_ssm.experiments.train import train
from lra_ssm.layers import LayerSpec, S4Block, StableSSM
from lra_ssm.models import Classifier
from lra_ssm.tasks.optim import OptimizerSettings

RATES = (5e-6, 5e-5, 5e-4, 5e-3, 5e-2, 5e-1, 5e0)
FORMS = ("direct", "softplus", "exp", "best")
UNSTABLE = "direct, +1/2"
BATCH = 128
CHANCE = math.log(10)
TRAINED = CHANCE - 0.1  # a loss below it is more than guessing


class _Diverged(Exception):
    """The loss is no number any more."""


def _network(form: str, d_input: int, layers: int) -> nn.Module:
    parameterization = "direct" if form == UNSTABLE else form
    layer = LayerSpec(StableSSM, d_state=64, parameterization=parameterization, learn_B=False)
    block = LayerSpec(S4Block, norm="layer")
    network = Classifier(layer, num_classes=10, d_input=d_input, d_model=64, n_layers=layers, block=block)
    if form == UNSTABLE:
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                if name.endswith("A_log"):
                    parameter.neg_()
    return network


def _halved(batch: Batch, count: int) -> Batch:
    """The first `count` images, of half the side: (n, L, C) -> (n, L/4, C)."""
    inputs, side = batch.inputs[:count], math.isqrt(batch.inputs.shape[1])
    pixels = F.avg_pool2d(inputs.transpose(1, 2).unflatten(2, (side, side)), 2)
    return Batch(pixels.flatten(2).transpose(1, 2).contiguous(), None, batch.labels[:count])


def _shuffled(examples: Batch, seed: int) -> Iterator[Batch]:
    """Batches without end, every epoch in another order."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        for part in torch.randperm(len(examples.labels), generator=generator).split(BATCH):
            yield Batch(examples.inputs[part], None, examples.labels[part])


@torch.no_grad()
def _test(network: nn.Module, examples: Batch) -> tuple[float, float]:
    """The mean loss, and the percentage that is right."""
    network.eval()
    logits = torch.cat([network(inputs) for inputs in examples.inputs.split(BATCH)])
    loss = float(F.cross_entropy(logits, examples.labels))
    return loss, 100 * float((logits.argmax(-1) == examples.labels).double().mean())


def _losses(rows: pd.DataFrame, form: str) -> pd.DataFrame:
    """Test losses, a row a rate, a column a seed; what is no number is infinite."""
    own = rows[rows["form"] == form].pivot(index="lr", columns="seed", values="loss")
    return own.fillna(math.inf)


def _largest_rate(rows: pd.DataFrame, form: str) -> float:
    """At which every seed learns something; 0 where there is none."""
    losses = _losses(rows, form)
    return max((float(lr) for lr in losses.index if (losses.loc[lr] < TRAINED).all()), default=0.0)


def _judge_largest(rows: pd.DataFrame) -> Judgement:
    largest = {form: _largest_rate(rows, form) for form in FORMS}
    others = max(rate for form, rate in largest.items() if form != "best")
    said = ", ".join(f"{form} {rate:g}" for form, rate in largest.items())
    if largest["best"] == others:
        return Judgement("undecided", said)
    return Judgement.of(largest["best"] > others, said)


def _judge_highest(rows: pd.DataFrame) -> Judgement:
    finite = {form: np.isfinite(_losses(rows, form).iloc[-1]) for form in ("softplus", "exp", "best")}
    said = ", ".join(f"{form} {kept.sum()} of {len(kept)} finite" for form, kept in finite.items())
    return Judgement.of(finite["best"].all() and not finite["exp"].all() and not finite["softplus"].all(), said)


def _clearly_lower(one: "pd.Series[float]", other: "pd.Series[float]") -> bool:
    """In the mean, by more than the larger deviation; a loss that is no number is higher than any."""
    if not np.isfinite(one).all():
        return False
    gap = other.mean() - one.mean()
    return not np.isfinite(gap) or bool(gap > max(one.std(ddof=0), other.std(ddof=0)))


def _judge_lowest(rows: pd.DataFrame) -> Judgement:
    best, others = _losses(rows, "best"), [_losses(rows, form) for form in ("softplus", "exp")]
    better = sum(all(_clearly_lower(best.loc[lr], other.loc[lr]) for other in others) for lr in best.index)
    worse = sum(any(_clearly_lower(other.loc[lr], best.loc[lr]) for other in others) for lr in best.index)
    said = f"lower than both at {better} of {len(best)} rates, higher than one at {worse}"
    half = len(best) / 2
    return Judgement("holds" if better > half else "does not hold" if worse > half else "undecided", said)


def _judge_alike(rows: pd.DataFrame) -> Judgement:
    worst = 0.0
    for lr in [lr for lr in _losses(rows, "best").index if lr <= 5e-4]:
        means = [_losses(rows, form).loc[lr].mean() for form in ("softplus", "exp", "best")]
        worst = max(worst, max(means) / min(means) - 1)
    return Judgement.of(worst <= 0.05, f"at most {100 * worst:.2g} % apart")


def _judge_direct(rows: pd.DataFrame) -> Judgement:
    losses = _losses(rows, "direct")
    high = losses[losses.index >= 5e-3]
    failed = [(row >= TRAINED).any() for _, row in high.iterrows()]
    numbers = [f"{form} learns up to a rate of {_largest_rate(rows, form):g}" for form in ("direct", UNSTABLE)]
    return Judgement.of(all(failed), "; ".join(numbers))


class _ByRate(Experiment):
    """Test losses by learning rate and f."""

    layers: ClassVar[int]
    count: ClassVar[int]  # images in training

    claims = [
        Claim(
            "largest rate",
            "best can be trained with larger learning rates than the others",
            f"the largest rate at which all seeds end below a test loss of {TRAINED:.2f} is larger for best than for "
            "softplus, exp and direct; undecided where another's is the same",
            _judge_largest,
        ),
        Claim(
            "rate 5",
            "at a rate of 5 softplus and exp diverge and best does not",
            "all test losses of best are finite there, and not all of softplus, nor of exp",
            _judge_highest,
        ),
        Claim(
            "lowest loss",
            "best outperforms softplus and exp across learning rates",
            "its mean test loss is lower than both, by more than the larger deviation over seeds, at more than half of "
            "the rates; does not hold where it is higher so than one of them at more than half",
            _judge_lowest,
        ),
        Claim(
            "low rates",
            "at rates up to 5e-4 softplus, exp and best do about the same",
            "mean test losses within 5 %",
            _judge_alike,
        ),
        Claim(
            "direct",
            "without reparameterization nothing is learned at rates from 5e-3 on",
            "at each of them some seed of direct, from Re A = -1/2, ends above that loss",
            _judge_direct,
        ),
    ]

    @abstractmethod
    def images(self, count: int) -> Images:
        """As many prepared ones in training, or a few that are made up for 0."""

    def cells(self, form: Form) -> list[Cell]:
        if form == "quick":
            return [{"form": f, "lr": 5e-4, "seed": 0, "images": 0, "steps": 1} for f in FORMS]
        return [
            {"form": f, "lr": lr, "seed": seed, "images": self.count, "steps": 10 * self.count // BATCH}
            for seed in range(3)
            for lr in RATES
            for f in (*FORMS, UNSTABLE)
        ]

    def run(self, cell: Cell) -> list[dict[str, Any]]:
        images, lr = self.images(cell["images"]), cell["lr"]
        torch.manual_seed(cell["seed"])
        network = _network(cell["form"], images.splits["train"].inputs.shape[-1], self.layers)
        optimizer = OptimizerSettings(
            lr=lr, recurrent_lr=lr, delta_lr_factor=1.0, weight_decay=0.01, decay_biases_and_norms=True,
            recurrent_weight_decay=0.01, delta_weight_decay=0.01, warmup_steps=0,
        )  # fmt: skip

        def watch(step: int, loss: float) -> None:
            if not math.isfinite(loss):
                raise _Diverged(step)

        loss, right, end = math.nan, math.nan, cell["steps"]
        try:
            data = _shuffled(images.splits["train"], cell["seed"])
            train(network, data, cell["steps"], optimizer, F.cross_entropy, watch)
            loss, right = _test(network, images.splits["test"])
        except _Diverged as diverged:
            end = diverged.args[0]
        return [{"loss": loss, "accuracy": right, "end": end, "pixels": images.pixels}]

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        axes = figure.subplots()
        shown = [form for form in (*FORMS, UNSTABLE) if form in set(rows["form"])]
        for place, form in enumerate(shown):
            own = rows[rows["form"] == form]
            color, line = COLORS[form.split(",")[0]], ":" if form == UNSTABLE else "-"
            means = by_seed(own.dropna(subset="loss"), ["lr"], "loss")
            axes.errorbar(
                means["lr"], means["mean"], means["std"], fmt=f"o{line}", markersize=3, label=form, color=color
            )
            lost = own[own["loss"].isna()].groupby("lr").size()
            for lr, count in lost.items():
                axes.plot(lr, 900 / 1.5**place, "x", color=color, markersize=3 + count)
        axes.axhline(CHANCE, color="#bbbbbb", linewidth=1, linestyle=":")
        axes.text(0.01, CHANCE, "guessing", transform=axes.get_yaxis_transform(), fontsize=8, color="#7f7f7f")
        axes.set(xscale="log", yscale="log", xlabel="learning rate", ylabel="test loss, mean ± deviation of seeds")
        axes.legend(frameon=False, fontsize=8, title="× : seeds that diverged", title_fontsize=8)


@cache
def _reduced(make: Callable[[], PublishedImages], count: int) -> Images:
    data = make()
    found = images_of(data) if count else made_up(data, 20)
    counts = {"train": count or 20, "test": 2000}
    return Images({name: _halved(found.splits[name], count) for name, count in counts.items()}, found.pixels)


def _mnist() -> PublishedImages:
    return MNIST(mean=0.1307, std=0.3081)


def _cifar10() -> PublishedImages:
    return SCIFAR(std=(0.2023, 0.1994, 0.201))


class MNISTByRate(_ByRate):
    """Table 2."""

    layers, count = 1, 6400

    def images(self, count: int) -> Images:
        return _reduced(_mnist, count)


class CIFAR10ByRate(_ByRate):
    """Table 3."""

    layers, count = 2, 3200

    def images(self, count: int) -> Images:
        return _reduced(_cifar10, count)
