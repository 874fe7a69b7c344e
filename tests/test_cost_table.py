"""docs/reproduction.md's table of what each LRA row costs follows from the configs and from the pages that measure.

`python -m tests.test_cost_table` prints the table.
"""

import math
import re
from collections.abc import Iterator
from pathlib import Path

from tests.test_configs import CONFIGS, LRA, load, parameters

DOCS = Path(__file__).parents[1] / "docs"
TITLES = {"listops": "ListOps", "text": "Text", "retrieval": "Retrieval", "image": "Image", "pathfinder": "Pathfinder",
          "pathx": "Path-X"}  # fmt: skip
EXAMPLES = {"listops": 96_000, "text": 22_500, "retrieval": 147_086, "image": 45_000, "pathfinder": 160_000,
            "pathx": 160_000}  # fmt: skip


def cells_of(page: str, name: str, columns: int) -> list[str] | None:
    """The cells of a config's line in the first table of a page that has so many columns."""
    for line in (DOCS / page).read_text().splitlines():
        cells = [cell.strip(" *") for cell in line.strip("|").split("|")]
        if cells[0] == name and len(cells) == columns:
            return cells
    return None


def steps(name: str) -> int:
    """The optimizer steps of a run."""
    found = load(name)
    if found["trainer.max_steps"] != -1:
        return int(found["trainer.max_steps"])
    epoch = math.ceil(EXAMPLES[name.split("/")[1]] / found["data.init_args.batch_size"])
    return int(found["trainer.max_epochs"]) * epoch


def line(name: str) -> str:
    """A row: parameters, steps, GB and hours, each measured where gpu.md has it, else counted in gpu-steps.md."""
    _, task, model = name.split("/")
    measured, counted = cells_of("gpu.md", name, 11), cells_of("gpu-steps.md", name, 6)
    assert counted is not None, name
    if measured is not None:
        memory, least = measured[10].split(", ")[0], ""
        milliseconds = measured[2] or measured[1]
    else:
        memory, least = counted[2], "≥ "
        milliseconds = counted[5]
    hours = steps(name) * float(milliseconds) / 3.6e6
    rounded = f"{float(memory):.2g}" if float(memory) < 10 else f"{float(memory):.0f}"
    shown = f"{least}{hours:.2g}" if hours < 10 else f"{least}{hours:.0f}"
    return f"| {TITLES[task]} | {model} | {parameters(name) / 1e6:.3g} M | {steps(name):,} | {rounded} | {shown} |"


def table() -> Iterator[str]:
    yield "| task | model | parameters | steps | GB | hours |"
    yield "|---|---|---|---|---|---|"
    for task in LRA:
        for path in sorted((CONFIGS / "lra" / task).glob("*.yaml")):
            yield line(f"lra/{task}/{path.stem}")


def test_the_page_has_the_cost_of_every_row_of_lra():
    section = (DOCS / "reproduction.md").read_text().partition("## What a row costs")[2].partition("\n## ")[0]
    assert re.findall(r"^\|.*$", section, re.MULTILINE) == list(table())


if __name__ == "__main__":
    print(*table(), sep="\n")
