"""Deep linear SSMs, figure 3C: the students of figures 3A and 3B with a ReLU after each layer.

Source: "On the Interplay between Learning and Memory in Deep State Space Models" (anonymous, ICLR 2025 submission),
section 4.3: figure 3C. Of the teacher it says nothing: here it has the same ReLUs, without which no student with one at
its end could follow it. (In the text the ReLU stands "between" layers; such students of the linear teacher are beside.)
Ours: fresh noise, 4 sequences of 128 a step; for the second row 10,000 steps at 5e-4, as far as the 10^5 at 5e-5 of
figure 3B can go; the teachers of figure 3B.
"""

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lra_ssm.experiments.base import Cell, Experiment, Form, Judgement, Rows, claim
from lra_ssm.experiments.deep_depth import CONVERGES, SUCCESS, draw_errors, drawn_teachers, with_failed
from lra_ssm.experiments.deep_students import Array, Students, draw_path, name_layers, started, states
from lra_ssm.experiments.deep_timescales import TEACHER, TRAINED
from lra_ssm.layers import DeepLinearSSM

BATCH_SIZE, TEST_SIZE = 4, 64
PANELS = [(1, 8, 1), (1, 8, 50), (2, 4, 1)]  # of the second row: K, N, scale


def _teacher(rates: Array, relu: bool) -> DeepLinearSSM:
    """B = C = 1, λ (D, K, N)."""
    D, K, N = rates.shape
    layer = DeepLinearSSM(D, K, N, relu=relu, trained="A").requires_grad_(False)
    layer.eigenvalue_weight.copy_(torch.from_numpy(rates).transpose(0, 1))
    return layer


def _ends(rows: pd.DataFrame, K: int, scale: float) -> pd.DataFrame:
    """A row a student of the second row of the figure, as `with_failed` has it."""
    states = rows.query("row == 2 and K == @K and scale == @scale and step == steps")
    states = states.assign(outside=~(states["λ"].abs() <= 1))
    return with_failed(states.groupby("student").agg({"error": "first", "outside": "sum"}))


def _failed(rows: pd.DataFrame, K: int, scale: float) -> tuple[float, str]:
    """The share of these students, and what is said of them."""
    found = _ends(rows, K, scale)
    said = f"{found['failed'].sum()} of {len(found)} fail, median error {found['error'].median():.2g}"
    return found["failed"].mean(), said


class WithReLU(Experiment):
    """Figure 3C."""

    @claim(
        "both λ of one layer within 0.01 of 0.99 and 0.9 in 4 of 5 students",
        "{trained} trained",
        TRAINED,
    )
    def exact(self, rows: pd.DataFrame, trained: str, names: str) -> Judgement:
        """with ReLUs too, with {names} trained, one layer learns the teacher's λ"""
        ends = rows.query("row == 1 and trained == @trained and step == steps")
        layers = ends.groupby(["relu", "student", "layer"])["λ"].agg(
            lambda values: np.allclose(sorted(values), sorted(TEACHER), atol=0.01)
        )
        fits = layers.groupby(["relu", "student"]).any().groupby("relu").agg(["sum", "count", "mean"])
        said = "{sum:g} of {count:g} students".format(**fits.loc["after"])
        if "between" in fits.index:
            said += "; between, linear teacher: {sum:g} of {count:g}".format(**fits.loc["between"])
        return Judgement.of(fits.loc["after", "mean"] >= 0.8, said)

    @claim(f"half of the students end above {SUCCESS:g} of the output 0's error, or with a |λ| > 1", "1 × 8, O(1)")
    def fails(self, rows: pd.DataFrame) -> Judgement:
        """with ReLUs too, one layer of 8 fails from O(1)"""
        share, said = _failed(rows, 1, 1)
        return Judgement.of(share >= 0.5, said)

    @claim(
        CONVERGES, "{K} × {N}, O({scale})", [dict(zip(("K", "N", "scale"), panel, strict=True)) for panel in PANELS[1:]]
    )
    def converges(self, rows: pd.DataFrame, K: int, N: int, scale: float) -> Judgement:
        """with ReLUs too, students of {K} × {N} converge from O({scale})"""
        share, said = _failed(rows, K, scale)
        return Judgement.of(share <= 0.25, said)

    def cells(self, form: Form) -> list[Cell]:
        few = {"students": 2, "steps": 4, "length": 16}
        full = {"students": 5, "steps": 6000, "length": 128}
        base = {"row": 1, "K": 2, "N": 2, "scale": 1, "start": "ones", "relu": "after", "lr": 1e-3}
        base |= few if form == "quick" else full
        first = [base | {"trained": trained} for trained in ("A", "AB", "AC", "ABC")]
        first += [base | {"trained": "ABC", "relu": "between"}]
        second = base | {"row": 2, "start": "normal", "lr": 5e-4, "trained": "ABC"}
        second |= {} if form == "quick" else {"students": 10, "steps": 10_000, "length": 64}
        return first + [second | {"K": K, "N": N, "scale": scale} for K, N, scale in PANELS]

    def run(self, cell: Cell) -> Rows:
        count, steps, last = cell["students"], cell["steps"], cell["relu"] == "after"
        rates = drawn_teachers(3, 2, 0.9, count) if cell["row"] == 2 else np.tile(TEACHER, (count, 1, 1))
        teacher = _teacher(rates, relu=last)
        student = started(cell["K"], cell["N"], count, cell["start"], cell["scale"], True, cell["trained"])
        generator = torch.Generator().manual_seed(0)
        adam = torch.optim.Adam(student.parameters(), lr=cell["lr"], fused=True)

        def outputs(layer: DeepLinearSSM, u: Tensor) -> Tensor:
            """Channels are students, or their teachers: u (B, T, D) -> (B, T, D)."""
            y: Tensor = layer(u)
            return y.relu() if last else y

        every = max(1, steps // 12)
        for step in range(steps + 1):
            u = torch.randn(BATCH_SIZE if step < steps else TEST_SIZE, cell["length"], count, generator=generator)
            wanted = outputs(teacher, u)
            squares = (outputs(student, u) - wanted).square().mean((0, 1))
            if step % every == 0 or step == steps:
                errors = (squares / wanted.square().mean((0, 1))).detach().numpy()
                yield from states(step, Students.of(student), errors, range(count) if step == steps else [0], kept="λ")
            if step < steps:
                adam.zero_grad()
                squares.sum().backward()
                adam.step()

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        figure.set_size_inches(10, 5.5)
        grid = figure.subplots(2, 4)
        path = rows.query("student == 0")
        first = [(trained, "after") for trained in ("A", "AB", "ABC")] + [("ABC", "between")]
        for axes, (trained, relu) in zip(grid[0], first, strict=True):
            draw_path(axes, path.query("row == 1 and trained == @trained and relu == @relu"), "λ", TEACHER)
            axes.set_title(f"trained: {', '.join(trained)}; ReLU {relu} layers", fontsize=8)
        ends = [_ends(rows, K, scale) for K, _, scale in PANELS]
        teacher = drawn_teachers(3, 2, 0.9, 1).flatten()
        for axes, found, (K, N, scale) in zip(grid[1, :3], ends, PANELS, strict=True):
            draw_path(axes, path.query("row == 2 and K == @K and scale == @scale"), "λ", teacher)
            failed = f"{found['failed'].sum()} of {len(found)} fail"
            axes.set_title(f"{K} × {N}, B and C of {scale}: {failed}", fontsize=8)
        for axes in figure.axes[:-1]:
            axes.set_xlabel("step of Adam")
        for axes in grid[:, 0]:
            axes.set_ylabel("eigenvalue λ")
        draw_errors(figure.axes[-1], [found["error"] for found in ends])
        figure.axes[-1].set_title("second row: every student", fontsize=8)
        figure.axes[-1].set_xticks(range(3), [f"{K} × {N}\n{scale}" for K, N, scale in PANELS], fontsize=7)
        name_layers(figure, 2)
