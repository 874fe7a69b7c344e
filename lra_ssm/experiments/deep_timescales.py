"""Deep linear SSMs, figure 3A: where a student of two layers puts a teacher's timescales.

Source: "On the Interplay between Learning and Memory in Deep State Space Models" (anonymous, ICLR 2025 submission).
Ours, as the paper does not give them: length, rate and steps; see also deep_students.
B and C, fixed or trained, start at 1: the B printed for figure 3A, with C fixed, have the same norm in both layers,
which gradient flow keeps from such a start. Figure 3A has a start from N(0, 1) beside it.
Layers of a linear student may change places without a change of its outputs; the first is here that of the largest λ.
"""

from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from lra_ssm.experiments.base import Cell, Claim, Experiment, Form, Judgement
from lra_ssm.experiments.deep_students import (
    Array,
    Layers,
    Students,
    draw_path,
    ends_and_path,
    name_layers,
    teacher_response,
)
from lra_ssm.layers import DeepLinearSSM

TEACHER = (0.9, 0.99)  # figure 3A
PRINTED = (0.98, 0.61, -0.33, -0.33)  # section 4.1: the two layers that training A alone ends at


def made(K: int, N: int, start: str, count: int) -> Students:
    """Students by seed 0; λ uniform in [0, 1), B and C as `start` says."""
    torch.manual_seed(0)
    students = Students.of(DeepLinearSSM(count, K, N))
    if start == "ones":
        students.B[:] = students.C[:] = 1
    return students


def teachers(layers: Layers, length: int, count: int) -> Array:
    """The same for every student: (D, T)."""
    return np.tile(teacher_response(layers, length), (count, 1))


def _layers(rows: pd.DataFrame, trained: str, start: str = "ones", length: int | None = None) -> list[pd.DataFrame]:
    """Of every student of figure 3A the states at the end, sorted: those of the first layer, then the other's."""
    cell = rows[(rows["trained"] == trained) & (rows["start"] == start) & (rows["step"] == rows["steps"])]
    cell = cell[cell["length"] == (length or cell["length"].max())]
    found = []
    for _, one in cell.groupby("student"):
        long = one.loc[one["λ"].idxmax(), "layer"]
        found.append(one.assign(second=one["layer"] != long).sort_values(["second", "λ"], ascending=[True, False]))
    return found


def _printed(rows: pd.DataFrame) -> Judgement:
    ends = pd.DataFrame([one["λ"].tolist() for one in _layers(rows, "A")])
    mean, deviation = ends.mean(), ends.std(ddof=0)
    said = ", ".join(f"{m:.3f} ± {d:.3f}" for m, d in zip(mean, deviation, strict=True))
    near = all(abs(m - printed) <= 0.05 for m, printed in zip(mean, PRINTED, strict=True))
    for length in sorted(rows["length"].unique())[:-1]:
        shorter = np.mean([one["λ"].tolist() for one in _layers(rows, "A", length=length)], 0)
        said += f"; of length {length} {', '.join(f'{x:.2f}' for x in shorter)}"
    return Judgement.of(near, f"{said}; printed {', '.join(map(str, PRINTED))}")


def _spread(rows: pd.DataFrame) -> Judgement:
    ends = [one["λ"].tolist() for one in _layers(rows, "A")]
    fits = [a < 0.99 and b < 0.9 and max(c, d) < 0 and abs(c - d) < 0.02 for a, b, c, d in ends]
    return Judgement.of(sum(fits) >= 0.8 * len(fits), f"{sum(fits)} of {len(fits)} students")


def _exact(trained: str) -> Any:
    def count(rows: pd.DataFrame, start: str) -> tuple[int, int]:
        ends = [one["λ"].tolist()[:2] for one in _layers(rows, trained, start)]
        return sum(abs(a - 0.99) <= 0.01 and abs(b - 0.9) <= 0.01 for a, b in ends), len(ends)

    def judge(rows: pd.DataFrame) -> Judgement:
        (ones, total), (normal, _) = count(rows, "ones"), count(rows, "normal")
        return Judgement.of(ones >= 0.8 * total, f"{ones} of {total} students; from N(0, 1) {normal}")

    return judge


def _gains(rows: pd.DataFrame) -> Judgement:
    ends = pd.DataFrame([one["B"].tolist() for one in _layers(rows, "AB")])
    first, second = ends[[0, 1]].to_numpy(), ends[[2, 3]].sum(axis=1)
    near = abs(first.mean() - 0.70) <= 0.05 and abs(second.mean() - 1.41) <= 0.1
    numbers = (
        f"{first.mean():.3f} ± {first.std():.3f} each in the first, {second.mean():.3f} ± {second.std(ddof=0):.3f}"
    )
    return Judgement.of(near, f"{numbers} together in the other")


class WhereTimescalesGo(Experiment):
    """Figure 3A: two layers of two states for a teacher of one, with A, A and B, A and C or all of them trained."""

    claims = [
        Claim(
            "A alone, printed",
            "with B and C fixed the λ end at 0.98 and 0.61 in one layer, -0.33 twice in the other",
            "the mean over students of each within 0.05, on sequences of 256",
            _printed,
        ),
        Claim(
            "A alone, kind",
            "with B and C fixed both λ of one layer end below the teacher's, those of the other equal and negative",
            "below 0.99 and 0.9, the others within 0.02 of each other, in 8 of 10 students",
            _spread,
        ),
        *(
            Claim(
                f"{trained} trained",
                f"with {' and '.join(trained)} trained, one layer learns the teacher's λ exactly",
                "both λ of one layer within 0.01 of 0.99 and 0.9 in 8 of 10 students",
                _exact(trained),
            )
            for trained in ("AB", "AC", "ABC")
        ),
        Claim(
            "B",
            "with C fixed, B ends at 0.70 twice in the layer with the teacher's λ, at 0.57 and 0.84 in the other",
            "means over students within 0.05 of 0.70, and of the sum within 0.1 of 1.41: single ones of it are free",
            _gains,
        ),
    ]

    def cells(self, form: Form) -> list[Cell]:
        quick = {"students": 2, "steps": 10, "length": 16}
        sizes = quick if form == "quick" else {"students": 10, "steps": 10000, "length": 256}
        both = [("A", "ones")] + [(trained, start) for start in ("ones", "normal") for trained in ("AB", "AC", "ABC")]
        cells = [{"trained": t, "start": s, "lr": 1e-3, **sizes} for t, s in both]
        lengths = (8,) if form == "quick" else (64, 100, 128)
        return cells + [cells[0] | {"length": length} for length in lengths]  # where A alone ends depends on it

    def run(self, cell: Cell) -> list[dict[str, Any]]:
        students = made(2, 2, cell["start"], cell["students"])
        teacher = teachers([TEACHER], cell["length"], cell["students"])
        shown = [0] if cell["start"] == "ones" and (cell["trained"] != "A" or cell["length"] in (16, 256)) else []
        return ends_and_path(students, teacher, cell["trained"], cell["steps"], cell["lr"], points=20, paths=shown)

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        figure.set_size_inches(9, 5.5)
        grid = figure.subplots(3, 4, sharex=True, sharey="row")
        for column, trained in zip(grid.T, ("A", "AB", "AC", "ABC"), strict=True):
            path = rows[(rows["trained"] == trained) & (rows["start"] == "ones") & (rows["student"] == 0)]
            path = path[path["length"] == path["length"].max()]
            for axes, value, teacher in zip(column, "λBC", (TEACHER, (1.0,), (1.0,)), strict=True):
                draw_path(axes, path, value, teacher)
            column[0].set_title(f"trained: {', '.join(trained)}", fontsize=9)
            column[-1].set_xlabel("step of Adam")
        for axes, name in zip(grid[:, 0], ("eigenvalue λ", "input weight B", "output weight C"), strict=True):
            axes.set_ylabel(name)
        name_layers(figure, 2)
