"""Deep linear SSMs, figure 3C: the students of figures 3A and 3B with a ReLU after each layer.

Source: see students.py; section 4.3. The paper does not say whether the teacher has ReLUs: here it has the same ones,
without which no student with a ReLU at its end could follow it. Ours: fresh noise, 4 sequences of 128 (64 in the second
row) a step; 10,000 steps at 5e-4 in the second row, which moves a weight as far as the 10^5 at 5e-5 of figure 3B, and
at 5e-3 from O(50), where weights have to move by about 30; the teachers of figure 3B; 60 students of two layers, since
few starts say little.
"""

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from helper import Cell, Claim, Claims, Rows, Size, main
from students import FAILED, draw_errors, draw_legend, draw_path, drawn_teachers, median, started, states, teacher_of

TEACHER = (0.9, 0.99)
TEST_SIZE = 64
PANELS = [(1, 8, 1, 5e-4, 10), (1, 8, 50, 5e-3, 10), (2, 4, 1, 5e-4, 60)]  # second row: K, N, scale, lr, students


def cells(size: Size) -> list[Cell]:
    first = {"row": 1, "K": 2, "N": 2, "scale": 1, "lr": 1e-3, "students": 5, "steps": 6000, "length": 128}
    second = {"row": 2, "trained": "ABC", "steps": 10_000, "length": 64}
    found = [first | {"trained": trained} for trained in ("AB", "AC", "ABC")]
    names = ("K", "N", "scale", "lr", "students")
    found += [second | dict(zip(names, panel, strict=True)) for panel in PANELS]
    return [cell | {"students": 2, "steps": 4, "length": 16} for cell in found] if size == "quick" else found


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
        wanted = teacher(u).relu()
        squares = (layer(u).relu() - wanted).square().mean((0, 1))
        if step % every == 0 or step == steps:
            errors = (squares / wanted.square().mean((0, 1))).detach()
            yield from states(step, layer, errors, range(students) if step == steps else [0], kept="λ")
        if step < steps:
            adam.zero_grad()
            squares.sum().backward()
            adam.step()


def _ends(rows: pd.DataFrame, K: int, scale: float) -> pd.DataFrame:
    """Return a row for each student of the second row."""
    ends = rows.query("row == 2 and K == @K and scale == @scale and step == steps")
    ends = ends.assign(outside=~(ends["λ"].abs() <= 1)).groupby("student")
    found = ends.agg(error=("error", "first"), outside=("outside", "any"))
    return found.assign(failed=~(found["error"] < FAILED) | found["outside"])


def claims(rows: pd.DataFrame) -> Claims:
    for trained in ("AB", "AC", "ABC"):
        ends = rows.query("row == 1 and trained == @trained and step == steps")
        exact = [
            any(np.allclose(sorted(λ), TEACHER, atol=0.01) for _, λ in student.groupby("layer")["λ"])
            for _, student in ends.groupby("student")
        ]
        yield Claim(
            f"with ReLUs and {' and '.join(trained)} trained, one layer learns the teacher's λ",
            "both λ of a layer are within 0.01 of 0.99 and 0.9 in at least 4 of 5 students",
            float(np.mean(exact)) >= 0.8,
            {f"of {len(exact)} students": sum(exact)},
        )
    for (K, N, scale, *_), fails in zip(PANELS, (True, False, False), strict=True):
        ends = _ends(rows, K, scale)
        share, count = ends["failed"].mean(), len(ends)
        deviation = 2 * (0.25 * 0.75 / count) ** 0.5
        holds = share >= 0.5 if fails else True if share <= 0.25 else False if share > 0.25 + deviation else None
        yield Claim(
            f"with ReLUs students of {K} × {N} {'fail' if fails else 'converge'} from O({scale})",
            "at least half of the students fail" if fails else "at most 1 in 4 students fails",
            None if holds is None else bool(holds),
            {f"of {count} fail": ends["failed"].sum(), "median error": median(ends["error"])},
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
        draw_path(
            axes, path.query("row == 2 and K == @K and scale == @scale"), "λ", drawn_teachers(3, 2, 0.9, 1).flatten()
        )
        ends = _ends(rows, K, scale)
        axes.set_title(f"{K} × {N}, B and C of {scale}: {ends['failed'].sum()} of {len(ends)} fail", fontsize=8)
        axes.set_xlabel("step of Adam")
    for axes in panels[:, 0]:
        axes.set_ylabel("eigenvalue λ")
    draw_errors(panels[1, -1], {f"{K} × {N}\n{scale}": _ends(rows, K, scale)["error"] for K, N, scale, *_ in PANELS})
    draw_legend(figure, 2)


if __name__ == "__main__":
    main()
