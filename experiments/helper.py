"""Code that all scripts in this folder share: the command line, the results, the claims and a training loop.

A script reproduces one figure or theorem. It defines four functions and calls `main()`:

    cells(size)         returns the settings to run, a list of dicts; size is "quick", "default" or "long"
    run(**cell)         yields the rows of one cell: dicts of numbers and strings, the same in every run
    claims(rows)        yields a `Claim` for each statement of the paper, judged from the table of all rows
    draw(rows, figure)  draws the figure

Results are written to OUT/NAME (OUT/NAME-quick, OUT/NAME-long): rows.jsonl, with one row per line, and figure.png. Each
row contains the digest of the code that made it. Rows made by other code are ignored, and their cells run again. The
rows of finished cells are saved, so a killed run continues where it stopped.
"""

import argparse
import ast
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from time import process_time
from types import ModuleType
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
import torch
from lightning import LightningDataModule
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from lra_ssm.tasks import OptimizerSettings
from lra_ssm.tasks.optim import optimizer_and_schedule

Size = Literal["quick", "default", "long"]
Cell = dict[str, Any]
Rows = Iterable[dict[str, Any]]
Number = float | tuple[float, float]  # a value, or a mean and its standard deviation
FORM_COLORS = {  # for each f in λ = f(w)
    "direct": "#7f7f7f", "relu": "#8c564b", "exp": "#1f77b4",
    "softplus": "#2ca02c", "tanh": "#ff7f0e", "best": "#d62728",
}  # fmt: skip
HERE = Path(__file__).parent
STYLE: Any = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False}


class Claim(NamedTuple):
    """A statement of a paper and whether the rows support it."""

    statement: str  # in our words
    rule: str  # the condition under which it holds, fixed before the run
    holds: bool | None  # None if undecided
    numbers: Mapping[str, Number]  # the numbers that the rule compares

    @property
    def verdict(self) -> str:
        """The verdict: "holds", "does not hold" or "undecided" (also if a number is NaN or there are no numbers)."""
        if self.holds is None or not self.numbers or np.isnan(np.hstack([*self.numbers.values()])).any():
            return "undecided"
        return "holds" if self.holds else "does not hold"

    @property
    def found(self) -> str:
        """The numbers, formatted as text."""
        texts = {k: f"{v[0]:.3g} ± {v[1]:.2g}" if isinstance(v, tuple) else f"{v:.3g}" for k, v in self.numbers.items()}
        return ", ".join(f"{name} {text}" for name, text in texts.items())


Claims = Iterator[Claim]


def clearly_positive(difference: float, spread: float) -> bool | None:
    """Return whether a difference is positive, or None (undecided) if its size is at most the spread or NaN."""
    return bool(difference > 0) if abs(difference) > spread else None


def grid(**settings: Iterable[Any]) -> list[Cell]:
    """Return a cell for each combination of values; the last setting varies fastest."""
    return [dict(zip(settings, values, strict=True)) for values in product(*settings.values())]


def only(rows: pd.DataFrame, **settings: Any) -> pd.DataFrame:
    """Return the rows that have these settings."""
    for name, value in settings.items():
        rows = rows[rows[name] == value]
    return rows


def mean_and_std(values: "pd.Series[float]") -> tuple[float, float]:
    """Return the mean and the standard deviation (0 for a single value). Unlike pandas, it does not skip NaNs."""
    array = values.to_numpy(float)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else 0.0


def means(rows: pd.DataFrame, keys: Any, column: str) -> "pd.Series[float]":
    """Return the mean of a column for each group of `keys`; it is NaN if one of its values is."""
    return rows.groupby(keys)[column].agg(lambda values: values.to_numpy(float).mean())


def slope(x: Any, y: Any) -> float:
    """Return the least-squares slope of log y over log x, or NaN if a y is NaN or not positive."""
    if not (np.asarray(y, float) > 0).all():
        return float("nan")
    return float(np.polyfit(np.log(np.asarray(x, float)), np.log(np.asarray(y, float)), 1)[0])


def draw_mean(axes: Axes, rows: pd.DataFrame, x: str, y: str, **line: Any) -> None:
    """Plot the mean of column `y` against column `x`, with a band of one standard deviation."""
    points = {value: mean_and_std(group[y]) for value, group in rows.groupby(x)}
    center, deviation = np.array(list(points.values())).T
    (curve,) = axes.plot(list(points), center, **line)
    low = np.maximum(center - deviation, center / 10) if axes.get_yscale() == "log" else center - deviation
    axes.fill_between(list(points), low, center + deviation, color=curve.get_color(), alpha=0.2, linewidth=0)


def batches(data: LightningDataModule) -> Iterator[Any]:
    """Yield training batches forever, epoch after epoch."""
    data.prepare_data()
    data.setup("fit")
    loader = data.train_dataloader()
    while True:
        yield from loader


def train(
    network: nn.Module,
    data: Iterator[Any],
    steps: int,
    settings: OptimizerSettings,
    loss: Callable[[Tensor, Tensor], Tensor] = F.mse_loss,
    watch: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Train for `steps` steps and return the losses. `watch(step, loss)` is called before each update."""
    made = optimizer_and_schedule(network, settings, steps)
    network.train()
    losses = []
    for step, batch in zip(range(steps), data, strict=False):
        network.zero_grad()
        value = loss(network(batch.inputs), batch.labels)
        value.backward()
        losses.append(float(value.detach()))
        if watch is not None:
            watch(step, losses[-1])
        made["optimizer"].step()
        made["lr_scheduler"]["scheduler"].step()
    return losses


@torch.no_grad()
def evaluate(network: nn.Module, data: LightningDataModule, loss: Callable[[Tensor, Tensor], Tensor]) -> float:
    """Return the mean of `loss` over all test examples."""
    data.setup("test")
    network.eval()
    found = [(len(batch.labels), float(loss(network(batch.inputs), batch.labels))) for batch in data.test_dataloader()]
    return sum(count * value for count, value in found) / sum(count for count, _ in found)


def digest(script: Path) -> str:
    """Return a digest of the code that makes a script's rows.

    It covers `cells`, `run` and everything that they use in the script and in the files of this folder that it imports.
    Comments, docstrings and code that only reads rows (claims, figures, the command line) do not change it.
    """
    names, known = [script.stem], dict[str, ast.AST]()
    for name in names:  # the loop appends imported files
        for node in ast.parse((HERE / f"{name}.py").read_text()).body:
            if isinstance(node, ast.ImportFrom) and (HERE / f"{node.module}.py").exists():
                names += [str(node.module)] * (node.module not in names)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                known.setdefault(node.name, node)
            elif isinstance(node, ast.Assign):
                known |= {
                    part.id: node for part in ast.walk(node) if isinstance(part, ast.Name) and part.id not in known
                }
    used = ["cells", "run"]
    for name in used:  # the loop appends the names that each definition uses
        for part in ast.walk(known[name]):
            if isinstance(part, ast.FunctionDef | ast.ClassDef):
                part.body = part.body[bool(ast.get_docstring(part)) :]
            elif isinstance(part, ast.Name) and part.id in known and part.id not in used:
                used.append(part.id)
    return hashlib.sha256("\n".join(ast.dump(known[name]) for name in sorted(used)).encode()).hexdigest()[:12]


def load(file: Path, script: Path) -> list[dict[str, Any]]:
    """Return the rows of a results file that the present code made."""
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    present = digest(script)
    return [row for row in rows if row["digest"] == present]


def missing(cells: list[Cell], rows: list[dict[str, Any]]) -> list[Cell]:
    """Return the cells that have no row. All cells of a script have the same setting names."""
    return [cell for cell in cells if not any(all(row.get(k) == v for k, v in cell.items()) for row in rows)]


def main() -> None:
    """Run the script that was started: compute its missing cells, judge its claims and draw its figure."""
    script: ModuleType = sys.modules["__main__"]
    path = Path(str(script.__file__))
    parser = argparse.ArgumentParser(description=(script.__doc__ or "").partition("\n")[0])
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", action="store_true", help="check in a few seconds that it runs; gives no verdicts")
    sizes.add_argument("--long", action="store_true", help="use the paper's sizes and steps, which takes hours")
    parser.add_argument("--out", type=Path, default=Path("runs/experiments"), help="folder for the results")
    options = parser.parse_args()
    size: Size = "quick" if options.quick else "long" if options.long else "default"
    cells: list[Cell] = script.cells(size)
    if size == "long" and cells == script.cells("default"):
        parser.error(f"{path.stem} has no --long form; its default is already the whole experiment")
    folder = options.out / (path.stem + ("" if size == "default" else f"-{size}"))
    folder.mkdir(parents=True, exist_ok=True)
    rows, present = load(folder / "rows.jsonl", path), digest(path)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    for number, cell in enumerate(to_run := missing(cells, rows), 1):
        print(f"{path.stem} {number}/{len(to_run)}: {cell}", flush=True)
        start = process_time()
        new_rows = list(script.run(**cell))
        seconds = round((process_time() - start) / len(new_rows), 3)
        rows += [{**cell, **row, "seconds": seconds, "digest": present} for row in new_rows]
        temporary = folder / "rows.jsonl.part"
        temporary.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        os.replace(temporary, folder / "rows.jsonl")
    table = pd.DataFrame(rows)
    for claim in script.claims(table):
        verdict = "not judged (--quick)" if size == "quick" else claim.verdict
        print(f"{verdict}: {claim.statement} [{claim.found}; {claim.rule}]")
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7, 4), layout="constrained")
        script.draw(table, figure)
        figure.savefig(folder / "figure.png", dpi=130)
    print(f"{folder}/figure.png, rows.jsonl; {table['seconds'].sum() / 60:.1f} core-minutes")
