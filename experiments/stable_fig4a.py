"""StableSSM, figure 4 (a): |gradient| / |weight| of recurrent weights at initialization, by f.

Source: Wang & Li 2024, section 4.2: a language model on WikiText-103; each f, of discrete time, starts from the same
eigenvalues. Here a small model of the same blocks, 4 of width 64, reads random tokens. Ours, since the paper does not
give them: timescales evenly from 4 to 1,000 steps in their logarithms (at 2 steps softplus has w = 0, at 1.6 exp, where
the ratio has a pole), 10 seeds.
"""

import math
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch.nn import functional as F

from helper import FORM_COLORS, Cell, Claim, Claims, Rows, Size, beyond, grid, main, mean, only
from lra_ssm.layers import HyenaBlock, LayerSpec, StableSSM, parameter_roles
from lra_ssm.models import LanguageModel

UNSTABLE, STABLE = ("direct", "relu"), ("exp", "softplus", "tanh", "best")
PRINTED = {  # largest and least ratio in the figure
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
        "largest": "exp, softplus, tanh and best have a smaller largest ratio than direct and relu",
    }.items():
        found = {form: mean(only(rows, form=form)[value]) for form in PRINTED}
        pairs = [beyond(found[b][0] - found[a][0], found[a][1] + found[b][1]) for a in STABLE for b in UNSTABLE]
        yield Claim(
            statement,
            f"log10 of the {value} is smaller under each of the four than under both",
            False if False in pairs else None if None in pairs else True,
            found,
        )
    found = {form: mean(only(rows, form=form)["largest"]) for form in PRINTED}
    off = {form: abs(found[form][0] - math.log10(printed)) for form, (printed, _) in PRINTED.items()}
    yield Claim(
        "the largest ratios are those of the figure",
        "each is within a factor of 10 of the print; else undecided: model and data are ours",
        True if max(off.values()) <= 1 else None,
        {f"log10 of {form}, printed {math.log10(PRINTED[form][0]):.1f}:": found[form] for form in PRINTED},
    )


def draw(rows: pd.DataFrame, figure: Figure) -> None:
    axes = figure.subplots()
    for place, (form, printed) in enumerate(PRINTED.items()):
        own = only(rows, form=form)
        places = place + (own["seed"] - len(own) / 2) * 0.06
        axes.vlines(places, 10 ** own["least"], 10 ** own["largest"], FORM_COLORS[form], linewidth=1)
        axes.plot([place + 0.35] * 2, printed, "k_", markersize=8, label="printed" if place == 0 else None)
    axes.set_xticks(range(len(PRINTED)), list(PRINTED))
    axes.set(yscale="log", ylabel="|gradient| / |weight|, from least to largest\n(a line a seed)")
    axes.legend()


if __name__ == "__main__":
    main()
