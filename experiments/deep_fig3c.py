"""Deep linear SSMs, figure 3C: the students of figures 3A and 3B with a ReLU after each layer.

Source: see students.py; section 4.3. The paper does not say whether the teacher has ReLUs. Here it has one after each
layer, like the students: a student that ends in a ReLU could not follow a teacher with negative outputs. Our choices:

- Each step takes fresh noise: 4 sequences of 128 positions (of 64 in the figure's second row).
- The second row takes 10,000 steps at 5e-4, which move a weight as far as the 10^5 steps at 5e-5 of figure 3B. From
  O(50), where weights have to move by about 30, the learning rate is 5e-3.
- The second row has the teachers of figure 3B, and 60 students of two layers, because results vary between starts.
"""

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from helper import Cell, Claim, Claims, Rows, Size, main
from students import (
    FAILED,
    and_list,
    draw_errors,
    draw_legend,
    draw_path,
    drawn_teachers,
    median,
    started,
    states,
    teacher_of,
)

TEACHER = (0.9, 0.99)
TEST_SIZE = 64
PANELS = [  # of the second row: K, N, scale, lr, students
    (1, 8, 1, 5e-4, 10),
    (1, 8, 50, 5e-3, 10),
    (2, 4, 1, 5e-4, 60),
]


def cells(size: Size) -> list[Cell]:
    row_1 = {"row": 1, "K": 2, "N": 2, "scale": 1, "lr": 1e-3, "students": 5, "steps": 6000, "length": 128}
    row_2 = {"row": 2, "trained": "ABC", "steps": 10_000, "length": 64}
    settings = [row_1 | {"trained": trained} for trained in ("AB", "AC", "ABC")]
    names = ("K", "N", "scale", "lr", "students")
    settings += [row_2 | dict(zip(names, panel, strict=True)) for panel in PANELS]
    return [cell | {"students": 2, "steps": 4, "length": 16} for cell in settings] if size == "quick" else settings


def run(
    row: int, K: int, N: int, scale: float, lr: float, students: int, steps: int, length: int, trained: str
) -> Rows:
    rates = drawn_teachers(3, 2, 0.9, students) if row == 2 else np.tile(TEACHER, (students, 1, 1))
    teacher = teacher_of(torch.from_numpy(rates).float(), relu=True)
    layer = started(K, N, students, "normal" if row == 2 else "ones", scale, True, trained)
    generator = torch.Generator().manual_seed(0)
    adam = torch.optim.Adam([p for p in layer.parameters() if p.requires_grad], lr=lr, fused=True)
    every = max(1, steps // 12)
    for step in range(steps + 1):
        u = torch.randn(4 if step < steps else TEST_SIZE, length, students, generator=generator)
        target = teacher(u).relu()
        loss = (layer(u).relu() - target).square().mean((0, 1))  # of each student
        if step % every == 0 or step == steps:
            errors = (loss / target.square().mean((0, 1))).detach()
            yield from states(step, layer, errors, range(students) if step == steps else [0], kept="λ")
        if step < steps:
            adam.zero_grad()
            loss.sum().backward()
            adam.step()


def _final_rows(rows: pd.DataFrame, K: int, scale: float) -> pd.DataFrame:
    """Return for each student of the figure's second row the final error, and whether a λ is outside or it failed."""
    states = rows.query("row == 2 and K == @K and scale == @scale and step == steps")
    states = states.assign(outside=~(states["λ"].abs() <= 1))
    final = states.groupby("student").agg(error=("error", "first"), outside=("outside", "any"))
    return final.assign(failed=~(final["error"] < FAILED) | final["outside"])


def claims(rows: pd.DataFrame) -> Claims:
    for trained in ("AB", "AC", "ABC"):
        final = rows.query("row == 1 and trained == @trained and step == steps")
        exact = [
            any(np.allclose(sorted(λ), TEACHER, atol=0.01) for _, λ in student.groupby("layer")["λ"])
            for _, student in final.groupby("student")
        ]
        yield Claim(
            f"with ReLUs and {and_list(trained)} trained, one layer learns the teacher's λ",
            "both λ of a layer are within 0.01 of 0.99 and 0.9 in at least 4 of 5 students",
            float(np.mean(exact)) >= 0.8,
            {f"students of {len(exact)}:": sum(exact)},
        )
    for (K, N, scale, *_), fails in zip(PANELS, (True, False, False), strict=True):
        final = _final_rows(rows, K, scale)
        share, count = final["failed"].mean(), len(final)
        deviation = 2 * (0.25 * 0.75 / count) ** 0.5
        holds = share >= 0.5 if fails else True if share <= 0.25 else False if share > 0.25 + deviation else None
        yield Claim(
            f"with ReLUs, students of {K} × {N} (layers × states) {'fail' if fails else 'converge'} from O({scale})",
            "at least half of the students fail" if fails else "at most 1 in 4 students fails",
            None if holds is None else bool(holds),
            {f"failed of {count}:": final["failed"].sum(), "median error:": median(final["error"])},
        )


def draw(rows: pd.DataFrame, figure: Figure) -> None:
    figure.set_size_inches(10, 5.5)
    panels = figure.subplots(2, 4)
    path = rows.query("student == 0")
    for axes, trained in zip(panels[0], ("AB", "AC", "ABC"), strict=False):
        draw_path(axes, path.query("row == 1 and trained == @trained"), "λ", TEACHER)
        axes.set_title(f"trained: {', '.join(trained)}", fontsize=8)
    panels[0, -1].set_axis_off()
    for axes, (K, N, scale, *_) in zip(panels[1], PANELS, strict=False):
        student = path.query("row == 2 and K == @K and scale == @scale")
        draw_path(axes, student, "λ", drawn_teachers(3, 2, 0.9, 1).flatten())
        failed = _final_rows(rows, K, scale)["failed"]
        axes.set_title(f"{K} × {N}, B and C of O({scale}): {failed.sum()} of {len(failed)} fail", fontsize=8)
        axes.set_xlabel("step of Adam")
    for axes in panels[:, 0]:
        axes.set_ylabel("eigenvalue λ")
    errors = {f"{K} × {N}\nO({scale})": _final_rows(rows, K, scale)["error"] for K, N, scale, *_ in PANELS}
    draw_errors(panels[1, -1], errors)
    draw_legend(figure, 2)


if __name__ == "__main__":
    main()
