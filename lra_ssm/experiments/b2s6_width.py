"""B2S6's theorems 1 and 4: how many different things the channels of a unit compute.

Source: Yu & Erichson 2025, sections 3 and 6. The proof of theorem 1: with a fixed Δ and u_L = 1 every channel of an S6
unit ends in the same quadratic form of the inputs, times a number of its own, so that the network sees a single number.
That can be counted: the rank of the last outputs over many inputs. Theorem 4's proof stands on blocks, or biases, that
raise it. Ours: 64 inputs of 32 numbers in [0, 1], the last 1; 32 real states; a singular value counts from 1e-9 of the
largest on; one draw of weights from N(0, 1) per seed, Δ = 0.1 in all channels.
"""

import math
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure

from lra_ssm.experiments.b2s6_units import COLORS, unit, without_skip
from lra_ssm.experiments.base import Cell, Claim, Experiment, Form, Judgement, Rows, by_seed, grid, only
from lra_ssm.ops import inverse_softplus

RANKED: dict[str, dict[str, Any]] = {  # by name: unit, its arguments; blocks of 4 channels
    "S4D": {"name": "S4D"},
    "S6": {"name": "S6"},
    "B2S6, blocks alone": {"name": "B2S6", "bias": False},
    "B2S6, bias alone": {"name": "B2S6", "num_blocks": 1},
}
DELTA = 0.1


def _wants_rank(name: str, wanted: str, statement: str) -> Claim:
    def judge(_: Experiment, rows: pd.DataFrame) -> Judgement:
        chosen = only(rows, unit=name)
        expected = {"1": chosen["d"] * 0 + 1, "d": chosen["d"], "h": chosen["d"] // 4}[wanted]
        found = chosen.groupby("d")["rank"].agg(["min", "max"])
        text = ", ".join(f"d {d}: {low}" + f" to {high}" * (high != low) for d, low, high in found.itertuples())
        return Judgement.of((chosen["rank"] == expected).all(), text)

    return Claim(name, statement, f"rank {wanted} at every width and seed", judge)


class Ranks(Experiment):
    """The rank of a unit's last outputs over inputs, by width."""

    claims = [
        _wants_rank("S4D", "d", "each channel of S4D computes something of its own (theorem 1)"),
        _wants_rank("S6", "1", "all channels of S6 compute the same number, however wide it is (theorem 1)"),
        _wants_rank("B2S6, blocks alone", "h", "each block of B2S6 computes a number of its own (theorem 4)"),
        _wants_rank("B2S6, bias alone", "d", "the bias alone gives each channel of B2S6 its own (theorem 4)"),
    ]

    def cells(self, form: Form) -> list[Cell]:
        widths = [4, 16] if form == "quick" else [4, 8, 12, 16, 20, 24]
        seeds = 2 if form == "quick" else 5
        return grid(unit=RANKED, widths=[widths], seeds=[seeds])

    def run(self, cell: Cell) -> Rows:
        for d in cell["widths"]:
            for seed in range(cell["seeds"]):
                torch.manual_seed(seed)
                yield {"d": d, "seed": seed, "rank": _rank(cell["unit"], d)}

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        axes = figure.subplots()
        markers = dict(zip(RANKED, ["o-", "s-", "^-", "x--"], strict=True))
        for name, marker in markers.items():
            mean = by_seed(only(rows, unit=name), ["d"], "rank")
            axes.plot(mean["d"], mean["mean"], marker, color=COLORS[RANKED[name]["name"]], label=name, markersize=5)
        axes.set(xlabel="channels d (blocks of 4)", ylabel="rank of the last outputs over inputs, Δ fixed")
        axes.legend()


def _rank(name: str, d: int) -> int:
    layer = without_skip(unit(d_state=32, **({"num_blocks": d // 4} | RANKED[name]))(d)).double()
    for parameter, weight in layer.named_parameters():
        if parameter == "log_delta":
            torch.nn.init.constant_(weight, math.log(DELTA))
        elif parameter == "delta_bias":
            torch.nn.init.constant_(weight, float(inverse_softplus(torch.tensor(DELTA))))
        elif parameter == "delta_weight":
            torch.nn.init.zeros_(weight)
        elif parameter in ("B", "C", "B_weight", "B_bias"):
            torch.nn.init.normal_(weight)
    u = torch.rand(64, 32, 1, dtype=torch.float64)
    u[:, -1] = 1
    with torch.no_grad():
        last = layer(u @ torch.randn(1, d, dtype=torch.float64))[:, -1]
    values = torch.linalg.svdvals(last)
    return int((values > 1e-9 * values[0]).sum())
