"""Prepared data on disk: flat memory-mapped arrays, and a manifest that describes them.

    <root>/<dataset>/<name>/manifest.json
    <root>/<dataset>/<name>/<split>_{tokens,offsets,labels}.bin      sequences
    <root>/<dataset>/<name>/<split>_{images,labels}.bin              images

Example i of a split of sequences is tokens[offsets[i]:offsets[i + 1]], its class labels[i]; where an example is a pair,
its documents are sequences 2i and 2i + 1. Arrays are little-endian without a header: tokens uint8 or uint16 by the size
of the vocabulary, images uint8 (height, width, channels), offsets and labels int64. Needs no torch.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lra_ssm.errors import InputError

FORMAT = 1
MANIFEST = "manifest.json"
IntArray = npt.NDArray[np.integer[Any]]


@dataclass
class Split:
    """One split, memory-mapped on first use, anew in every process it is sent to: pickling takes the paths alone."""

    folder: Path
    entry: dict[str, Any]

    def __post_init__(self) -> None:
        self._mapped: dict[str, IntArray] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": {}}

    def _array(self, key: str) -> IntArray:
        if key not in self._mapped:
            entry = self.entry["arrays"][key]
            mapped = np.memmap(self.folder / entry["file"], dtype=entry["dtype"], mode="r", shape=(entry["count"],))
            # The same memory: memmap's own indexing is several times slower.
            self._mapped[key] = mapped.view(np.ndarray).reshape(-1, *entry.get("item", ()))
        return self._mapped[key]

    @property
    def labels(self) -> IntArray:
        """Classes (len(self),), int64, read-only."""
        return self._array("labels")

    def __len__(self) -> int:
        return int(self.entry["examples"])


@dataclass
class SequenceSplit(Split):
    """A split whose examples are sequences, or groups of `per_example` sequences."""

    per_example: int = 1

    @property
    def tokens(self) -> IntArray:
        """All tokens (offsets[-1],), uint8 or uint16, read-only."""
        return self._array("tokens")

    @property
    def offsets(self) -> IntArray:
        """Where sequences begin and end (len(self) · per_example + 1,), int64, read-only."""
        offsets = self._array("offsets")
        if offsets[0] != 0 or offsets[-1] != self.entry["arrays"]["tokens"]["count"]:
            raise _damaged(self.folder / self.entry["arrays"]["offsets"]["file"], "its offsets do not fit the tokens")
        return offsets

    @property
    def lengths(self) -> IntArray:
        """Lengths (len(self), per_example), int64."""
        return np.diff(self.offsets).reshape(-1, self.per_example)

    def sequence(self, index: int) -> IntArray:
        """The tokens of one sequence (length,), read-only."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]


@dataclass
class ImageSplit(Split):
    """A split whose examples are images."""

    @property
    def images(self) -> npt.NDArray[np.uint8]:
        """All images (len(self), height, width, channels), uint8, read-only."""
        return self._array("images")  # type: ignore[return-value]


@dataclass(frozen=True)
class PreparedDataset:
    """An opened prepared folder: its manifest and its splits by name."""

    folder: Path
    manifest: dict[str, Any]

    def split(self, name: str) -> SequenceSplit | ImageSplit:
        entry = self.manifest["splits"][name]
        if "images" in entry["arrays"]:
            return ImageSplit(self.folder, entry)
        return SequenceSplit(self.folder, entry, self.manifest.get("per_example", 1))

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
