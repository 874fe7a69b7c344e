"""What docs/reproduction.md says that an LRA row costs follows from the configs and from the pages that measure.

`python -m tests.test_cost_table` prints it.
"""

import csv
import math
import re
from pathlib import Path

from tests.test_configs import load, parameters

DOCS = Path(__file__).parents[1] / "docs"
with (DOCS.parent / "benchmarks/results/steps-counted.csv").open() as counts:
    COUNTED = {row["config"]: row for row in csv.DictReader(counts)}
PAGE = (DOCS / "reproduction.md").read_text()
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
    """Parameters, steps, GB and hours of a row, measured where gpu.md has it, else counted."""
    measured, counted = cells_of("gpu.md", name, 11), COUNTED[name]
    if measured is not None:
        memory, least = measured[10].split(", ")[0], ""
        milliseconds = measured[2] or measured[1]
    else:
        memory, least = counted["peak_GB"], "≥ "
        milliseconds = counted["ms_at_least"]
    hours = steps(name) * float(milliseconds) / 3.6e6
    rounded = f"{float(memory):.2g}" if float(memory) < 10 else f"{float(memory):.0f}"
    shown = f"{least}{hours:.2g}" if hours < 10 else f"{least}{hours:.0f}"
    return f"{parameters(name) / 1e6:.3g} M | {steps(name):,} | {rounded} | {shown}"


def test_the_page_has_the_cost_of_every_row_of_lra():
    shown = re.findall(r"^\| .*configs/(lra/\w+/\w+)\.yaml\).* \| (.*? M \|.*) \|$", PAGE, re.MULTILINE)
    assert len(shown) == 6 * 8 and dict(shown) == {name: line(name) for name, _ in shown}


if __name__ == "__main__":
    print(*(f"{name}: {line(name)}" for name in re.findall(r"configs/(lra/\w+/\w+)\.yaml\)", PAGE)), sep="\n")
