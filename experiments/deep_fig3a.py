"""Deep linear SSMs, figure 3A: where a student of two layers puts a teacher's timescales.

Source: see students.py. The teacher has one layer with λ of 0.9 and 0.99, the student two layers of two states. Ours,
since the paper does not give them: sequences of 100 positions (the end of training A only depends on it: with 256 the λ
end at 0.70 and -0.43 instead of 0.61 and -0.33), rate, steps, and that B and C start at 1, fixed or trained. The B
printed for figure 3A, with C fixed, have the same norm in both layers, which gradient flow keeps from such a start.
The layers of a linear student may be exchanged without changing its outputs; the first is here that of the largest λ.
"""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from helper import Cell, Claim, Claims, Rows, Size, grid, main, mean
from students import draw_legend, draw_path, started, states, teacher_response, training

TEACHER = (0.9, 0.99)
PRINTED = (0.98, 0.61, -0.33, -0.33)  # section 4.1: the two layers at which training A only ends


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


def _ends(rows: pd.DataFrame, value: str, trained: str, start: str = "ones") -> np.ndarray:
    """λ or B of each student at the end, (D, 4): the first layer's two by falling λ, then the other's."""
    end = rows.query("trained == @trained and start == @start and step == steps")
    found = []
    for _, one in end.groupby("student"):
        first = one["layer"] == one.loc[one["λ"].fillna(-np.inf).idxmax(), "layer"]
        found.append(one.assign(first=first).sort_values(["first", "λ"], ascending=False)[value])
    return np.array(found)


def claims(rows: pd.DataFrame) -> Claims:
    ends = _ends(rows, "λ", "A")
    yield Claim(
        "with only A trained, λ end at 0.98 and 0.61 in one layer and twice at -0.33 in the other",
        "the mean of each over students is within 0.05 of the print",
        bool(np.abs(ends.mean(0) - PRINTED).max() <= 0.05),
        {f"λ{i + 1}": mean(pd.Series(values)) for i, values in enumerate(ends.T)},
    )
    for trained in ("AB", "AC", "ABC"):
        exact = {
            start: (np.abs(_ends(rows, "λ", trained, start)[:, :2] - (0.99, 0.9)) <= 0.01).all(1).mean()
            for start in ("ones", "normal")
            if ((rows["trained"] == trained) & (rows["start"] == start)).any()
        }
        yield Claim(
            f"with {' and '.join(trained)} trained, one layer learns the teacher's λ exactly",
            "both λ of a layer are within 0.01 of 0.99 and 0.9 in at least 4 of 5 students that start from ones; does"
            " not hold if in fewer than half",
            True if exact["ones"] >= 0.8 else False if exact["ones"] < 0.5 else None,
            {"share of students from ones": exact["ones"], "from N(0, 1)": exact["normal"]},
        )
    ends = _ends(rows, "B", "AB")
    first, second = mean(pd.Series(ends[:, :2].flatten())), mean(pd.Series(ends[:, 2:].sum(1)))
    yield Claim(
        "with C fixed, B ends at 0.70 twice in the layer with the teacher's λ, and at 0.57 and 0.84 in the other",
        "means over students within 0.05 of 0.70; the sum of the other two, which are free, within 0.1 of 1.41",
        abs(first[0] - 0.70) <= 0.05 and abs(second[0] - 1.41) <= 0.1,
        {"B of the first layer": first, "sum of the other's": second},
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
