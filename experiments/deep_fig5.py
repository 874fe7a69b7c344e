"""Deep linear SSMs, figure 5: with more layers, smaller λ.

Source: see students.py. The teacher "A = diag(0.9, 0.4, 0.9, 0.3, 0.2)" reads as one layer of five states; five layers
of one state are run too. Ours, since the paper does not give them: what is trained, the students' sizes, length 128,
rate and steps; B and C start at 1, as in deep_fig3a.
"""

import pandas as pd
from matplotlib.figure import Figure

from helper import Cell, Claim, Claims, Rows, Size, beyond, grid, main, mean
from students import FAILED, draw_legend, draw_path, median, short, started, states, teacher_response, training

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


def _ends(rows: pd.DataFrame, teacher: str, trained: str) -> dict[int, pd.DataFrame]:
    ends = rows.query("what == 'end' and teacher == @teacher and trained == @trained")
    return dict(list(ends.groupby("K")))


def claims(rows: pd.DataFrame) -> Claims:
    for teacher, trained in ((t, a) for t in LAYERS for a in ("A", "ABC")):
        ends = _ends(rows, teacher, trained)
        one, deep = ends[min(ends)], max(ends)
        # the deepest student that fits, if any: of one that does not, the λ say nothing about the teacher
        fitting = [K for K, part in ends.items() if K > 1 and median(part["error"]) < FAILED]
        first, last = mean(one["largest"]), mean(ends[max(fitting, default=deep)]["largest"])
        numbers = {f"λ of {K}": mean(part["largest"]) for K, part in ends.items()}
        numbers |= {f"error of {K}": median(part["error"]) for K, part in ends.items()}
        yield Claim(
            f"more layers learn with smaller λ (teacher of {teacher}, {' and '.join(trained)} trained)",
            f"of the deeper students that fit (median error below {FAILED:g} of the output 0's), the deepest have a"
            " smaller largest |λ| than one layer by more than both deviations; undecided only if none fits",
            bool(beyond(first[0] - last[0], first[1] + last[1])) if fitting else None,
            numbers,
        )


def draw(rows: pd.DataFrame, figure: Figure) -> None:
    figure.set_size_inches(8.5, 5.8)
    panels = figure.subplots(4, len(SIZES), sharex=True, sharey="row")
    kinds = [(teacher, trained) for teacher in LAYERS for trained in ("A", "ABC")]
    for line, (teacher, trained) in zip(panels, kinds, strict=True):
        line[0].set_ylabel(f"teacher: {teacher}\ntrained: {', '.join(trained)}\nλ", fontsize=8)
        for axes, (K, part) in zip(line, _ends(rows, teacher, trained).items(), strict=True):
            path = rows.query("what == 'path' and teacher == @teacher and trained == @trained and K == @K")
            draw_path(axes, path, "λ", TEACHER)
            axes.set_title(f"K = {K}, N = {SIZES[K]}; error {median(part['error']):.1g}", fontsize=8)
    for axes in panels[-1]:
        axes.set_xlabel("step of Adam")
    draw_legend(figure, 5)


if __name__ == "__main__":
    main()
