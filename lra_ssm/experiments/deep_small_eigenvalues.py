"""Deep linear SSMs, figure 5: with more layers, smaller λ.

Source: "On the Interplay between Learning and Memory in Deep State Space Models" (anonymous, ICLR 2025 submission).
Ours, as the paper does not give them: what is trained, the students' sizes, length, rate and steps; B and C start at 1,
as in deep_timescales.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lra_ssm.experiments.base import Cell, Experiment, Form, Judgement, Rows, claim
from lra_ssm.experiments.deep_students import Students, draw_teacher, name_layers, short, teacher_response, training

TEACHER = (0.9, 0.4, 0.9, 0.3, 0.2)
LAYERS: dict[str, Sequence[Sequence[float]]] = {"one layer": [TEACHER], "five layers": [(value,) for value in TEACHER]}
SIZES = {1: 5, 2: 3, 3: 2, 4: 2, 5: 1}  # K to N
KINDS = [(teacher, trained) for teacher in LAYERS for trained in ("A", "ABC")]


def _largest(rows: pd.DataFrame, teacher: str, trained: str) -> pd.DataFrame:
    """By K: mean and deviation over students of the largest |λ| at the end, and their median error."""
    by_K = rows.query("what == 'end' and teacher == @teacher and trained == @trained").groupby("K")
    sizes = by_K["largest"]
    return pd.DataFrame({"mean": sizes.mean(), "std": sizes.std(ddof=0), "error": by_K["error"].median()})


class DepthForSmallEigenvalues(Experiment):
    """Figure 5: students of 1 to 5 layers. "A = diag(…)" reads as one layer of five states; five layers of one too."""

    @claim(
        "the largest |λ| of 5 layers is smaller than that of 1 by more than both deviations over students",
        "teacher of {teacher}, {trained} trained",
        [{"teacher": teacher, "trained": trained, "names": " and ".join(trained)} for teacher, trained in KINDS],
    )
    def smaller(self, rows: pd.DataFrame, teacher: str, trained: str, names: str) -> Judgement:
        """more layers learn with smaller λ (teacher of {teacher}, {names} trained)"""
        found = _largest(rows, teacher, trained)
        said = ", ".join(f"{r['mean']:.3f} ± {r['std']:.3f} (error {r['error']:.1g})" for _, r in found.iterrows())
        one, five = found.iloc[0], found.iloc[-1]
        return Judgement.beyond(one["mean"] - five["mean"], one["std"] + five["std"], said)

    def cells(self, form: Form) -> list[Cell]:
        quick = form == "quick"
        few = {"students": 2, "steps": 10, "length": 16}
        sizes = few if quick else {"students": 10, "steps": 10000, "length": 128}
        return [
            {"teacher": teacher, "trained": trained, "K": K, "N": SIZES[K], "lr": 1e-3, **sizes}
            for teacher, trained in KINDS
            for K in ((1, 5) if quick else SIZES)
        ]

    def run(self, cell: Cell) -> Rows:
        students = Students.start(cell["K"], cell["N"], cell["students"])
        teacher = teacher_response(LAYERS[cell["teacher"]], cell["length"])
        for step, errors in training(students, teacher, cell["trained"], cell["steps"], cell["lr"], points=10):
            first = {f"λ{k + 1}.{n + 1}": short(rate) for (k, n), rate in np.ndenumerate(students.rates[:, 0])}
            yield {"what": "path", "step": step, **first}
            last = errors
        largest = np.abs(students.rates).max((0, 2))
        for student, (size, error) in enumerate(zip(largest, last, strict=True)):
            yield {"what": "end", "student": student, "largest": short(size), "error": short(error)}

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        figure.set_size_inches(8.5, 5.8)
        depths = sorted(rows["K"].unique())
        grid = figure.subplots(4, len(depths), sharex=True, sharey="row")
        for line, (teacher, trained) in zip(grid, KINDS, strict=True):
            line[0].set_ylabel(f"teacher: {teacher}\ntrained: {', '.join(trained)}\nλ", fontsize=8)
            errors = _largest(rows, teacher, trained)["error"]
            for axes, K in zip(line, depths, strict=True):
                path = rows.query("what == 'path' and teacher == @teacher and trained == @trained and K == @K")
                path = path.set_index("step").filter(like="λ").dropna(axis=1)
                for name in path:
                    axes.plot(path[name], color=f"C{int(name[1]) - 1}", linewidth=1.2)
                draw_teacher(axes, path.index.max(), TEACHER)
                axes.set_title(f"K = {K}, N = {SIZES[K]}; error {errors[K]:.1g}", fontsize=8)
        for axes in grid[-1]:
            axes.set_xlabel("step of Adam")
        name_layers(figure, 5)
