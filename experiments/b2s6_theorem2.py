"""B2S6, theorems 2 and 5: which inputs the last output depends on when one input is large.

Source: Yu & Erichson 2025, eq. 6 and theorems 2 and 5. Our choices: 8 channels, 16 real states, B2S6 with 4 blocks, 32
positions of N(0, 1) of which the 16th is scaled by c, the layers' default initialization, 10 draws. Before the scaling
by c, the 16th input is normalized so that wᵀu is 1 or -1, with the sign that the theorem asks for; for B2S6 the signs
alternate over the blocks. Then c has the same effect on Δ in every draw. (Otherwise the powers hold from a c on that
differs between draws.)
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
CASES: dict[str, Sequence[float]] = {  # sign of wᵀu in each block
    "S4D": (), "S6, wᵀu > 0": (1,), "S6, wᵀu < 0": (-1,), "B2S6, both": (1, -1, 1, -1),
}  # fmt: skip
PARTS = {"before": "k < k₀", "at": "k = k₀", "after": "k > k₀"}
SCALES = [1, 2, 3, 5, 7, 10, 15, 20, 25, 30, 40, 60, 100, 300, 1000, 3000, 10000]
ZERO = 1e-290  # smaller shares are not measured: they are near the limits of float64


def cells(size: Size) -> list[Cell]:
    return grid(case=CASES, draws=[2 if size == "quick" else 10])


def run(case: str, draws: int) -> Rows:
    for seed in range(draws):
        torch.manual_seed(seed)
        name, signs = case.partition(",")[0], CASES[case]
        layer = without_skip(unit_spec(name, num_blocks=4, complex_A=False)(D)).double()
        u = torch.randn(L, D, dtype=torch.float64)
        if signs:
            u[K0] = _normalize(u[K0], layer.get_parameter("delta_weight").detach(), signs)
        inputs = u.repeat(len(SCALES), 1, 1)
        inputs[:, K0] *= torch.tensor(SCALES, dtype=u.dtype)[:, None]
        shares = relative_gradient(layer, inputs)
        parts = shares[:, :K0].sum(1), shares[:, K0], shares[:, K0 + 1 :].sum(1)
        for c, *values in zip(SCALES, *(part.tolist() for part in parts), strict=True):
            yield {"draw": seed, "c": c, **dict(zip(PARTS, values, strict=True))}


def _normalize(u: Tensor, w: Tensor, signs: Sequence[float]) -> Tensor:
    """Scale the blocks of u (D,) so that wᵀu equals `signs`, one for each block; w is (D,) for S6, (H, P) for B2S6."""
    w = w.view(len(signs), -1)
    blocks, products = u.view(w.shape), torch.tensor(signs, dtype=u.dtype)
    return (blocks * products[:, None] / (blocks * w).sum(1, keepdim=True)).flatten()


def _slopes(rows: pd.DataFrame, case: str, part: str) -> tuple[float, float]:
    """Return the smallest and the largest log-log slope of a share over c = 100 … 10,000 among all draws."""
    draws = only(rows[rows["c"] >= 100], case=case).groupby("draw")
    slopes = [slope(group["c"], group[part]) for _, group in draws]
    return float(np.min(slopes)), float(np.max(slopes))


def _tails(rows: pd.DataFrame, case: str, part: str) -> tuple[float, bool]:
    """Return the log-log slope of a share at its end, and whether the slope decreases like that of an exponential.

    The end is the last two c at which the share is measured; the flattest slope of all draws is returned. The slope
    decreases if, in every draw, it falls from each c to the next from c = 5 on.
    """
    last_slopes, decreases = [], True
    for _, group in only(rows[rows["c"] >= 5], case=case).groupby("draw"):
        measured = group[~(group[part] <= ZERO)]
        slopes = [slope(measured["c"][i : i + 2], measured[part][i : i + 2]) for i in range(len(measured) - 1)]
        last_slopes.append(slopes[-1])
        decreases &= slopes == sorted(slopes, reverse=True)
    return float(np.max(last_slopes)), decreases


def claims(rows: pd.DataFrame) -> Claims:
    s4d = only(rows, case="S4D").pivot(index="draw", columns="c", values=list(PARTS))
    shares = s4d.to_numpy().reshape(-1, len(SCALES))  # a row for each draw and part
    change = float((np.ptp(shares, axis=1) / shares.max(1)).max())
    yield Claim(
        "S4D's relative gradient does not depend on the input",
        "it changes by at most 1e-9, relative to its maximum, over all c",
        change <= 1e-9,
        {"largest relative change:": change},
    )
    fast = "the log-log slope of the share over c decreases with c and ends below -10 in all draws"
    power = "the log-log slope over c = 100 … 10,000 is within 0.1 of {} in all draws"
    for case, part, statement in (
        ("S6, wᵀu > 0", "before", "S6 with wᵀu > 0 at a large input forgets what came before it faster than any power"),
        ("S6, wᵀu < 0", "at", "S6 with wᵀu < 0 ignores the large input itself faster than any power"),
    ):
        last, decreases = _tails(rows, case, part)
        yield Claim(statement, fast, decreases and last < -10, {"flattest last slope:": last})
    for case, part, exponent, statement in (
        ("S6, wᵀu > 0", "at", -1, "S6 with wᵀu > 0 keeps a share of 1/c of the large input itself"),
        ("S6, wᵀu < 0", "before", 0, "S6 with wᵀu < 0 keeps what came before a large input"),
        ("B2S6, both", "before", -2, "B2S6 with blocks of both signs forgets what came before only at the rate c⁻²"),
    ):
        low, high = _slopes(rows, case, part)
        near = abs(low - exponent) <= 0.1 and abs(high - exponent) <= 0.1
        yield Claim(statement, power.format(exponent), near, {"smallest slope:": low, "largest:": high})
    low, high = _slopes(rows, "B2S6, both", "at")
    yield Claim(
        "B2S6 keeps a share of at most 1/c of the large input itself",
        "the log-log slope over c = 100 … 10,000 is at most -0.9 in all draws",
        high <= -0.9,
        {"smallest slope:": low, "largest:": high},
    )


def draw(rows: pd.DataFrame, figure: Figure) -> None:
    figure.set_size_inches(11, 3.2)
    for axes, case in zip(figure.subplots(1, 4, sharey=True), CASES, strict=True):
        medians = only(rows, case=case).groupby("c")[list(PARTS)].median().clip(lower=ZERO)
        for (part, label), color in zip(PARTS.items(), ["#1f6fb4", "#c0392b", "#2e8b57"], strict=True):
            axes.plot(medians[part], "o-", color=color, markersize=3, label=label)
        axes.set(xscale="log", yscale="log", ylim=(1e-12, 3), title=case, xlabel="size c of the input at k₀")
    figure.axes[0].set_ylabel("share of the relative gradient\n(median over draws)")
    figure.axes[0].legend(fontsize=8)
    c = medians.index[medians.index >= 10]
    figure.axes[-1].plot(c, 0.3 * (c / 10.0) ** -2, "--", color="#888888", linewidth=1)
    figure.axes[-1].annotate("c⁻²", (1000, 1e-6), color="#888888")


if __name__ == "__main__":
    main()
