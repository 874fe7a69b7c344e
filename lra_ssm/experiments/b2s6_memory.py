"""B2S6's theorems 2 and 5: what of the other inputs is left in the last output when one input is large.

Source: Yu & Erichson 2025, eq. 6 and theorems 2 and 5. Ours: 8 channels, 16 real states, B2S6 with 4 blocks, 32
positions of N(0, 1) of which the 16th is scaled by c, weights as the layers draw them, 10 draws. That input is scaled
so that wᵀu is 1 or -1, whichever sign the theorem asks for, in B2S6 of either sign in every other block: c then says
how far Δ has come in every draw. (Without it the powers hold from a c on that differs by draw: in some wᵀu is small.)
"""

from collections.abc import Sequence

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lra_ssm.analysis import relative_gradient
from lra_ssm.experiments.b2s6_units import unit, without_skip
from lra_ssm.experiments.base import Cell, Experiment, Form, Judgement, Rows, claim, grid, only, slope

D, L, K0 = 8, 32, 15
CASES: dict[str, tuple[str, Sequence[float]]] = {  # unit, signs of wᵀu by block
    "S4D": ("S4D", ()),
    "S6, wᵀu > 0": ("S6", (1,)),
    "S6, wᵀu < 0": ("S6", (-1,)),
    "B2S6, both": ("B2S6", (1, -1, 1, -1)),
}
PARTS = {"before": "k < k₀", "at": "k = k₀", "after": "k > k₀"}
TINY = 1e-300  # stands for a share that is 0 in float64


IN_ALL = "in all draws, log over log, over c = 100 … 10,000"
FAST = "every draw's slope over c = 100 … 1,000 is below −10 (a share of 0 counts as 1e−300)"


def _slopes(rows: pd.DataFrame, case: str, part: str, high: float = 1e4) -> tuple["pd.Series[float]", str]:
    """Of a part's share over c, log over log, by draw; and as text."""
    draws = only(rows[rows["c"].between(100, high)], case=case).groupby("draw")
    found = pd.Series([slope(one["c"], one[part].clip(lower=TINY)) for _, one in draws])
    return found, f"slopes {found.min():.3g} to {found.max():.3g}, median {found.median():.3g}"


def _is_near(rows: pd.DataFrame, case: str, part: str, wanted: float) -> Judgement:
    found, said = _slopes(rows, case, part)
    return Judgement.of((found - wanted).abs().max() <= 0.1, said)


def _is_fast(rows: pd.DataFrame, case: str, part: str) -> Judgement:
    found, said = _slopes(rows, case, part, high=1000)
    return Judgement.of(found.max() < -10, said)


class InputBias(Experiment):
    """Shares of the relative gradient before, at and after an input that grows."""

    @claim("change over c below 1e−9", "S4D")
    def unchanged(self, rows: pd.DataFrame) -> Judgement:
        """S4D's relative gradient does not depend on the input"""
        shares = only(rows, case="S4D").groupby("draw")[list(PARTS)]
        change = float(((shares.max() - shares.min()) / shares.max()).max().max())
        return Judgement.of(change <= 1e-9, f"largest relative change {change:.1g}")

    @claim(FAST, "S6 forgets")
    def s6_forgets(self, rows: pd.DataFrame) -> Judgement:
        """S6 with wᵀu > 0 at a large input forgets what came before it faster than any power of its size"""
        return _is_fast(rows, "S6, wᵀu > 0", "before")

    @claim(f"slope −1 within 0.1 {IN_ALL}", "S6 at k₀")
    def s6_input(self, rows: pd.DataFrame) -> Judgement:
        """there the large input itself keeps a share of 1/c"""
        return _is_near(rows, "S6, wᵀu > 0", "at", -1)

    @claim(FAST, "S6 ignores")
    def s6_ignores(self, rows: pd.DataFrame) -> Judgement:
        """S6 with wᵀu < 0 ignores the large input itself faster than any power"""
        return _is_fast(rows, "S6, wᵀu < 0", "at")

    @claim(f"slope 0 within 0.1 {IN_ALL}", "S6 keeps")
    def s6_keeps(self, rows: pd.DataFrame) -> Judgement:
        """and keeps what came before"""
        return _is_near(rows, "S6, wᵀu < 0", "before", 0)

    @claim(f"slope −2 within 0.1 {IN_ALL}", "B2S6 forgets")
    def b2s6_forgets(self, rows: pd.DataFrame) -> Judgement:
        """B2S6 with blocks of both signs forgets what came before as c⁻² only"""
        return _is_near(rows, "B2S6, both", "before", -2)

    @claim(f"slope at most −0.9 {IN_ALL}", "B2S6 at k₀")
    def b2s6_input(self, rows: pd.DataFrame) -> Judgement:
        """the large input itself keeps a share of at most 1/c"""
        found, said = _slopes(rows, "B2S6, both", "at")
        return Judgement.of(found.max() <= -0.9, said)

    def cells(self, form: Form) -> list[Cell]:
        return grid(case=CASES, draws=[2 if form == "quick" else 10])

    def run(self, cell: Cell) -> Rows:
        name, signs = CASES[cell["case"]]
        scales = [1, 3, 10, 30, 100, 200, 300, 500, 1000, 3000, 10000]
        for draw in range(cell["draws"]):
            torch.manual_seed(draw)
            layer = without_skip(unit(name, num_blocks=4, complex_A=False)(D)).double()
            u = torch.randn(L, D, dtype=torch.float64)
            if signs:
                u[K0] = _scaled(u[K0], layer.get_parameter("delta_weight").detach(), signs)
            inputs = u.repeat(len(scales), 1, 1)
            inputs[:, K0] *= torch.tensor(scales, dtype=u.dtype)[:, None]
            shares = relative_gradient(layer, inputs)
            parts = shares[:, :K0].sum(1), shares[:, K0], shares[:, K0 + 1 :].sum(1)
            for c, *values in zip(scales, *(part.tolist() for part in parts), strict=True):
                yield {"draw": draw, "c": c, **dict(zip(PARTS, values, strict=True))}

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        figure.set_size_inches(11, 3.2)
        colors = ["#1f6fb4", "#c0392b", "#2e8b57"]
        for axes, case in zip(figure.subplots(1, 4, sharey=True), CASES, strict=True):
            medians = only(rows, case=case).groupby("c")[list(PARTS)].median().clip(lower=TINY)
            for (part, label), color in zip(PARTS.items(), colors, strict=True):
                axes.plot(medians[part], "o-", color=color, markersize=3, label=label)
            axes.set(xscale="log", yscale="log", ylim=(1e-12, 3), title=case, xlabel="size c of the input at k₀")
        first = figure.axes[0]
        first.set_ylabel("share of the relative gradient\n(median of the draws)")
        first.legend(fontsize=8)
        c = rows["c"].unique()
        c = c[c >= 10]
        last = figure.axes[-1]
        last.plot(c, 0.3 * (c / 10.0) ** -2, "--", color="#888888", linewidth=1)
        last.annotate("c⁻²", (1000, 1e-6), color="#888888")


def _scaled(u: Tensor, w: Tensor, signs: Sequence[float]) -> Tensor:
    """u (D,) with wᵀu of these signs, in size 1: w (D,) of S6, or (H, P) of B2S6, a sign for each block."""
    w = w.view(len(signs), -1)
    blocks, wanted = u.view(w.shape), torch.tensor(signs, dtype=u.dtype)
    return (blocks * wanted[:, None] / (blocks * w).sum(1, keepdim=True)).flatten()
