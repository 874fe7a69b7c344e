"""Deep linear SSMs, figure 6: twelve layers of one state against one layer of twelve.

Source: see students.py; caption of figure 6: O(10^5) steps, a teacher of five layers of two states. It gives neither
the learning rate nor the teacher's λ. Our choices: learning rates of 5e-5 for twelve layers and 5e-4 for one layer,
whose B and C have to move further; 2 · 10^5 steps from O(100); 6 students, each with its own teacher with λ uniform in
[0, 0.8) and B = C = 1; length 64; O(1) is N(0, 1). No stack of single states equals the teacher: the transfer function
of a stack has no zeros, that of the teacher has five.
"""

import pandas as pd
from matplotlib.figure import Figure

from helper import Cell, Claim, Claims, Rows, Size, main, mean_and_std
from students import (
    draw_errors,
    draw_legend,
    draw_path,
    drawn_teachers,
    final_rows,
    median,
    started,
    teacher_response,
    to_the_end,
)  # fmt: skip

STUDENTS, LENGTH = 6, 64
PANELS = [(1, 12, 1, 5e-4, 100_000), (1, 12, 100, 5e-4, 200_000), (12, 1, 1, 5e-5, 100_000)]


def cells(size: Size) -> list[Cell]:
    return [
        {"K": K, "N": N, "scale": scale, "lr": lr, "steps": 10 if size == "quick" else steps}
        for K, N, scale, lr, steps in PANELS
    ]


def run(K: int, N: int, scale: float, lr: float, steps: int) -> Rows:
    teacher = teacher_response(drawn_teachers(5, 2, 0.8, STUDENTS), LENGTH)
    yield from to_the_end(started(K, N, STUDENTS, "normal", scale), teacher, steps, lr)


def claims(rows: pd.DataFrame) -> Claims:
    deep, one, large = (final_rows(rows, K=K, scale=scale) for K, scale in ((12, 1), (1, 1), (1, 100)))
    rule = "at most 1 in 4 students fails"
    for statement, students in (
        ("twelve layers of one state converge from O(1)", deep),
        ("one layer converges from O(100)", large),
    ):
        numbers = {f"failed of {len(students)}:": students["failed"].sum(), "median error:": median(students["error"])}
        yield Claim(statement, rule, bool(students["failed"].mean() <= 0.25), numbers)
    moved = mean_and_std(deep["moved"])
    yield Claim(
        "all parameters of twelve layers stay near their initial values",
        "the RMS change is at most half of the initial standard deviation of 1",
        None if abs(moved[0] - 0.5) <= moved[1] else moved[0] < 0.5,
        {"RMS change:": moved},
    )
    outside = one["ever"].mean()
    any_sign = one["failed"].any() or outside > 0
    yield Claim(
        "from O(1), most λ of one layer diverge and it does not converge",
        "at least half of the students fail, and on average more than 6 of 12 λ are outside [-1, 1] at some step; does"
        " not hold if no student fails and no λ is ever outside",
        True if one["failed"].mean() >= 0.5 and outside > 6 else None if any_sign else False,
        {f"failed of {len(one)}:": one["failed"].sum(), "mean number of λ ever outside:": outside},
    )
    yield Claim(
        "from O(100), the λ of one layer stay stable",
        "at most 1 in 4 students ever has a |λ| > 1",
        bool((large["ever"] > 0).mean() <= 0.25),
        {f"had a |λ| > 1, of {len(large)}:": (large["ever"] > 0).sum(), "median error:": median(large["error"])},
    )


def draw(rows: pd.DataFrame, figure: Figure) -> None:
    figure.set_size_inches(10, 3.4)
    *panels, last = figure.subplots(1, 4)
    for axes, (K, N, scale, *_) in zip(panels, PANELS, strict=True):
        path = rows.query("what == 'path' and K == @K and scale == @scale")
        draw_path(axes, path, "λ", drawn_teachers(5, 2, 0.8, 1).flatten())
        axes.axhline(1, color="#999999", linewidth=0.6, linestyle=":")
        axes.set(title=f"{K} × {N}, B and C of O({scale})", xlabel="step of Adam")
    panels[0].set_ylabel("eigenvalue λ")
    errors = {f"{K} × {N}\nO({s})": final_rows(rows, K=K, scale=s)["error"] for K, N, s, *_ in PANELS}
    draw_errors(last, errors)
    draw_legend(figure, 12)


if __name__ == "__main__":
    main()
