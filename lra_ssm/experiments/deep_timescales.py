"""Deep linear SSMs, figure 3A: where a student of two layers puts a teacher's timescales.

Source: "On the Interplay between Learning and Memory in Deep State Space Models" (anonymous, ICLR 2025 submission).
Ours, as the paper does not give them: length, rate and steps; see also deep_students.
B and C, fixed or trained, start at 1: the B printed for figure 3A, with C fixed, have the same norm in both layers,
which gradient flow keeps from such a start. Figure 3A has a start from N(0, 1) beside it.
Layers of a linear student may change places without a change of its outputs; the first is here that of the largest λ.
"""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lra_ssm.experiments.base import Cell, Experiment, Form, Judgement, Rows, claim
from lra_ssm.experiments.deep_students import Array, Students, draw_students, states, teacher_response, training

TEACHER = (0.9, 0.99)  # figure 3A
TRAINED = [{"trained": trained, "names": " and ".join(trained)} for trained in ("AB", "AC", "ABC")]
PRINTED = (0.98, 0.61, -0.33, -0.33)  # section 4.1: the two layers that training A alone ends at


def _ends(rows: pd.DataFrame, value: str, trained: str, start: str = "ones", length: int = 0) -> Array:
    """λ or B of every student at the end, (D, 4): the first layer's two, then the other's, each by growing λ."""
    length = length or rows["length"].max()
    cell = rows.query("trained == @trained and start == @start and length == @length and step == steps")
    found = []
    for _, one in cell.groupby("student"):
        first = one["layer"] == one.loc[one["λ"].idxmax(), "layer"]
        ordered = one.assign(first=first).sort_values(["first", "λ"], ascending=[False, False])
        found.append(ordered[value])
    return np.array(found)


class WhereTimescalesGo(Experiment):
    """Figure 3A: two layers of two states for a teacher of one, with A, A and B, A and C or all of them trained."""

    @claim("the mean over students of each within 0.05, on sequences of 256", "A alone, printed")
    def printed(self, rows: pd.DataFrame) -> Judgement:
        """with B and C fixed the λ end at 0.98 and 0.61 in one layer, -0.33 twice in the other"""
        ends = _ends(rows, "λ", "A")
        mean, deviation = ends.mean(0), ends.std(0)
        said = ", ".join(f"{m:.3f} ± {d:.3f}" for m, d in zip(mean, deviation, strict=True))
        for length in sorted(rows["length"].unique())[:-1]:
            shorter = _ends(rows, "λ", "A", length=length).mean(0)
            said += f"; of length {length} {', '.join(f'{x:.2f}' for x in shorter)}"
        near = np.abs(mean - PRINTED).max() <= 0.05
        return Judgement.of(near, f"{said}; printed {', '.join(map(str, PRINTED))}")

    @claim("below 0.99 and 0.9, the others within 0.02 of each other, in 8 of 10 students", "A alone, kind")
    def spread(self, rows: pd.DataFrame) -> Judgement:
        """with B and C fixed both λ of one layer end below the teacher's, those of the other equal and negative"""
        a, b, c, d = _ends(rows, "λ", "A").T
        fits = (a < 0.99) & (b < 0.9) & (np.maximum(c, d) < 0) & (np.abs(c - d) < 0.02)
        return Judgement.of(fits.mean() >= 0.8, f"{fits.sum()} of {fits.size} students")

    @claim(
        "both λ of one layer within 0.01 of 0.99 and 0.9 in 8 of 10 students",
        "{trained} trained",
        TRAINED,
    )
    def exact(self, rows: pd.DataFrame, trained: str, names: str) -> Judgement:
        """with {names} trained, one layer learns the teacher's λ exactly"""
        ones, normal = (
            (np.abs(_ends(rows, "λ", trained, start)[:, :2] - (0.99, 0.9)) <= 0.01).all(1)
            for start in ("ones", "normal")
        )
        said = f"{ones.sum()} of {ones.size} students; from N(0, 1) {normal.sum()}"
        return Judgement.of(ones.mean() >= 0.8, said)

    @claim(
        "means over students within 0.05 of 0.70, and of the sum within 0.1 of 1.41: single ones of it are free", "B"
    )
    def gains(self, rows: pd.DataFrame) -> Judgement:
        """with C fixed, B ends at 0.70 twice in the layer with the teacher's λ, at 0.57 and 0.84 in the other"""
        ends = _ends(rows, "B", "AB")
        first, second = ends[:, :2], ends[:, 2:].sum(1)
        near = abs(first.mean() - 0.70) <= 0.05 and abs(second.mean() - 1.41) <= 0.1
        said = f"{first.mean():.3f} ± {first.std():.3f} each in the first, {second.mean():.3f} ± {second.std():.3f}"
        return Judgement.of(near, f"{said} together in the other")

    def cells(self, form: Form) -> list[Cell]:
        quick = {"students": 2, "steps": 10, "length": 16}
        sizes = quick if form == "quick" else {"students": 10, "steps": 10000, "length": 256}
        both = [("A", "ones")] + [(trained, start) for start in ("ones", "normal") for trained in ("AB", "AC", "ABC")]
        cells = [{"trained": t, "start": s, "lr": 1e-3, **sizes} for t, s in both]
        lengths = (8,) if form == "quick" else (64, 100, 128)
        return cells + [cells[0] | {"length": length} for length in lengths]  # where A alone ends depends on it

    def run(self, cell: Cell) -> Rows:
        count, steps, trained, length = cell["students"], cell["steps"], cell["trained"], cell["length"]
        students = Students.start(2, 2, count, cell["start"])
        drawn = cell["start"] == "ones" and (trained != "A" or length in (16, 256))
        for step, errors in training(students, teacher_response([TEACHER], length), trained, steps, cell["lr"], 20):
            chosen = range(count) if step == steps else [0] if drawn else []
            yield from states(step, students, errors, chosen)

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        figure.set_size_inches(9, 5.5)
        grid = figure.subplots(3, 4, sharex=True, sharey="row")
        path = rows.query("start == 'ones' and student == 0 and length == length.max()").groupby("trained", sort=False)
        draw_students(figure, grid, {f"trained: {', '.join(trained)}": one for trained, one in path}, TEACHER)
