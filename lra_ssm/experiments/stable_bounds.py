"""StableSSM's bounds of gradients: figure 2, figure 6 with table 5, and theorem 3.6 on random models.

Source: Wang & Li 2024, sections 3.3 and 3.4, appendices C.5 and E. Of theorem 3.6 the paper has no experiment: targets
are its ρ(t) = (t + 1)^-1.1; states, eigenvalues and readouts are drawn as said below, which is ours.
"""

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lra_ssm.experiments.base import Cell, Experiment, Form, Judgement, Rows, claim, grid, only, slope
from lra_ssm.ops import Parameterization, linear_scan
from lra_ssm.ops.parameterization import Time

COLORS = {
    "direct": "#7f7f7f", "relu": "#8c564b", "clip": "#9467bd", "exp": "#1f77b4", "softplus": "#2ca02c",
    "tanh": "#ff7f0e", "best": "#d62728",
}  # fmt: skip
TIMES: tuple[Time, Time] = ("continuous", "discrete")


POWERS = {"output": 1, "gradient": 2}  # of 1/(1 - λ) in the bounds


def _within(rows: pd.DataFrame) -> Judgement:
    worst = max((rows[name] * (1 - rows["eigenvalue"]) ** power).max() for name, power in POWERS.items())
    return Judgement.of(worst <= 1 + 1e-9, f"at most {worst:.4g} of the bound")


class OutputAndGradient(Experiment):
    """The largest |y| and |dy/dλ| of h_k = λ h_{k-1} + x_k, y = h, over inputs |x| ≤ 1; the worst alternate as λ^k."""

    @claim("the largest share of a bound is at most 1 + 1e-9")
    def positive(self, rows: pd.DataFrame) -> Judgement:
        """|y| ≤ c/(1 - λ) and |dy/dλ| ≤ c/(1 - λ)² for 0 ≤ λ < 1"""
        return _within(rows[rows["eigenvalue"] >= 0])

    @claim("the largest share of a bound is at most 1 + 1e-9")
    def negative(self, rows: pd.DataFrame) -> Judgement:
        """the same for -1 < λ < 0, the left half of the figure"""
        return _within(rows[rows["eigenvalue"] < 0])

    @claim("slopes of the logs over log(1 - λ), λ ≥ 0.9, within 0.1 of -2 and -1")
    def growth(self, rows: pd.DataFrame) -> Judgement:
        """as λ nears 1 the gradient grows faster than the output, as (1 - λ)^-2 against (1 - λ)^-1"""
        near = rows[rows["eigenvalue"] >= 0.9]
        found = {name: slope(1 - near["eigenvalue"], near[name]) for name in POWERS}
        holds = all(abs(found[name] + power) <= 0.1 for name, power in POWERS.items())
        return Judgement.of(holds, f"exponents of 1 - λ: {found['output']:.3f} and {found['gradient']:.3f}")

    def cells(self, form: Form) -> list[Cell]:
        return [{"length": 4000}]

    def run(self, cell: Cell) -> Rows:
        values = torch.linspace(-0.99, 0.99, 67, dtype=torch.float64).requires_grad_()
        back = torch.arange(cell["length"] - 1, -1, -1)
        x = torch.where(values[:, None] < 0, -1.0, 1.0) ** back  # (N, L)
        last = linear_scan(values, x[None], return_last_state=True)[1][0]
        (gradient,) = torch.autograd.grad(last.sum(), values)
        columns = {"eigenvalue": values.detach(), "output": last.detach().abs(), "gradient": gradient.abs()}
        return pd.DataFrame(columns).to_dict("records")

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        axes, x = figure.subplots(), rows["eigenvalue"]
        for name, label, color in (("output", "|y|", "#1f77b4"), ("gradient", "|dy/dλ|", "#d62728")):
            power = POWERS[name]
            axes.plot(x, rows[name], color=color, label=f"largest {label}, |x| ≤ 1")
            bound = "1/(1 - λ)" + ("²" if power == 2 else "")
            axes.plot(x, (1 - x) ** -power, "--", color=color, label=f"the paper's bound {bound}")
        axes.set(yscale="log", xlabel="eigenvalue λ of a step", ylabel="over inputs |x| ≤ 1, c = 1")
        axes.legend()


# Table 5: G_f as printed there, with a and b as f has them.
PRINTED: dict[Time, dict[str, Callable[[Tensor], Tensor]]] = {
    "continuous": {
        "relu": lambda w: torch.where(w > 0, 1 / w.square(), torch.zeros_like(w)),
        "exp": lambda w: torch.exp(-w),
        "softplus": lambda w: w.exp() / ((1 + w.exp()) * torch.log1p(w.exp()).square()),
        "best": lambda w: 2 * w.abs(),
    },
    "discrete": {
        "relu": lambda w: torch.where(w > 0, torch.exp(-w) / (1 - torch.exp(-w)).square(), torch.zeros_like(w)),
        "exp": lambda w: torch.exp(w - w.exp()) / (1 - torch.exp(-w.exp())).square(),
        "softplus": lambda w: torch.exp(-w),
        "tanh": lambda w: torch.exp(2 * w),
        "best": lambda w: 2 * w.abs(),
    },
}


def _spread(rows: pd.DataFrame) -> "pd.Series[float]":
    """Of each form in each time: the deviation of log10(G_f/|w|) over weights, where the system is stable."""
    stable = rows[(rows["ratio"] > 0) & np.isfinite(rows["ratio"])]
    logs = np.log10(stable["ratio"])
    return logs.groupby([stable["time"], stable["form"]]).std()


class GradientScale(Experiment):
    """Table 5 and figure 6: f, G_f and G_f/|w| of every form, over 0.1 ≤ |w| ≤ 10 of both signs, a = 1 and b = 0.5."""

    @claim(
        "|f'|/f², or |f'|/(1 - f)², by automatic differentiation of f is the printed function within 1e-6", "table 5"
    )
    def table(self, rows: pd.DataFrame) -> Judgement:
        """G_f of nine forms is as table 5 has it"""
        known = rows.dropna(subset="printed")
        error = (known["bound"] - known["printed"]).abs() / known["printed"].clip(lower=1e-300)
        worst = error[(known["printed"] > 0) | (known["bound"] > 0)].max()
        return Judgement.of(worst <= 1e-6, f"{known.groupby(['time', 'form']).ngroups} rows, within {worst:.1g}")

    @claim(
        "deviation of log10(G_f/|w|) over |w| from 0.1 to 10, where f is stable: best at most 1e-6, all others at "
        "least 0.5",
        "best is flat",
    )
    def flat(self, rows: pd.DataFrame) -> Judgement:
        """G_f/|w| of best is balanced, alone of all forms"""
        spread = _spread(rows)
        flat = max(spread[time, "best"] for time in TIMES)
        others = min(value for (_, form), value in spread.items() if form != "best")
        said = f"deviation of the log: best {flat:.1g}, the others at least {others:.2g} powers of ten"
        return Judgement.of(flat <= 1e-6 and others >= 0.5, said)

    @claim("the same deviation is least for softplus of the three, in both times", "softplus is milder")
    def mild(self, rows: pd.DataFrame) -> Judgement:
        """softplus is generally milder than direct and exp"""
        spread, parts, holds = _spread(rows), [], True
        for time in TIMES:
            three = {form: spread[time, form] for form in ("softplus", "direct", "exp")}
            holds &= three["softplus"] == min(three.values())
            parts.append(f"{time}: " + ", ".join(f"{form} {value:.2f}" for form, value in three.items()))
        return Judgement.of(holds, "; ".join(parts))

    def cells(self, form: Form) -> list[Cell]:
        return grid(time=TIMES, points=[10 if form == "quick" else 30])

    def run(self, cell: Cell) -> Rows:
        time: Time = cell["time"]
        size = torch.logspace(-1, 1, cell["points"], dtype=torch.float64)
        w = torch.cat([-size.flip(0), size])
        for form in ("direct", *PRINTED[time]):
            f = Parameterization(form, time, b=0.5 if form == "best" else None)
            point = w.clone().requires_grad_()
            value = f.f(point)
            (derivative,) = torch.autograd.grad(value.sum(), point)
            value = value.detach()
            distance, stable = (value, value < 0) if time == "continuous" else (1 - value, value.abs() < 1)
            bound = torch.where(derivative == 0, 0.0, derivative.abs() / distance.square())
            printed = PRINTED[time].get(form, lambda w: w * math.nan)(w)
            ratio = torch.where(stable, bound / w.abs(), math.nan)
            columns = {"w": w, "eigenvalue": value, "bound": bound, "printed": printed, "ratio": ratio}
            yield from pd.DataFrame({"form": form, **columns}).to_dict("records")

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        figure.set_size_inches(10, 6)
        for line, time in zip(figure.subplots(2, 3), TIMES, strict=True):
            for form, own in only(rows, time=time).groupby("form", sort=False):
                for axes, name in zip(line, ("eigenvalue", "bound", "ratio"), strict=True):
                    shown = own[own["ratio"].notna() & (own["ratio"] > 0)]
                    for _, side in shown.groupby(shown["w"] > 0):
                        axes.plot(side["w"], side[name], color=COLORS[str(form)], label=form)
            symbol = "f²" if time == "continuous" else "(1 - f)²"
            said = ("λ = f(w)", f"G = |f'|/{symbol}", "G / |w|")
            for axes, label in zip(line, said, strict=True):
                axes.set_xscale("symlog", linthresh=0.1, linscale=0.2)
                axes.set(xlabel="weight w", ylabel=label, title=f"{time} time", xticks=[-10, -1, 0, 1, 10])
            line[0].set_ylim(*((-10, 0) if time == "continuous" else (-1, 1)))
            for axes in line[1:]:
                axes.set(yscale="log", ylim=(1e-10, 1e8))  # the paper's axis
        handles, labels = figure.axes[-1].get_legend_handles_labels()
        unique = dict(zip(labels, handles, strict=True))  # a form has a line on either side
        figure.legend(unique.values(), unique, loc="outside lower center", ncols=6)


# Theorem 3.6: where eigenvalues are, by time and whether they are negative in discrete time; the forms that reach them.
CASES: dict[tuple[Time, bool], tuple[str, tuple[str, ...]]] = {
    ("continuous", False): ("λ < 0", ("direct", "relu", "exp", "softplus", "best")),
    ("discrete", False): ("0 < λ < 1", ("direct", "relu", "exp", "softplus", "tanh", "best")),
    ("discrete", True): ("-1 < λ < 0", ("direct", "tanh", "best")),
}


def _draw_states(trial: int, time: Time, negative: bool) -> tuple[Tensor, Tensor]:
    """Eigenvalues (4,), timescales log-uniform from 1.1 to 100 steps, and readouts (4,), N(0, 1)."""
    generator = torch.Generator().manual_seed(trial)
    steps = 1.1 * torch.exp(torch.rand(4, dtype=torch.float64, generator=generator) * math.log(100 / 1.1))
    readout = torch.randn(4, dtype=torch.float64, generator=generator)
    if time == "continuous":
        return -1 / steps, readout
    return (1 / steps - 1 if negative else 1 - 1 / steps), readout


def _loss(values: Tensor, readout: Tensor, time: Time) -> Tensor:
    """‖H - Ĥ‖ of linear functionals, that of the memories' difference: ∫ |ρ - Σ c exp(λt)| dt, or the sum of it."""
    if time == "continuous":
        t = torch.linspace(0, math.log1p(3000), 6001, dtype=torch.float64).expm1()
        memory = (values[:, None] * t).exp()
    else:
        t = torch.arange(3001, dtype=torch.float64)
        memory = values[:, None] ** t
    error = ((t + 1) ** -1.1 - (readout[:, None] * memory).sum(0)).abs()
    return torch.trapezoid(error, t) if time == "continuous" else error.sum()


def _share(f: Parameterization, values: Tensor, readout: Tensor) -> float:
    """The largest share of its bound that a gradient has."""
    w = f.inverse(values).requires_grad_()
    (gradient,) = torch.autograd.grad(_loss(f.f(w), readout, f.time), w)
    return float((gradient.abs() / (readout.abs() * f.gradient_bound(w.detach()))).max())


class GradientBound(Experiment):
    """Theorem 3.6: |∂Loss/∂w| over its bound |c| G_f(w), four states a model, the loss of the theorem's proof."""

    @claim(
        "the largest share of the bound, C = |c|, over all draws is at most 1.001 under every f",
        "{time} time, {where}",
        [
            {"time": time, "negative": negative, "where": where, "f": "f(w)" if time == "continuous" else "(1 - f(w))"}
            for (time, negative), (where, _) in CASES.items()
        ],
    )
    def within(self, rows: pd.DataFrame, time: Time, negative: bool, **_: str) -> Judgement:
        """|∂Loss/∂w| ≤ C |f'(w)|/{f}², C of no f, for {where}"""
        worst = only(rows, time=time, negative=negative).groupby("form", sort=False)["share"].max()
        said = ", ".join(f"{form} {value:.3g}" for form, value in worst.items())
        return Judgement.of(worst.max() <= 1.001, f"largest share of the bound: {said}")

    def cells(self, form: Form) -> list[Cell]:
        trials = 10 if form == "quick" else 60
        return [{"time": time, "negative": negative, "trials": trials} for time, negative in CASES]

    def run(self, cell: Cell) -> Rows:
        time, negative = cell["time"], cell["negative"]
        return [
            {"form": form, "trial": i, "share": _share(Parameterization(form, time), *_draw_states(i, time, negative))}
            for form in CASES[time, negative][1]
            for i in range(cell["trials"])
        ]

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        figure.set_size_inches(10, 3.4)
        for axes, (case, (where, forms)) in zip(figure.subplots(1, 3, sharey=True), CASES.items(), strict=True):
            time, negative = case
            for place, form in enumerate(forms):
                shares = only(rows, time=time, negative=negative, form=form)["share"]
                axes.plot(np.linspace(-0.25, 0.25, len(shares)) + place, shares, ".", color=COLORS[form], markersize=3)
            axes.axhline(1, color="#222222", linestyle="--", linewidth=1)
            axes.set(yscale="log", title=f"{time} time, {where}")
            axes.set_xticks(range(len(forms)), forms)
        figure.axes[0].set_ylabel("|∂Loss/∂w| over its bound (a dot a model)")
