"""Runs an experiment: its cells over processes, each kept as it is done; then its table, its figure and its claims.

A folder of results:

    experiment.json  what is run and the claims with their rules: written before the first cell
    cells.jsonl      one line a cell that is done: its settings, its rows, its seconds
    results.csv      all rows, with their cells' settings
    figure.png
    claims.json      every claim with what became of it, and the numbers
"""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import matplotlib
import pandas as pd
import torch
from matplotlib.figure import Figure

from lra_ssm import __version__
from lra_ssm.bars import Bar
from lra_ssm.datamodules.processes import ordered_map
from lra_ssm.experiments.base import Cell, Experiment, Form, Judgement
from lra_ssm.files import appending, locked, replacing, write_json

DPI = 130
Done = dict[str, Any]  # a line of cells.jsonl


@dataclass
class Result:
    """What became of an experiment."""

    folder: Path
    rows: pd.DataFrame
    judgements: dict[str, Judgement]  # by the claims' names
    seconds: float  # of all cells


def reproduce(experiment: Experiment, form: Form, folder: Path, processes: int = 1, show: bool = True) -> Result:
    """Runs what of an experiment is not done in `folder`, and writes what came of it there.

    Args:
        experiment: which.
        form: one that it has.
        folder: of this form's results; made where it is missing. Cells that are done there are not run again.
        processes: cells that run at a time, each with one thread.
        show: a progress bar.

    Raises:
        InputError: another process writes there, and the folder cannot be locked.
    """
    cells = experiment.cells(form)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock", "reproduces into it"):
        _announce(experiment, form, cells, folder)
        known = {_key(done["cell"]): done for done in _done(folder)}
        left = [cell for cell in cells if _key(cell) not in known]
        with Bar(folder.name, len(cells), done=len(cells) - len(left), show=show) as bar:
            bar.start()
            run = partial(_timed, experiment)
            with closing(ordered_map(run, left, min(processes, len(left)))) as finished:
                for done in finished:
                    with appending(folder / "cells.jsonl") as file:
                        file.write(json.dumps(done) + "\n")
                    known[_key(done["cell"])] = done
                    bar.advance(1)
        return _conclude(experiment, [known[_key(cell)] for cell in cells], folder)


def _announce(experiment: Experiment, form: Form, cells: list[Cell], folder: Path) -> None:
    claims = [{"name": c.name, "statement": c.statement, "rule": c.rule} for c in experiment.claims]
    class_path = f"{type(experiment).__module__}.{type(experiment).__qualname__}"
    made_by = {"class_path": class_path, "form": form, "lra_ssm_version": __version__, "torch": torch.__version__}
    write_json(folder / "experiment.json", {**made_by, "claims": claims, "cells": cells})


def _key(cell: Cell) -> str:
    return json.dumps(cell, sort_keys=True)


def _done(folder: Path) -> Iterator[Done]:
    """What is written of cells that are done; of a line that a kill cut off nothing."""
    file = folder / "cells.jsonl"
    if not file.exists():
        return
    text = file.read_text()
    if text and not text.endswith("\n"):
        whole = text.rpartition("\n")[0]
        text = f"{whole}\n" if whole else ""
        with replacing(file) as mended:
            mended.write(text)
    yield from map(json.loads, text.splitlines())


def _timed(experiment: Experiment, cell: Cell) -> Done:
    """One cell, with one thread; numbers too small for a processor's fast path count as 0."""
    with _one_thread():
        start = perf_counter()
        rows = experiment.run(cell)
        return {"cell": cell, "rows": rows, "seconds": round(perf_counter() - start, 2)}


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.set_flush_denormal(False)


def _conclude(experiment: Experiment, done: list[Done], folder: Path) -> Result:
    rows = pd.DataFrame([{**one["cell"], **row} for one in done for row in one["rows"]])
    with replacing(folder / "results.csv") as file:
        rows.to_csv(file, index=False)
    judgements = {claim.name: claim.judge(rows) for claim in experiment.claims}
    seconds = sum(one["seconds"] for one in done)
    found = [
        {"name": c.name, "statement": c.statement, "rule": c.rule, **judgements[c.name]._asdict()}
        for c in experiment.claims
    ]
    write_json(folder / "claims.json", {"claims": found, "core_minutes": round(seconds / 60, 1)})
    with matplotlib.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(7, 4), layout="constrained")
        experiment.draw(rows, figure)
        with replacing(folder / "figure.png", "wb") as picture:
            figure.savefig(picture, format="png", dpi=DPI)
    return Result(folder, rows, judgements, seconds)
