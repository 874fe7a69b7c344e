"""B2S6's figure 6: whether S6's Δ makes its training unstable.

Source: Yu & Erichson 2025, appendix E: G(u) = Σ θ_j u_j, S4D and S6 with a rate of 0.001 for Δ's parameters, S6 with
them frozen, root mean square of the error over steps. Nothing else is given. Ours: the network of eq. 5 with GELU, 16
channels, 16 real states, 100 positions, fresh batches of 64, θ ~ N(0, 1 / 100), 2,000 steps of AdamW at a constant rate
of 0.01, A (and S4D's B) 0.001, and two kinds of input: N(0, 1); and, as in section 3, uniform in [0, 1] with u_L = 1.
(With u ~ N(0, 1) S6's output is all but orthogonal to the target: it is u_L times something that is even in each u_k,
but for what Δ does.)
"""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lra_ssm.datamodules.batches import Batch
from lra_ssm.experiments.b2s6_units import COLORS, unit, without_skip
from lra_ssm.experiments.base import Cell, Experiment, Form, Judgement, Rows, by_seed, claim, grid, only
from lra_ssm.experiments.train import train
from lra_ssm.models.plain import PlainNetwork
from lra_ssm.tasks.optim import OptimizerSettings

LENGTH, BIN = 100, 40
MODELS = {"S4D": ("S4D", 0.001), "S6": ("S6", 0.001), "S6, Δ frozen": ("S6", 0.0)}  # unit, rate of Δ
INPUTS = {"normal": "u ~ N(0, 1)", "unit": "u in [0, 1], u_L = 1"}
RULE = (
    "a spike: the median loss of 10 steps rises above 1.5 times the lowest so far, until it is below 1.2 times that;"
    " holds if S6 has more than the other, on average over seeds, by more than the larger deviation"
)


def spikes(losses: Sequence[float], width: int = 10) -> int:
    """How often the median of `width` steps rises above 1.5 times the lowest so far; it ends below 1.2 times that."""
    levels = [median(losses[i : i + width]) for i in range(0, len(losses) - width + 1, width)]
    count, inside, lowest = 0, False, levels[0]
    for level in levels:
        if inside:
            inside = level >= 1.2 * lowest
        elif level > 1.5 * lowest:
            count, inside = count + 1, True
        lowest = min(lowest, level)
    return count


CASES = [
    {"inputs": inputs, "other": other, "text": text, "statement": statement}
    for inputs, text in INPUTS.items()
    for other, statement in {
        "S4D": "S6's loss goes up and down where S4D's falls smoothly",
        "S6, Δ frozen": "with Δ frozen S6 trains more smoothly than with Δ trained",
    }.items()
]


class Spikes(Experiment):
    """The training loss over steps, and how often it jumps."""

    @claim(RULE, "{other}, {text}", CASES)
    def has_more(self, rows: pd.DataFrame, inputs: str, other: str, **_: str) -> Judgement:
        """{statement}, for {text}"""
        found = by_seed(only(rows, inputs=inputs).dropna(subset="spikes"), ["model"], "spikes").set_index("model")
        means, spreads = found["mean"], found["std"]
        said = "; ".join(f"{name} {means[name]:.3g} ± {spreads[name]:.2g} spikes" for name in ("S6", other))
        difference, spread = means["S6"] - means[other], max(spreads["S6"], spreads[other])
        return Judgement.beyond(difference, spread, said) if difference > 0 else Judgement.of(False, said)

    def cells(self, form: Form) -> list[Cell]:
        seeds, steps = (1, 10) if form == "quick" else (3, 2000)
        return grid(seed=range(seeds), inputs=INPUTS, model=MODELS, steps=[steps])

    def run(self, cell: Cell) -> Rows:
        torch.manual_seed(cell["seed"])
        name, delta_lr = MODELS[cell["model"]]
        network = without_skip(PlainNetwork(unit(name), num_outputs=1, d_input=1, d_model=16))
        optimizer = OptimizerSettings(
            lr=0.01, recurrent_lr=0.001, delta_lr_factor=delta_lr / 0.01, weight_decay=0.0, warmup_steps=0,
            min_lr_factor=1.0,
        )  # fmt: skip
        losses = train(network, _batches(cell["inputs"], cell["seed"]), cell["steps"], optimizer, _rms)
        bins = [losses[i : i + BIN] for i in range(0, len(losses), BIN)]
        rows: list[dict[str, Any]] = [
            {"step": (i + 1) * BIN, "loss": median(part), "highest": max(part)} for i, part in enumerate(bins)
        ]
        rows[-1]["spikes"] = spikes(losses)
        return rows

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        figure.set_size_inches(9.5, 5)
        grid = figure.subplots(2, 3, sharex=True, sharey="row")
        for line, (inputs, text) in zip(grid, INPUTS.items(), strict=True):
            for axes, model in zip(line, MODELS, strict=True):
                chosen = only(rows, inputs=inputs, model=model)
                for _, curve in chosen.groupby("seed"):
                    color = COLORS[MODELS[model][0]]
                    axes.plot(curve["step"], curve["loss"], color=color, linewidth=1, label=f"median of {BIN} steps")
                    axes.fill_between(curve["step"], curve["loss"], curve["highest"], color=color, alpha=0.2, lw=0)
                total = "; ".join(f"{count:g}" for count in chosen["spikes"].dropna())
                axes.set(yscale="log", title=f"{model}, {text}\nspikes by seed: {total}")
            line[0].set_ylabel("RMS error, a line a seed,\nup to the highest of each bin")
        for axes in grid[1]:
            axes.set_xlabel("step")


def _rms(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs - labels).square().mean().sqrt()


def _batches(inputs: str, seed: int) -> Iterator[Batch]:
    """Fresh batches of u (64, L, 1) and G(u) (64, 1), θ the same for all."""
    theta = torch.randn(LENGTH, generator=torch.Generator().manual_seed(1000)) / LENGTH**0.5
    generator = torch.Generator().manual_seed(seed)
    while True:
        u = (torch.randn if inputs == "normal" else torch.rand)(64, LENGTH, generator=generator)
        if inputs == "unit":
            u[:, -1] = 1
        yield Batch(u[..., None], None, (u @ theta)[:, None])
