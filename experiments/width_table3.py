"""Width, table 3: RMS values after ten steps, and how the change of the logits depends on the width.

Source: the note "Scale-Invariant Parameterizations" (K. Stratos) on Everett et al. 2024, table 3 and (15-17). They give
the exponents of the width d in RMS values, which ten steps of sign descent preserve, and in Δh after one training step.
The theory assumes that V is O(1). Our choices, which the note does not give: two hidden layers, bigrams of V tokens
with a transition matrix softmax(2 · normal), batches of 64, C = 0.1 in the learning rates C d^-c.

The note's condition A.2 and its equation (31) contradict each other. Under A.2 the update is not aligned with the
readout (ω = 1/2), and the logits of SP change by the same amount at every width; under (31) ω = 1, and they change by
√d. Each is judged only if its premise holds for the measured ω.
"""

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

from helper import Cell, Claim, Claims, Rows, Size, grid, main, means, only, slope
from lra_ssm.width.bigram import Bigram, FirstOrder
from lra_ssm.width.coordinates import rms
from lra_ssm.width.parameterizations import PARAMETERIZATIONS, Exponents

C, BATCH, PROBED = 0.1, 64, 8
SP_READOUT = {"embedding": Exponents(0, 0, 0), "hidden": Exponents(0, 0.5, 1), "readout": Exponents(0.5, 0.5, 0.5)}
MODELS = {"SP": PARAMETERIZATIONS["sp"], "SP+readout": SP_READOUT, "muP": PARAMETERIZATIONS["mup"]}
SIZES = ("h", "logits'", "h'", "W'_readout", "W'_hidden", "W'_embedding")
THEORY = {  # exponents of the RMS values SIZES in table 3; ' marks a gradient
    "SP": (0, 0, -0.5, 0, -0.5, -0.5), "SP+readout": (0, 0, -1, -0.5, -1, -1), "muP": (0, 0, -1, -0.5, -1, -0.5),
}  # fmt: skip
SMALL = (2, 4, 32)  # vocabularies that count as O(1); 256 is shown for comparison


def cells(size: Size) -> list[Cell]:
    if size == "quick":
        return grid(model=MODELS, V=[2, 4, 32], norm=[False], d=(64, 128), steps=[1, 10], seeds=[1])
    # first the RMS values after ten steps, with and without RMSNorm; then the change of the logits, for wide models
    kept = grid(model=MODELS, V=[32], norm=[False, True], d=(64, 128, 256, 512, 1024), steps=[10], seeds=[3])
    change = grid(model=["SP", "muP"], V=(2, 4, 32, 256), norm=[False], d=(1024, 2048, 4096), steps=[1, 10], seeds=[1])
    return kept + [cell for cell in change if cell["steps"] == (1 if cell["model"] == "SP" else 10)]


def run(model: str, V: int, norm: bool, d: int, steps: int, seeds: int) -> Rows:
    for seed in range(seeds):
        data = bigrams(V, seed)
        network = Bigram(d, V, MODELS[model], 2, norm, generator=torch.Generator().manual_seed(seed))
        x, y = next(data)
        with torch.no_grad():
            *_, h, logits = network.activations(x)
            W = network.weights[-1].clone()
        optimizer = FirstOrder(list(network.groups(C)))
        for _, (ids, labels) in zip(range(steps), data, strict=False):
            F.cross_entropy(network(ids), labels).backward()
            optimizer.step()
        found = sizes(network, x, y)
        with torch.no_grad():
            *_, new_h, new_logits = network.activations(x)
            dh = new_h - h
        omega = rms(F.linear(dh, W)) / (rms(W) * rms(dh))
        yield {"seed": seed, **found, "change": rms(new_logits - logits), "ω": omega}


def bigrams(V: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield x and y (BATCH,) forever; the transition matrix is the same in all runs."""
    table = (2 * torch.randn(V, V, generator=torch.Generator().manual_seed(0))).softmax(-1)
    drawn = torch.Generator().manual_seed(seed)
    while True:
        x = torch.randint(V, (BATCH,), generator=drawn)
        yield x, torch.multinomial(table[x], 1, generator=drawn)[:, 0]


def sizes(network: Bigram, x: Tensor, y: Tensor) -> dict[str, float]:
    """Return RMS values over bigrams; each bigram has its own gradient, as in the note."""
    squares = defaultdict[str, list[float]](list)
    for token, label in zip(x[:PROBED, None], y[:PROBED, None], strict=True):
        first, *_, last, logits = h = network.activations(token)
        for each in h:
            each.retain_grad()
        network.zero_grad()
        F.cross_entropy(logits, label).backward()
        embedding, hidden, *_, readout = (weight.grad for weight in network.weights)
        values = (last, logits.grad, first.grad, readout, hidden, embedding[:, token])
        for name, value in zip(SIZES, values, strict=True):
            squares[name].append(rms(value) ** 2)
    return {name: float(np.mean(values)) ** 0.5 for name, values in squares.items()}


def _exponent(rows: pd.DataFrame, column: str) -> float:
    """Return the exponent of the width d in a column."""
    curve = means(rows, "d", column)
    return slope(curve.index, curve)


def _changes(rows: pd.DataFrame, model: str) -> dict[int, pd.DataFrame]:
    """Return the rows of the wide models for each V."""
    rows = only(rows, model=model, norm=False, steps=1 if model == "SP" else 10, seeds=1)
    return {int(V): part for V, part in rows.groupby("V")}


def claims(rows: pd.DataFrame) -> Claims:
    for model, theory in THEORY.items():
        exponents = {}
        for norm in sorted(rows["norm"].unique()):
            group = only(rows, model=model, V=32, norm=norm, steps=10)
            group = group[group["seeds"] == group["seeds"].max()]
            exponents |= {f"{name}{' (RMSNorm)' * bool(norm)}:": _exponent(group, name) for name in SIZES}
        errors = [abs(value - expected) for value, expected in zip(exponents.values(), theory * 2, strict=False)]
        yield Claim(
            f"after ten steps of {model}, RMS values depend on the width as in table 3",
            f"the exponents are within 0.1 of {', '.join(f'{v:g}' for v in theory)}; V = 32, with and without RMSNorm",
            max(errors) <= 0.1,
            exponents,
        )
    sp = _changes(rows, "SP")
    omega = {V: _exponent(sp[V], "ω") for V in SMALL}
    change = {V: _exponent(sp[V], "change") for V in SMALL}
    numbers = {f"V = {V}:": _exponent(group, "change") for V, group in sp.items()}
    numbers |= {f"ω at V = {V}:": value for V, value in omega.items()}
    for statement, exponent, alignment in (
        ("under condition A.2 (ω = 1/2), the logits of SP change by the same amount at every width", 0.0, 0.5),
        ("under (31) (ω = 1), the change of the logits of SP is proportional to √d", 0.5, 1.0),
    ):
        premise = all(abs(value - alignment) <= 0.2 for value in omega.values())
        yield Claim(
            statement,
            f"the exponent of the change in one step is within 0.1 of {exponent:g} for V = 2, 4 and 32; undecided if a"
            f" measured ω is not within 0.2 of {alignment:g}",
            all(abs(value - exponent) <= 0.1 for value in change.values()) if premise else None,
            numbers,
        )
    mup = {V: _exponent(group, "change") for V, group in _changes(rows, "muP").items()}
    yield Claim(
        "the logits of muP change by the same amount at every width",
        "the exponent of the change in ten steps is within 0.1 of 0 for V = 2, 4 and 32",
        all(abs(mup[V]) <= 0.1 for V in SMALL),
        {f"V = {V}:": exponent for V, exponent in mup.items()},
    )


def draw(rows: pd.DataFrame, figure: Figure) -> None:
    figure.set_size_inches(11, 6)
    upper, lower = figure.subplots(2, 3)
    for axes, model in zip(upper, MODELS, strict=True):
        group = only(rows, model=model, V=32, norm=False, steps=10)
        group = group[group["seeds"] == group["seeds"].max()]
        for name, theory in zip(SIZES, THEORY[model], strict=True):
            label = f"{name}: {_exponent(group, name):.2f} ({theory:g})"
            axes.plot(means(group, "d", name), "o-", markersize=3, label=label)
        axes.set(title=f"{model}, V = 32, after 10 steps", ylabel="RMS")
    for axes, model in zip(lower, ("SP", "muP"), strict=False):
        for V, group in _changes(rows, model).items():
            label = f"V = {V}: {_exponent(group, 'change'):+.2f}"
            axes.plot(means(group, "d", "change"), "o-", markersize=3, label=label)
        axes.set(title=f"{model}, after {1 if model == 'SP' else 10} steps", ylabel="RMS change of the logits")
    for axes in figure.axes[:-1]:
        axes.set(xscale="log", yscale="log", xlabel="width d")
        axes.legend(fontsize=6, title="exponent (theory)", title_fontsize=6)
    lower[-1].set_axis_off()


if __name__ == "__main__":
    main()
