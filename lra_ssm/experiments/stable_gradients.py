"""StableSSM's figures 3 (a) and 4 (a): |gradient| / |weight| of recurrent weights, in training and at initialization.

Source: Wang & Li 2024, sections 4.1 and 4.2, appendix F.1: linear functionals of ρ(t) = (t + 1)^-1.1, length 100, tanh
in the readout, batches of 512, rate 0.01; all f, of discrete time, start from the same eigenvalues. Ours, as the paper
does not give them: 8 states, timescales that start evenly from 4 to 1,000 steps in their logarithms (at 2 steps
softplus has w = 0, at 1.6 exp, where the ratio has a pole), AdamW at a constant rate with decay 0.01, as in the public
code. Figure 4 (a) is of a language model on WikiText-103; here a small
one of the same blocks, 4 of width 64, reads random tokens, beside the linear functional.
"""

import math
from collections.abc import Sequence
from itertools import cycle, islice
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from lra_ssm.datamodules import LinearFunctional
from lra_ssm.experiments.base import Cell, Experiment, Form, Judgement, Rows, by_seed, claim, draw_mean, grid, only
from lra_ssm.experiments.stable_bounds import COLORS
from lra_ssm.experiments.train import batches, train
from lra_ssm.layers import HyenaBlock, LayerSpec, StableSSM
from lra_ssm.layers.roles import parameter_roles
from lra_ssm.models import LanguageModel
from lra_ssm.tasks.optim import OptimizerSettings

UNSTABLE, STABLE = ("direct", "relu"), ("exp", "softplus", "tanh", "best")
FORMS = (*UNSTABLE, *STABLE)
OPTIMIZER = OptimizerSettings(
    lr=0.01, recurrent_lr=0.01, weight_decay=0.01, decay_biases_and_norms=True, recurrent_weight_decay=0.01,
    warmup_steps=0, min_lr_factor=1.0,
)  # fmt: skip
SETTLED = 1000  # the step at which figure 3 begins
BINS = 40


def _functional(form: str) -> nn.Module:
    return LayerSpec(StableSSM, d_state=8, form="real", parameterization=form, readout="tanh")(1)


def _from_common_eigenvalues(network: nn.Module) -> nn.Module:
    """Every StableSSM within it starts from timescales of 4 to 1,000 steps."""
    system: Any
    for system in network.modules():
        if hasattr(system, "eigenvalue_weight"):
            steps = torch.logspace(math.log10(4), 3, len(system.eigenvalue_weight), dtype=torch.float64)
            with torch.no_grad():
                system.eigenvalue_weight.copy_(system.parameterization.inverse(1 - 1 / steps))
    return network


def _recurrent_ratios(network: nn.Module) -> Tensor:
    """|gradient| / |weight| of every recurrent weight."""
    roles = parameter_roles(network)
    recurrent = [p for name, p in network.named_parameters() if roles[name] == "recurrent"]
    return torch.cat([(p.grad / p.detach()).abs().flatten() for p in recurrent if p.grad is not None])


def _less(rows: pd.DataFrame, value: str, lows: Sequence[str], highs: Sequence[str]) -> Judgement:
    """Whether the mean of a logarithm is less under each of the first forms than under each of the others, beyond the
    deviations over seeds of both; the worst pair decides."""
    found = by_seed(rows, ["form"], value).set_index("form")
    mean, std = found["mean"], found["std"]
    said = ", ".join(f"{form} 10^{mean[form]:.2f} ± {std[form]:.2f}" for form in found.index)
    pairs = [Judgement.beyond(mean[b] - mean[a], std[a] + std[b], said) for a in lows for b in highs]
    order = ["does not hold", "undecided", "holds"]
    return min(pairs, key=lambda pair: order.index(pair.outcome))


def _of_runs(rows: pd.DataFrame) -> pd.DataFrame:
    """A row a run, of its steps from SETTLED on: logs of the mean and of the largest ratio, and the last loss."""
    late = rows[rows["step"] >= SETTLED * rows["steps"] / 4000]
    runs = late.groupby(["form", "seed"], sort=False)
    return runs.agg(level=("log_ratio", "mean"), peak=("log_peak", "max"), loss=("loss", "last")).reset_index()


def _best_is_least(rows: pd.DataFrame, value: str) -> Judgement:
    return _less(_of_runs(rows), value, ["best"], ["relu", "exp", "softplus", "tanh"])


class InTraining(Experiment):
    """Figure 3 (a): the ratio over 4,000 steps, and the loss."""

    @claim(
        "the mean of log10 max(|gradient|/|weight|) from step 1,000 on is least under best, by more than the "
        "deviations over seeds; else undecided"
    )
    def level(self, rows: pd.DataFrame) -> Judgement:
        """in training best has the smallest gradients over weights of relu, softplus, exp, best and tanh"""
        return _best_is_least(rows, "level")

    @claim("the same of the log of the largest ratio from step 1,000 on")
    def peak(self, rows: pd.DataFrame) -> Judgement:
        """and the smallest largest one"""
        return _best_is_least(rows, "peak")

    @claim("the mean losses of the last 100 steps are within a factor of 2")
    def loss(self, rows: pd.DataFrame) -> Judgement:
        """training losses are similar across these f"""
        losses = _of_runs(rows).groupby("form", sort=False)["loss"].mean().drop("direct")
        said = ", ".join(f"{form} {loss:.3g}" for form, loss in losses.items())
        return Judgement.of(losses.max() <= 2 * losses.min(), said)

    def cells(self, form: Form) -> list[Cell]:
        steps, seeds, batch = (BINS, 1, 32) if form == "quick" else (4000, 3, 512)
        return grid(seed=range(seeds), form=FORMS, steps=[steps], batch=[batch])

    def run(self, cell: Cell) -> Rows:
        torch.manual_seed(cell["seed"])
        steps, batch = cell["steps"], cell["batch"]
        data = LinearFunctional(num_train=250 * batch, batch_size=batch)
        made = cycle(list(islice(batches(data, seed=cell["seed"]), min(steps, 250))))
        network, seen = _from_common_eigenvalues(_functional(cell["form"])), []

        def watch(step: int, loss: float) -> None:
            seen.append((float(_recurrent_ratios(network).max()), loss))

        train(network, made, steps, OPTIMIZER, watch=watch)
        ratio, loss = np.array(seen).reshape(BINS, -1, 2).transpose(2, 0, 1)
        starts = range(0, steps, steps // BINS)
        with np.errstate(divide="ignore"):
            columns = np.log10(ratio).mean(1), np.log10(ratio.max(1)), loss.mean(1)
        names = ("step", "log_ratio", "log_peak", "loss")
        return [dict(zip(names, map(float, each), strict=True)) for each in zip(starts, *columns, strict=True)]

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        figure.set_size_inches(9, 3.6)
        left, right = figure.subplots(1, 2)
        left.set(xlabel="step", ylabel="log₁₀ of max |gradient| / |weight|")
        right.set(yscale="log", xlabel="step", ylabel="training loss")
        for form, own in rows.groupby("form", sort=False):
            for axes, name in ((left, "log_ratio"), (right, "loss")):
                draw_mean(axes, own, "step", name, color=COLORS[str(form)], label=form)
        right.legend(fontsize=8, title="mean ± deviation of seeds,\nof 100 steps", title_fontsize=8)


TASKS = ("linear functional", "language model")


def _loss_at_start(task: str, form: str, seed: int) -> tuple[nn.Module, Tensor]:
    """The network as it is initialized, and its loss on one batch, in float64."""
    torch.manual_seed(seed)
    if task == "linear functional":
        network = _from_common_eigenvalues(_functional(form).double())
        batch = next(batches(LinearFunctional(num_train=512), seed=seed))
        return network, F.mse_loss(network(batch.inputs.double()), batch.labels.double())
    layer = LayerSpec(StableSSM, d_state=64, form="real", readout="identity", parameterization=form)
    block = LayerSpec(HyenaBlock, activation="gelu")
    network = LanguageModel(layer, vocab_size=256, d_model=64, n_layers=4, block=block).double()
    network = _from_common_eigenvalues(network)
    tokens = torch.randint(256, (2, 129))
    return network, F.cross_entropy(network(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


class AtInitialization(Experiment):
    """Figure 4 (a): the largest and the least ratio of |gradient| to |weight| over all recurrent weights."""

    @claim(
        "the mean over seeds of log10(largest/least) is less under each of the four than under both others; undecided "
        "within deviations",
        "range, {task}",
        grid(task=TASKS),
    )
    def range(self, rows: pd.DataFrame, task: str) -> Judgement:
        """at initialization exp, softplus, tanh and best have a narrower range of ratios than direct and relu
        ({task})"""
        return _less(only(rows, task=task), "log_range", STABLE, UNSTABLE)

    @claim(
        "the mean over seeds of the log of the largest ratio is less under each of the four than under both; undecided "
        "within deviations",
        "largest, {task}",
        grid(task=TASKS),
    )
    def largest(self, rows: pd.DataFrame, task: str) -> Judgement:
        """their largest ratio is smaller than that of direct and of relu ({task})"""
        return _less(only(rows, task=task), "log_largest", STABLE, UNSTABLE)

    claims = [one for of_task in zip(range, largest, strict=True) for one in of_task]

    def cells(self, form: Form) -> list[Cell]:
        return grid(task=TASKS, form=FORMS, seeds=[1 if form == "quick" else 10])

    def run(self, cell: Cell) -> Rows:
        for seed in range(cell["seeds"]):
            network, loss = _loss_at_start(cell["task"], cell["form"], seed)
            loss.backward()
            ratios = _recurrent_ratios(network)
            largest, least = (math.log10(float(value)) for value in (ratios.max(), ratios[ratios > 0].min()))
            yield {"seed": seed, "log_largest": largest, "log_least": least, "log_range": largest - least}

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        figure.set_size_inches(9, 3.6)
        for axes, task in zip(figure.subplots(1, 2), TASKS, strict=True):
            for place, form in enumerate(FORMS):
                own = only(rows, task=task, form=form)
                places = place + (own["seed"] - len(own) / 2) * 0.06
                axes.vlines(places, 10 ** own["log_least"], 10 ** own["log_largest"], COLORS[form], linewidth=1)
            axes.set_xticks(range(len(FORMS)), FORMS)
            axes.set(yscale="log", title=f"{task}, at initialization")
        figure.axes[0].set_ylabel("|gradient| / |weight|, from least to largest\n(a line a seed)")
