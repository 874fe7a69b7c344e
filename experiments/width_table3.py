"""Width, table 3: sizes after ten steps, and how the change of the logits depends on the width.

Source: the note "Scale-Invariant Parameterizations" (K. Stratos) on Everett et al. 2024, table 3 and (15-17): exponents
of RMS that ten steps of sign descent keep, and of Δh, which is of one training step. In theory V is O(1). Ours, since
the note does not give them: two hidden layers, bigrams of V tokens with a transition matrix softmax(2 · normal),
batches of 64, C = 0.1 in the rates C d^-c.

The note's condition A.2 (the readout is not aligned, ω = 1/2: the logits of SP change by as much at every width) and
(31) (ω = 1: they change by √d) exclude each other. Each is judged only where its premise holds for the measured ω.
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
KEPT = {  # exponents of their RMS in table 3; ' is a gradient
    "SP": (0, 0, -0.5, 0, -0.5, -0.5), "SP+readout": (0, 0, -1, -0.5, -1, -1), "muP": (0, 0, -1, -0.5, -1, -0.5),
}  # fmt: skip
SMALL = (2, 4, 32)  # vocabularies of size O(1); 256 is shown next to them


def cells(size: Size) -> list[Cell]:
    if size == "quick":
        return grid(model=MODELS, V=[2, 4, 32], norm=[False], d=(64, 128), steps=[1, 10], seeds=[1])
    # the sizes that ten steps keep, with RMSNorm and without; then the change of the logits, which needs wide models
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
    """Return root mean squares over bigrams, each with its own gradient as in the note."""
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
    curve = means(rows, "d", column)
    return slope(curve.index, curve)


def _changes(rows: pd.DataFrame, model: str) -> dict[int, pd.DataFrame]:
    """Return the rows of the wide models, by V."""
    rows = only(rows, model=model, norm=False, steps=1 if model == "SP" else 10, seeds=1)
    return {int(V): part for V, part in rows.groupby("V")}


def claims(rows: pd.DataFrame) -> Claims:
    for model, theory in KEPT.items():
        found = {}
        for norm in sorted(rows["norm"].unique()):
            part = only(rows, model=model, V=32, norm=norm, steps=10)
            part = part[part["seeds"] == part["seeds"].max()]
            found |= {f"{name}{' (RMSNorm)' * bool(norm)}": _exponent(part, name) for name in SIZES}
        off = [abs(value - wanted) for value, wanted in zip(found.values(), theory * 2, strict=False)]
        yield Claim(
            f"after ten steps of {model}, RMS values depend on the width as in table 3",
            f"each exponent within 0.1 of {', '.join(f'{v:g}' for v in theory)}; V = 32, with and without RMSNorm",
            max(off) <= 0.1,
            found,
        )
    sp = _changes(rows, "SP")
    omega = {V: _exponent(sp[V], "ω") for V in SMALL}
    change = {V: _exponent(sp[V], "change") for V in SMALL}
    numbers = {f"V = {V}": _exponent(part, "change") for V, part in sp.items()}
    numbers |= {f"ω at V = {V}": value for V, value in omega.items()}
    for statement, wanted, aligned in (
        ("under condition A.2 the logits of SP change by the same amount at every width", 0.0, 0.5),
        ("under (31), ω = 1, the change of the logits of SP is proportional to √d", 0.5, 1.0),
    ):
        premise = all(abs(value - aligned) <= 0.2 for value in omega.values())
        yield Claim(
            statement,
            f"exponent of the change in one step {wanted:g} within 0.1 for V = 2, 4 and 32; undecided if the premise,"
            f" ω = {aligned:g} within 0.2, is not met",
            all(abs(value - wanted) <= 0.1 for value in change.values()) if premise else None,
            numbers,
        )
    mup = {f"V = {V}": _exponent(part, "change") for V, part in _changes(rows, "muP").items()}
    yield Claim(
        "the logits of muP change by the same amount at every width",
        "exponent of the change in ten steps 0 within 0.1 for V = 2, 4 and 32",
        all(abs(mup[f"V = {V}"]) <= 0.1 for V in SMALL),
        mup,
    )


def draw(rows: pd.DataFrame, figure: Figure) -> None:
    figure.set_size_inches(11, 6)
    upper, lower = figure.subplots(2, 3)
    for axes, model in zip(upper, MODELS, strict=True):
        part = only(rows, model=model, V=32, norm=False, steps=10)
        part = part[part["seeds"] == part["seeds"].max()]
        for name, wanted in zip(SIZES, KEPT[model], strict=True):
            axes.plot(
                means(part, "d", name), "o-", markersize=3, label=f"{name}: {_exponent(part, name):.2f} ({wanted:g})"
            )
        axes.set(title=f"{model}, V = 32, after 10 steps", ylabel="RMS")
    for axes, model in zip(lower, ("SP", "muP"), strict=False):
        for V, own in _changes(rows, model).items():
            label = f"V = {V}: {_exponent(own, 'change'):+.2f}"
            axes.plot(means(own, "d", "change"), "o-", markersize=3, label=label)
        axes.set(title=f"{model}, after {1 if model == 'SP' else 10} steps", ylabel="RMS of the logits' change")
    for axes in figure.axes[:-1]:
        axes.set(xscale="log", yscale="log", xlabel="width d")
        axes.legend(fontsize=6, title="exponent (theory)", title_fontsize=6)
    lower[-1].set_axis_off()


if __name__ == "__main__":
    main()
