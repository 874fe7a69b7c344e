"""What the width experiments share: bigrams, and what is measured of the model that learns them.

Bigrams (x, y): x uniform over V tokens, y by a transition matrix softmax(2 · normal), the same in all runs. The note
names no data: this, V, batches of 64 and two hidden layers are ours.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F

from lra_ssm.experiments.base import slope
from lra_ssm.experiments.train import descend
from lra_ssm.width.bigram import Bigram
from lra_ssm.width.coordinates import rms

BATCH, DEPTH, PROBED = 64, 2, 8
WIDTHS = (64, 128, 256, 512, 1024)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batches(V: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """x and y (BATCH,) without end."""
    table, drawn = (2 * torch.randn(V, V, generator=generator(0))).softmax(-1), generator(seed)
    while True:
        x = torch.randint(V, (BATCH,), generator=drawn)
        yield x, torch.multinomial(table[x], 1, generator=drawn)[:, 0]


def sizes(model: Bigram, x: Tensor, y: Tensor) -> dict[str, float]:
    """Root mean squares over bigrams, each with a gradient of its own as in the note: activations h, gradients h' with
    respect to them, W' to weights.

    V' is the deviation of h'_{L+2} from 1/V − y, its mean at the start (lemma D.1); W'_0 is of the token's column.
    """
    squares = defaultdict[str, list[float]](list)
    for token, label in zip(x[:PROBED, None], y[:PROBED, None], strict=True):
        h = model.activations(token)
        for each in h:
            each.retain_grad()
        model.zero_grad()
        F.cross_entropy(h[-1], label).backward()
        V = h[-1].shape[-1]
        for i, each in enumerate(h, 1):
            squares[f"h{i}"].append(rms(each) ** 2)
            assert each.grad is not None
            squares[f"h'{i}"].append(rms(each.grad) ** 2)
        assert h[-1].grad is not None
        squares["V'"].append(rms(h[-1].grad - 1 / V + F.one_hot(label, V)) ** 2)
        for i, weight in enumerate(model.weights):
            squares[f"W'{i}"].append(rms(weight.grad[:, token] if i == 0 else weight.grad) ** 2)
    return {name: float(np.mean(values)) ** 0.5 for name, values in squares.items()}


def learn(
    model: Bigram, data: Iterator[tuple[Tensor, Tensor]], steps: int, optimizer: Any, schedule: Any = None
) -> list[float]:
    """The loss of every step, before it."""
    return descend(model, (F.cross_entropy(model(x), y) for x, y in data), steps, optimizer, schedule)


def exponent(rows: pd.DataFrame, column: str) -> float:
    """Slope of the log of a column's mean over log d."""
    means = rows.groupby("d")[column].mean()
    return slope(means.index, means)


def by_theory(rows: pd.DataFrame, theory: dict[str, float]) -> tuple[bool, str]:
    """Whether every exponent is its theory's within 0.1, and all of them as text."""
    found = {name: exponent(rows, name) for name in theory}
    off = [name for name in theory if not abs(found[name] - theory[name]) <= 0.1]
    told = ", ".join(f"{name} {found[name]:.2f} ({theory[name]:g})" for name in theory)
    return not off, told + (f"; off: {', '.join(off)}" if off else "")
