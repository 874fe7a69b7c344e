"""Write the tables of docs/parameterization.md: python docs/parameterization_table.py"""

from pathlib import Path

import torch

from lra_ssm.ops import Parameterization
from lra_ssm.ops.parameterization import FORMS, Time

PAGE = Path(__file__).with_name("parameterization.md")
MARK = "<!-- made by parameterization_table.py -->"
WEIGHTS = torch.linspace(-6, 6, 1201, dtype=torch.float64) + 0.00123
STEP = 1e-5
LONG: dict[Time, float] = {"continuous": -0.001, "discrete": 0.999}


def forms(time: Time) -> list[Parameterization]:
    return [Parameterization(name, of) for name, of in FORMS if of == time]  # type: ignore[arg-type]


def number(x: float) -> str:
    return f"{x + 0.0:.3g}"  # no -0


def measured(p: Parameterization) -> tuple[float, float, float, float]:
    """Return four numbers for w in [-6, 6]: the least and greatest λ; the error of G_f against a central difference of
    f, relative to the larger of both and 1; and G_f/|w| where a state remembers a thousand steps."""
    w = WEIGHTS
    values = p.f(w)
    slope = (p.f(w + STEP) - p.f(w - STEP)) / (2 * STEP)
    distance = values if p.time == "continuous" else 1 - values
    # compare only where f has no kink within the difference and the bound has no pole
    smooth = (p.derivative(w + 2 * STEP) - p.derivative(w - 2 * STEP)).abs() < 1e-2
    comparable = smooth & (distance.abs() > 1e-3)
    difference = slope.abs() / distance.square()
    bound = p.gradient_bound(w)
    scale = torch.maximum(bound, difference).clamp(min=1)
    error = ((bound - difference).abs() / scale)[comparable].max()
    long = p.inverse(torch.tensor([LONG[p.time]], dtype=torch.float64))
    return values.min().item(), values.max().item(), error.item(), (p.gradient_bound(long) / long.abs()).item()


def table(time: Time) -> list[str]:
    lines = [
        "| form | λ = f(w) | range of λ | stable | λ seen | G_f against differences | "
        f"G_f/\\|w\\| at λ = {LONG[time]} | source |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for p in forms(time):
        low, high, error, ratio = measured(p)
        formula, stable = (text.replace("|", "\\|") for text in (p.row.formula, p.row.stable))
        small = "within 1e-6" if error < 1e-6 else number(error)
        seen = f"{number(low)} … {number(high)}"
        cells = (p.name, formula, p.range_text, stable, seen, small, number(ratio), p.row.source)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def page(text: str) -> str:
    """Return the page with new tables after the mark."""
    lines = [text[: text.index(MARK)] + MARK, "", "## Continuous time: dh/dt = λ h + …", "", *table("continuous")]
    return "\n".join([*lines, "", "## Discrete time: h_k = λ h_{k-1} + …", "", *table("discrete"), ""])


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
