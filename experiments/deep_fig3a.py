"""Deep linear SSMs, figure 3A: how a student of two layers learns the timescales of a one-layer teacher.

Source: see students.py. The teacher has one layer with λ = 0.9 and 0.99; the student has two layers of two states. Our
choices, which the paper does not give: the learning rate; the number of steps; B and C start at 1, whether fixed or
trained; sequences have 100 positions. The length matters if only A is trained: with 256 positions λ end at 0.70 and
-0.43 instead of 0.61 and -0.33. The printed B for figure 3A, with C fixed, have the same norm in both layers; gradient
flow preserves this if they start at 1. Swapping the layers of a linear student does not change its outputs; we call the
layer with the largest λ the first.
"""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from helper import Cell, Claim, Claims, Rows, Size, grid, main, mean_and_std
from students import and_list, draw_legend, draw_path, started, states, teacher_response, training

TEACHER = (0.9, 0.99)
PRINTED = (0.98, 0.61, -0.33, -0.33)  # section 4.1: the final λ of the two layers if only A is trained


def cells(size: Size) -> list[Cell]:
    sizes = {"students": 2, "steps": 10} if size == "quick" else {"students": 10, "steps": 10_000}
    trained = ["AB", "AC", "ABC"]
    return [
        cell | sizes
        for cell in [*grid(trained=["A", *trained], start=["ones"]), *grid(trained=trained, start=["normal"])]
    ]


def run(trained: str, start: str, students: int, steps: int) -> Rows:
    layer = started(2, 2, students, start, trained=trained)
    for step, errors in training(layer, teacher_response([TEACHER], 100), steps, lr=1e-3):
        chosen = range(students) if step == steps else [0] if start == "ones" else []
        yield from states(step, layer, errors, chosen)


def _final_values(rows: pd.DataFrame, value: str, trained: str, start: str = "ones") -> np.ndarray:
    """Return the final λ or B of each student, (D, 4): the first layer by decreasing λ, then the second layer."""
    final = rows.query("trained == @trained and start == @start and step == steps")
    values = []
    for _, student in final.groupby("student"):
        first = student["layer"] == student.loc[student["λ"].fillna(-np.inf).idxmax(), "layer"]
        values.append(student.assign(first=first).sort_values(["first", "λ"], ascending=False)[value])
    return np.array(values)


def claims(rows: pd.DataFrame) -> Claims:
    eigenvalues = _final_values(rows, "λ", "A")
    yield Claim(
        "with only A trained, λ end at 0.98 and 0.61 in one layer and both at -0.33 in the other",
        "the mean of each λ over students is within 0.05 of the printed value",
        bool(np.abs(eigenvalues.mean(0) - PRINTED).max() <= 0.05),
        {f"λ{i + 1}:": mean_and_std(pd.Series(values)) for i, values in enumerate(eigenvalues.T)},
    )
    for trained in ("AB", "AC", "ABC"):
        share = {  # of students that learn both λ
            start: (np.abs(_final_values(rows, "λ", trained, start)[:, :2] - (0.99, 0.9)) <= 0.01).all(1).mean()
            for start in ("ones", "normal")
            if ((rows["trained"] == trained) & (rows["start"] == start)).any()
        }
        yield Claim(
            f"with {and_list(trained)} trained, one layer learns the teacher's λ exactly",
            "both λ of a layer are within 0.01 of 0.99 and 0.9 in at least 4 of 5 students that start from ones; does"
            " not hold if fewer than half of them succeed",
            True if share["ones"] >= 0.8 else False if share["ones"] < 0.5 else None,
            {"share of students from ones:": share["ones"], "from N(0, 1):": share["normal"]},
        )
    B = _final_values(rows, "B", "AB")
    first, second_sum = mean_and_std(pd.Series(B[:, :2].flatten())), mean_and_std(pd.Series(B[:, 2:].sum(1)))
    yield Claim(
        "with C fixed, both B end at 0.70 in the layer with the teacher's λ, and at 0.57 and 0.84 in the other",
        "the mean B of the first layer is within 0.05 of 0.70; in the second layer only the sum is determined, and its"
        " mean is within 0.1 of 1.41",
        abs(first[0] - 0.70) <= 0.05 and abs(second_sum[0] - 1.41) <= 0.1,
        {"B of the first layer:": first, "sum of the second layer's:": second_sum},
    )


def draw(rows: pd.DataFrame, figure: Figure) -> None:
    figure.set_size_inches(9, 5.5)
    panels = figure.subplots(3, 4, sharex=True, sharey="row")
    names = {"λ": "eigenvalue λ", "B": "input weight B", "C": "output weight C"}
    for column, trained in zip(panels.T, ("A", "AB", "AC", "ABC"), strict=True):
        path = rows.query("start == 'ones' and student == 0 and trained == @trained")
        for axes, value in zip(column, names, strict=True):
            draw_path(axes, path, value, TEACHER if value == "λ" else [1])
        column[0].set_title(f"trained: {', '.join(trained)}", fontsize=9)
        column[-1].set_xlabel("step of Adam")
    for axes, name in zip(panels[:, 0], names.values(), strict=True):
        axes.set_ylabel(name)
    draw_legend(figure, 2)


if __name__ == "__main__":
    main()
