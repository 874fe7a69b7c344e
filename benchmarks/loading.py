"""Measures batches of every task's loader, without and with worker processes.

The data are random, in prepared folders, with lengths like the real ones. Loaders, transforms and batch sizes are those
of the tasks' S4D configs, whose steps are the shortest (steps.py measures them).
"""

from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from bench import Bench, Row, options, positive, start
from lra_ssm.datamodules.loader import EpochBatches, ResumableLoader
from lra_ssm.datamodules.storage import load, save_split, write_manifest
from steps import CONFIGS, network_of, read

EXAMPLE = "python benchmarks/loading.py --threads=2 --budget=2"
WORKERS = (0, 2)
_BATCHES = 20


class Task(NamedTuple):
    """A task whose data is imitated.

    shape: height, width and channels of images. lengths: shortest and mean length of sequences, which are drawn from an
    exponential distribution and cut at the config's max_length; the means are those of the docs and the datasets'
    papers."""

    folder: str
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


def write_random(folder: Path, task: Task, examples: int, longest: int, classes: int, vocabulary: int) -> None:
    """Write a prepared folder with a random training split."""
    random = np.random.RandomState(0)
    arrays: dict[str, Any] = {"labels": np.arange(examples) % classes}
    if task.shape is not None:
        arrays["images"] = random.randint(0, 256, (examples, *task.shape), dtype=np.uint8)
    else:
        shortest, mean = task.lengths
        lengths = shortest + random.exponential(mean - shortest, examples * task.per_example)
        lengths = lengths.astype(np.int64).clip(1, longest)
        arrays["offsets"] = np.concatenate([[0], np.cumsum(lengths)])
        arrays["tokens"] = random.randint(3, vocabulary, lengths.sum()).astype(np.uint8)
    write_manifest(folder, {"splits": {"train": {"arrays": save_split(folder, "train", arrays)}}})


def loaders(folder: Path, task: Task, config: dict[str, Any], quick: bool) -> dict[str, ResumableLoader]:
    """Return the config's loader over random data, by number of workers."""
    settings = config["data"]["init_args"]
    data = resolve_name(config["data"]["class_path"])(**settings)
    longest = 32 if quick else settings.get("max_length", 0)
    examples = (2 if quick else _BATCHES) * data.batch_size
    write_random(folder, task, examples, longest, data.num_classes, network_of(config).get("vocab_size") or 0)
    dataset = data.make_dataset(load(folder).split("train"), "train")
    order = EpochBatches(len(dataset), data.batch_size, 0)
    return {f"{workers} workers": ResumableLoader(dataset, order, workers) for workers in WORKERS}


def measure(name: str, task: Task, bench: Bench) -> list[Row]:
    given = bench.given
    config = read(CONFIGS / task.folder / "s4d.yaml")
    if given.batch or given.quick:
        config["data"]["init_args"]["batch_size"] = given.batch or 2
    with TemporaryDirectory() as folder:
        loaders_by_workers = loaders(Path(folder), task, config, given.quick)
        batches = list(loaders_by_workers[f"{WORKERS[0]} workers"])
        samples = sum(len(batch.labels) for batch in batches)
        tokens = [batch.inputs[..., 0] if task.shape else batch.inputs for batch in batches]
        mean_length = sum(x.numel() for x in tokens) // samples // task.per_example
        calls = {workers: partial(deque, loader, 0) for workers, loader in loaders_by_workers.items()}
        shape = {"B": len(batches[0].labels), "mean L": mean_length}
        rows = bench.times(f"{name}'s loader", "a pass", shape, calls)
    for row in rows:
        assert row.ms is not None
        row.extra = {"ms a batch": row.ms / len(batches), "samples/s": 1e3 * samples / row.ms}
    return bench.keep(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__, EXAMPLE)
    parser.add_argument("--batch", type=positive, metavar="N", help="default: the configs'")
    bench = Bench("loading", parser.parse_args(arguments))
    for name, task in TASKS.items():
        measure(name, task, bench)
    bench.finish()


if __name__ == "__main__":
    start(main)
