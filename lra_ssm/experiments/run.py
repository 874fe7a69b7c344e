"""Runs an experiment: its cells over processes, each kept as it is done; then its table, its figure and its claims.

A folder of results:

    experiment.json  what is run and the claims with their rules: written before the first cell
    cells.jsonl      one line a cell that is done: its settings, its rows, its seconds
    results.csv      all rows, with their cells' settings
    figure.png
    claims.json      every claim with what became of it, and the numbers
"""

import json
from contextlib import closing
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import matplotlib
import pandas as pd
import torch
from matplotlib.figure import Figure

from lra_ssm import __version__
from lra_ssm.bars import Bar
from lra_ssm.datamodules.processes import ordered_map
from lra_ssm.experiments.base import Cell, Claim, Experiment, Form, Judgement
from lra_ssm.files import locked, replacing, write_json

DPI = 130
STYLE: Any = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False}
Done = dict[str, Any]  # a line of cells.jsonl


class Result(NamedTuple):
    """What became of an experiment."""

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
    cells, file = experiment.cells(form), folder / "cells.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock", "reproduces into it"):
        class_path = f"{type(experiment).__module__}.{type(experiment).__qualname__}"
        made_by = {"class_path": class_path, "form": form, "lra_ssm_version": __version__, "torch": torch.__version__}
        claims = [_said(claim) for claim in experiment.claims]
        write_json(folder / "experiment.json", {**made_by, "claims": claims, "cells": cells})
        # of a line that an older version was killed in nothing counts
        lines = file.read_text().rpartition("\n")[0].splitlines() if file.exists() else []
        known = {_key(done["cell"]): done for done in map(json.loads, lines)}
        left = [cell for cell in cells if _key(cell) not in known]
        with Bar(folder.name, len(cells), done=len(cells) - len(left), show=show) as bar:
            bar.start()
            run = partial(_timed, experiment)
            with closing(ordered_map(run, left, min(processes, len(left)))) as finished:
                for done in finished:
                    known[_key(done["cell"])] = done
                    with replacing(file) as kept:
                        kept.writelines(json.dumps(one) + "\n" for one in known.values())
                    bar.advance(1)
        return _conclude(experiment, [known[_key(cell)] for cell in cells], folder)


def _said(claim: Claim) -> dict[str, str]:
    return {"name": claim.name, "statement": claim.statement, "rule": claim.rule}


def _key(cell: Cell) -> str:
    return json.dumps(cell, sort_keys=True)


def _timed(experiment: Experiment, cell: Cell) -> Done:
    """One cell, with one thread; numbers too small for a processor's fast path count as 0."""
    before, start = torch.get_num_threads(), perf_counter()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        return {"cell": cell, "rows": list(experiment.run(cell)), "seconds": round(perf_counter() - start, 2)}
    finally:
        torch.set_num_threads(before)
        torch.set_flush_denormal(False)


def _conclude(experiment: Experiment, done: list[Done], folder: Path) -> Result:
    rows = pd.DataFrame([{**one["cell"], **row} for one in done for row in one["rows"]])
    with replacing(folder / "results.csv") as file:
        rows.to_csv(file, index=False)
    judgements = {claim.name: claim.judge(experiment, rows) for claim in experiment.claims}
    seconds = sum(one["seconds"] for one in done)
    found = [_said(claim) | judgements[claim.name]._asdict() for claim in experiment.claims]
    write_json(folder / "claims.json", {"claims": found, "core_minutes": round(seconds / 60, 1)})
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7, 4), layout="constrained")
        experiment.draw(rows, figure)
        with replacing(folder / "figure.png", "wb") as picture:
            figure.savefig(picture, format="png", dpi=DPI)
    return Result(judgements, seconds)
