"""Deep linear SSMs, figure 6: twelve layers of one state against one layer of twelve.

Source: see students.py; the caption of figure 6: O(10^5) steps. It gives neither the rate nor the teacher's λ (five
layers of two states). Ours: 5e-5 for twelve layers and 5e-4 for one, whose B and C have to move further; 2 · 10^5 steps
from O(100); 6 students, each with its own teacher, λ uniform in [0, 0.8), B = C = 1; length 64; O(1) is N(0, 1). No
stack of single states equals the teacher: it has no zeros, the teacher five.
"""

import pandas as pd
import torch
from matplotlib.figure import Figure

from helper import Cell, Claim, Claims, Rows, Size, main, mean
from students import (
    FAILED,
    draw_errors,
    draw_legend,
    draw_path,
    drawn_teachers,
    short,
    started,
    states,
    teacher_response,
    training,
)  # fmt: skip

STUDENTS, LENGTH = 6, 64
PANELS = [(1, 12, 1, 5e-4, 100_000), (1, 12, 100, 5e-4, 200_000), (12, 1, 1, 5e-5, 100_000)]


def cells(size: Size) -> list[Cell]:
    return [
        {"K": K, "N": N, "scale": scale, "lr": lr, "steps": 10 if size == "quick" else steps}
        for K, N, scale, lr, steps in PANELS
    ]


def run(K: int, N: int, scale: float, lr: float, steps: int) -> Rows:
    """Yield the states of the first student over time, and a row of each student at the end."""
    teacher = teacher_response(drawn_teachers(5, 2, 0.8, STUDENTS), LENGTH)
    layer = started(K, N, STUDENTS, "normal", scale)
    first = [p.detach().clone() for p in layer.parameters()]
    ever = torch.zeros(K, STUDENTS, N, dtype=torch.bool)
    for step, errors in training(layer, teacher, steps, lr):
        outside = ~(layer.eigenvalue_weight.detach().abs() <= 1)  # counts NaN
        ever |= outside
        yield from ({"what": "path"} | row for row in states(step, layer, errors, [0], kept="λ"))
    moved = torch.stack([(p.detach() - old) ** 2 for p, old in zip(layer.parameters(), first, strict=True)])
    for student in range(STUDENTS):
        counts = {"outside": int(outside[:, student].sum()), "ever": int(ever[:, student].sum())}
        size = float(moved[:, :, student].mean().sqrt()) / scale
        yield {"what": "end", "student": student, "error": short(errors[student]), "moved": short(size), **counts}


def _ends(rows: pd.DataFrame, K: int, scale: float) -> pd.DataFrame:
    ends = rows.query("what == 'end' and K == @K and scale == @scale")
    return ends.assign(failed=~(ends["error"] < FAILED) | (ends["outside"] > 0))


def claims(rows: pd.DataFrame) -> Claims:
    deep, one, large = _ends(rows, 12, 1), _ends(rows, 1, 1), _ends(rows, 1, 100)
    rule = f"at least 3 of 4 students end below {FAILED:g} of the output 0's error, with all |λ| <= 1"
    for name, ends in (
        ("twelve layers of one state converge from O(1)", deep),
        ("one layer converges from O(100)", large),
    ):
        numbers = {f"of {len(ends)} fail": ends["failed"].sum(), "median error": ends["error"].median()}
        yield Claim(name, rule, bool(ends["failed"].mean() <= 0.25), numbers)
    moved = mean(deep["moved"])
    yield Claim(
        "all parameters of twelve layers stay near their initial values",
        "the root of the mean squared change is at most half of the initial deviation, 1, by more than the deviation"
        " over students; undecided within it",
        None if abs(moved[0] - 0.5) <= moved[1] else moved[0] < 0.5,
        {"change": moved},
    )
    outside = one["ever"].mean()
    some = one["failed"].any() or outside > 0
    yield Claim(
        "from O(1) most λ of one layer diverge and it does not converge",
        "holds if at least half of the students fail and in the mean more than 6 of 12 λ have been outside [-1, 1];"
        " does not hold if no student fails and no λ has been; else undecided, since the paper shows a single run",
        True if one["failed"].mean() >= 0.5 and outside > 6 else None if some else False,
        {f"of {len(one)} fail": one["failed"].sum(), "λ outside at some time": outside},
    )
    yield Claim(
        "from O(100) the λ of one layer stay stable",
        "at least 3 of 4 students never have a |λ| > 1",
        bool((large["ever"] > 0).mean() <= 0.25),
        {f"of {len(large)} leave": (large["ever"] > 0).sum()},
    )


def draw(rows: pd.DataFrame, figure: Figure) -> None:
    figure.set_size_inches(10, 3.4)
    *panels, last = figure.subplots(1, 4)
    for axes, (K, N, scale, *_) in zip(panels, PANELS, strict=True):
        path = rows.query("what == 'path' and K == @K and scale == @scale")
        draw_path(axes, path, "λ", drawn_teachers(5, 2, 0.8, 1).flatten())
        axes.axhline(1, color="#999999", linewidth=0.6, linestyle=":")
        axes.set(title=f"{K} × {N}, B and C of {scale}", xlabel="step of Adam")
    panels[0].set_ylabel("eigenvalue λ")
    draw_errors(last, {f"{K} × {N}\n{scale}": _ends(rows, K, scale)["error"] for K, N, scale, *_ in PANELS})
    draw_legend(figure, 12)


if __name__ == "__main__":
    main()
