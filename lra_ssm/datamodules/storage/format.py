"""Prepared data on disk: flat memory-mapped arrays, and a manifest that describes them.

    <root>/<dataset>/<name>/manifest.json
    <root>/<dataset>/<name>/<split>_{tokens,offsets}.bin             sequences, and of these either
    <root>/<dataset>/<name>/<split>_labels.bin                         one class for each example,
    <root>/<dataset>/<name>/<split>_targets.bin                        one target for each token, or neither
    <root>/<dataset>/<name>/<split>_{images,labels}.bin              images

Example i of a split of sequences is tokens[offsets[i]:offsets[i + 1]], its class labels[i]; where an example is a pair,
its documents are sequences 2i and 2i + 1. targets[j] belongs to tokens[j]: a class, or NOT_SCORED. Arrays are
little-endian without a header: tokens uint8, uint16 or uint32 by the size of the vocabulary, images uint8 (height,
width, channels), offsets and labels int64, targets int32. Needs no torch.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lra_ssm.datamodules.storage.manifest import Malformed, read_manifest
from lra_ssm.errors import InputError

MANIFEST = "manifest.json"
NOT_SCORED = -100  # the target where nothing is scored: torch's cross entropy passes over it by default
IntArray = npt.NDArray[np.integer[Any]]


@dataclass
class Split:
    """One split, memory-mapped on first use, anew in every process it is sent to: pickling takes the paths alone."""

    folder: Path
    entry: dict[str, Any]
    num_classes: int | None = None  # labels, or targets, are 0 … num_classes − 1

    def __post_init__(self) -> None:
        self._mapped: dict[str, IntArray] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": {}}

    def _array(self, key: str) -> IntArray:
        if key not in self._mapped:
            entry = self.entry["arrays"][key]
            mapped = np.memmap(self.path(key), dtype=entry["dtype"], mode="r", shape=(entry["count"],))
            # The same memory: memmap's own indexing is several times slower.
            self._mapped[key] = mapped.view(np.ndarray).reshape(-1, *entry.get("item", ()))
        return self._mapped[key]

    @property
    def has_labels(self) -> bool:
        """Whether every example has a class."""
        return "labels" in self.entry["arrays"]

    @property
    def labels(self) -> IntArray:
        """Classes (len(self),), int64, read-only; where has_labels."""
        return self._array("labels")

    def __len__(self) -> int:
        return int(self.entry["examples"])

    def check(self, key: str, values: IntArray, size: int | None) -> None:
        """Raises InputError unless all values, which an array gave, are 0 … size − 1 (None: whatever they are).

        A negative value is caught with the large ones: as unsigned numbers they are above them.
        """
        if size is None or not values.size:
            return
        largest = values.view(f"u{values.dtype.itemsize}").max()
        if largest >= size:
            wrong = largest.astype(values.dtype)
            raise damaged(self.path(key), f"its {key} hold {wrong}; they must be 0 to {size - 1}")

    def path(self, key: str) -> Path:
        """The file of an array."""
        return self.folder / str(self.entry["arrays"][key]["file"])


@dataclass
class SequenceSplit(Split):
    """A split whose examples are sequences, or groups of `per_example` sequences."""

    per_example: int = 1
    vocab_size: int | None = None  # tokens are 0 … vocab_size − 1

    @property
    def tokens(self) -> IntArray:
        """All tokens (offsets[-1],), uint8, uint16 or uint32, read-only."""
        return self._array("tokens")

    @property
    def has_targets(self) -> bool:
        """Whether every token has a target."""
        return "targets" in self.entry["arrays"]

    @property
    def targets(self) -> IntArray:
        """Targets of all tokens (offsets[-1],), int32, NOT_SCORED where there is none; read-only; where has_targets."""
        targets = self._array("targets")
        if len(targets) != self.entry["arrays"]["tokens"]["count"]:
            raise damaged(self.path("targets"), "its targets do not fit the tokens")
        return targets

    @property
    def offsets(self) -> IntArray:
        """Where sequences begin and end (len(self) · per_example + 1,), int64, read-only."""
        offsets = self._array("offsets")
        if offsets[0] != 0 or offsets[-1] != self.entry["arrays"]["tokens"]["count"]:
            raise damaged(self.path("offsets"), "its offsets do not fit the tokens")
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
        splits = self.manifest["splits"]
        if name not in splits:
            raise InputError(f"{self.folder}: has no split {name}; it has {', '.join(splits)}")
        entry, classes = splits[name], self.manifest.get("num_classes")
        if "images" in entry["arrays"]:
            return ImageSplit(self.folder, entry, classes)
        return SequenceSplit(self.folder, entry, classes, self.manifest.get("per_example", 1), self.vocab_size)

    @property
    def vocab_size(self) -> int | None:
        """How many tokens the vocabulary has; None for images."""
        return vocab_size(self.manifest)

    def summary(self) -> str:
        """One line on what it holds."""
        splits = self.manifest["splits"]
        counts = ", ".join(f"{entry['examples']:,} {name}" for name, entry in splits.items())
        first = next(iter(splits.values()))
        length = first["length"]
        return (
            f"{self.manifest['dataset']} ({self.manifest['source']['kind']}): {counts}; lengths {length['min']} to"
            f" {length['max']}, mean {length['mean']:.0f}; {self._answers(first)}"
        )

    def _answers(self, entry: dict[str, Any]) -> str:
        """What a model is asked for in a split, in a few words."""
        if "class_counts" in entry:
            majority = max(entry["class_counts"]) / entry["examples"]
            return f"{self.manifest['num_classes']} classes, most frequent {majority:.1%}"
        if "scored" in entry:
            return f"{self.manifest['num_classes']} classes at {entry['scored']:,} scored positions"
        return f"{self.vocab_size:,} tokens, no labels"


def vocab_size(manifest: dict[str, Any]) -> int | None:
    """How many tokens the vocabulary of a manifest has, which lists them or says their number; None for images."""
    vocabulary, size = manifest.get("vocabulary"), manifest.get("vocab_size")
    return len(vocabulary) if vocabulary is not None else size


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
        manifest = read_manifest(path)
    except FileNotFoundError as error:
        raise damaged(path, "is missing") from error
    except Malformed as error:
        raise damaged(path, str(error)) from error
    size = vocab_size(manifest) or 0
    for split in manifest["splits"].values():
        for entry in split["arrays"].values():
            array, expected = folder / entry["file"], entry["count"] * np.dtype(entry["dtype"]).itemsize
            if not array.is_file():
                raise damaged(array, "is missing")
            if array.stat().st_size != expected:
                raise damaged(array, f"has {array.stat().st_size} bytes instead of {expected}")
            if verify and sha256(array) != entry["sha256"]:
                raise damaged(array, "does not have its recorded sha256")
        tokens = split["arrays"].get("tokens")
        # Before there were tokens of 32 bits, such a vocabulary was written into 16: others came back.
        if tokens is not None and size > 1 << 8 * np.dtype(tokens["dtype"]).itemsize:
            raise damaged(folder / tokens["file"], f"has too few bits for a vocabulary of {size} tokens")
    return PreparedDataset(folder, manifest)


def sha256(path: Path) -> str:
    """The hexadecimal sha256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def damaged(path: Path, what: str) -> InputError:
    """The error for a file of a prepared folder, which says what to do."""
    return InputError(
        f"{path}: {what}; delete the folder {path.parent} and start again to have it prepared anew"
        " (`lra-ssm doctor --verify` checks all that is prepared)"
    )
