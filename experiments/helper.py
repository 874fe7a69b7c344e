"""What every script in this folder shares: the command line, the results, claims, and a training loop.

A script is one figure or theorem. It defines four functions and ends in `main()`:

    cells(size)         the settings to run, a list of dicts; size is "quick", "default" or "long"
    run(**cell)         yields the rows of one cell: dicts of numbers and strings, always the same for the same cell
    claims(rows)        yields a `Claim` for each statement, from the table of all rows
    draw(rows, figure)  draws the figure

Results go to OUT/NAME (OUT/NAME-quick, OUT/NAME-long): rows.jsonl, one row a line, and figure.png. Each row carries the
digest of the code that made it. Rows of other code do not count: their cells run again. A finished cell is kept, so a
killed run continues where it stopped.
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
Number = float | tuple[float, float]  # or a mean and its deviation
FORM_COLORS = {  # of f in λ = f(w)
    "direct": "#7f7f7f", "relu": "#8c564b", "exp": "#1f77b4",
    "softplus": "#2ca02c", "tanh": "#ff7f0e", "best": "#d62728",
}  # fmt: skip
HERE = Path(__file__).parent
STYLE: Any = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False}


class Claim(NamedTuple):
    """A statement of a paper, and whether the rows support it."""

    statement: str  # in our words
    rule: str  # when it holds, fixed before the run: which number is compared with what
    holds: bool | None  # None: undecided
    numbers: Mapping[str, Number]  # the numbers that decide

    @property
    def verdict(self) -> str:
        """ "holds", "does not hold" or "undecided"; a NaN among the numbers, or no number, leaves it undecided."""
        if self.holds is None or not self.numbers or np.isnan(np.hstack([*self.numbers.values()])).any():
            return "undecided"
        return "holds" if self.holds else "does not hold"

    @property
    def found(self) -> str:
        """The numbers as text."""
        texts = {k: f"{v[0]:.3g} ± {v[1]:.2g}" if isinstance(v, tuple) else f"{v:.3g}" for k, v in self.numbers.items()}
        return ", ".join(f"{name} {text}" for name, text in texts.items())


Claims = Iterator[Claim]


def beyond(difference: float, spread: float) -> bool | None:
    """Whether a difference is positive; None (undecided) where it is not larger than the spread, or NaN."""
    return bool(difference > 0) if abs(difference) > spread else None


def grid(**settings: Iterable[Any]) -> list[Cell]:
    """Return a cell for every combination; the last setting changes fastest."""
    return [dict(zip(settings, values, strict=True)) for values in product(*settings.values())]


def only(rows: pd.DataFrame, **settings: Any) -> pd.DataFrame:
    """Return the rows with these settings."""
    for name, value in settings.items():
        rows = rows[rows[name] == value]
    return rows


def mean(values: "pd.Series[float]") -> tuple[float, float]:
    """Return mean and deviation (0 for a single value). Unlike pandas' own, a NaN is not skipped."""
    array = values.to_numpy(float)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else 0.0


def means(rows: pd.DataFrame, keys: Any, column: str) -> "pd.Series[float]":
    """Return the mean of a column by `keys`; NaN where a value is."""
    return rows.groupby(keys)[column].agg(lambda values: values.to_numpy(float).mean())


def slope(x: Any, y: Any) -> float:
    """Return the least-squares slope of log y over log x; NaN if a value is, or is not positive."""
    if not (np.asarray(y, float) > 0).all():
        return float("nan")
    return float(np.polyfit(np.log(np.asarray(x, float)), np.log(np.asarray(y, float)), 1)[0])


def draw_mean(axes: Axes, rows: pd.DataFrame, x: str, y: str, **line: Any) -> None:
    """Draw the mean of a column over another, and its deviation as a band."""
    points = {at: mean(part[y]) for at, part in rows.groupby(x)}
    center, deviation = np.array(list(points.values())).T
    (drawn,) = axes.plot(list(points), center, **line)
    low = np.maximum(center - deviation, center / 10) if axes.get_yscale() == "log" else center - deviation
    axes.fill_between(list(points), low, center + deviation, color=drawn.get_color(), alpha=0.2, linewidth=0)


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
    """Train for `steps` steps and return the losses; `watch(step, loss)` is called before each update."""
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
    """Return the digest of the code that makes a script's rows.

    It covers `cells`, `run` and all that they use, in the script and in the files of this folder that it imports. What
    only reads rows (claims, figures, the command line), comments and docstrings do not change it.
    """
    names, known = [script.stem], dict[str, ast.AST]()
    for name in names:  # grows by what is imported
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
    for name in used:  # grows by what is used
        for part in ast.walk(known[name]):
            if isinstance(part, ast.FunctionDef | ast.ClassDef):
                part.body = part.body[bool(ast.get_docstring(part)) :]
            elif isinstance(part, ast.Name) and part.id in known and part.id not in used:
                used.append(part.id)
    return hashlib.sha256("\n".join(ast.dump(known[name]) for name in sorted(used)).encode()).hexdigest()[:12]


def load(file: Path, script: Path) -> list[dict[str, Any]]:
    """Return the rows in a results file that the present code made."""
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    code = digest(script)
    return [row for row in rows if row["digest"] == code]


def missing(cells: list[Cell], rows: list[dict[str, Any]]) -> list[Cell]:
    """Return the cells that have no row. Cells of a script all have the same settings."""
    return [cell for cell in cells if not any(all(row.get(k) == v for k, v in cell.items()) for row in rows)]


def main() -> None:
    """Run the script that was started: its missing cells, its claims and its figure."""
    script: ModuleType = sys.modules["__main__"]
    path = Path(str(script.__file__))
    parser = argparse.ArgumentParser(description=(script.__doc__ or "").partition("\n")[0])
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--quick", action="store_true", help="a few seconds that show that it runs; gives no verdict")
    which.add_argument("--long", action="store_true", help="the sizes and steps of the paper, for hours")
    parser.add_argument("--out", type=Path, default=Path("runs/experiments"), help="folder of the results")
    options = parser.parse_args()
    size: Size = "quick" if options.quick else "long" if options.long else "default"
    cells: list[Cell] = script.cells(size)
    if size == "long" and cells == script.cells("default"):
        parser.error(f"{path.stem} has no --long form: the default is the whole experiment")
    folder = options.out / (path.stem + ("" if size == "default" else f"-{size}"))
    folder.mkdir(parents=True, exist_ok=True)
    rows, code = load(folder / "rows.jsonl", path), digest(path)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    for number, cell in enumerate(left := missing(cells, rows), 1):
        print(f"{path.stem} {number}/{len(left)}: {cell}", flush=True)
        start = process_time()
        new = list(script.run(**cell))
        seconds = round((process_time() - start) / len(new), 3)
        rows += [{**cell, **row, "seconds": seconds, "digest": code} for row in new]
        part = folder / "rows.jsonl.part"
        part.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        os.replace(part, folder / "rows.jsonl")
    table = pd.DataFrame(rows)
    for claim in script.claims(table):
        verdict = "not judged (--quick)" if size == "quick" else claim.verdict
        print(f"{verdict}: {claim.statement} [{claim.found}; {claim.rule}]")
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7, 4), layout="constrained")
        script.draw(table, figure)
        figure.savefig(folder / "figure.png", dpi=130)
    print(f"{folder}/figure.png, rows.jsonl; {table['seconds'].sum() / 60:.1f} minutes of one core")
