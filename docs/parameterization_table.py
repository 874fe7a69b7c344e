"""Write the tables of docs/parameterization.md: python docs/parameterization_table.py"""

from pathlib import Path

import torch

from lra_ssm.ops import Parameterization
from lra_ssm.ops.parameterization import FORMS, Time

PAGE = Path(__file__).with_name("parameterization.md")
MARK = "<!-- made by parameterization_table.py -->"
LONG: dict[Time, float] = {"continuous": -0.001, "discrete": 0.999}


def forms(time: Time) -> list[Parameterization]:
    return [Parameterization(name, of) for name, of in FORMS if of == time]  # type: ignore[arg-type]


def number(x: float) -> str:
    return f"{x + 0.0:.3g}"  # no -0


def long_bound(p: Parameterization) -> float:
    """Return G_f/|w| where a state remembers a thousand steps."""
    w = p.inverse(torch.tensor([LONG[p.time]], dtype=torch.float64))
    return (p.gradient_bound(w) / w.abs()).item()


def table(time: Time) -> list[str]:
    lines = [
        f"| form | λ = f(w) | range of λ | stable | G_f/\\|w\\| at λ = {LONG[time]} | source |",
        "|---|---|---|---|---|---|",
    ]
    for p in forms(time):
        formula, stable = (text.replace("|", "\\|") for text in (p.row.formula, p.row.stable))
        cells = (p.name, formula, p.range_text, stable, number(long_bound(p)), p.row.source)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def page(text: str) -> str:
    """Return the page with new tables after the mark."""
    lines = [text[: text.index(MARK)] + MARK, "", "## Continuous time: dh/dt = λ h + …", "", *table("continuous")]
    return "\n".join([*lines, "", "## Discrete time: h_k = λ h_{k-1} + …", "", *table("discrete"), ""])


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
