"""Whether a learning rate that is best for a narrow model is best for a wide one, as Everett et al. 2024 ask.

The bigram model of the note, and a small language model of characters with S6 or B2S6 in Mamba's block. Everett et al.
train transformers of up to 26.8 billion parameters; data, sizes and steps here are ours. At width 64 all
parameterizations are one model; "as it is" widens it without any, as PyTorch does: one rate for all.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lra_ssm.datamodules import Corpus
from lra_ssm.datamodules.batches import TokenBatch
from lra_ssm.errors import InputError
from lra_ssm.experiments.base import Cell, Claim, Experiment, Form, Judgement, Rows, claim, grid, only
from lra_ssm.experiments.train import descend
from lra_ssm.experiments.width_bigram import DEPTH, WIDTHS, batches, generator, learn
from lra_ssm.layers import B2S6, S6, LayerSpec
from lra_ssm.models import LanguageModel
from lra_ssm.tasks.optim import OptimizerSettings, optimizer_and_schedule
from lra_ssm.width.bigram import Bigram
from lra_ssm.width.parameterizations import PARAMETERIZATIONS, Exponents
from lra_ssm.width.scaling import WidthSettings, scale_initial_values, width_factors

BASE, AS_IT_IS = 64, "as it is"


def best_rates(rows: pd.DataFrame) -> tuple["pd.Series[float]", str]:
    """By width the rate with the least mean loss, and all as text."""
    best = rows.pivot_table("loss", "lr", "d").idxmin()
    return best, "best rates " + ", ".join(f"d {d}: {rate:g}" for d, rate in best.items())


class _Transfer(Experiment):
    """How the best rate of each variant goes with the width."""

    @claim("the best rate of the widest is a quarter of the narrowest one's at most", f"{AS_IT_IS} falls")
    def falls(self, rows: pd.DataFrame) -> Judgement:
        """with one rate for all and no parameterization, the best rate falls with the width"""
        best, told = best_rates(only(rows, variant=AS_IT_IS))
        return Judgement.of(best.iloc[-1] / best.iloc[0] < 0.26, told)

    @claim(
        "the best rate of the widest is within a factor of 2, a step of the grid, of the narrowest one's",
        "{variant} stays",
        [{"variant": "sp", "said": "SP's rates by layer"}, {"variant": "mup", "said": "muP"}],
    )
    def stays(self, rows: pd.DataFrame, variant: str, said: str) -> Judgement:
        """with {said} the best rate stays"""
        best, told = best_rates(only(rows, variant=variant))
        return Judgement.of(0.49 < best.iloc[-1] / best.iloc[0] < 2.1, told)

    @claim("at the narrowest one's best rate the loss grows by 0.01 at most from a width to the next", "mup improves")
    def improves(self, rows: pd.DataFrame) -> Judgement:
        """with muP a wider model is no worse at the same rate"""
        rows = only(rows, variant="mup")
        best, _ = best_rates(rows)
        losses = only(rows, lr=best.iloc[0]).groupby("d")["loss"].mean()
        told = ", ".join(f"d {d}: {loss:.3f}" for d, loss in losses.items())
        return Judgement.of((losses.diff().dropna() <= 0.01).all(), told)


class BigramTransfer(_Transfer):
    """200 steps of Adam (betas 0.9 and 0.95, epsilon 1e-12), its rate going down to 0 in a line; V = 64, RMSNorm, two
    seeds. The loss is the mean of the last 20 steps."""

    def cells(self, form: Form) -> list[Cell]:
        variants, rates = (AS_IT_IS, "sp", "mup"), [0.001 * 2**i for i in range(8)]
        if form == "quick":
            return grid(d=(64, 128), variant=variants, lr=rates[2:6:2], seeds=[1], steps=[5])
        return grid(d=WIDTHS, variant=variants, lr=rates, seeds=[2], steps=[200])

    def run(self, cell: Cell) -> Rows:
        return [{"seed": seed, "loss": self._loss(cell, seed)} for seed in range(cell["seeds"])]

    def _loss(self, cell: Cell, seed: int) -> float:
        given = PARAMETERIZATIONS["sp" if cell["variant"] == AS_IT_IS else cell["variant"]]
        if cell["variant"] == AS_IT_IS:
            given = {layer: Exponents(a, b, 0) for layer, (a, b, _) in given.items()}
        model = Bigram(cell["d"], 64, given, DEPTH, rms_norm=True, base=BASE, generator=generator(seed))
        optimizer = torch.optim.Adam(list(model.groups(cell["lr"])), betas=(0.9, 0.95), eps=1e-12)
        down = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0, cell["steps"])
        return _last(learn(model, batches(64, seed), cell["steps"], optimizer, down))

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        figure.set_size_inches(10, 3.4)
        variants = rows["variant"].unique()
        for axes, variant in zip(figure.subplots(1, len(variants), sharey=True), variants, strict=True):
            _curves(axes, only(rows, variant=variant))
            axes.set_title(variant, fontsize=9)


def _last(losses: list[float]) -> float:
    return sum(losses[-20:]) / len(losses[-20:])


def _curves(axes: Any, rows: pd.DataFrame) -> None:
    """Loss over rate, a line for each width, the best one marked."""
    means = rows.pivot_table("loss", "lr", "d")
    lowest, shades = means.min().min(), np.linspace(0, 1, len(means.columns))
    for (d, curve), shade in zip(means.items(), shades, strict=True):
        color = (0.85 - 0.8 * shade, 0.35, 0.2 + 0.6 * shade)
        axes.plot(curve, "o-", color=color, markersize=3, linewidth=1, label=f"d = {d}")
        axes.plot(curve.idxmin(), curve.min(), "*", color=color, markersize=11)
    axes.set(xscale="log", xlabel="learning rate (best: star)", ylabel="loss, nats")
    axes.set_ylim(lowest - 0.05, min(means.max().max() + 0.05, lowest + 1.5))
    axes.legend(fontsize=7)


TEXT = Path("data/tinyshakespeare/input.txt")
VARIANTS: dict[str, dict[str, Any] | None] = {
    AS_IT_IS: None,
    "sp": {"parameterization": "sp"},
    "mup": {"parameterization": "mup", "states": "hidden"},
    "mup, states readout": {"parameterization": "mup", "states": "readout"},
}
LAYERS = {"S6": LayerSpec(S6), "B2S6": LayerSpec(B2S6)}


def _of_layer(claim: Claim, layer: str) -> Claim:
    def judge(experiment: Experiment, rows: pd.DataFrame) -> Judgement:
        return claim.judge(experiment, only(rows, layer=layer))

    return claim._replace(name=f"{layer} {claim.name}", statement=f"{layer}: {claim.statement}", judge=judge)


class LanguageModelTransfer(Experiment):
    """Two blocks, head untied, windows of 64 characters of tinyshakespeare, 8 of them a step; 200 steps of AdamW
    (betas 0.9 and 0.95, no decay), 20 of them warm-up, then a cosine to a tenth; one rate for all roles. The loss is
    the mean of the last 20 steps, on the same batches in every run; one seed.

    "mup" scales what maps channels to states (B, C and Δ) as a hidden layer, "mup, states readout" as a readout.
    Vankadara et al. 2024 ("On Feature Learning in Structured State Space Models") have exponents of their own for
    Mamba, which we could not find in what is public.
    """

    claims = [_of_layer(one, layer) for layer in LAYERS for one in _Transfer.claims]

    def cells(self, form: Form) -> list[Cell]:
        rates = [0.0005 * 2**i for i in range(7)]
        if form == "quick":
            return grid(d=(16, 32), layer=LAYERS, variant=VARIANTS, lr=rates[3:4], steps=[1], text=["random"])
        text = [TEXT.parent.name]
        return grid(d=(64, 128, 256, 512), layer=LAYERS, variant=VARIANTS, lr=rates, steps=[200], text=text)

    def run(self, cell: Cell) -> Rows:
        data = _random_text() if cell["text"] == "random" else _text()
        torch.manual_seed(0)
        model = LanguageModel(LAYERS[cell["layer"]], 67, cell["d"], 2, tie_embeddings=False, pad_vocab_size_multiple=1)
        variant, factors = VARIANTS[cell["variant"]], None
        if variant is not None:
            factors = width_factors(model, cell["d"], WidthSettings(base_d_model=BASE, **variant))
            scale_initial_values(model, factors)
        settings = OptimizerSettings(
            cell["lr"], recurrent_lr=cell["lr"], weight_decay=0, warmup_steps=20, min_lr_factor=0.1, betas=(0.9, 0.95)
        )
        made = optimizer_and_schedule(model, settings, cell["steps"], width=factors)
        optimizer, schedule = made["optimizer"], made["lr_scheduler"]["scheduler"]
        losses = (model.negative_log_likelihood(x, y, reduction="sum")[0] / y.numel() for x, y in data)
        return [{"loss": _last(descend(model, losses, cell["steps"], optimizer, schedule))}]

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        figure.set_size_inches(12, 6)
        layers, variants = rows["layer"].unique(), rows["variant"].unique()
        panels = figure.subplots(len(layers), len(variants), sharey=True, squeeze=False)
        for line, layer in zip(panels, layers, strict=True):
            for axes, variant in zip(line, variants, strict=True):
                _curves(axes, only(rows, layer=layer, variant=variant))
                axes.set_title(f"{layer}, {variant}", fontsize=9)


def _text() -> Iterator[tuple[Tensor, Tensor]]:
    """Windows of the text, in the same order in every run. Raises InputError: it is not here."""
    if not TEXT.exists():
        raise InputError(f"{TEXT} is missing: the file of karpathy/char-rnn's data/tinyshakespeare, or a link to it")
    data = Corpus(source=str(TEXT), tokenizer="characters", length=64, batch_size=8, val_fraction=0.1, splits="tail")
    data.prepare_data()
    data.setup("fit")
    while True:
        for batch in data.train_dataloader():
            assert isinstance(batch, TokenBatch)
            yield batch.inputs, batch.targets


def _random_text() -> Iterator[tuple[Tensor, Tensor]]:
    drawn = generator(0)
    while True:
        ids = torch.randint(67, (2, 17), generator=drawn)
        yield ids[:, :-1], ids[:, 1:]
