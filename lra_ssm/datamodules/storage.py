"""Prepared sequences on disk: flat memory-mapped arrays, a manifest that describes them, and how they come to be.

    <root>/<dataset>/<name>/manifest.json
    <root>/<dataset>/<name>/<split>_{tokens,offsets,labels}.bin

Sequence i of a split is tokens[offsets[i]:offsets[i + 1]], its class labels[i]. Arrays are little-endian without a
header: tokens uint8 or uint16 by the size of the vocabulary, offsets and labels int64. Needs no torch.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lra_ssm.errors import InputError

FORMAT = 1
MANIFEST = "manifest.json"
ARRAYS = ("tokens", "offsets", "labels")
IntArray = npt.NDArray[np.integer[Any]]


class _ArrayFile:
    """Appends to one array file, counting and hashing on the way."""

    def __init__(self, path: Path, dtype: str) -> None:
        self.path, self.dtype, self.count = path, dtype, 0
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
        }


class SplitWriter:
    """Writes one split; get it from `DatasetWriter.split`."""

    def __init__(self, folder: Path, name: str, vocabulary_size: int, num_classes: int) -> None:
        self.name = name
        token_dtype = "uint8" if vocabulary_size <= 1 << 8 else "uint16"
        self._arrays = {
            key: _ArrayFile(folder / f"{name}_{key}.bin", dtype)
            for key, dtype in zip(ARRAYS, (token_dtype, "<i8", "<i8"), strict=True)
        }
        self._arrays["offsets"].append([0])
        self._class_counts = np.zeros(num_classes, dtype=np.int64)
        self._shortest, self._longest = np.iinfo(np.int64).max, 0
        self.num_examples = self._num_tokens = 0

    def extend(self, tokens: npt.ArrayLike, lengths: npt.ArrayLike, labels: npt.ArrayLike) -> None:
        """Appends sequences: their tokens one after another (sum of lengths,), lengths (n,), labels (n,)."""
        lengths, labels = np.asarray(lengths, dtype=np.int64), np.asarray(labels, dtype=np.int64)
        if not lengths.size:
            return
        self._arrays["tokens"].append(tokens)
        self._arrays["offsets"].append(self._num_tokens + np.cumsum(lengths))
        self._arrays["labels"].append(labels)
        self._class_counts += np.bincount(labels, minlength=len(self._class_counts))
        self._shortest, self._longest = min(self._shortest, lengths.min()), max(self._longest, lengths.max())
        self._num_tokens += int(lengths.sum())
        self.num_examples += len(lengths)
        assert self._arrays["tokens"].count == self._num_tokens and len(labels) == len(lengths)

    def close(self) -> dict[str, Any]:
        """Finishes the files; returns the split's entry for the manifest."""
        assert self.num_examples, f"split {self.name} is empty"
        return {
            "examples": self.num_examples,
            "class_counts": self._class_counts.tolist(),
            "length": {
                "min": int(self._shortest),
                "mean": round(self._num_tokens / self.num_examples, 2),
                "max": int(self._longest),
            },
            "arrays": {key: array.close() for key, array in self._arrays.items()},
        }


class DatasetWriter:
    """Writes a prepared dataset into an existing, empty folder. `prepare.prepare` makes that atomic.

    Args:
        folder: where to.
        dataset: its name.
        vocabulary: tokens in the order of their ids.
        num_classes: labels are 0 … num_classes − 1.
        max_length: no sequence is longer (tokens, specials included).
    """

    def __init__(
        self, folder: Path, *, dataset: str, vocabulary: Sequence[str], num_classes: int, max_length: int
    ) -> None:
        self._folder = folder
        self._head: dict[str, Any] = {
            "format": FORMAT,
            "dataset": dataset,
            "num_classes": num_classes,
            "max_length": max_length,
            "vocabulary": list(vocabulary),
        }
        self._splits: list[SplitWriter] = []

    def split(self, name: str) -> SplitWriter:
        """Begins a split."""
        writer = SplitWriter(self._folder, name, len(self._head["vocabulary"]), self._head["num_classes"])
        self._splits.append(writer)
        return writer

    def finish(self, source: dict[str, Any]) -> None:
        """Writes the manifest, last: `source` says where the data came from (settings and seed, or files)."""
        manifest = {**self._head, "source": source, "splits": {split.name: split.close() for split in self._splits}}
        with open(self._folder / MANIFEST, "w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=1, ensure_ascii=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())


@dataclass
class SequenceSplit:
    """One split, memory-mapped on first use, anew in every process it is sent to: pickling takes the paths alone."""

    folder: Path
    entry: dict[str, Any]

    def __post_init__(self) -> None:
        self._mapped: dict[str, IntArray] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "entry": self.entry, "_mapped": {}}

    def _array(self, key: str) -> IntArray:
        if key not in self._mapped:
            entry = self.entry["arrays"][key]
            path = self.folder / entry["file"]
            mapped = np.memmap(path, dtype=entry["dtype"], mode="r", shape=(entry["count"],))
            array = mapped.view(np.ndarray)  # the same memory; memmap's own indexing is several times slower
            if key == "offsets" and (array[0] != 0 or array[-1] != self.entry["arrays"]["tokens"]["count"]):
                raise _damaged(path, "its offsets do not fit the tokens")
            self._mapped[key] = array
        return self._mapped[key]

    @property
    def tokens(self) -> IntArray:
        """All tokens (offsets[-1],), uint8 or uint16, read-only."""
        return self._array("tokens")

    @property
    def offsets(self) -> IntArray:
        """Where sequences begin and end (len(self) + 1,), int64, read-only."""
        return self._array("offsets")

    @property
    def labels(self) -> IntArray:
        """Classes (len(self),), int64, read-only."""
        return self._array("labels")

    def __len__(self) -> int:
        return int(self.entry["examples"])

    def sequence(self, index: int) -> IntArray:
        """The tokens of one sequence (length,), read-only."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]


@dataclass(frozen=True)
class PreparedDataset:
    """An opened prepared folder: its manifest and its splits by name."""

    folder: Path
    manifest: dict[str, Any]

    def split(self, name: str) -> SequenceSplit:
        return SequenceSplit(self.folder, self.manifest["splits"][name])

    def summary(self) -> str:
        """One line on what it holds."""
        splits = self.manifest["splits"]
        counts = ", ".join(f"{entry['examples']:,} {name}" for name, entry in splits.items())
        first = next(iter(splits.values()))
        majority = max(first["class_counts"]) / first["examples"]
        length = first["length"]
        return (
            f"{self.manifest['dataset']} ({self.manifest['source']['kind']}): {counts}; lengths {length['min']} to"
            f" {length['max']}, mean {length['mean']:.0f}; {self.manifest['num_classes']} classes, most frequent"
            f" {majority:.1%}"
        )


def open_prepared(folder: Path, *, verify: bool = False) -> PreparedDataset:
    """Opens a prepared folder, checking that every file is there with its recorded size.

    Args:
        folder: the prepared folder.
        verify: also compare every file's sha256 (reads everything).

    Raises:
        InputError: the folder is damaged; names the file and what to do.
    """
    path = folder / MANIFEST
    if not folder.is_dir():
        raise InputError(f"{folder}: is not prepared; call prepare_data (or `lra-ssm prepare`) first")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise _damaged(path, f"format {manifest['format']} is not {FORMAT}, the one this version reads")
        entries = [entry for split in manifest["splits"].values() for entry in split["arrays"].values()]
        for entry in entries:
            array, expected = folder / entry["file"], entry["count"] * np.dtype(entry["dtype"]).itemsize
            if not array.is_file():
                raise _damaged(array, "is missing")
            if array.stat().st_size != expected:
                raise _damaged(array, f"has {array.stat().st_size} bytes instead of {expected}")
            if verify and sha256(array) != entry["sha256"]:
                raise _damaged(array, "does not have its recorded sha256")
    except FileNotFoundError as error:
        raise _damaged(path, "is missing") from error
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise _damaged(path, "is not a manifest that this version reads") from error
    return PreparedDataset(folder, manifest)


def sha256(path: Path) -> str:
    """The hexadecimal sha256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _damaged(path: Path, what: str) -> InputError:
    return InputError(f"{path}: {what}; delete the folder {path.parent} and start again to have it prepared anew")
