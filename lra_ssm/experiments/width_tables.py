"""Tables 1 to 3 of the note on Everett et al. 2024: which parameterizations are one, and how sizes go with the width.

The hidden layers' number, V, the data, the constant C = 0.1 of the learning rates d^-c, and ten steps are ours.
"""

from itertools import product
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch.nn import functional as F

from lra_ssm.experiments.base import Cell, Experiment, Form, Judgement, Rows, claim, grid, only
from lra_ssm.experiments.width_bigram import DEPTH, WIDTHS, batches, by_theory, exponent, generator, learn, sizes
from lra_ssm.width.bigram import Bigram, FirstOrder
from lra_ssm.width.coordinates import rms
from lra_ssm.width.parameterizations import KAPPA, PARAMETERIZATIONS, Exponents, Parameterization, with_rates

STEPS, C = 10, 0.1
BESIDE: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}  # a panel, where no line is
PAIRS = (("sp", "ntk"), ("mup", "mean_field"), ("sp", "mup"))


def _largest(rows: pd.DataFrame, one: str, other: str) -> tuple["pd.Series[float]", str]:
    """The largest difference with each optimizer, and all as text."""
    found = only(rows, one=one, other=other).groupby("optimizer")["difference"].max()
    return found, ", ".join(f"{name} {value:.1e}" for name, value in found.items())


class Equivalent(Experiment):
    """Table 1: parameterizations with the same a + b and c + κa train the same, step by step, and others do not.

    From one random draw, in float64, d = 256: the losses of 20 steps of each optimizer of eq. 12, and of torch's Adam
    with its memory and an epsilon of 1e-30. κ is 1 for Adam in the note; of SGD and Adafactor it follows from eq. 12.
    """

    @claim(
        "the losses of 20 steps differ by 1e-5 at most, with every optimizer",
        "{one} ≡ {other}",
        [{"one": one, "other": other} for one, other in PAIRS[:2]],
    )
    def same(self, rows: pd.DataFrame, one: str, other: str) -> Judgement:
        """{one} and {other} are one trajectory"""
        found, told = _largest(rows, one, other)
        return Judgement.of((found <= 1e-5).all(), told)

    @claim("their losses differ by more than 1e-5, with every optimizer", "sp ≢ mup")
    def differ(self, rows: pd.DataFrame) -> Judgement:
        """SP and muP are two classes"""
        found, told = _largest(rows, "sp", "mup")
        return Judgement.of((found > 1e-5).all(), told)

    def cells(self, form: Form) -> list[Cell]:
        d, rules = (64, ["adam"]) if form == "quick" else (256, [*KAPPA, "torch.optim.Adam"])
        return [{"one": a, "other": b, **cell} for a, b in PAIRS for cell in grid(optimizer=rules, d=[d])]

    def run(self, cell: Cell) -> Rows:
        one, other = (self._losses(cell[name], cell["optimizer"], cell["d"]) for name in ("one", "other"))
        return [
            {"step": step, "loss": a, "difference": abs(a - b)}
            for step, (a, b) in enumerate(zip(one, other, strict=True))
        ]

    def _losses(self, name: Any, rule: str, d: int) -> list[float]:
        kind: Any = "adam" if rule == "torch.optim.Adam" else rule
        given = with_rates(PARAMETERIZATIONS[name], kind)
        model = Bigram(d, 32, given, DEPTH, True, "tanh", generator=generator(0), dtype=torch.float64)
        groups = list(model.groups(0.05))
        optimizer = torch.optim.Adam(groups, eps=1e-30) if rule == "torch.optim.Adam" else FirstOrder(groups, kind)
        return learn(model, batches(32, 0), 20, optimizer)

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        axes = figure.subplots()
        marks = dict(zip(sorted(rows["optimizer"].unique()), "osx+", strict=False))
        for (one, other), color in zip(PAIRS, ("#1f77b4", "#2ca02c", "#c0392b"), strict=True):
            for rule, each in only(rows, one=one, other=other).groupby("optimizer"):
                size = 9 if color == "#1f77b4" else 5  # both equal pairs are to be seen
                drawn = each["difference"].clip(lower=1e-18)
                axes.plot(
                    each["step"], drawn, marks[rule], color=color, markersize=size, label=f"{one}, {other}: {rule}"
                )
        axes.text(0, 4e-18, "no difference at all is drawn here", fontsize=8)
        axes.axhline(1e-5, color="#222222", linestyle="--", linewidth=1)
        axes.text(19, 1.3e-5, "the rule: 1e-5", ha="right", fontsize=8)
        axes.set(yscale="log", xlabel="step", ylabel="difference of the two losses, nats")
        axes.legend(fontsize=6, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))


# Table 2: variances as powers of d, by (σ_0², σ_{L+1}²) and RMSNorm. h: h_1 … h_{L+1}, z: logits, z': their gradient.
TABLE2: dict[str, tuple[float, float, dict[bool, tuple[float, ...]]]] = {
    "1, 1/d": (0, 0.5, {False: (0, 0, 0, -1, 0, -1, -1), True: (0, 0, 0, -1, 0, -1, -1)}),
    "1/d, 1/d": (0.5, 0.5, {False: (-1, -1, -1, -1, -1, -2, -1), True: (0, 0, 0, -1, 0, -1, 0)}),
    "1, 1": (0, 0, {False: (0, 1, 0, 0, 0, 0, 0), True: (0, 1, 0, 0, 0, 0, 0)}),
}  # fmt: skip
QUANTITIES = ("h", "logits", "logits'", "h'", "W'_readout", "W'_hidden", "W'_embedding")
NAMES = dict(zip(QUANTITIES, ("h3", "h4", "V'", "h'1", "W'3", "W'1", "W'0"), strict=True))


def _at_the_start(row: str, norm: bool) -> dict[str, float]:
    """Table 2's exponents of RMS."""
    return {name: power / 2 for name, power in zip(QUANTITIES, TABLE2[row][2][norm], strict=True)}


class AtTheStart(Experiment):
    """Table 2, as root mean squares, whose exponents are half the variances'; over 8 bigrams and 5 seeds."""

    @claim(
        "every exponent of RMS within 0.1 of the table's half",
        "σ² = {row}{with_norm}",
        [{"row": row, "norm": norm, "with_norm": ", RMSNorm" * norm} for row in TABLE2 for norm in (False, True)],
    )
    def table(self, rows: pd.DataFrame, row: str, norm: bool, with_norm: str) -> Judgement:
        """variances {row} of embedding and readout{with_norm}: RMS at the start is table 2's"""
        return Judgement.of(*by_theory(only(rows, row=row, norm=norm), _at_the_start(row, norm)))

    def cells(self, form: Form) -> list[Cell]:
        widths, seeds = ((64, 256), 1) if form == "quick" else (WIDTHS, 5)
        return grid(row=TABLE2, norm=(False, True), d=widths, seeds=[seeds])

    def run(self, cell: Cell) -> Rows:
        b_0, b_readout, _ = TABLE2[cell["row"]]
        given = _exponents((0, b_0, 0), (0, 0.5, 0), (0, b_readout, 0))
        for seed in range(cell["seeds"]):
            model = Bigram(cell["d"], 32, given, DEPTH, cell["norm"], generator=generator(seed), dtype=torch.float64)
            measured = sizes(model, *next(batches(32, seed)))
            yield {"seed": seed, **{name: measured[key] for name, key in NAMES.items()}}

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        figure.set_size_inches(13, 5.5)
        panels = figure.subplots(2, 3, sharex=True)
        for axes, (norm, row) in zip(panels.flat, product((False, True), TABLE2), strict=True):
            _lines(axes, only(rows, row=row, norm=norm), _at_the_start(row, norm))
            axes.set_title(f"σ² = {row}{', RMSNorm' if norm else ''}", fontsize=9)


def _exponents(embedding: Any, hidden: Any, readout: Any) -> Parameterization:
    """Of the three kinds of layers, each (a, b, c)."""
    return {"embedding": Exponents(*embedding), "hidden": Exponents(*hidden), "readout": Exponents(*readout)}


def _over_width(axes: Any, size: str, widths: Any) -> None:
    axes.set(xscale="log", yscale="log", xlabel="width d", ylabel=size)
    axes.minorticks_off()
    axes.set_xticks(widths, widths)


def _lines(axes: Any, rows: pd.DataFrame, theory: dict[str, float]) -> None:
    """RMS over d, dashed what theory says from the first width on; the legend has both exponents."""
    for i, (name, wanted) in enumerate(theory.items()):
        means = rows.groupby("d")[name].mean()
        label = f"{name}: {exponent(rows, name):.2f} ({wanted:g})"
        axes.plot(means, "o-", color=f"C{i}", markersize=3, linewidth=1, label=label)
        expected = means.iloc[0] * (means.index / means.index[0]) ** wanted
        axes.plot(means.index, expected, "--", color=f"C{i}", linewidth=0.7)
    _over_width(axes, "RMS", rows["d"].unique())
    axes.legend(fontsize=6, title="found (theory, dashed)", title_fontsize=6, **BESIDE)


# Table 3: (a, b, c) of the models, and RMS as powers of d that is to be maintained.
READOUT = _exponents((0, 0, 0), (0, 0.5, 1), (0.5, 0.5, 0.5))
CHANGED = ("h", "logits'", "h'", "W'_readout", "W'_hidden", "W'_embedding")
TABLE3: dict[str, tuple[Parameterization, tuple[float, ...]]] = {
    "SP": (PARAMETERIZATIONS["sp"], (0, 0, -0.5, 0, -0.5, -0.5)),
    "SP+readout": (READOUT, (0, 0, -1, -0.5, -1, -1)),
    "muP": (PARAMETERIZATIONS["mup"], (0, 0, -1, -0.5, -1, -0.5)),
}
VOCABULARIES = (2, 4, 32, 256)


def _changes(rows: pd.DataFrame, model: str) -> dict[int, pd.DataFrame]:
    """A model's rows without RMSNorm, by V."""
    return dict(list(only(rows, model=model, norm=False).groupby("V")))


def _change(rows: pd.DataFrame, model: str, wanted: float) -> Judgement:
    found = {V: exponent(own, "change") for V, own in _changes(rows, model).items()}
    told = ", ".join(f"V {V}: {value:.2f}" for V, value in found.items())
    holds = all(abs(value - wanted) <= 0.1 for value in found.values())
    return Judgement.of(holds, f"{told}; {wanted:g} in theory")


def predicted(rows: pd.DataFrame) -> float:
    """Exponent of the logits' change, from measured alignments (15-17): the largest of its three terms'."""
    return max(exponent(rows, name) for name in ("W Δh", "ΔW h", "ΔW Δh"))


class AfterTenSteps(Experiment):
    """Table 3: what ten steps of sign descent leave of the start's exponents, and with which alignment.

    Of the readout are measured its alignments α, u and ω (15-17), as exponents of RMS(ΔW h) / (RMS(ΔW) RMS(h)) and so
    on, and the three terms of the logits' change that they are of. How many tokens there are decides them: an update
    is the sign of a sum over the batch's bigrams, and the more differ the less of it is aligned with any.
    """

    @claim("every exponent within 0.1, V = 32, with RMSNorm and without", "{model} maintained", grid(model=TABLE3))
    def maintained(self, rows: pd.DataFrame, model: str) -> Judgement:
        """ten steps of {model} leave RMS with table 3's exponents"""
        theory = dict(zip(CHANGED, TABLE3[model][1], strict=True))
        plain, normed = (by_theory(only(rows, model=model, V=32, norm=norm), theory) for norm in (False, True))
        return Judgement.of(plain[0] and normed[0], f"no norm: {plain[1]}; RMSNorm: {normed[1]}")

    @claim("exponent of the change in ten steps 0 within 0.1, at every V", "SP (A.2)")
    def sp(self, rows: pd.DataFrame) -> Judgement:
        """under condition A.2 the logits of SP change by as much at every width"""
        return _change(rows, "SP", 0)

    @claim("exponent 0.5 within 0.1, at every V", "SP (31)")
    def sp_aligned(self, rows: pd.DataFrame) -> Judgement:
        """under (31), ω = 1, the logits of SP change by √d"""
        return _change(rows, "SP", 0.5)

    @claim("exponent 0 within 0.1, at every V", "muP")
    def mup(self, rows: pd.DataFrame) -> Judgement:
        """the logits of muP change by as much at every width"""
        return _change(rows, "muP", 0)

    @claim("exponent of the change within 0.1 of the largest of its three terms', of every model at every V")
    def alignment(self, rows: pd.DataFrame) -> Judgement:
        """the change is what α, u and ω as measured make of it (15-17)"""
        off, told = 0.0, []
        for model in TABLE3:
            for V, own in _changes(rows, model).items():
                found, wanted = exponent(own, "change"), predicted(own)
                alignments = ", ".join(f"{name} {exponent(own, name):.2f}" for name in ("α", "u", "ω"))
                told.append(f"{model}, V {V}: {found:.2f}, {wanted:.2f} by {alignments}")
                off = max(off, abs(found - wanted))
        return Judgement.of(off <= 0.1, "; ".join(told))

    def cells(self, form: Form) -> list[Cell]:
        widths, seeds, vocabularies = ((64, 256), 1, (32,)) if form == "quick" else (WIDTHS, 3, VOCABULARIES)
        kinds = [{"V": V, "norm": False} for V in vocabularies] + [{"V": 32, "norm": True}]
        sizes = grid(d=widths, seeds=[seeds])
        return [{"model": model, **kind, **size} for model in TABLE3 for kind in kinds for size in sizes]

    def run(self, cell: Cell) -> Rows:
        return [{"seed": seed, **self._one(cell, seed)} for seed in range(cell["seeds"])]

    def _one(self, cell: Cell, seed: int) -> dict[str, float]:
        V, data = cell["V"], batches(cell["V"], seed)
        model = Bigram(cell["d"], V, TABLE3[cell["model"]][0], DEPTH, cell["norm"], generator=generator(seed))
        x, y = next(data)
        with torch.no_grad():
            *_, h, logits = model.activations(x)
            W = model.weights[-1].clone()
        learn(model, data, STEPS, FirstOrder(list(model.groups(C))))
        measured = sizes(model, x, y)
        with torch.no_grad():
            *_, new_h, new_logits = model.activations(x)
            dW, dh = model.weights[-1] - W, new_h - h
        scale, terms = model.multipliers[-1], {"ω": (W, dh), "α": (dW, h), "u": (dW, dh)}
        found = {name: measured[key] for name, key in (NAMES | {"logits'": "h'4"}).items()} | {
            "change": rms(new_logits - logits)
        }
        for (name, (weight, value)), term in zip(terms.items(), ("W Δh", "ΔW h", "ΔW Δh"), strict=True):
            moved = rms(F.linear(value, weight))
            found |= {name: moved / (rms(weight) * rms(value)), term: scale * moved}
        return found

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        figure.set_size_inches(14, 6)
        upper, lower = figure.subplots(2, 3)
        for axes, (model, (_, theory)) in zip(upper, TABLE3.items(), strict=True):
            _lines(axes, only(rows, model=model, V=32, norm=False), dict(zip(CHANGED, theory, strict=True)))
            axes.set_title(f"{model}, V = 32, after {STEPS} steps", fontsize=9)
        for axes, model in zip(lower, TABLE3, strict=True):
            for V, own in _changes(rows, model).items():
                label = f"V = {V}: {exponent(own, 'change'):+.2f} (by alignment {predicted(own):+.2f})"
                axes.plot(own.groupby("d")["change"].mean(), "o-", markersize=3, label=label)
            _over_width(axes, "RMS of the logits' change", rows["d"].unique())
            axes.legend(fontsize=6, **BESIDE)
