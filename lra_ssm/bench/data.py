"""The suite of data pipelines: batches of every task's loader, and what share of a training step they take.

The data are random, in prepared folders of the real format, with lengths like the real ones; the loaders, the
transforms and the batch sizes are the configs'.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from lra_ssm.bench.compare import Bar, Row, Settings
from lra_ssm.bench.measure import WallTimer, interleave, median_and_spread, ratio, timer_for
from lra_ssm.bench.steps import config_files, make_work, read_config, sizes
from lra_ssm.bench.work import STEP
from lra_ssm.datamodules.base import PreparedDataModule
from lra_ssm.datamodules.loading.loader import EpochBatches, ResumableLoader
from lra_ssm.datamodules.storage.format import open_prepared
from lra_ssm.datamodules.storage.writer import DatasetWriter

WORKERS = (0, 2)
PASS = "pass over the batches"
_BATCHES = 20


@dataclass(frozen=True)
class Task:
    """config: below configs/; its model is S4D's, the fastest: the loader's share of other models' steps is smaller.
    shape: of images (height, width, channels). lengths: shortest and mean of sequences, drawn from an exponential
    distribution and cut at the config's max_length; mean over real data as in docs and datasets' papers."""

    config: str
    shape: tuple[int, int, int] | None = None
    lengths: tuple[int, int] = (0, 0)
    per_example: int = 1


TASKS = {
    "ListOps": Task("lra/listops", lengths=(500, 1035)),
    "Text": Task("lra/text", lengths=(50, 1325)),
    "Retrieval": Task("lra/retrieval", lengths=(3000, 4000), per_example=2),
    "Image": Task("lra/image", (32, 32, 1)),
    "Pathfinder": Task("lra/pathfinder", (32, 32, 1)),
    "Path-X": Task("lra/pathx", (128, 128, 1)),
    "sCIFAR": Task("scifar", (32, 32, 3)),
    "MNIST": Task("mnist", (28, 28, 1)),
}


def run(settings: Settings) -> dict[str, Any]:
    rows: list[Row] = []
    shares: list[dict[str, Any]] = []
    for name, task in TASKS.items():
        (path,) = config_files(None, (f"{task.config}/s4d",))
        config = yaml.safe_load(path.read_text())
        if settings.batch or settings.quick:
            config["data"]["init_args"]["batch_size"] = settings.batch or 2
        with tempfile.TemporaryDirectory() as folder:
            settings.announce(f"passes over {name}")
            loaders = {workers: _loader(Path(folder), task, config, workers, settings) for workers in WORKERS}
            batches: list[list[Any]] = [list(loader) for loader in loaders.values()]
            calls = {f"{workers} workers": _whole_pass(loader) for workers, loader in loaders.items()}
            timings = interleave(calls, WallTimer(), settings.effort, settings.tick)
        samples = sum(len(batch.labels) for batch in batches[0])
        positions = sum(batch.inputs[..., :1].numel() if task.shape else batch.inputs.numel() for batch in batches[0])
        own = []
        for contender, timing in timings.items():
            shape = {"batch": len(batches[0][0].labels), "mean length": positions // samples // task.per_example}
            row = Row(
                f"{name} loader", contender, PASS, shape, timing, "0 workers", ratio(timing, timings["0 workers"])
            )
            row.extra = {
                "batches/s": len(batches[0]) / timing.median,
                "positions/s": positions / timing.median,
                "samples/s": samples / timing.median,
                "same batches as with 0 workers": str(_equal(*batches)),
            }
            own.append(row)
        shares += _shares_of_steps(name, read_config(path), own, settings)
        rows += own
        settings.done(own)
    bars = [Bar("", f"{x['config']}, {x['loader']}", 100 * x["share"]) for x in shares]
    return {"rows": rows, "shares of steps": shares, "bars": bars, "unit": "loading, % of an S4D training step"}


def _loader(folder: Path, task: Task, config: dict[str, Any], workers: int, settings: Settings) -> ResumableLoader:
    """The config's loader over random data, which the first call writes."""
    module, _, cls = config["data"]["class_path"].rpartition(".")
    data: PreparedDataModule = getattr(import_module(module), cls)(**config["data"]["init_args"])
    if not any(folder.iterdir()):
        examples = (2 if settings.quick else _BATCHES) * data.batch_size
        longest = 32 if settings.quick else config["data"]["init_args"].get("max_length", 0)
        assert data.num_classes is not None
        network = config["model"]["init_args"]["network"]["init_args"]
        _write(folder, task, examples, longest, data.num_classes, network["vocab_size"])
    dataset = data.make_dataset(open_prepared(folder).split("train"), "train")
    return ResumableLoader(dataset, EpochBatches(len(dataset), data.batch_size, 0), workers)


def _write(folder: Path, task: Task, examples: int, longest: int, num_classes: int, vocab_size: int | None) -> None:
    random = np.random.RandomState(0)
    labels = np.arange(examples) % num_classes
    if task.shape is not None:
        writer = DatasetWriter(folder, dataset="random", num_classes=num_classes)
        images = random.randint(0, 256, (examples, *task.shape), dtype=np.uint8)
        writer.images("train", task.shape).extend(images, labels)
    else:
        assert vocab_size is not None
        shortest, mean = task.lengths
        lengths = shortest + random.exponential(mean - shortest, examples * task.per_example).astype(np.int64)
        lengths = np.clip(lengths, 1, longest)
        vocabulary = [str(i) for i in range(vocab_size)]
        writer = DatasetWriter(
            folder,
            dataset="random",
            num_classes=num_classes,
            vocabulary=vocabulary,
            max_length=longest,
            per_example=task.per_example,
        )
        writer.split("train").extend(random.randint(3, vocab_size, lengths.sum()), lengths, labels)
    writer.finish({"kind": "random"})


def _whole_pass(loader: ResumableLoader) -> Callable[[], None]:
    def call() -> None:
        for _ in loader:
            pass

    return call


def _equal(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        x is y or torch.equal(x, y) for a, b in zip(one, other, strict=True) for x, y in zip(a, b, strict=True)
    )


def _shares_of_steps(name: str, config: dict[str, Any], rows: list[Row], settings: Settings) -> list[dict[str, Any]]:
    """Seconds to load a sample over seconds to train on one; steps at the loader's mean length."""
    settings.announce(f"a step of S4D on {name}")
    network, batch, length = sizes(config["network"], config["batch"], rows[0].shape["mean length"], settings)
    work = make_work(network, config, batch, length, "auto", settings)
    effort = replace(settings.effort, repeats=3)
    timing = interleave({STEP: work.build().calls[STEP]}, timer_for(settings.device), effort)[STEP]
    per_sample, _ = median_and_spread([seconds / work.batch for seconds in timing.seconds.values()])
    settings.tick()
    return [
        {
            "config": f"S4D, {name}",
            "loader": row.contender,
            "step's batch": work.batch,
            "samples/s of the step": 1 / per_sample,
            "share": 1 / row.extra["samples/s"] / per_sample,
        }
        for row in rows
    ]
