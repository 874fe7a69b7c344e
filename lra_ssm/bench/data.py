"""The suite of data pipelines: batches of the loaders, and what share of a training step they take."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from lra_ssm.bench import steps
from lra_ssm.bench.compare import Row, Settings
from lra_ssm.bench.measure import WallTimer, interleave, median_and_spread, ratio, timer_for
from lra_ssm.bench.work import STEP
from lra_ssm.datamodules import ListOps

WORKERS = (0, 2)
PASS = "pass over the training split"


def run(settings: Settings) -> dict[str, Any]:
    """ListOps, generated into a temporary folder: passes over its training split with and without worker processes."""
    with tempfile.TemporaryDirectory() as folder:
        settings.announce("generating ListOps")
        loaders = {workers: _listops(folder, workers, settings) for workers in WORKERS}
        batches = [list(loader) for loader in loaders.values()]
        tokens = sum(int(batch.lengths.sum()) for batch in batches[0])
        samples = sum(len(batch.labels) for batch in batches[0])
        equal = _equal(*batches)
        settings.announce("passes over ListOps")
        calls = {f"{workers} workers": _whole_pass(loader) for workers, loader in loaders.items()}
        timings = interleave(calls, WallTimer(), settings.effort, settings.tick)
    rows = []
    shape = {"batch": settings.batch or 32, "number of batches": len(batches[0])}
    for name, timing in timings.items():
        row = Row("ListOps loader", name, PASS, shape, timing, "0 workers", ratio(timing, timings["0 workers"]))
        row.extra = {
            "batches/s": len(batches[0]) / timing.median,
            "tokens/s": tokens / timing.median,
            "samples/s": samples / timing.median,
            "same batches as with 0 workers": str(equal),
        }
        rows.append(row)
    shares = _shares_of_steps(rows, settings)
    bars = [(f"ListOps, {row.contender}", row.extra["batches/s"]) for row in rows]
    return {"rows": rows, "shares of steps": shares, "bars": bars, "unit": "batches/s, the start of workers included"}


def _listops(folder: str, workers: int, settings: Settings) -> Iterable[Any]:
    small: dict[str, Any] = {"length_bounds": (10, 30), "max_length": 64, "num_train": 64} if settings.quick else {}
    arguments = {"num_train": 3200, "num_val": 8, "num_test": 8, "batch_size": settings.batch or 32, **small}
    data = ListOps(root=folder, num_workers=workers, shuffle_seed=0, **arguments)
    data.prepare_data()
    data.setup("fit")
    return data.train_dataloader()


def _whole_pass(loader: Iterable[Any]) -> Any:
    def call() -> None:
        for _ in loader:
            pass

    return call


def _equal(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(x, y) for a, b in zip(one, other, strict=True) for x, y in zip(a, b, strict=True)
    )


def _shares_of_steps(rows: list[Row], settings: Settings) -> list[dict[str, Any]]:
    """Seconds to load a sample over seconds to train on one, by config; steps at the batch of the suite of steps."""
    effort = replace(settings.effort, repeats=3)
    one_backend = replace(settings, backends=settings.backends[:1], batch=None)
    table = []
    for name, work in steps.works(one_backend).items():
        if not work.on_tokens:  # the loader's data are ListOps
            continue
        settings.announce(f"a step of {name}")
        timing = interleave({STEP: work.build().calls[STEP]}, timer_for(settings.device), effort)[STEP]
        per_sample, _ = median_and_spread([s / work.batch for s in timing.seconds.values()])
        table += [
            {
                "config": name,
                "loader": row.contender,
                "step's batch": work.batch,
                "samples/s of the step": 1 / per_sample,
                "share": 1 / row.extra["samples/s"] / per_sample,
            }
            for row in rows
        ]
        settings.tick()
    return table
