"""Writes prepared data as `format.py` reads it, counting and hashing on the way."""

import json
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lra_ssm.datamodules.old_storage.arrays import ArrayFile, IntArray
from lra_ssm.datamodules.old_storage.format import FORMAT, MANIFEST, NOT_SCORED
from lra_ssm.errors import InputError
from lra_ssm.files import replacing


class SplitWriter:
    """Writes one split and its labels; num_classes None: it has none."""

    def __init__(self, folder: Path, name: str, num_classes: int | None) -> None:
        self.name, self.num_examples = name, 0
        self._folder = folder
        self._arrays: dict[str, ArrayFile] = {}
        self._labels = None if num_classes is None else self._array("labels", "<i8")
        self._class_counts = np.zeros(num_classes or 0, dtype=np.int64)
        self._shortest, self._longest = np.iinfo(np.int64).max, 0
        self._sum_of_lengths = self._num_lengths = 0

    def _array(self, key: str, dtype: str, item: tuple[int, ...] = ()) -> ArrayFile:
        self._arrays[key] = ArrayFile(self._folder / f"{self.name}_{key}.npy", dtype, item)
        return self._arrays[key]

    def _where(self) -> str:
        return f"{self._folder.parent.name}: split {self.name}"

    def _whole(self, values: npt.ArrayLike, what: str) -> IntArray:
        """values as an array. Raises InputError unless they are whole numbers."""
        found = np.asarray(values)
        if found.size and found.dtype.kind not in "iub":
            raise InputError(f"{self._where()}: {what} are {found.dtype}; they must be whole numbers")
        return found if found.dtype.kind in "iu" else found.astype(np.int64)

    def _check_labels(self, labels: IntArray) -> None:
        """Raises InputError unless all are classes."""
        wrong = first_outside(labels, len(self._class_counts))
        if wrong is not None:
            raise self._refused(wrong, f"label {labels[wrong]}", "class", len(self._class_counts))

    def _refused(self, example: int, value: str, what: str, size: int) -> InputError:
        """The error for a value of an example, numbered among those that are being appended."""
        return InputError(
            f"{self._where()}, example {self.num_examples + example}: {value} is no {what}:"
            f" there are {size}, 0 to {size - 1}"
        )

    def _extend(self, lengths: IntArray, labels: IntArray | None, count: int) -> None:
        """Appends what `count` examples have in common; all of it has been checked."""
        if self._labels is not None:
            assert labels is not None
            self._labels.append(labels)
            self._class_counts += np.bincount(labels, minlength=len(self._class_counts))
        self._shortest, self._longest = min(self._shortest, lengths.min()), max(self._longest, lengths.max())
        self._sum_of_lengths += int(lengths.sum())
        self._num_lengths += len(lengths)
        self.num_examples += count

    def close(self) -> dict[str, Any]:
        """Finishes the files; returns the split's entry for the manifest."""
        if not self.num_examples:
            raise InputError(f"{self._where()} has no examples")
        if not self._longest:
            raise InputError(f"{self._where()} has empty sequences alone")
        return {
            "examples": self.num_examples,
            **self._answers(),
            "length": {
                "min": int(self._shortest),
                "mean": round(self._sum_of_lengths / self._num_lengths, 2),
                "max": int(self._longest),
            },
            "arrays": {key: array.close() for key, array in self._arrays.items()},
        }

    def _answers(self) -> dict[str, Any]:
        """What the manifest says of labels."""
        return {} if self._labels is None else {"class_counts": self._class_counts.tolist()}


class SequenceSplitWriter(SplitWriter):
    """Writes sequences; get it from `DatasetWriter.split`."""

    def __init__(self, dataset: "DatasetWriter", name: str) -> None:
        assert dataset.vocab_size is not None
        super().__init__(dataset.folder, name, None if dataset.targets else dataset.num_classes)
        self._vocab_size, self._per_example = dataset.vocab_size, dataset.per_example
        self._num_target_classes = dataset.num_classes or 0
        self._tokens = self._array("tokens", token_dtype(self._vocab_size))
        self._offsets = self._array("offsets", "<i8")
        self._offsets.append([0])
        self._targets = self._array("targets", "<i4") if dataset.targets else None
        self._scored = 0

    def extend(
        self,
        tokens: npt.ArrayLike,
        lengths: npt.ArrayLike,
        labels: npt.ArrayLike | None = None,
        targets: npt.ArrayLike | None = None,
    ) -> None:
        """Appends n examples, or none of them if one is refused.

        Args:
            tokens: one sequence after another (sum of lengths,).
            lengths: (n · sequences per example,).
            labels: (n,); where the dataset has labels.
            targets: one for each token (sum of lengths,), NOT_SCORED where there is none; where the dataset has them.

        Raises:
            InputError: a token is not in the vocabulary, or a label or target is no class; names the example.
        """
        lengths = self._whole(lengths, "lengths").astype(np.int64)
        assert (labels is None, targets is None) == (self._labels is None, self._targets is None)
        count = len(lengths) // self._per_example
        assert len(lengths) == count * self._per_example
        if not lengths.size:
            return
        if lengths.min() < 0:
            raise InputError(f"{self._where()}: a sequence of length {lengths.min()}")
        tokens = self._whole(tokens, "tokens")
        assert tokens.shape == (lengths.sum(),)
        ends = np.cumsum(lengths)
        wrong = first_outside(tokens, self._vocab_size)
        if wrong is not None:
            raise self._refused(self._example(ends, wrong), f"token {tokens[wrong]}", "token", self._vocab_size)
        if labels is not None:
            labels = self._whole(labels, "labels").astype(np.int64)
            assert labels.shape == (count,)
            self._check_labels(labels)
        if targets is not None:
            targets = self._whole(targets, "targets").astype(np.int64)
            assert targets.shape == tokens.shape and self._targets is not None
            self._extend_targets(targets, ends)
        self._offsets.append(self._sum_of_lengths + ends)
        self._tokens.append(tokens)
        self._extend(lengths, labels, count)

    def _extend_targets(self, targets: IntArray, ends: IntArray) -> None:
        assert self._targets is not None
        scored = targets != NOT_SCORED
        wrong = first_outside(np.where(scored, targets, 0), self._num_target_classes)
        if wrong is not None:
            what = f"class (nor {NOT_SCORED}, not scored)"
            raise self._refused(self._example(ends, wrong), f"target {targets[wrong]}", what, self._num_target_classes)
        self._targets.append(targets)
        self._scored += int(scored.sum())

    def _example(self, ends: IntArray, position: int) -> int:
        """Which of the examples that are being appended has the token at a position."""
        return int(np.searchsorted(ends, position, side="right")) // self._per_example

    def _answers(self) -> dict[str, Any]:
        return super()._answers() | ({} if self._targets is None else {"scored": self._scored})


class ImageSplitWriter(SplitWriter):
    """Writes images; get it from `DatasetWriter.images`."""

    def __init__(self, folder: Path, name: str, num_classes: int, shape: tuple[int, int, int]) -> None:
        super().__init__(folder, name, num_classes)
        self._shape = shape
        self._images = self._array("images", "uint8", shape)

    def extend(self, images: npt.NDArray[np.uint8], labels: npt.ArrayLike) -> None:
        """Appends images (n, height, width, channels) with labels (n,)."""
        labels = self._whole(labels, "labels").astype(np.int64)
        assert images.dtype == np.uint8 and images.shape == (len(labels), *self._shape)
        if not labels.size:
            return
        self._check_labels(labels)
        self._images.append(images)
        self._extend(np.full(len(labels), prod(self._shape[:2])), labels, len(labels))


def token_dtype(vocab_size: int) -> str:
    """The smallest dtype that holds every token of a vocabulary."""
    assert vocab_size <= 1 << 32
    return "uint8" if vocab_size <= 1 << 8 else "uint16" if vocab_size <= 1 << 16 else "uint32"


def first_outside(values: IntArray, size: int) -> int | None:
    """Where the first value is that is not one of 0 … size − 1."""
    if not values.size or (int(values.min()) >= 0 and int(values.max()) < size):
        return None
    return int(np.flatnonzero((values < 0) | (values >= size))[0])


class DatasetWriter:
    """Writes a prepared dataset into an existing, empty folder. `prepare.prepare` makes that atomic.

    Args:
        folder: where to.
        dataset: its name.
        num_classes: labels are 0 … num_classes − 1; None for sequences without any, whose next token is to be told.
        vocabulary: tokens in the order of their ids; None for images, or where vocab_size is given.
        vocab_size: how many tokens there are, where a list of them would be long and the tokenizer travels elsewhere.
        max_length: no sequence is longer (tokens, specials included); None for images.
        per_example: sequences that make up an example: 2 for pairs of documents.
        targets: not examples are of a class but positions: each token has a target, a class or NOT_SCORED.
    """

    def __init__(
        self,
        folder: Path,
        *,
        dataset: str,
        num_classes: int | None = None,
        vocabulary: Sequence[str] | None = None,
        vocab_size: int | None = None,
        max_length: int | None = None,
        per_example: int = 1,
        targets: bool = False,
    ) -> None:
        assert vocabulary is None or vocab_size is None
        assert num_classes is not None or not targets
        has_labels = num_classes is not None and not targets
        assert has_labels or per_example == 1
        assert not targets or (num_classes or 0) <= 1 << 31
        self.folder, self.num_classes, self.targets, self.per_example = folder, num_classes, targets, per_example
        self.vocab_size = vocab_size if vocabulary is None else len(vocabulary)
        self._head: dict[str, Any] = {"dataset": dataset}
        if num_classes is not None:
            self._head["num_classes"] = num_classes
        if self.vocab_size is not None:
            tokens = {"vocab_size": vocab_size} if vocabulary is None else {"vocabulary": list(vocabulary)}
            self._head |= {"per_example": per_example, "max_length": max_length, **tokens}
        self._splits: list[SplitWriter] = []

    def split(self, name: str) -> SequenceSplitWriter:
        """Begins a split of sequences."""
        writer = SequenceSplitWriter(self, name)
        self._splits.append(writer)
        return writer

    def images(self, name: str, shape: tuple[int, int, int]) -> ImageSplitWriter:
        """Begins a split of images of a shape (height, width, channels)."""
        assert self.num_classes is not None and self.vocab_size is None
        writer = ImageSplitWriter(self.folder, name, self.num_classes, shape)
        self._splits.append(writer)
        return writer

    def finish(self, source: dict[str, Any]) -> None:
        """Writes the manifest, last: `source` says where the data came from (settings and seed, or files).

        Raises:
            InputError: a split has no examples.
        """
        splits = {split.name: split.close() for split in self._splits}
        write_manifest(self.folder, {**self._head, "source": source, "splits": splits})


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Writes the manifest of a prepared folder, last."""
    with replacing(folder / MANIFEST, encoding="utf-8") as file:
        json.dump({"format": FORMAT, **manifest}, file, indent=1, ensure_ascii=False)
        file.write("\n")
