"""Builds prepared ListOps folders."""

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from lra_ssm.bars import Bar
from lra_ssm.datamodules.fetch.download_note import read_note
from lra_ssm.datamodules.fetch.sources import LineFile
from lra_ssm.datamodules.listops.generator import generate, seconds_of
from lra_ssm.datamodules.listops.reader import PUBLISHED_COUNTS, read
from lra_ssm.datamodules.listops.trees import EOS_ID, VOCABULARY, TreeSettings
from lra_ssm.datamodules.storage.disk import SOON_S, check_disk_space, say_cost
from lra_ssm.datamodules.storage.writer import DatasetWriter, SequenceSplitWriter
from lra_ssm.errors import InputError

log = logging.getLogger(__name__)

DATASET = "listops"
NUM_CLASSES = 10
CHUNK = 1000  # expressions written at a time
# Raise when the same settings would give other data than before.
GENERATOR_VERSION = 1
READER_VERSION = 1


def generator_settings(trees: TreeSettings, seed: int, counts: Mapping[str, int]) -> dict[str, Any]:
    """Everything that decides what is generated."""
    return {
        "version": GENERATOR_VERSION,
        "seed": seed,
        **trees._asdict(),
        **{f"num_{split}": count for split, count in counts.items()},
    }


def build_generated(
    folder: Path, trees: TreeSettings, seed: int, counts: Mapping[str, int], *, workers: int | None = None
) -> None:
    """Generates distinct expressions into an empty folder: the first to the first split, and so on.

    Args:
        folder: where to.
        trees: what to draw from.
        seed: of the generator.
        counts: examples by split, in order.
        workers: processes; None for one per core. Does not change the result.

    Raises:
        InputError: the settings cannot be met, or the disk has no room.
    """
    total = sum(counts.values())
    # Of a byte per token; lengths lie all over their bounds. Offset and label take 8 bytes each.
    needed = total * (sum(trees[:2]) // 2 + 16)
    check_disk_space(folder, needed, "generating ListOps")
    # Blocks are kept until all is there; beside the folder, which is removed where this is stopped.
    drawn_by = json.dumps([GENERATOR_VERSION, trees, seed])
    kept = folder.parent / f".parts-{hashlib.sha256(drawn_by.encode()).hexdigest()[:12]}"
    seconds = seconds_of(trees, seed, total, workers)
    say_cost(f"drawing {total:,} ListOps expressions", seconds, needed)
    try:
        _generate(folder, trees, seed, counts, workers, kept if seconds >= SOON_S else None)
    except InputError:
        shutil.rmtree(kept, ignore_errors=True)
        raise
    shutil.rmtree(kept, ignore_errors=True)


def _generate(
    folder: Path, trees: TreeSettings, seed: int, counts: Mapping[str, int], workers: int | None, kept: Path | None
) -> None:
    total = sum(counts.values())
    writer = _writer(folder, trees.max_length)
    blocks = generate(trees, seed, total, workers=workers, kept=kept)
    examples = chain.from_iterable(zip(block.expressions, block.labels, strict=True) for block in blocks)
    with Bar(f"generating {total:,} ListOps expressions", total) as bar:
        for name, count in counts.items():
            split = writer.split(name)
            while some := list(islice(examples, min(CHUNK, count - split.num_examples))):
                _extend(split, some)
                bar.advance(len(some))
    writer.finish({"kind": "generated", **generator_settings(trees, seed, counts)})


def build_from_files(
    folder: Path, files: Mapping[str, Path], kind: str, max_length: int, limit: int | None = None
) -> None:
    """Reads files in LRA's layout into an empty folder.

    Args:
        folder: where to.
        files: by split.
        kind: what the manifest calls the source.
        max_length: longest permitted sequence, `<eos>` included.
        limit: only the first so many expressions of each file; None for all.

    Raises:
        InputError: a file is not as published, which names file and line; or the disk has no room.
    """
    sizes = sum(path.stat().st_size for path in files.values())
    # A token takes one byte here, and there two at least, mostly six.
    needed = sizes // 2 if limit is None else min(sizes // 2, len(files) * limit * (max_length + 16))
    check_disk_space(folder, needed, "preparing ListOps")
    writer = _writer(folder, max_length)
    entries = {}
    with Bar("reading ListOps files", sizes, in_bytes=True) as bar:
        for name, path in files.items():
            split, file = writer.split(name), LineFile(path, bar.advance)
            for chunk in read(file, max_length, limit):
                split.extend(*chunk)
            entries[name] = file.entry(examples=split.num_examples)
    counts = {name: entry["examples"] for name, entry in entries.items()}
    if limit is None and counts != PUBLISHED_COUNTS:
        log.warning("ListOps files hold %s examples; the published ones hold %s", counts, PUBLISHED_COUNTS)
    archive = read_note(files["train"].parent)  # if we have unpacked them
    source = {"kind": kind, "limit": limit, "published_counts": counts == PUBLISHED_COUNTS, "files": entries}
    writer.finish(source | ({"archive": archive} if archive else {}))


def _writer(folder: Path, max_length: int) -> DatasetWriter:
    return DatasetWriter(folder, dataset=DATASET, vocabulary=VOCABULARY, num_classes=NUM_CLASSES, max_length=max_length)


def _extend(split: SequenceSplitWriter, examples: list[tuple[bytes, int]]) -> None:
    sequences = [expression + bytes([EOS_ID]) for expression, _ in examples]
    labels = [label for _, label in examples]
    split.extend(np.frombuffer(b"".join(sequences), dtype=np.uint8), list(map(len, sequences)), labels)
