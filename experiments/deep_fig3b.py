"""Deep linear SSMs, figure 3B: two layers of four states against one layer of eight.

Source: see students.py; section 4.2: Adam at 5e-5. The paper shows one student of each kind for one teacher with three
layers of two states, whose λ appear only in a plot. Our choices: 12 students, each with its own teacher with λ uniform
in [0, 0.9) and B = C = 1; length 64; 10^5 steps; "O(1)" is N(0, 1). We also run students whose B and C all start at the
scale itself ("from ones").

In 10^5 steps at 5e-5 Adam moves a weight by at most 5, but B and C of O(50) have to move by about 30. Students from
O(50) therefore train at 5e-4 here. --long takes 10^6 steps at the paper's learning rate instead.
"""

import pandas as pd
from matplotlib.figure import Figure

from helper import Cell, Claim, Claims, Rows, Size, clearly_positive, main
from students import (
    draw_errors,
    draw_legend,
    draw_path,
    drawn_teachers,
    final_rows,
    median,
    side_by_side,
    started,
    teacher_response,
    to_the_end,
)  # fmt: skip

STUDENTS, LENGTH = 12, 64
PANELS = [(2, 4, 1), (1, 8, 1), (1, 8, 50), (2, 4, 50)]  # K, N, scale
LEARNED = "at most 1 in 4 students fails"


def cells(size: Size) -> list[Cell]:
    steps = {"quick": 10, "default": 100_000, "long": 1_000_000}[size]
    fast = 5e-5 if size == "long" else 5e-4
    return [{"K": K, "N": N, "scale": s, "lr": fast if s == 50 else 5e-5, "steps": steps} for K, N, s in PANELS]


def run(K: int, N: int, scale: float, lr: float, steps: int) -> Rows:
    teacher = teacher_response(drawn_teachers(3, 2, 0.9, STUDENTS), LENGTH).repeat(2, 1)
    layer = side_by_side([started(K, N, STUDENTS, start, scale) for start in ("normal", "ones")])
    for row in to_the_end(layer, teacher, steps, lr):
        yield row | {"start": "normal" if row["student"] < STUDENTS else "ones"}


def _from_normal(rows: pd.DataFrame, K: int, scale: float) -> pd.DataFrame:
    """Return the final rows of the students whose B and C start normally distributed."""
    return final_rows(rows, K=K, scale=scale, start="normal")


def _numbers(rows: pd.DataFrame, K: int, scale: float) -> dict[str, float]:
    normal, ones = _from_normal(rows, K, scale), final_rows(rows, K=K, scale=scale, start="ones")
    return {
        f"failed of {len(normal)}:": normal["failed"].sum(),
        "had a |λ| > 1:": (normal["ever"] > 0).sum(),
        "median error:": median(normal["error"]),
        f"from ones, failed of {len(ones)}:": ones["failed"].sum(),
    }


def claims(rows: pd.DataFrame) -> Claims:
    one, two = _from_normal(rows, 1, 1), _from_normal(rows, 2, 1)
    half_fail = one["failed"].mean() >= 0.5 and (one["ever"] > 0).mean() >= 0.5
    yield Claim(
        "one layer fails from B and C of O(1): its λ leave the region of stability",
        "at least half of the students fail, and at least half have a |λ| > 1 at some step; does not hold if no student"
        " does either",
        True if half_fail else None if (one["failed"] | (one["ever"] > 0)).any() else False,
        _numbers(rows, 1, 1),
    )
    for K, scale in ((1, 50), (2, 1)):
        yield Claim(
            f"{'one layer converges' if K == 1 else 'two layers converge'} from B and C of O({scale})",
            LEARNED,
            bool(_from_normal(rows, K, scale)["failed"].mean() <= 0.25),
            _numbers(rows, K, scale),
        )
    spread = 2 * float((one["failed"].var(ddof=0) * len(one) + two["failed"].var(ddof=0) * len(two)) ** 0.5)
    yield Claim(
        "from O(1), one layer fails more often than two",
        "more students of one layer fail, by more than two binomial standard deviations",
        clearly_positive(int(one["failed"].sum()) - int(two["failed"].sum()), spread),
        {"one layer:": one["failed"].sum(), "two layers:": two["failed"].sum(), "two deviations:": spread},
    )


def draw(rows: pd.DataFrame, figure: Figure) -> None:
    figure.set_size_inches(11, 3.4)
    *panels, last = figure.subplots(1, 5)
    teacher = drawn_teachers(3, 2, 0.9, 1).flatten()
    for axes, (K, N, scale) in zip(panels, PANELS, strict=True):
        draw_path(axes, rows.query("what == 'path' and K == @K and scale == @scale"), "λ", teacher)
        axes.axhline(1, color="#999999", linewidth=0.6, linestyle=":")
        axes.set(title=f"{K} × {N}, B and C of O({scale})", xlabel="step of Adam")
    panels[0].set_ylabel("eigenvalue λ")
    draw_errors(last, {f"{K} × {N}\nO({scale})": _from_normal(rows, K, scale)["error"] for K, N, scale in PANELS})
    draw_legend(figure, 2)


if __name__ == "__main__":
    main()
