"""Prepared data on disk: memory-mapped arrays (`arrays`), and a manifest that describes them.

    <root>/<dataset>/<name>/manifest.json
    <root>/<dataset>/<name>/<split>_{tokens,offsets}.npy             sequences, and of these either
    <root>/<dataset>/<name>/<split>_labels.npy                         one class for each example,
    <root>/<dataset>/<name>/<split>_targets.npy                        one target for each token, or neither
    <root>/<dataset>/<name>/<split>_{images,labels}.npy              images
    <root>/<dataset>/<name>/<split>_{tokens,starts}_<shard>.npy      text: one stream of tokens, in shards

Example i of a split of sequences is tokens[offsets[i]:offsets[i + 1]], its class labels[i]; where an example is a pair,
its documents are sequences 2i and 2i + 1. targets[j] belongs to tokens[j]: a class, or NOT_SCORED. A split of text is
all shards' tokens one behind the other; starts are the positions in it at which documents begin, those of a shard in
its own file. Tokens are uint8, uint16 or uint32 by the size of the vocabulary, images uint8 (n, height, width,
channels), offsets, starts and labels int64, targets int32.
"""

import json
import mmap
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from lra_ssm.datamodules.old_storage.arrays import IntArray, check_digest, check_size, check_values, damaged, open_array
from lra_ssm.errors import InputError
from lra_ssm.files import sha256

MANIFEST = "manifest.json"
FORMAT = 5
NOT_SCORED = -100  # the target where nothing is scored: torch's cross entropy passes over it by default
_READS_KEPT = 1024  # of ranges of tokens, whose pages a process holds: about 64 KiB each, which the system maps at once


class _Object(dict[str, Any]):
    """An object of a manifest: whatever it is asked for and lacks is damage."""

    def __init__(self, path: Path, content: dict[str, Any]) -> None:
        super().__init__(content)
        self.path = path

    def __missing__(self, key: str) -> Any:
        raise damaged(self.path, f"has no {key}")


@dataclass
class StoredSplit:
    """A split's files, memory-mapped on first use, in every process anew."""

    folder: Path
    entry: dict[str, Any]

    def __post_init__(self) -> None:
        self._mapped: dict[str, IntArray] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": {}}

    def _map(self, entry: dict[str, Any]) -> IntArray:
        if entry["file"] not in self._mapped:
            self._mapped[entry["file"]] = open_array(self.folder, entry)
        return self._mapped[entry["file"]]


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
        """Raises InputError unless all values of an array are 0 … size − 1 (None: any)."""
        if size is not None:
            check_values(self.path(key), key, values, size)

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
        return self._array("targets")

    @property
    def offsets(self) -> IntArray:
        """Where sequences begin and end (len(self) · per_example + 1,), int64, read-only."""
        offsets = self._array("offsets")
        if offsets[0] != 0 or offsets[-1] != len(self.tokens):
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
        self._ends = np.cumsum([0, *(shard["tokens"]["shape"][0] for shard in self.entry["shards"])]).tolist()

    @classmethod
    def in_memory(cls, tokens: IntArray, vocab_size: int, end_of_text: int) -> Self:
        """A stream without files: tokens (n,) of one document, which need not be ended; for this process alone."""
        array: dict[str, Any] = {"file": "", "shape": tokens.shape, "dtype": tokens.dtype.name}
        entry = {"documents": 1, "tokens": len(tokens), "shards": [{"tokens": array}]}
        split = cls(Path(), entry, vocab_size, end_of_text)
        split._mapped[array["file"]] = tokens
        return split

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
        return str(np.dtype(self.entry["shards"][0]["tokens"]["dtype"]))

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
            check_values(self.folder / entry["file"], "tokens", part, self.vocab_size)
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
            if not here.size:
                continue
            starts, before = self._map(shard["starts"]), self._ends[number]
            low = starts.searchsorted(begins[here] - before)
            counts = np.maximum(starts.searchsorted(ends[here] - before) - low, 0)
            row = here.repeat(counts)
            found = starts[np.arange(len(row)) + (low - counts.cumsum() + counts).repeat(counts)] + before
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
            size, per_token = self.manifest["vocab_size"], first["bytes"] / first["tokens"]
            return f"{head} documents; {tokens} tokens; vocabulary of {size:,}, {per_token:.2f} bytes a token"
        length = first["length"]
        return f"{head}; lengths {length['min']} to {length['max']}, mean {length['mean']:.0f}; {self._answers(first)}"

    def _answers(self, entry: dict[str, Any]) -> str:
        """What a model is asked for in a split, in a few words."""
        if "labels" in entry["arrays"]:
            majority = max(entry["class_counts"]) / entry["examples"]
            return f"{self.manifest['num_classes']} classes, most frequent {majority:.1%}"
        if "targets" in entry["arrays"]:
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
    """How many tokens the vocabulary of a manifest has; None for images."""
    return len(manifest["vocabulary"]) if "vocabulary" in manifest else manifest.get("vocab_size")


def open_prepared(folder: Path, *, verify: bool = False) -> PreparedDataset:
    """Opens a prepared folder, checking that every file is there with its recorded size.

    Args:
        folder: the prepared folder.
        verify: also compare every file's sha256 (reads everything).

    Raises:
        InputError: the folder is damaged, or an older version prepared it; names the file and what to do.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: is not prepared; call prepare_data (or `lra-ssm prepare`) first")
    manifest = read_manifest(folder)
    for entry in [entry for split in manifest["splits"].values() for entry in array_entries(split)]:
        check_size(folder, entry)
        if verify:
            check_digest(folder, entry)
    if "tokenizer" in manifest:
        check_size(folder, manifest["tokenizer"])
        file = folder / manifest["tokenizer"]["file"]
        if verify and sha256(file) != manifest["tokenizer"]["sha256"]:
            raise damaged(file, "does not have its recorded sha256")
    return PreparedDataset(folder, manifest)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a prepared folder. Raises InputError where there is none, or another version's."""
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text("utf-8"), object_hook=lambda found: _Object(path, found))
    except FileNotFoundError:
        raise damaged(path, "is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(path, f"cannot be read ({error})") from error
    version = manifest["format"] if isinstance(manifest, dict) else None
    if version != FORMAT:
        older = version in range(1, FORMAT)
        raise damaged(path, "is of an older version and no longer read" if older else f"has format {version!r}")
    return manifest
