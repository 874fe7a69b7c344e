"""Deep linear SSMs, figure 5: with more layers, smaller λ.

Source: "On the Interplay between Learning and Memory in Deep State Space Models" (anonymous, ICLR 2025 submission).
Ours, as the paper does not give them: what is trained, the students' sizes, length, rate and steps; B and C start at 1,
as in deep_timescales.
"""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from lra_ssm.experiments.base import Cell, Claim, Experiment, Form, Judgement
from lra_ssm.experiments.deep_students import Array, Students, draw_teacher, name_layers, short, train_students
from lra_ssm.experiments.deep_timescales import made, teachers

TEACHER = (0.9, 0.4, 0.9, 0.3, 0.2)
SIZES = {1: 5, 2: 3, 3: 2, 4: 2, 5: 1}  # K to N
KINDS = [(teacher, trained) for teacher in ("one layer", "five layers") for trained in ("A", "ABC")]


def _largest(teacher: str, trained: str) -> Any:
    def judge(rows: pd.DataFrame) -> Judgement:
        found = largest(rows, teacher, trained)
        one, five = found.iloc[0], found.iloc[-1]
        said = ", ".join(f"{r['mean']:.3f} ± {r['std']:.3f} (error {r['error']:.1g})" for _, r in found.iterrows())
        fall, spread = one["mean"] - five["mean"], one["std"] + five["std"]
        if abs(fall) <= spread:
            return Judgement("undecided", said)
        return Judgement.of(fall > 0, said)

    return judge


def largest(rows: pd.DataFrame, teacher: str, trained: str) -> pd.DataFrame:
    """By K: mean and deviation over students of the largest |λ| at the end, and their median error."""
    end = rows[(rows["what"] == "end") & (rows["teacher"] == teacher) & (rows["trained"] == trained)]
    by_K = end.groupby("K")
    sizes = by_K["largest"]
    return pd.DataFrame({"mean": sizes.mean(), "std": sizes.std(ddof=0), "error": by_K["error"].median()})


class DepthForSmallEigenvalues(Experiment):
    """Figure 5: students of 1 to 5 layers. "A = diag(…)" reads as one layer of five states; five layers of one too."""

    claims = [
        Claim(
            f"teacher of {teacher}, {trained} trained",
            f"more layers learn with smaller λ (teacher of {teacher}, {' and '.join(trained)} trained)",
            "the largest |λ| of 5 layers is smaller than that of 1 by more than both deviations over students",
            _largest(teacher, trained),
        )
        for teacher, trained in KINDS
    ]

    def cells(self, form: Form) -> list[Cell]:
        quick = form == "quick"
        few = {"students": 2, "steps": 10, "length": 16}
        sizes = few if quick else {"students": 10, "steps": 10000, "length": 128}
        return [
            {"teacher": teacher, "trained": trained, "K": K, "N": SIZES[K], "lr": 1e-3, **sizes}
            for teacher, trained in KINDS
            for K in ((1, 5) if quick else SIZES)
        ]

    def run(self, cell: Cell) -> list[dict[str, Any]]:
        students = made(cell["K"], cell["N"], "ones", cell["students"])
        layers = [TEACHER] if cell["teacher"] == "one layer" else [(value,) for value in TEACHER]
        rows: list[dict[str, Any]] = []

        def watch(step: int, now: Students, errors: Array) -> None:
            values = {
                f"λ{k + 1}.{n + 1}": short(now.rates[k, 0, n]) for k in range(cell["K"]) for n in range(cell["N"])
            }
            rows.append({"what": "path", "step": step} | values)
            if step == cell["steps"]:
                largest = abs(now.rates).max((0, 2))
                for student, error in enumerate(errors):
                    numbers = {"largest": short(largest[student]), "error": short(error)}
                    rows.append({"what": "end", "student": student} | numbers)

        teacher = teachers(layers, cell["length"], cell["students"])
        train_students(students, teacher, cell["trained"], cell["steps"], cell["lr"], watch, points=10)
        return rows

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        figure.set_size_inches(8.5, 5.8)
        depths = sorted(rows["K"].unique())
        grid = figure.subplots(4, len(depths), sharex=True, sharey="row")
        for line, (teacher, trained) in zip(grid, KINDS, strict=True):
            part = rows[(rows["teacher"] == teacher) & (rows["trained"] == trained)]
            line[0].set_ylabel(f"teacher: {teacher}\ntrained: {', '.join(trained)}\nλ", fontsize=8)
            found = largest(rows, teacher, trained)
            for axes, K in zip(line, depths, strict=True):
                path = part[(part["K"] == K) & (part["what"] == "path")].dropna(axis=1, how="all")
                for name in [name for name in path if name[0] == "λ"]:
                    axes.plot(path["step"], path[name], color=f"C{int(name[1]) - 1}", linewidth=1.2)
                draw_teacher(axes, path["step"].max(), TEACHER)
                axes.set_title(f"K = {K}, N = {SIZES[K]}; error {found.loc[K, 'error']:.1g}", fontsize=8)
        for axes in grid[-1]:
            axes.set_xlabel("step of Adam")
        name_layers(figure, 5)
