"""Deep linear SSMs, section 3.3: K layers are one layer of K states, and what its eigenbasis looks like.

Source: "On the Interplay between Learning and Memory in Deep State Space Models" (anonymous, ICLR 2025 submission),
eq. 6-11. λ are drawn, with gaps of at least 0.02: eigenvectors of close ones are close, and lose digits.
"""

from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lra_ssm.experiments.base import Cell, Experiment, Form, Judgement, Rows, claim, grid
from lra_ssm.ops.deep_linear import diagonal, eigenvectors, one_layer

DEPTHS = (2, 4, 6, 8)


def printed_eigenvectors(a: float, b: float, c: float, d: float) -> Tensor:
    """P of eq. 10 as it stands in print, λ_1 … λ_4 being a … d."""
    rows = [
        [(a - b) * c * (d - a) / a**3 - (a * a - a * b - a * d + b * d) / a**2, 0, 0, 0],
        [-(a * a - a * c - a * d + c * d) / a**2, -(b * b - b * c - b * d + c * d) / b**2, 0, 0],
        [-(d - a) / a, -(d - b) / b, -(d - c) / c, 0],
        [1, 1, 1, 1],
    ]
    return torch.tensor(rows, dtype=torch.float64)


def printed_inverse(a: float, b: float, c: float, d: float) -> Tensor:
    """P⁻¹ of eq. 11 as it stands in print."""
    rows = [
        [a**3 / ((a - b) * (a - c) * (a - d)), 0, 0, 0],
        [-a * b**2 / ((a - b) * (b - c) * (b - d)), -(b**2) / ((b - c) * (b - d)), 0, 0],
        [-a * c**2 / ((a - c) * (c - b) * (c - d)), b * c / ((b - c) * (c - d)), c / (c - d), 0],
        [-a * d**2 / ((a - d) * (d - b) * (d - c)), b * d / ((b - d) * (d - c)), -c / (c - d), 1],
    ]
    return torch.tensor(rows, dtype=torch.float64)


def drawn(K: int, seed: int) -> Tensor:
    """λ of K layers in random order, (K, 1), float64, in (0.05, 0.99) and at least 0.02 apart."""
    generator = torch.Generator().manual_seed(1000 * K + seed)
    free = torch.rand(K, dtype=torch.float64, generator=generator).sort().values * (0.94 - 0.02 * (K - 1))
    values = 0.05 + free + 0.02 * torch.arange(K)
    return values[torch.randperm(K, generator=generator), None]


def _small(rows: pd.DataFrame, column: str, bound: float) -> Judgement:
    worst = rows[column].max()
    return Judgement.of(worst <= bound, f"{worst:.0e} at most, of {rows[column].count()} draws")


def _printed(rows: pd.DataFrame, equation: str) -> Judgement:
    error, wrong = rows[equation].dropna(), rows[f"{equation}_wrong"].dropna().unique()
    return Judgement.of(error.max() <= 1e-8, f"{error.min():.1g} or more off; {'; '.join(sorted(wrong))}")


class OneLayerOfAll(Experiment):
    """Eq. 6-11 in numbers."""

    @claim("outputs on noise within 1e-10", "eq. 8")
    def one_layer(self, rows: pd.DataFrame) -> Judgement:
        """K layers of one state are one layer of K"""
        return _small(rows, "one", 1e-10)

    @claim("outputs on noise within 1e-6 of their size", "eq. 9")
    def diagonal(self, rows: pd.DataFrame) -> Judgement:
        """so is a diagonal layer with the very λ of the layers"""
        return _small(rows, "diagonal", 1e-6)

    @claim("within 1e-10", "C")
    def readout(self, rows: pd.DataFrame) -> Judgement:
        """it is read out of all modes equally, C P = 1"""
        return _small(rows, "readout", 1e-10)

    @claim("P⁻¹B against Π_{{m≠i}} λ_i/(λ_i - λ_m): 1e-6 of its size", "B")
    def weights(self, rows: pd.DataFrame) -> Judgement:
        """inputs enter a mode in proportion to λ and inversely to the gaps between them"""
        return _small(rows, "weights", 1e-6)

    @claim("A P = P diag(λ) within 1e-8", "eq. 10")
    def eigenvectors(self, rows: pd.DataFrame) -> Judgement:
        """P of four layers, as printed"""
        return _printed(rows, "eq_10")

    @claim("P⁻¹ P = 1 within 1e-8", "eq. 11")
    def inverse(self, rows: pd.DataFrame) -> Judgement:
        """P⁻¹ of four layers, as printed"""
        return _printed(rows, "eq_11")

    def cells(self, form: Form) -> list[Cell]:
        return grid(K=DEPTHS, draws=[1 if form == "quick" else 20])

    def run(self, cell: Cell) -> Rows:
        return [_measured(drawn(cell["K"], seed)) | {"seed": seed} for seed in range(cell["draws"])]

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        figure.set_size_inches(6, 3.3)
        axes = figure.subplots()
        for K, part in rows.groupby("K"):
            axes.plot(part["gap"], part["largest"], ".", label=f"{K} layers")
        axes.set(xscale="log", yscale="log", xlabel="smallest gap between two λ")
        axes.set_ylabel("largest |weight| of a mode, P⁻¹B")
        axes.set_title("weights of the one diagonal layer that K layers with B = C = 1 are", fontsize=9)
        axes.legend(fontsize=8)


def _measured(values: Tensor) -> dict[str, Any]:
    """How far the equations are off for λ (K, 1)."""
    ones, flat = torch.ones_like(values), values.flatten()
    A, B, C = one_layer(values, ones, ones)
    rates, weights, readout = diagonal(values, ones, ones)
    u = torch.randn(200, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = u
    for value in flat:
        y = _outputs(value[None, None], y, ones[0], ones[0])
    gaps = (flat[:, None] - flat)[~torch.eye(len(flat), dtype=torch.bool)].view(len(flat), -1)
    expected = (flat[:, None] / gaps).prod(-1)
    found: dict[str, Any] = {
        "one": float((_outputs(A, u, B, C) - y).abs().max() / y.abs().max()),
        "diagonal": float((_outputs(torch.diag(rates), u, weights, readout) - y).abs().max() / y.abs().max()),
        "readout": float((readout - 1).abs().max()),
        "weights": float((weights - expected).abs().max() / expected.abs().max()),
        "gap": float(gaps.abs().min()),
        "largest": float(weights.abs().max()),
    }
    if len(flat) == 4:
        P, four = eigenvectors(values, ones, ones), flat.tolist()
        inverse, shown, shown_inverse = torch.linalg.inv(P), printed_eigenvectors(*four), printed_inverse(*four)
        found |= {
            "eq_10": float((A @ shown - shown * flat).abs().max()),
            "eq_10_wrong": _differing(shown, P),
            "eq_11": float((shown_inverse @ P - torch.eye(4)).abs().max()),
            "eq_11_wrong": _differing(shown_inverse, inverse),
        }
    return found


def _outputs(A: Tensor, u: Tensor, B: Tensor, C: Tensor) -> Tensor:
    state, found = torch.zeros_like(B), []
    for value in u:
        state = A @ state + B * value
        found.append(C @ state)
    return torch.stack(found)


def _differing(shown: Tensor, right: Tensor) -> str:
    """Which entries are not right, and which of these in their sign alone."""
    small = 1e-9 * right.abs().max()
    wrong, sign = (shown - right).abs() > small, (shown + right).abs() <= small
    names = [f"{i + 1},{j + 1}" + (" (its sign)" if sign[i, j] else "") for i, j in wrong.nonzero().tolist()]
    return "not right: " + ", ".join(names)
