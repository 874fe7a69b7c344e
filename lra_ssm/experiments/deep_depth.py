"""Deep linear SSMs, figures 3B and 6: students of many layers against one layer of as many states.

Source: "On the Interplay between Learning and Memory in Deep State Space Models" (anonymous, ICLR 2025 submission),
section 4.2. Its teachers are in pictures alone: here each student has its own, λ uniform in [0, 0.9) (figure 3B) or
[0, 0.8) (figure 6), B = C = 1. Lengths of 64 (of one layer also 256), 10^5 steps for figure 3B too, and for figure 6
the rate of 3B, are ours; see also deep_students. "O(1)" is N(0, 1), as `DeepLinearSSM` starts; a start of B and C at
exactly 1, times the scale, is beside it.
"""

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lra_ssm.experiments.base import Cell, Experiment, Form, Judgement, Rows, claim
from lra_ssm.experiments.deep_students import Array, Students, draw_students, short, states, teacher_response, training

SUCCESS = 0.01  # of the error of the output 0
LENGTH, LONGER = 64, 256
CONVERGES = f"3 of 4 students end below {SUCCESS:g} of the output 0's error with all |λ| <= 1"


def drawn_teachers(layers: int, states: int, largest: float, count: int) -> Array:
    """λ of one for each student, by its number: (D, layers, states)."""
    return np.stack([np.random.default_rng(seed).uniform(0, largest, (layers, states)) for seed in range(count)])


def with_failed(ends: pd.DataFrame) -> pd.DataFrame:
    """Students with their errors and how many λ are outside [-1, 1]: whether they failed, too."""
    return ends.assign(failed=~((ends["error"] < SUCCESS) & (ends["outside"] == 0)))


def _ends(rows: pd.DataFrame, K: int, scale: float, start: str = "normal") -> pd.DataFrame:
    cell = "what == 'end' and K == @K and scale == @scale and start == @start and length == @LENGTH"
    return with_failed(rows.query(cell))


def _said(rows: pd.DataFrame, K: int, scale: float) -> str:
    """What became of the students from every start and of every length."""
    parts = []
    cells = with_failed(rows.query("what == 'end' and K == @K and scale == @scale"))
    for (start, length), found in cells.groupby(["start", "length"], sort=False):
        name = {"normal": "N(0, 1)", "ones": "ones"}[start] + (f" and length {length}" if length != LENGTH else "")
        failed, outside, ever = found["failed"].sum(), (found["outside"] > 0).sum(), found["ever"].sum()
        counts = f"{failed} of {len(found)} fail, {outside} with λ outside at the end, {ever} at some time"
        parts.append(f"from {name}: {counts}, median error {found['error'].median():.2g}")
    return "; ".join(parts)


def _converges(rows: pd.DataFrame, K: int, scale: float) -> Judgement:
    return Judgement.of(_ends(rows, K, scale)["failed"].mean() <= 0.25, _said(rows, K, scale))


def draw_errors(axes: Axes, errors: Iterable["pd.Series[float]"], mark: str = "o", shift: float = 0.0) -> None:
    """Every student's error at the end, a column a series; what is no number stands at the top."""
    for at, error in enumerate(errors):
        shown = error.fillna(np.inf).clip(1e-8, 1e2)
        axes.plot([at + shift] * len(shown), shown, mark, color="#222222", markersize=3, alpha=0.7)
    axes.axhline(SUCCESS, color="#999999", linewidth=0.6, linestyle=":")
    axes.set(yscale="log", ylabel="error at the end, of the output 0's")


class _Depths(Experiment):
    """Students of K layers of N states, with B and C of a scale."""

    teacher: ClassVar[tuple[int, int, float]]  # layers, states, largest λ
    panels: ClassVar[list[tuple[int, int, float]]]  # K, N, scale; as they are drawn

    def run(self, cell: Cell) -> Rows:
        """The first student's states over time, and a row of each student at the end."""
        count = cell["students"]
        drawn = drawn_teachers(*self.teacher, count).tolist()
        teacher = np.stack([teacher_response(rates, cell["length"]) for rates in drawn])
        students = Students.start(cell["K"], cell["N"], count, cell["start"], cell["scale"])
        first = [x.copy() for x in students]
        ever = np.zeros(count, bool)
        for step, errors in training(students, teacher, "ABC", cell["steps"], cell["lr"], points=12):
            outside = ~(np.abs(students.rates) <= 1)  # counts what is no number
            ever |= outside.any((0, 2))
            if cell["start"] == "normal" and cell["length"] == LENGTH:
                yield from ({"what": "path"} | row for row in states(step, students, errors, [0]))
        moved = np.sqrt(np.mean([(a - b) ** 2 for a, b in zip(students, first, strict=True)], (0, 1, 3)))
        for student in range(count):
            end = {"student": student, "error": short(errors[student]), "moved": round(float(moved[student]), 4)}
            counts = {"outside": int(outside[:, student].sum()), "ever": bool(ever[student])}
            yield {"what": "end", **end, **counts}

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        figure.set_size_inches(2.6 * len(self.panels) + 2.6, 6)
        parts: Any = figure.subfigures(1, 2, width_ratios=[len(self.panels), 1])
        grid, axes = parts[0].subplots(3, len(self.panels), sharex=True), parts[1].subplots()
        path = rows.query("what == 'path'")
        paths = {
            f"{K} × {N}, B and C of {scale:g}": path.query("K == @K and scale == @scale") for K, N, scale in self.panels
        }
        draw_students(parts[0], grid, paths, drawn_teachers(*self.teacher, 1).flatten())
        for one in grid[0]:
            one.axhline(1, color="#999999", linewidth=0.6, linestyle=":")
        for start, mark, shift in (("normal", "o", -0.15), ("ones", "x", 0.15)):
            draw_errors(axes, [_ends(rows, K, scale, start)["error"] for K, _, scale in self.panels], mark, shift)
        axes.set_xticks(range(len(self.panels)), [f"{K} × {N}\n{scale}" for K, N, scale in self.panels], fontsize=7)
        axes.set_title("students from N(0, scale²) (o)\nand from scale (x)", fontsize=8)


class WidthOrDepth(_Depths):
    """Figure 3B: a teacher of 3 × 2, students of 2 × 4 and 1 × 8."""

    teacher = (3, 2, 0.9)
    panels = [(2, 4, 1), (1, 8, 1), (1, 8, 50), (2, 4, 50)]

    @claim(
        f"half of the students end above {SUCCESS:g} of the output 0's error, and half with a |λ| > 1", "1 × 8, O(1)"
    )
    def fails(self, rows: pd.DataFrame) -> Judgement:
        """one layer fails from B and C of O(1): its λ leave the region of stability"""
        found = _ends(rows, 1, 1)
        most = found["failed"].mean() >= 0.5 and (found["outside"] > 0).mean() >= 0.5
        return Judgement.of(most, _said(rows, 1, 1))

    @claim(CONVERGES, "1 × 8, O(50)")
    def one_layer(self, rows: pd.DataFrame) -> Judgement:
        """one layer converges from B and C of O(50)"""
        return _converges(rows, 1, 50)

    @claim(CONVERGES, "2 × 4, O(1)")
    def two_layers(self, rows: pd.DataFrame) -> Judgement:
        """two layers converge from B and C of O(1)"""
        return _converges(rows, 2, 1)

    @claim("failures differ by more than twice the binomial deviation of the difference")
    def sensitive(self, rows: pd.DataFrame) -> Judgement:
        """from O(1) one layer fails more often than two"""
        one, two = _ends(rows, 1, 1)["failed"], _ends(rows, 2, 1)["failed"]
        spread = 2 * float(np.sqrt(one.var(ddof=0) * len(one) + two.var(ddof=0) * len(two)))
        said = f"{one.sum()} against {two.sum()} of {len(one)}, spread of the difference {spread:.1f}"
        return Judgement.beyond(int(one.sum()) - int(two.sum()), spread, said)

    def cells(self, form: Form) -> list[Cell]:
        students = [(1, 8, 1), (1, 8, 50), (2, 4, 1), (2, 4, 50)]
        cells = [_cell(*each, start, form, 12) for start in ("normal", "ones") for each in students]
        longer = {"length": 2 * LENGTH if form == "quick" else LONGER}
        return cells + [cell | longer for cell in cells[:2]]  # |λ| > 1 does more harm there


class TwelveLayers(_Depths):
    """Figure 6: a teacher of 5 × 2, students of 12 × 1 and 1 × 12. No stack of single states is the teacher's equal: it
    has no zeros, the teacher five."""

    teacher = (5, 2, 0.8)
    panels = [(1, 12, 1), (1, 12, 100), (12, 1, 1)]

    @claim(CONVERGES, "12 × 1")
    def twelve(self, rows: pd.DataFrame) -> Judgement:
        """twelve layers of one state converge within 10^5 steps from B and C of O(1)"""
        return _converges(rows, 12, 1)

    @claim("the root of the mean squared change, in the mean over students, is at most half the initial deviation, 1")
    def near(self, rows: pd.DataFrame) -> Judgement:
        """all of their parameters stay near their initial values"""
        moved, ones = (_ends(rows, 12, 1, start)["moved"] for start in ("normal", "ones"))
        said = f"{moved.mean():.2f} ± {moved.std():.2f}; from ones {ones.mean():.2f} ± {ones.std():.2f}"
        return Judgement.of(moved.mean() <= 0.5, said)

    @claim("half of the students fail, and in the mean more than 6 of 12 λ end with |λ| > 1", "1 × 12, O(1)")
    def outside(self, rows: pd.DataFrame) -> Judgement:
        """from O(1) most λ of one layer diverge and it does not converge"""
        found, ones = (_ends(rows, 1, 1, start) for start in ("normal", "ones"))
        said = (
            f"{found['failed'].sum()} of {len(found)} fail, {found['outside'].mean():.1f} of 12 λ outside in the mean"
        )
        said += f"; from ones {ones['failed'].sum()} fail, {ones['outside'].mean():.1f} outside"
        return Judgement.of(found["failed"].mean() >= 0.5 and found["outside"].mean() > 6, said)

    @claim("3 of 4 students end with all |λ| <= 1", "1 × 12, O(100), stable")
    def stable(self, rows: pd.DataFrame) -> Judgement:
        """from O(100) the λ of one layer stay stable"""
        return Judgement.of((_ends(rows, 1, 100)["outside"] > 0).mean() <= 0.25, _said(rows, 1, 100))

    @claim(CONVERGES, "1 × 12, O(100), converged")
    def converges(self, rows: pd.DataFrame) -> Judgement:
        """from O(100) one layer converges"""
        return _converges(rows, 1, 100)

    def cells(self, form: Form) -> list[Cell]:
        return [_cell(*panel, start, form, 6) for panel in self.panels for start in ("normal", "ones")]


def _cell(K: int, N: int, scale: float, start: str, form: Form, students: int) -> Cell:
    sizes = {"students": 2, "steps": 10} if form == "quick" else {"students": students, "steps": 100_000}
    return {"K": K, "N": N, "scale": scale, "start": start, "length": LENGTH, "lr": 5e-5, **sizes}
