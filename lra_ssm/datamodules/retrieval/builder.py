"""Builds prepared folders of AAN pairs."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lra_ssm.bars import Bar
from lra_ssm.datamodules.retrieval.reader import PUBLISHED_COUNTS, PairsFile
from lra_ssm.datamodules.storage.disk import check_disk_space
from lra_ssm.datamodules.storage.selection import LIMIT_SEED, choose, random_keys
from lra_ssm.datamodules.storage.vocabulary import CharacterCounts, TokenSettings
from lra_ssm.datamodules.storage.writer import DatasetWriter
from lra_ssm.errors import InputError

log = logging.getLogger(__name__)

DATASET = "retrieval"
NUM_CLASSES = 2
# Raise when the same settings would give other data than before.
READER_VERSION = 1


def build(
    folder: Path, files: Mapping[str, Path], settings: TokenSettings, limit: int | None, source: Mapping[str, Any]
) -> None:
    """Encodes files in LRA's layout into an empty folder, with a chunk of them in memory at a time.

    The vocabulary is made of all training pairs, whatever `limit`.

    Args:
        folder: where to.
        files: by split.
        settings: how.
        limit: as for `Retrieval`.
        source: what the manifest says besides the files: kind, settings.

    Raises:
        InputError: a file is not as published, which names file and line; the training pairs are all of one class; or
            the disk has no room.
    """
    readers = {split: PairsFile(path, settings.reads) for split, path in files.items()}
    counted = [name for name in readers if limit is not None or (name == "train" and settings.counts_characters)]
    sizes = {name: path.stat().st_size for name, path in files.items()}
    _check_room(folder, sizes, settings.max_length, limit)
    chosen: dict[str, npt.NDArray[np.int64]] = {}
    counts = CharacterCounts()
    with Bar("reading AAN pairs", sum(sizes[name] for name in [*readers, *counted]), in_bytes=True) as bar:
        for name in counted:
            labels = []
            for chunk in readers[name].chunks(bar.advance):
                labels += chunk.labels
                if name == "train" and settings.counts_characters:
                    counts.add(chunk.texts)
            _check_classes(readers[name], name)
            if limit is not None:
                chosen[name] = choose(np.array(labels), limit, random_keys(len(labels), LIMIT_SEED))
        tokenizer = settings.tokenizer(counts)
        writer = DatasetWriter(
            folder,
            dataset=DATASET,
            vocabulary=tokenizer.vocabulary,
            num_classes=NUM_CLASSES,
            max_length=settings.max_length,
            per_example=2,
        )
        for name, reader in readers.items():
            split = writer.split(name)
            for chunk in reader.chunks(bar.advance, chosen.get(name)):
                split.extend(*tokenizer.encode(chunk.texts), chunk.labels)
            _check_classes(reader, name)
    entries = {name: reader.manifest_entry for name, reader in readers.items()}
    pairs = {name: entry["pairs"] for name, entry in entries.items()}
    if pairs != PUBLISHED_COUNTS:
        log.warning("AAN files hold %s pairs; the published ones hold %s", pairs, PUBLISHED_COUNTS)
    writer.finish({**source, "published_counts": pairs == PUBLISHED_COUNTS, "files": entries})


def _check_classes(reader: PairsFile, split: str) -> None:
    counts = reader.manifest_entry["class_counts"]
    if split == "train" and not all(counts):
        raise InputError(f"{reader.path}: all {sum(counts):,} training pairs have label {int(counts[1] > 0)}")


def _check_room(folder: Path, sizes: Mapping[str, int], max_length: int, limit: int | None) -> None:
    """A token takes a byte, or two beside a large vocabulary."""
    needed = sum(sizes.values())
    if limit is not None:
        needed = min(needed, len(sizes) * limit * 2 * max_length)
    check_disk_space(folder, needed, "preparing Retrieval")
