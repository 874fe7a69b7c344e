"""Prepared data on disk: flat memory-mapped arrays, and a manifest that describes them.

    <root>/<dataset>/<name>/manifest.json
    <root>/<dataset>/<name>/<split>_{tokens,offsets}.bin             sequences, and of these either
    <root>/<dataset>/<name>/<split>_labels.bin                         one class for each example,
    <root>/<dataset>/<name>/<split>_targets.bin                        one target for each token, or neither
    <root>/<dataset>/<name>/<split>_{images,labels}.bin              images
    <root>/<dataset>/<name>/<split>_{tokens,starts}_<shard>.bin      text: one stream of tokens, in shards

Example i of a split of sequences is tokens[offsets[i]:offsets[i + 1]], its class labels[i]; where an example is a pair,
its documents are sequences 2i and 2i + 1. targets[j] belongs to tokens[j]: a class, or NOT_SCORED. A split of text is
all shards' tokens one behind the other; starts are the positions in it at which documents begin, those of a shard in
its own file. Arrays are little-endian without a header: tokens uint8, uint16 or uint32 by the size of the vocabulary,
images uint8 (height, width, channels), offsets, starts and labels int64, targets int32. Needs no torch.
"""

import mmap
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lra_ssm.datamodules.storage.manifest import Malformed, read_manifest
from lra_ssm.errors import InputError
from lra_ssm.files import sha256

MANIFEST = "manifest.json"
NOT_SCORED = -100  # the target where nothing is scored: torch's cross entropy passes over it by default
IntArray = npt.NDArray[np.integer[Any]]
_READS_KEPT = 1024  # of ranges of tokens, whose pages a process holds: about 64 KiB each, which the system maps at once


@dataclass
class StoredSplit:
    """A split's files, memory-mapped on first use, anew in every process it is sent to: pickling takes paths alone."""

    folder: Path
    entry: dict[str, Any]

    def __post_init__(self) -> None:
        self._mapped: dict[str, IntArray] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": {}}

    def _map(self, entry: dict[str, Any]) -> IntArray:
        file = entry["file"]
        if file not in self._mapped:
            mapped = np.memmap(self.folder / file, dtype=entry["dtype"], mode="r", shape=(entry["count"],))
            # The same memory: memmap's own indexing is several times slower.
            self._mapped[file] = mapped.view(np.ndarray).reshape(-1, *entry.get("item", ()))
        return self._mapped[file]


@dataclass
class Split(StoredSplit):
    """A split of examples, each of a class or not."""

    num_classes: int | None = None  # labels, or targets, are 0 … num_classes − 1

    def _array(self, key: str) -> IntArray:
        return self._map(self.entry["arrays"][key])

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
        """Raises InputError unless all values, which an array gave, are 0 … size − 1 (None: whatever they are)."""
        if size is not None:
            _check_values(self.path(key), key, values, size)

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


@dataclass
class TokenSplit(StoredSplit):
    """A split that is one stream of tokens, document behind document, each ended by the end-of-text token."""

    vocab_size: int  # tokens are 0 … vocab_size − 1
    end_of_text: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self._reads = 0
        self._ends = np.cumsum([0, *(shard["tokens"]["count"] for shard in self.entry["shards"])]).tolist()

    @property
    def num_tokens(self) -> int:
        """Of all documents."""
        return int(self.entry["tokens"])

    @property
    def num_documents(self) -> int:
        return int(self.entry["documents"])

    @property
    def dtype(self) -> str:
        """Of the tokens: uint8, uint16 or uint32."""
        return str(self.entry["shards"][0]["tokens"]["dtype"])

    def tokens(self, begin: int, end: int) -> IntArray:
        """The tokens at positions 0 ≤ begin ≤ … < end ≤ num_tokens (end − begin,), uint8, uint16 or uint32, read-only.

        Raises:
            InputError: a token is not in the vocabulary.
        """
        self._reads += 1
        if self._reads % _READS_KEPT == 0:
            self._release()
        parts = []
        for number in range(bisect_right(self._ends, begin) - 1, len(self.entry["shards"])):
            entry, before = self.entry["shards"][number]["tokens"], self._ends[number]
            part = self._map(entry)[max(begin - before, 0) : end - before]
            _check_values(self.folder / entry["file"], "tokens", part, self.vocab_size)
            parts.append(part)
            if end <= self._ends[number + 1]:
                return part if len(parts) == 1 else np.concatenate(parts)
        raise IndexError(f"tokens {begin} to {end} of {self.num_tokens}")

    def _release(self) -> None:
        """Gives back the pages of all tokens that were read: the system keeps them cached, but they count as this
        process' memory no longer. Else it would seem to hold the whole text after an epoch, and so would each worker:
        a cluster that adds up what processes hold would end the job."""
        for shard in self.entry["shards"]:
            array: Any = self._mapped.get(shard["tokens"]["file"])
            while isinstance(array, np.ndarray) and not isinstance(array, np.memmap):
                array = array.base
            if array is not None and hasattr(mmap, "MADV_DONTNEED"):
                array._mmap.madvise(mmap.MADV_DONTNEED)

    def starts(self, begin: int, end: int) -> IntArray:
        """The positions from begin to end − 1 at which documents start, rising, int64. Raises as `starts_within`."""
        return self.starts_within(np.array([begin]), np.array([end]))[1]

    def starts_within(self, begins: IntArray, ends: IntArray) -> tuple[IntArray, IntArray]:
        """The positions at which documents start in ranges from begins to ends − 1 (n,): of each its range, and itself.

        Raises:
            InputError: the positions that are stored cannot be such.
        """
        rows, positions = [], []
        for number, shard in enumerate(self.entry["shards"]):
            here = np.flatnonzero((begins < self._ends[number + 1]) & (ends > self._ends[number]))
            if not here.size or not shard["starts"]["count"]:  # a shard within a document; an empty file is not mapped
                continue
            starts = self._map(shard["starts"])
            low = starts.searchsorted(begins[here])
            counts = np.maximum(starts.searchsorted(ends[here]) - low, 0)
            row = here.repeat(counts)
            found = starts[np.arange(len(row)) + (low - counts.cumsum() + counts).repeat(counts)]
            if ((found < begins[row]) | (found >= ends[row])).any():
                raise damaged(self.folder / shard["starts"]["file"], "its positions of documents do not rise")
            rows.append(row)
            positions.append(found)
        if not rows:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        return np.concatenate(rows), np.concatenate(positions)


AnySplit = SequenceSplit | ImageSplit | TokenSplit


@dataclass(frozen=True)
class PreparedDataset:
    """An opened prepared folder: its manifest and its splits by name."""

    folder: Path
    manifest: dict[str, Any]

    def split(self, name: str) -> AnySplit:
        splits = self.manifest["splits"]
        if name not in splits:
            raise InputError(f"{self.folder}: has no split {name}; it has {', '.join(splits)}")
        entry, classes = splits[name], self.manifest.get("num_classes")
        if "shards" in entry:
            return TokenSplit(self.folder, entry, self.manifest["vocab_size"], self.manifest["end_of_text"])
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
        counts = ", ".join(f"{num_examples(entry):,} {name}" for name, entry in splits.items())
        first = next(iter(splits.values()))
        head = f"{self.manifest['dataset']} ({self.manifest['source']['kind']}): {counts}"
        if "shards" in first:
            tokens = ", ".join(f"{entry['tokens']:,} {name}" for name, entry in splits.items())
            vocabulary = f"vocabulary of {self.vocab_size:,}, {first['bytes'] / first['tokens']:.2f} bytes a token"
            return f"{head} documents; {tokens} tokens; {vocabulary}"
        length = first["length"]
        return f"{head}; lengths {length['min']} to {length['max']}, mean {length['mean']:.0f}; {self._answers(first)}"

    def _answers(self, entry: dict[str, Any]) -> str:
        """What a model is asked for in a split, in a few words."""
        if "class_counts" in entry:
            majority = max(entry["class_counts"]) / entry["examples"]
            return f"{self.manifest['num_classes']} classes, most frequent {majority:.1%}"
        if "scored" in entry:
            return f"{self.manifest['num_classes']} classes at {entry['scored']:,} scored positions"
        return f"{self.vocab_size:,} tokens, no labels"


def num_examples(split: dict[str, Any]) -> int:
    """How many examples, of text documents, a split's entry in a manifest says it has."""
    return int(split["documents"] if "shards" in split else split["examples"])


def array_entries(split: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of all arrays of a split's entry in a manifest."""
    if "shards" in split:
        return [entry for shard in split["shards"] for entry in shard.values()]
    return list(split["arrays"].values())


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
        for entry in array_entries(split):
            array, dtype = folder / entry["file"], np.dtype(entry["dtype"])
            _check_file(array, entry["count"] * dtype.itemsize, entry["sha256"] if verify else None)
            # Before there were tokens of 32 bits, such a vocabulary was written into 16: others came back.
            if dtype.kind == "u" and size > 1 << 8 * dtype.itemsize:
                raise damaged(array, f"has too few bits for a vocabulary of {size} tokens")
    if "tokenizer" in manifest:
        tokenizer = manifest["tokenizer"]
        _check_file(folder / tokenizer["file"], None, tokenizer["sha256"] if verify else None)
    return PreparedDataset(folder, manifest)


def _check_file(path: Path, size: int | None, digest: str | None) -> None:
    """Raises InputError unless the file is there, of its size and digest as far as they are given."""
    if not path.is_file():
        raise damaged(path, "is missing")
    if size is not None and path.stat().st_size != size:
        raise damaged(path, f"has {path.stat().st_size} bytes instead of {size}")
    if digest is not None and sha256(path) != digest:
        raise damaged(path, "does not have its recorded sha256")


def _check_values(path: Path, what: str, values: IntArray, size: int) -> None:
    """Raises InputError unless all values, which a file gave, are 0 … size − 1.

    A negative value is caught with the large ones: as unsigned numbers they are above them.
    """
    if values.size and (largest := values.view(f"u{values.dtype.itemsize}").max()) >= size:
        wrong = largest.astype(values.dtype)
        raise damaged(path, f"its {what} hold {wrong}; they must be 0 to {size - 1}")


def damaged(path: Path, what: str) -> InputError:
    """The error for a file of a prepared folder, which says what to do."""
    return InputError(
        f"{path}: {what}; delete the folder {path.parent} and start again to have it prepared anew"
        " (`lra-ssm doctor --verify` checks all that is prepared)"
    )
