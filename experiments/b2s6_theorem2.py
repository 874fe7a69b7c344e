"""B2S6, theorems 2 and 5: what is left of the other inputs in the last output when one input is large.

Source: Yu & Erichson 2025, eq. 6 and theorems 2 and 5. Ours: 8 channels, 16 real states, B2S6 with 4 blocks, 32
positions of N(0, 1) of which the 16th is scaled by c, weights as the layers draw them, 10 draws. That input is scaled
first so that wᵀu is 1 or -1, whichever sign the theorem asks for, with B2S6 of either sign in every other block: then c
says how far Δ has come in every draw. (Otherwise the powers hold from a c on that differs by draw.)
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from helper import Cell, Claim, Claims, Rows, Size, grid, main, only, slope
from lra_ssm.analysis import relative_gradient
from units import unit_spec, without_skip

D, L, K0 = 8, 32, 15
CASES: dict[str, Sequence[float]] = {  # signs of wᵀu by block
    "S4D": (), "S6, wᵀu > 0": (1,), "S6, wᵀu < 0": (-1,), "B2S6, both": (1, -1, 1, -1),
}  # fmt: skip
PARTS = {"before": "k < k₀", "at": "k = k₀", "after": "k > k₀"}
SCALES = [1, 2, 3, 5, 7, 10, 15, 20, 25, 30, 40, 60, 100, 300, 1000, 3000, 10000]
ZERO = 1e-290  # below it a share is not measured: float64 ends


def cells(size: Size) -> list[Cell]:
    return grid(case=CASES, draws=[2 if size == "quick" else 10])


def run(case: str, draws: int) -> Rows:
    for draw in range(draws):
        torch.manual_seed(draw)
        name, signs = case.partition(",")[0], CASES[case]
        layer = without_skip(unit_spec(name, num_blocks=4, complex_A=False)(D)).double()
        u = torch.randn(L, D, dtype=torch.float64)
        if signs:
            u[K0] = _scaled(u[K0], layer.get_parameter("delta_weight").detach(), signs)
        inputs = u.repeat(len(SCALES), 1, 1)
        inputs[:, K0] *= torch.tensor(SCALES, dtype=u.dtype)[:, None]
        shares = relative_gradient(layer, inputs)
        parts = shares[:, :K0].sum(1), shares[:, K0], shares[:, K0 + 1 :].sum(1)
        for c, *values in zip(SCALES, *(part.tolist() for part in parts), strict=True):
            yield {"draw": draw, "c": c, **dict(zip(PARTS, values, strict=True))}


def _scaled(u: Tensor, w: Tensor, signs: Sequence[float]) -> Tensor:
    """Return u (D,) with wᵀu of these signs and size 1: w (D,) of S6, or (H, P) of B2S6, a sign for each block."""
    w = w.view(len(signs), -1)
    blocks, wanted = u.view(w.shape), torch.tensor(signs, dtype=u.dtype)
    return (blocks * wanted[:, None] / (blocks * w).sum(1, keepdim=True)).flatten()


def _slopes(rows: pd.DataFrame, case: str, part: str) -> tuple[float, float]:
    """Return the least and the greatest slope of a share over c = 100 … 10,000, log over log, of all draws."""
    draws = only(rows[rows["c"] >= 100], case=case).groupby("draw")
    found = [slope(one["c"], one[part]) for _, one in draws]
    return float(np.min(found)), float(np.max(found))


def _tails(rows: pd.DataFrame, case: str, part: str) -> tuple[float, bool]:
    """Return the slope of a share over the last two c at which it is measured, the largest of all draws, and whether
    the slopes fall from c to c in every draw from c = 5 on, as those of an exponential do."""
    ends, falls = [], True
    for _, one in only(rows[rows["c"] >= 5], case=case).groupby("draw"):
        known = one[~(one[part] <= ZERO)]
        steps = [slope(known["c"][i : i + 2], known[part][i : i + 2]) for i in range(len(known) - 1)]
        ends.append(steps[-1])
        falls &= steps == sorted(steps, reverse=True)
    return float(np.max(ends)), falls


def claims(rows: pd.DataFrame) -> Claims:
    s4d = only(rows, case="S4D").pivot(index="draw", columns="c", values=list(PARTS))
    shares = s4d.to_numpy().reshape(-1, len(SCALES))  # a row for each draw and part
    change = float((np.ptp(shares, axis=1) / shares.max(1)).max())
    yield Claim(
        "S4D's relative gradient does not depend on the input",
        "it changes by at most 1e-9 over c",
        change <= 1e-9,
        {"largest relative change": change},
    )
    fast = "the log-log slope of the share over c falls with c and ends below -10, in all draws"
    power = "log-log slope {} within 0.1 in all draws, over c = 100 … 10,000"
    for case, part, statement in (
        ("S6, wᵀu > 0", "before", "S6 with wᵀu > 0 at a large input forgets what came before it faster than any power"),
        ("S6, wᵀu < 0", "at", "S6 with wᵀu < 0 ignores the large input itself faster than any power"),
    ):
        last, falls = _tails(rows, case, part)
        yield Claim(statement, fast, falls and last < -10, {"flattest last slope": last})
    for case, part, wanted, statement in (
        ("S6, wᵀu > 0", "at", -1, "S6 with wᵀu > 0 keeps a share of 1/c of the large input itself"),
        ("S6, wᵀu < 0", "before", 0, "S6 with wᵀu < 0 keeps what came before a large input"),
        ("B2S6, both", "before", -2, "B2S6 with blocks of both signs forgets what came before as c⁻² only"),
    ):
        low, high = _slopes(rows, case, part)
        near = abs(low - wanted) <= 0.1 and abs(high - wanted) <= 0.1
        yield Claim(statement, power.format(wanted), near, {"least slope": low, "greatest": high})
    low, high = _slopes(rows, "B2S6, both", "at")
    yield Claim(
        "B2S6 keeps a share of at most 1/c of the large input itself",
        "log-log slope at most -0.9 in all draws, over the same c",
        high <= -0.9,
        {"least slope": low, "greatest": high},
    )


def draw(rows: pd.DataFrame, figure: Figure) -> None:
    figure.set_size_inches(11, 3.2)
    for axes, case in zip(figure.subplots(1, 4, sharey=True), CASES, strict=True):
        medians = only(rows, case=case).groupby("c")[list(PARTS)].median().clip(lower=ZERO)
        for (part, label), color in zip(PARTS.items(), ["#1f6fb4", "#c0392b", "#2e8b57"], strict=True):
            axes.plot(medians[part], "o-", color=color, markersize=3, label=label)
        axes.set(xscale="log", yscale="log", ylim=(1e-12, 3), title=case, xlabel="size c of the input at k₀")
    figure.axes[0].set_ylabel("share of the relative gradient\n(median of the draws)")
    figure.axes[0].legend(fontsize=8)
    c = medians.index[medians.index >= 10]
    figure.axes[-1].plot(c, 0.3 * (c / 10.0) ** -2, "--", color="#888888", linewidth=1)
    figure.axes[-1].annotate("c⁻²", (1000, 1e-6), color="#888888")


if __name__ == "__main__":
    main()
