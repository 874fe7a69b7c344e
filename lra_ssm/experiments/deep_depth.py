"""Deep linear SSMs, figures 3B and 6: students of many layers against one layer of as many states.

Source: "On the Interplay between Learning and Memory in Deep State Space Models" (anonymous, ICLR 2025 submission),
section 4.2. Its teachers are in pictures alone: here each student has its own, λ uniform in [0, 0.9) (figure 3B) or
[0, 0.8) (figure 6), B = C = 1. Lengths of 64 (of one layer also 256), 10^5 steps for figure 3B too, and for figure 6
the rate of 3B, are ours; see also deep_students. "O(1)" is N(0, 1), as `DeepLinearSSM` starts; a start of B and C at
exactly 1, times the scale, is beside it.
"""

from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from lra_ssm.experiments.base import Cell, Claim, Experiment, Form, Judgement
from lra_ssm.experiments.deep_students import (
    Array,
    Students,
    draw_path,
    name_layers,
    states,
    teacher_response,
    train_students,
)
from lra_ssm.layers import DeepLinearSSM

SUCCESS = 0.01  # of the error of the output 0
LENGTH, LONGER = 64, 256


def drawn_teachers(layers: int, states: int, largest: float, length: int, count: int) -> tuple[Array, Array]:
    """One for each student, by its number: λ (D, layers, states), h (D, T)."""
    rates = np.stack([np.random.default_rng(seed).uniform(0, largest, (layers, states)) for seed in range(count)])
    return rates, np.stack([teacher_response(rate.tolist(), length) for rate in rates])


def started(K: int, N: int, count: int, scale: float, start: str) -> Students:
    torch.manual_seed(0)
    students = Students.of(DeepLinearSSM(count, K, N, scale=scale))
    if start == "ones":
        students.B[:] = students.C[:] = scale
    return students


def trained(students: Students, teacher: Array, cell: Cell) -> list[dict[str, Any]]:
    """Rows of the first student's states over time, and one of each student at the end."""
    rows: list[dict[str, Any]] = []
    first = Students(*(x.copy() for x in students))
    left = np.zeros(len(teacher), bool)  # whether λ was ever outside

    def watch(step: int, now: Students, errors: Array) -> None:
        outside = ~(np.abs(now.rates) <= 1)  # counts what is no number
        np.logical_or(left, outside.any((0, 2)), out=left)
        if cell["start"] == "normal" and cell["length"] == LENGTH:
            rows.extend({"what": "path", "error": float(errors[0])} | row for row in states(step, now, 0))
        if step < cell["steps"]:
            return
        moved = np.sqrt(np.mean([(a - b) ** 2 for a, b in zip(now, first, strict=True)], (0, 1, 3)))
        for student, error in enumerate(errors):
            end = {"student": student, "error": float(f"{error:.4g}"), "moved": round(float(moved[student]), 4)}
            counts = {"outside": int(outside[:, student].sum()), "ever": bool(left[student])}
            rows.append({"what": "end"} | end | counts)

    train_students(students, teacher, "ABC", cell["steps"], cell["lr"], watch, points=12)
    return rows


def ends(rows: pd.DataFrame, K: int, scale: float, start: str = "normal", length: int = LENGTH) -> pd.DataFrame:
    """A row a student, with `failed`."""
    found = rows[(rows["what"] == "end") & (rows["K"] == K) & (rows["scale"] == scale) & (rows["start"] == start)]
    found = found[found["length"] == length]
    return found.assign(failed=~((found["error"] < SUCCESS) & (found["outside"] == 0)))


def _said(rows: pd.DataFrame, K: int, scale: float) -> str:
    cases = [
        ("N(0, 1)", "normal", LENGTH),
        ("ones", "ones", LENGTH),
        (f"N(0, 1) and length {LONGER}", "normal", LONGER),
    ]
    parts = []
    for name, start, length in cases:
        found = ends(rows, K, scale, start, length)
        counts = (
            f"{found['failed'].sum()} of {len(found)} fail, {(found['outside'] > 0).sum()} with λ outside at the end"
        )
        if len(found):
            numbers = f"{counts}, {found['ever'].sum()} at some time, median error {found['error'].median():.2g}"
            parts.append(f"from {name}: {numbers}")
    return "; ".join(parts)


def _fails(K: int, scale: float) -> Any:
    def judge(rows: pd.DataFrame) -> Judgement:
        found = ends(rows, K, scale)
        most = found["failed"].mean() >= 0.5 and (found["outside"] > 0).mean() >= 0.5
        return Judgement.of(bool(most), _said(rows, K, scale))

    return judge


def _succeeds(K: int, scale: float) -> Any:
    def judge(rows: pd.DataFrame) -> Judgement:
        return Judgement.of(bool(ends(rows, K, scale)["failed"].mean() <= 0.25), _said(rows, K, scale))

    return judge


def _stable(K: int, scale: float) -> Any:
    def judge(rows: pd.DataFrame) -> Judgement:
        return Judgement.of(bool((ends(rows, K, scale)["outside"] > 0).mean() <= 0.25), _said(rows, K, scale))

    return judge


def _more_fail(rows: pd.DataFrame) -> Judgement:
    one, two = ends(rows, 1, 1)["failed"], ends(rows, 2, 1)["failed"]
    spread = 2 * float(np.sqrt(one.var(ddof=0) * len(one) + two.var(ddof=0) * len(two)))
    more = int(one.sum()) - int(two.sum())
    said = f"{one.sum()} against {two.sum()} of {len(one)}, spread of the difference {spread:.1f}"
    return Judgement("undecided", said) if abs(more) <= spread else Judgement.of(more > 0, said)


def _draw(rows: pd.DataFrame, figure: Figure, panels: list[tuple[int, float]], teachers: Array) -> None:
    """λ, B and C of the first student in each panel, and every student's error at the end."""
    figure.set_size_inches(2.6 * len(panels) + 2.6, 6)
    grid = figure.subplots(3, len(panels) + 1)
    rows = rows[rows["length"] == LENGTH]
    for column, (K, scale) in zip(grid.T, panels, strict=False):
        path = rows[(rows["what"] == "path") & (rows["K"] == K) & (rows["scale"] == scale)]
        for axes, value in zip(column, "λBC", strict=True):
            draw_path(axes, path, value, teachers.flatten().tolist() if value == "λ" else (1.0,))
        N = int(path["N"].iloc[0])
        column[0].set_title(f"{K} × {N}, B and C of {scale:g}", fontsize=9)
        column[0].axhline(1, color="#999999", linewidth=0.6, linestyle=":")
        column[-1].set_xlabel("step of Adam")
    for axes, name in zip(grid[:, 0], ("eigenvalue λ", "input weight B", "output weight C"), strict=True):
        axes.set_ylabel(name)
    name_layers(figure, max(K for K, _ in panels))
    for axes in grid[:, -1]:
        axes.remove()
    _draw_errors(figure.add_subplot(grid[0, 0].get_gridspec()[:, -1]), rows, panels)


def _draw_errors(axes: Any, rows: pd.DataFrame, panels: list[tuple[int, float]]) -> None:
    for at, (K, scale) in enumerate(panels):
        for start, mark, shift in (("normal", "o", -0.15), ("ones", "x", 0.15)):
            error = ends(rows, K, scale, start)["error"].fillna(np.inf).clip(1e-8, 1e2)
            axes.plot([at + shift] * len(error), error, mark, color="#222222", markersize=3, alpha=0.7)
    axes.axhline(SUCCESS, color="#999999", linewidth=0.6, linestyle=":")
    axes.set(yscale="log", ylabel="error at the end, of the output 0's")
    axes.set_xticks(range(len(panels)), [f"K = {K}\n{scale:g}" for K, scale in panels], fontsize=7)
    axes.set_title("students from N(0, scale²) (o)\nand from scale (x)", fontsize=8)


class WidthOrDepth(Experiment):
    """Figure 3B: a teacher of 3 × 2, students of 2 × 4 and 1 × 8."""

    claims = [
        Claim(
            "1 × 8, O(1)",
            "one layer fails from B and C of O(1): its λ leave the region of stability",
            f"half of the students end above {SUCCESS:g} of the output 0's error, and half with a |λ| > 1",
            _fails(1, 1),
        ),
        Claim(
            "1 × 8, O(50)",
            "one layer converges from B and C of O(50)",
            f"3 of 4 students end below {SUCCESS:g} with all |λ| <= 1",
            _succeeds(1, 50),
        ),
        Claim(
            "2 × 4, O(1)",
            "two layers converge from B and C of O(1)",
            f"3 of 4 students end below {SUCCESS:g} with all |λ| <= 1",
            _succeeds(2, 1),
        ),
        Claim(
            "sensitive",
            "from O(1) one layer fails more often than two",
            "failures differ by more than twice the binomial deviation of the difference",
            _more_fail,
        ),
    ]

    def cells(self, form: Form) -> list[Cell]:
        few, full = {"students": 2, "steps": 10}, {"students": 12, "steps": 100_000}
        sizes = few if form == "quick" else full
        cells = [
            {"K": K, "N": N, "scale": scale, "start": start, "length": LENGTH, "lr": 5e-5, **sizes}
            for start in ("normal", "ones")
            for K, N in ((1, 8), (2, 4))
            for scale in (1, 50)
        ]
        longer = {"length": 2 * LENGTH if form == "quick" else LONGER}
        return cells + [cell | longer for cell in cells[:2]]  # |λ| > 1 does more harm there

    def run(self, cell: Cell) -> list[dict[str, Any]]:
        _, teacher = drawn_teachers(3, 2, 0.9, cell["length"], cell["students"])
        students = started(cell["K"], cell["N"], cell["students"], cell["scale"], cell["start"])
        return trained(students, teacher, cell)

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        teachers, _ = drawn_teachers(3, 2, 0.9, 1, 1)
        _draw(rows, figure, [(2, 1), (1, 1), (1, 50), (2, 50)], teachers)


def _near(rows: pd.DataFrame) -> Judgement:
    moved = ends(rows, 12, 1)["moved"]
    ones = ends(rows, 12, 1, "ones")["moved"]
    said = f"{moved.mean():.2f} ± {moved.std():.2f}; from ones {ones.mean():.2f} ± {ones.std():.2f}"
    return Judgement.of(bool(moved.mean() <= 0.5), said)


def _most_outside(rows: pd.DataFrame) -> Judgement:
    found = ends(rows, 1, 1)
    said = f"{found['failed'].sum()} of {len(found)} fail, {found['outside'].mean():.1f} of 12 λ outside in the mean"
    ones = ends(rows, 1, 1, "ones")
    said += f"; from ones {ones['failed'].sum()} fail, {ones['outside'].mean():.1f} outside"
    return Judgement.of(bool(found["failed"].mean() >= 0.5 and found["outside"].mean() > 6), said)


class TwelveLayers(Experiment):
    """Figure 6: a teacher of 5 × 2, students of 12 × 1 and 1 × 12. No stack of single states is the teacher's equal: it
    has no zeros, the teacher five."""

    claims = [
        Claim(
            "12 × 1",
            "twelve layers of one state converge within 10^5 steps from B and C of O(1)",
            f"3 of 4 students end below {SUCCESS:g} of the output 0's error with all |λ| <= 1",
            _succeeds(12, 1),
        ),
        Claim(
            "near",
            "all of their parameters stay near their initial values",
            "the root of the mean squared change, in the mean over students, is at most half the initial deviation, 1",
            _near,
        ),
        Claim(
            "1 × 12, O(1)",
            "from O(1) most λ of one layer diverge and it does not converge",
            "half of the students fail, and in the mean more than 6 of 12 λ end with |λ| > 1",
            _most_outside,
        ),
        Claim(
            "1 × 12, O(100), stable",
            "from O(100) the λ of one layer stay stable",
            "3 of 4 students end with all |λ| <= 1",
            _stable(1, 100),
        ),
        Claim(
            "1 × 12, O(100), converged",
            "from O(100) one layer converges",
            f"3 of 4 students end below {SUCCESS:g} with all |λ| <= 1",
            _succeeds(1, 100),
        ),
    ]

    def cells(self, form: Form) -> list[Cell]:
        few, full = {"students": 2, "steps": 10}, {"students": 6, "steps": 100_000}
        sizes = few if form == "quick" else full
        return [
            {"K": K, "N": N, "scale": scale, "start": start, "length": LENGTH, "lr": 5e-5, **sizes}
            for K, N, scale in ((1, 12, 1), (1, 12, 100), (12, 1, 1))
            for start in ("normal", "ones")
        ]

    def run(self, cell: Cell) -> list[dict[str, Any]]:
        _, teacher = drawn_teachers(5, 2, 0.8, cell["length"], cell["students"])
        students = started(cell["K"], cell["N"], cell["students"], cell["scale"], cell["start"])
        return trained(students, teacher, cell)

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        teachers, _ = drawn_teachers(5, 2, 0.8, 1, 1)
        _draw(rows, figure, [(1, 1), (1, 100), (12, 1)], teachers)
