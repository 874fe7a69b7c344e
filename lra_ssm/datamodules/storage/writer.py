"""Writes prepared data as `format.py` reads it, counting and hashing on the way. Needs no torch."""

import hashlib
import json
import os
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lra_ssm.datamodules.storage.format import FORMAT, MANIFEST, IntArray
from lra_ssm.errors import InputError


class _ArrayFile:
    """Appends to one array file, counting and hashing on the way."""

    def __init__(self, path: Path, dtype: str, item: tuple[int, ...] = ()) -> None:
        self.path, self.dtype, self.item, self.count = path, dtype, item, 0
        self._digest = hashlib.sha256()
        self._file = open(path, "wb")

    def append(self, values: npt.ArrayLike) -> None:
        data = np.ascontiguousarray(values, dtype=self.dtype)
        self._file.write(data.data)
        self._digest.update(data.data)
        self.count += data.size

    def close(self) -> dict[str, Any]:
        """Writes through to the disk; returns the file's entry for the manifest."""
        self._file.flush()
        os.fsync(self._file.fileno())
        size = self._file.tell()
        self._file.close()
        return {
            "file": self.path.name,
            "dtype": self.dtype,
            "count": self.count,
            "bytes": size,
            "sha256": self._digest.hexdigest(),
        } | ({"item": list(self.item)} if self.item else {})


class SplitWriter:
    """Writes one split: what sequences and images have in common, the labels."""

    def __init__(self, folder: Path, name: str, num_classes: int) -> None:
        self.name, self.num_examples = name, 0
        self._folder = folder
        self._arrays: dict[str, _ArrayFile] = {}
        self._labels = self._array("labels", "<i8")
        self._class_counts = np.zeros(num_classes, dtype=np.int64)
        self._shortest, self._longest, self._sum_of_lengths, self._num_lengths = np.iinfo(np.int64).max, 0, 0, 0

    def _array(self, key: str, dtype: str, item: tuple[int, ...] = ()) -> _ArrayFile:
        self._arrays[key] = _ArrayFile(self._folder / f"{self.name}_{key}.bin", dtype, item)
        return self._arrays[key]

    def _extend(self, lengths: IntArray, labels: IntArray) -> None:
        self._labels.append(labels)
        self._class_counts += np.bincount(labels, minlength=len(self._class_counts))
        self._shortest, self._longest = min(self._shortest, lengths.min()), max(self._longest, lengths.max())
        self._sum_of_lengths += int(lengths.sum())
        self._num_lengths += len(lengths)
        self.num_examples += len(labels)

    def close(self) -> dict[str, Any]:
        """Finishes the files; returns the split's entry for the manifest."""
        if not self.num_examples:
            raise InputError(f"{self._folder.parent.name}: split {self.name} has no examples")
        return {
            "examples": self.num_examples,
            "class_counts": self._class_counts.tolist(),
            "length": {
                "min": int(self._shortest),
                "mean": round(self._sum_of_lengths / self._num_lengths, 2),
                "max": int(self._longest),
            },
            "arrays": {key: array.close() for key, array in self._arrays.items()},
        }


class SequenceSplitWriter(SplitWriter):
    """Writes sequences; get it from `DatasetWriter.split`."""

    def __init__(self, folder: Path, name: str, num_classes: int, vocabulary_size: int, per_example: int) -> None:
        super().__init__(folder, name, num_classes)
        self._per_example = per_example
        self._tokens = self._array("tokens", "uint8" if vocabulary_size <= 1 << 8 else "uint16")
        self._offsets = self._array("offsets", "<i8")
        self._offsets.append([0])

    def extend(self, tokens: npt.ArrayLike, lengths: npt.ArrayLike, labels: npt.ArrayLike) -> None:
        """Appends n examples: their tokens one after another (sum of lengths,), lengths (n · sequences per example,),
        labels (n,)."""
        lengths, labels = np.asarray(lengths, dtype=np.int64), np.asarray(labels, dtype=np.int64)
        assert len(lengths) == len(labels) * self._per_example
        if not lengths.size:
            return
        self._offsets.append(self._sum_of_lengths + np.cumsum(lengths))
        self._tokens.append(tokens)
        self._extend(lengths, labels)
        assert self._tokens.count == self._sum_of_lengths


class ImageSplitWriter(SplitWriter):
    """Writes images; get it from `DatasetWriter.images`."""

    def __init__(self, folder: Path, name: str, num_classes: int, shape: tuple[int, int, int]) -> None:
        super().__init__(folder, name, num_classes)
        self._shape = shape
        self._images = self._array("images", "uint8", shape)

    def extend(self, images: npt.NDArray[np.uint8], labels: npt.ArrayLike) -> None:
        """Appends images (n, height, width, channels) with labels (n,)."""
        labels = np.asarray(labels, dtype=np.int64)
        assert images.dtype == np.uint8 and images.shape == (len(labels), *self._shape)
        if not labels.size:
            return
        self._images.append(images)
        self._extend(np.full(len(labels), prod(self._shape[:2])), labels)


class DatasetWriter:
    """Writes a prepared dataset into an existing, empty folder. `prepare.prepare` makes that atomic.

    Args:
        folder: where to.
        dataset: its name.
        num_classes: labels are 0 … num_classes − 1.
        vocabulary: tokens in the order of their ids; None for images.
        max_length: no sequence is longer (tokens, specials included); None for images.
        per_example: sequences that make up an example: 2 for pairs of documents.
    """

    def __init__(
        self,
        folder: Path,
        *,
        dataset: str,
        num_classes: int,
        vocabulary: Sequence[str] | None = None,
        max_length: int | None = None,
        per_example: int = 1,
    ) -> None:
        self._folder, self._num_classes, self._per_example = folder, num_classes, per_example
        self._vocabulary = None if vocabulary is None else list(vocabulary)
        self._head: dict[str, Any] = {"format": FORMAT, "dataset": dataset, "num_classes": num_classes}
        if self._vocabulary is not None:
            self._head |= {"per_example": per_example, "max_length": max_length, "vocabulary": self._vocabulary}
        self._splits: list[SplitWriter] = []

    def split(self, name: str) -> SequenceSplitWriter:
        """Begins a split of sequences."""
        assert self._vocabulary is not None
        arguments = self._num_classes, len(self._vocabulary), self._per_example
        writer = SequenceSplitWriter(self._folder, name, *arguments)
        self._splits.append(writer)
        return writer

    def images(self, name: str, shape: tuple[int, int, int]) -> ImageSplitWriter:
        """Begins a split of images of a shape (height, width, channels)."""
        writer = ImageSplitWriter(self._folder, name, self._num_classes, shape)
        self._splits.append(writer)
        return writer

    def finish(self, source: dict[str, Any]) -> None:
        """Writes the manifest, last: `source` says where the data came from (settings and seed, or files).

        Raises:
            InputError: a split has no examples.
        """
        manifest = {**self._head, "source": source, "splits": {split.name: split.close() for split in self._splits}}
        with open(self._folder / MANIFEST, "w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=1, ensure_ascii=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
