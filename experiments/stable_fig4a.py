"""StableSSM, figure 4 (a): |gradient| / |weight| of recurrent weights at initialization, for each f.

Source: Wang & Li 2024, section 4.2: a language model on WikiText-103; each f, in its discrete-time form, starts from
the same eigenvalues. Here a small model with the same blocks (4 of width 64) reads random tokens. Our choices, which
the paper does not give: timescales from 4 to 1,000 steps, evenly spaced in their logarithm (where w = 0, the ratio has
a pole; softplus has w = 0 at 2 steps, exp at 1.6); 10 seeds.
"""

import math
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch.nn import functional as F

from helper import FORM_COLORS, Cell, Claim, Claims, Rows, Size, clearly_positive, grid, main, mean_and_std, only
from lra_ssm.layers import HyenaBlock, LayerSpec, StableSSM, parameter_roles
from lra_ssm.models import LanguageModel

UNSTABLE, STABLE = ("direct", "relu"), ("exp", "softplus", "tanh", "best")
PRINTED = {  # largest and smallest ratio in the figure
    "direct": (1e1, 2e-8), "relu": (2e0, 2e-8), "exp": (2e-3, 6e-7),
    "softplus": (1e-3, 6e-8), "tanh": (8e-3, 2e-5), "best": (1e-3, 5e-7),
}  # fmt: skip


def cells(size: Size) -> list[Cell]:
    return grid(form=PRINTED, seed=range(1 if size == "quick" else 10))


def run(form: str, seed: int) -> Rows:
    torch.manual_seed(seed)
    layer = LayerSpec(StableSSM, d_state=64, form="real", readout="identity", parameterization=form)
    network = LanguageModel(
        layer, vocab_size=256, d_model=64, n_layers=4, block=LayerSpec(HyenaBlock, activation="gelu")
    ).double()
    system: Any
    for system in network.modules():
        if hasattr(system, "eigenvalue_weight"):
            steps = torch.logspace(math.log10(4), 3, len(system.eigenvalue_weight), dtype=torch.float64)
            system.eigenvalue_weight.data.copy_(system.parameterization.inverse(1 - 1 / steps))
    tokens = torch.randint(256, (2, 129))
    F.cross_entropy(network(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
    roles = parameter_roles(network)
    weights = [p for name, p in network.named_parameters() if roles[name] == "recurrent"]
    ratios = torch.cat([(p.grad / p.detach()).abs().flatten() for p in weights])
    yield {"largest": math.log10(ratios.max()), "least": math.log10(ratios[ratios > 0].min())}


def claims(rows: pd.DataFrame) -> Claims:
    rows = rows.assign(range=rows["largest"] - rows["least"])
    for value, statement in {
        "range": "exp, softplus, tanh and best have a narrower range of ratios than direct and relu",
        "largest": "exp, softplus, tanh and best have a smaller maximum of the ratio than direct and relu",
    }.items():
        measured = {form: mean_and_std(only(rows, form=form)[value]) for form in PRINTED}
        four_are_smaller = [
            clearly_positive(measured[b][0] - measured[a][0], measured[a][1] + measured[b][1])
            for a in STABLE
            for b in UNSTABLE
        ]
        name = "log10(largest / smallest ratio)" if value == "range" else "log10 of the largest ratio"
        yield Claim(
            statement,
            f"{name} is smaller for each of the four than for both direct and relu",
            False if False in four_are_smaller else None if None in four_are_smaller else True,
            {f"{form}:": value for form, value in measured.items()},
        )
    measured = {form: mean_and_std(only(rows, form=form)["largest"]) for form in PRINTED}
    printed = {form: math.log10(largest) for form, (largest, _) in PRINTED.items()}
    yield Claim(
        "the largest ratios are those of the figure",
        "each is within a factor of 10 of the printed value; otherwise undecided, because the paper uses another model"
        " and other data",
        True if max(abs(measured[form][0] - printed[form]) for form in PRINTED) <= 1 else None,
        {f"log10 for {form} (printed {printed[form]:.1f}):": measured[form] for form in PRINTED},
    )


def draw(rows: pd.DataFrame, figure: Figure) -> None:
    axes = figure.subplots()
    for x, (form, printed) in enumerate(PRINTED.items()):
        group = only(rows, form=form)
        shifted = x + (group["seed"] - len(group) / 2) * 0.06
        axes.vlines(shifted, 10 ** group["least"], 10 ** group["largest"], FORM_COLORS[form], linewidth=1)
        axes.plot([x + 0.35] * 2, printed, "k_", markersize=8, label="printed" if x == 0 else None)
    axes.set_xticks(range(len(PRINTED)), list(PRINTED))
    axes.set(yscale="log", ylabel="|gradient| / |weight|, smallest to largest\n(one line per seed)")
    axes.legend()


if __name__ == "__main__":
    main()
