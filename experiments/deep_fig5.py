"""Deep linear SSMs, figure 5: whether students with more layers learn smaller λ.

Source: see students.py. We read the teacher "A = diag(0.9, 0.4, 0.9, 0.3, 0.2)" as one layer of five states, and also
run five layers of one state. Our choices, which the paper does not give: the trained parameters, the students' sizes,
length 128, learning rate and steps; B and C start at 1, as in deep_fig3a.
"""

import pandas as pd
from matplotlib.figure import Figure

from helper import Cell, Claim, Claims, Rows, Size, clearly_positive, grid, main, mean_and_std
from students import (
    FAILED,
    and_list,
    draw_legend,
    draw_path,
    median,
    short,
    started,
    states,
    teacher_response,
    training,
)

TEACHER = (0.9, 0.4, 0.9, 0.3, 0.2)
LAYERS = {"one layer": [TEACHER], "five layers": [[value] for value in TEACHER]}
SIZES = {1: 5, 2: 3, 3: 2, 4: 2, 5: 1}  # K to N


def cells(size: Size) -> list[Cell]:
    steps, students = (10, 2) if size == "quick" else (10_000, 10)
    return grid(teacher=LAYERS, trained=["A", "ABC"], K=SIZES, steps=[steps], students=[students])


def run(teacher: str, trained: str, K: int, steps: int, students: int) -> Rows:
    layer = started(K, SIZES[K], students, trained=trained)
    for step, errors in training(layer, teacher_response(LAYERS[teacher], 128), steps, lr=1e-3, points=10):
        yield from ({"what": "path"} | row for row in states(step, layer, errors, [0], kept="λ"))
    largest = layer.eigenvalue_weight.detach().abs().amax((0, 2))
    for student in range(students):
        yield {"what": "end", "student": student, "largest": short(largest[student]), "error": short(errors[student])}


def _final_rows(rows: pd.DataFrame, teacher: str, trained: str) -> dict[int, pd.DataFrame]:
    """Return the final rows of the students for each number of layers."""
    final = rows.query("what == 'end' and teacher == @teacher and trained == @trained")
    return dict(list(final.groupby("K")))


def claims(rows: pd.DataFrame) -> Claims:
    for teacher, trained in ((t, a) for t in LAYERS for a in ("A", "ABC")):
        final = _final_rows(rows, teacher, trained)
        # compare with the deepest students that fit: the λ of students that do not fit say nothing about the teacher
        fitting = [K for K, group in final.items() if K > 1 and median(group["error"]) < FAILED]
        deepest = max(fitting, default=max(final))
        (one, one_std), (deep, deep_std) = (mean_and_std(final[K]["largest"]) for K in (min(final), deepest))
        numbers = {f"largest |λ|, K = {K}:": mean_and_std(group["largest"]) for K, group in final.items()}
        numbers |= {f"error, K = {K}:": median(group["error"]) for K, group in final.items()}
        yield Claim(
            f"students with more layers learn smaller λ (teacher of {teacher}, {and_list(trained)} trained)",
            f"among students of several layers that fit (median error below {FAILED:g} of that of outputting 0), the"
            " deepest have a smaller largest |λ| than one layer, by more than the sum of both standard deviations;"
            " undecided only if no such student fits",
            bool(clearly_positive(one - deep, one_std + deep_std)) if fitting else None,
            numbers,
        )


def draw(rows: pd.DataFrame, figure: Figure) -> None:
    figure.set_size_inches(8.5, 5.8)
    panels = figure.subplots(4, len(SIZES), sharex=True, sharey="row")
    kinds = [(teacher, trained) for teacher in LAYERS for trained in ("A", "ABC")]
    for row, (teacher, trained) in zip(panels, kinds, strict=True):
        row[0].set_ylabel(f"teacher: {teacher}\ntrained: {', '.join(trained)}\nλ", fontsize=8)
        for axes, (K, final) in zip(row, _final_rows(rows, teacher, trained).items(), strict=True):
            path = rows.query("what == 'path' and teacher == @teacher and trained == @trained and K == @K")
            draw_path(axes, path, "λ", TEACHER)
            axes.set_title(f"K = {K}, N = {SIZES[K]}; error {median(final['error']):.1g}", fontsize=8)
    for axes in panels[-1]:
        axes.set_xlabel("step of Adam")
    draw_legend(figure, 5)


if __name__ == "__main__":
    main()
