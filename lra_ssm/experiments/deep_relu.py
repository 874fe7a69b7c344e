"""Deep linear SSMs, figure 3C: the students of figures 3A and 3B with a ReLU after each layer.

Source: "On the Interplay between Learning and Memory in Deep State Space Models" (anonymous, ICLR 2025 submission),
section 4.3: figure 3C. Of the teacher it says nothing: here it has the same ReLUs, without which no student with one at
its end could follow it. (In the text the ReLU stands "between" layers; such students of the linear teacher are beside.)
Ours: fresh noise, 4 sequences of 128 a step; for the second row 10,000 steps at 5e-4, as far as the 10^5 at 5e-5 of
figure 3B can go; the teachers of figure 3B.
"""

from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

from lra_ssm.experiments.base import Cell, Claim, Experiment, Form, Judgement
from lra_ssm.experiments.deep_depth import SUCCESS, drawn_teachers
from lra_ssm.experiments.deep_students import Students, draw_path, name_layers, states
from lra_ssm.experiments.deep_timescales import TEACHER
from lra_ssm.layers import DeepLinearSSM

BATCH_SIZE = 4


class Network(torch.nn.Module):
    """Channels are students, or their teachers: u (B, T, D) -> (B, T, D). ReLUs stand between layers and, if last, at
    the end."""

    def __init__(self, layer: DeepLinearSSM, last: bool) -> None:
        super().__init__()
        self.layer, self.last = layer, last

    def forward(self, u: Tensor) -> Tensor:
        y: Tensor = self.layer(u)
        return F.relu(y) if self.last else y


def teacher_of(rates: Any, relu: bool) -> Network:
    """B = C = 1, λ (D, K, N)."""
    given = torch.as_tensor(np.asarray(rates), dtype=torch.float32).transpose(0, 1)
    layer = DeepLinearSSM(given.shape[1], given.shape[0], given.shape[2], relu=relu, trained="A")
    with torch.no_grad():
        layer.eigenvalue_weight.copy_(given)
    return Network(layer.requires_grad_(False), relu)


def student_of(cell: Cell) -> Network:
    torch.manual_seed(0)
    layer = DeepLinearSSM(cell["students"], cell["K"], cell["N"], relu=True, scale=cell["scale"])
    if cell["start"] == "ones":
        with torch.no_grad():
            layer.B.fill_(1.0)
            layer.C.fill_(1.0)
    layer.B.requires_grad_("B" in cell["trained"])
    layer.C.requires_grad_("C" in cell["trained"])
    return Network(layer, cell["relu"] == "after")


def _ends(rows: pd.DataFrame, row: int, **chosen: Any) -> pd.DataFrame:
    """A row a state of every student at the end."""
    found = rows[(rows["row"] == row) & (rows["step"] == rows["steps"])]
    for name, value in chosen.items():
        found = found[found[name] == value]
    return found


def _exact(trained: str) -> Any:
    def count(rows: pd.DataFrame, relu: str) -> tuple[int, int]:
        found = _ends(rows, 1, trained=trained, relu=relu).groupby("student")
        fits = [
            any(np.allclose(sorted(layer["λ"]), sorted(TEACHER), atol=0.01) for _, layer in one.groupby("layer"))
            for _, one in found
        ]
        return sum(fits), len(fits)

    def judge(rows: pd.DataFrame) -> Judgement:
        (after, total), (between, others) = count(rows, "after"), count(rows, "between")
        said = f"{after} of {total} students" + (f"; between, linear teacher: {between} of {others}" if others else "")
        return Judgement.of(after >= 0.8 * total, said)

    return judge


def _failed(rows: pd.DataFrame, K: int, scale: float) -> "pd.Series[bool]":
    students = _ends(rows, 2, K=K, scale=scale).groupby("student")
    outside = students["λ"].apply(lambda values: bool((~(values.abs() <= 1)).any()))
    return ~(students["error"].first() < SUCCESS) | outside


def _outcome(K: int, scale: float, fails: bool) -> Any:
    def judge(rows: pd.DataFrame) -> Judgement:
        failed, error = _failed(rows, K, scale), _ends(rows, 2, K=K, scale=scale).groupby("student")["error"].first()
        share = failed.mean()
        said = f"{failed.sum()} of {len(failed)} fail, median error {error.median():.2g}"
        return Judgement.of(bool(share >= 0.5 if fails else share <= 0.25), said)

    return judge


class WithReLU(Experiment):
    """Figure 3C."""

    claims = [
        *(
            Claim(
                f"{trained} trained",
                f"with ReLUs too, with {' and '.join(trained)} trained, one layer learns the teacher's λ",
                "both λ of one layer within 0.01 of 0.99 and 0.9 in 4 of 5 students",
                _exact(trained),
            )
            for trained in ("AB", "AC", "ABC")
        ),
        Claim(
            "1 × 8, O(1)",
            "with ReLUs too, one layer of 8 fails from O(1)",
            f"half of the students end above {SUCCESS:g} of the output 0's error, or with a |λ| > 1",
            _outcome(1, 1, fails=True),
        ),
        *(
            Claim(
                f"{K} × {N}, O({scale})",
                f"with ReLUs too, students of {K} × {N} converge from O({scale})",
                f"3 of 4 students end below {SUCCESS:g} of the output 0's error with all |λ| <= 1",
                _outcome(K, scale, fails=False),
            )
            for K, N, scale in ((1, 8, 50), (2, 4, 1))
        ),
    ]

    def cells(self, form: Form) -> list[Cell]:
        few = {"students": 2, "steps": 4, "length": 16}
        full = {"students": 5, "steps": 6000, "length": 128}
        base = {"row": 1, "K": 2, "N": 2, "scale": 1, "start": "ones", "relu": "after", "lr": 1e-3}
        base |= few if form == "quick" else full
        first = [base | {"trained": trained} for trained in ("A", "AB", "AC", "ABC")]
        first += [base | {"trained": "ABC", "relu": "between"}]
        second = base | {"row": 2, "start": "normal", "lr": 5e-4, "trained": "ABC"}
        second |= {} if form == "quick" else {"students": 10, "steps": 10_000, "length": 64}
        return first + [second | {"K": K, "N": N, "scale": scale} for K, N, scale in ((1, 8, 1), (1, 8, 50), (2, 4, 1))]

    def run(self, cell: Cell) -> list[dict[str, Any]]:
        count, length, relu = cell["students"], cell["length"], cell["relu"] == "after"
        rates = drawn_teachers(3, 2, 0.9, length, count)[0] if cell["row"] == 2 else [[TEACHER]] * count
        teacher, student = teacher_of(rates, relu), student_of(cell)
        generator = torch.Generator().manual_seed(0)
        adam = torch.optim.Adam([p for p in student.parameters() if p.requires_grad], lr=cell["lr"], fused=True)
        every, rows = max(1, cell["steps"] // 12), []
        for step in range(cell["steps"] + 1):
            last = step == cell["steps"]
            u = torch.randn(64 if last else BATCH_SIZE, length, count, generator=generator)
            wanted = teacher(u)
            squares = (student(u) - wanted).square().mean((0, 1))
            if step % every == 0 or last:
                now, errors = Students.of(student.layer), (squares / wanted.square().mean((0, 1))).tolist()
                for one in range(count) if last else [0]:
                    error = {"student": one, "error": float(f"{errors[one]:.3g}")}
                    rows += [error | row for row in states(step, now, one, "λ")]
            if not last:
                adam.zero_grad()
                squares.sum().backward()
                adam.step()
        return rows

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        figure.set_size_inches(10, 5.5)
        grid = figure.subplots(2, 4)
        first = [(trained, "after") for trained in ("A", "AB", "ABC")] + [("ABC", "between")]
        for axes, (trained, relu) in zip(grid[0], first, strict=True):
            path = rows[(rows["row"] == 1) & (rows["trained"] == trained) & (rows["relu"] == relu)]
            draw_path(axes, path[path["student"] == 0], "λ", TEACHER)
            axes.set_title(f"trained: {', '.join(trained)}; ReLU {relu} layers", fontsize=8)
        teachers, _ = drawn_teachers(3, 2, 0.9, 1, 1)
        panels = [(1, 8, 1), (1, 8, 50), (2, 4, 1)]
        for axes, (K, N, scale) in zip(grid[1], panels, strict=False):
            path = rows[(rows["row"] == 2) & (rows["K"] == K) & (rows["scale"] == scale) & (rows["student"] == 0)]
            draw_path(axes, path, "λ", teachers.flatten().tolist())
            failed = _failed(rows, K, scale)
            axes.set_title(f"{K} × {N}, B and C of {scale}: {failed.sum()} of {len(failed)} fail", fontsize=8)
        for at, (K, _, scale) in enumerate(panels):
            error = _ends(rows, 2, K=K, scale=scale).groupby("student")["error"].first().fillna(np.inf).clip(1e-8, 1e2)
            grid[1, 3].plot([at] * len(error), error, "o", color="#222222", markersize=3, alpha=0.7)
        grid[1, 3].axhline(SUCCESS, color="#999999", linewidth=0.6, linestyle=":")
        grid[1, 3].set_xticks(range(3), [f"{K} × {N}\n{scale}" for K, N, scale in panels], fontsize=7)
        grid[1, 3].set(yscale="log", title="second row: every student", ylabel="error at the end, of the output 0's")
        for axes in figure.axes[:-1]:
            axes.set(xlabel="step of Adam", ylabel="eigenvalue λ")
        name_layers(figure, 2)
