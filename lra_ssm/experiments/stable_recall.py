"""StableSSM's table 7 over 20 tokens: associative recall by f of λ = f(w).

Source: Wang & Li 2024, appendix F.4, which gives lengths and vocabularies alone. Layers, sizes and rates are those of
S5's public code for the task (lindermanlab/S5, branch development, configs/hyena_S5/associative_recall_20_10_S5.yaml),
in which the table's "Exp(S5)" and "Clip" fit: Hyena's operator around S5 with f on Re A, Δ from 0.0001. As there, every
next token is scored in training and the last one, the value that was asked for, in testing. Seeds are ours.
"""

from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from lra_ssm.datamodules import AssociativeRecall
from lra_ssm.datamodules.batches import Batch
from lra_ssm.experiments.base import Cell, Experiment, Form, Judgement, Rows, by_seed, claim, draw_mean, grid, only
from lra_ssm.experiments.stable_bounds import COLORS
from lra_ssm.experiments.train import batches, train
from lra_ssm.layers import S5, HyenaBlock, LayerSpec
from lra_ssm.models import LanguageModel
from lra_ssm.tasks.optim import OptimizerSettings

PUBLISHED = {"best": (57.95, 99.8), "exp": (54.55, 99.8), "clip": (50.0, 76.6), "direct": (43.18, 67.0)}
OPTIMIZER = OptimizerSettings(
    lr=0.001, recurrent_lr=0.001, delta_lr_factor=1.0, weight_decay=0.1, warmup_steps=0.1, betas=(0.9, 0.999)
)


def _network(form: str) -> nn.Module:
    layer = LayerSpec(
        S5, d_state=32, num_blocks=16, C_init="complex_normal", delta_min=1e-4, delta_max=0.1, parameterization=form
    )
    block = LayerSpec(HyenaBlock, activation="half_glu2", skip=False)
    return LanguageModel(layer, vocab_size=10, d_model=64, n_layers=2, block=block, pad_vocab_size_multiple=1)


def _next_tokens(batch: Batch) -> Batch:
    """With the token after each position as its label, and after the last the value that is asked for."""
    return batch._replace(labels=torch.cat([batch.inputs[:, 1:], batch.labels[:, None]], 1))


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


@torch.no_grad()
def _right(network: nn.Module, data: AssociativeRecall, split: str) -> Tensor:
    """Percent that is right at each position, of as many examples as the test set has."""
    network.eval()
    batch = _next_tokens(data.open_split(split).batch(torch.arange(data.num_test).numpy(), 0))
    right = (network(batch.inputs).argmax(-1) == batch.labels).double().mean(0)
    network.train()
    return 100 * right


def _final(rows: pd.DataFrame, first: str, second: str) -> tuple[Any, Any, str]:
    """The means of two forms at the end, their deviations, and both as text."""
    found = by_seed(only(rows, step=rows["step"].max()), ["form"], "test").set_index("form").loc[[first, second]]
    said = ", ".join(f"{one.Index} {one.mean:.1f} ± {one.std:.1f}" for one in found.itertuples())
    return found["mean"], found["std"], said


class Recall(Experiment):
    """Accuracy in percent, of all positions on examples of training and of the value asked for in testing."""

    @claim("the means over seeds of both are at least 99 %", "best and exp recall")
    def recall(self, rows: pd.DataFrame) -> Judgement:
        """best and exp recall, both with 99.8 % in testing"""
        means, _, said = _final(rows, "best", "exp")
        return Judgement.of(means.min() >= 99, said)

    @claim(
        "the mean over seeds is greater, by more than both deviations together; else undecided",
        "{first} over {second}",
        [
            {"first": "exp", "second": "clip", "published": "99.8 against 76.6"},
            {"first": "clip", "second": "direct", "published": "76.6 against 67.0"},
        ],
    )
    def beats(self, rows: pd.DataFrame, first: str, second: str, **_: str) -> Judgement:
        """{first} beats {second}, {published} % in testing"""
        means, spreads, said = _final(rows, first, second)
        return Judgement.beyond(means[first] - means[second], spreads.sum(), said)

    def cells(self, form: Form) -> list[Cell]:
        steps, seeds, points = (2, 1, 2) if form == "quick" else (50_000, 3, 10)
        return grid(seed=range(seeds), form=PUBLISHED, steps=[steps], points=[points])

    def run(self, cell: Cell) -> Rows:
        torch.manual_seed(cell["seed"])
        steps, found = cell["steps"], []
        data = AssociativeRecall(num_train=4000, num_test=min(500, 10 * steps), batch_size=4)
        network = _network(cell["form"])

        def measure(step: int, loss: float) -> None:
            if step % (steps // cell["points"]) == 0:
                train, test = (_right(network, data, split) for split in ("train", "test"))
                found.append({"step": step, "train": float(train.mean()), "test": float(test[-1])})

        train(network, map(_next_tokens, batches(data, seed=cell["seed"])), steps, OPTIMIZER, _loss, measure)
        measure(steps, 0.0)
        return found

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        figure.set_size_inches(9, 3.6)
        left, right = figure.subplots(1, 2)
        for form, published in PUBLISHED.items():
            for axes, name, percent in zip((left, right), ("train", "test"), published, strict=True):
                draw_mean(axes, only(rows, form=form), "step", name, color=COLORS[form], label=form)
                axes.plot(rows["step"].max() * 1.04, percent, "<", color=COLORS[form], markersize=6)
        left.set(xlabel="step", ylabel="right in training, %", title="every next token")
        right.set(xlabel="step", ylabel="right in testing, %", title="the value that was asked for")
        right.axhline(25, color="#bbbbbb", linewidth=1, linestyle=":")
        right.text(0, 26, "guessing among the values", fontsize=8, color="#7f7f7f")
        left.legend(fontsize=8, title="mean ± deviation of the seeds\narrows: table 7", title_fontsize=8)
