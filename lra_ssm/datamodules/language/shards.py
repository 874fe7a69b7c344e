"""A shard of a corpus as tokens: a folder, whole or not there at all.

    <shards>/plan.json                            which shards there are, made with which tokenizer
    <shards>/<number>/shard.json                  counts by split and source, entries of the arrays
    <shards>/<number>/<split>_tokens_<number>.npy uint8, uint16 or uint32 by the size of the vocabulary
    <shards>/<number>/<split>_starts_<number>.npy where documents begin, int64; a shard may begin within one

A shard depends on its place in the corpus and the tokenizer alone, so whichever process makes it, in whatever order, it
is the same. Prepared data takes its arrays as they are.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from lra_ssm.datamodules.language.documents import CorpusReader, Passage, Shard
from lra_ssm.datamodules.language.tokenizers import TextTokenizer
from lra_ssm.datamodules.old_storage.arrays import ArrayFile
from lra_ssm.datamodules.old_storage.writer import first_outside, token_dtype
from lra_ssm.errors import InputError
from lra_ssm.files import new_folder, write_json

RECORD = "shard.json"

_BATCH_BYTES = 1 << 20  # of text that is tokenised at a time
_BATCH_TEXTS = 4096
_IS_BLANK = np.zeros(256, dtype=bool)
_IS_BLANK[[*range(9, 14), *range(28, 33)]] = True  # ASCII's part of what str.split takes for blanks


class TextCounts(NamedTuple):
    """How much text a split, or one source in it, holds, so that a loss per token compares across tokenizers."""

    documents: int = 0
    tokens: int = 0
    bytes: int = 0  # of UTF-8
    words: int = 0  # runs of bytes that are no ASCII blanks
    lines: int = 0

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Self:
        """What an entry of a manifest says."""
        return cls(*(entry[name] for name in cls._fields))


def summed(counts: Iterable[TextCounts]) -> TextCounts:
    return TextCounts(*map(sum, zip(*counts, strict=True)))


def count(text: Passage, tokens: int) -> TextCounts:
    """One text, which became so many tokens."""
    data = text.text.encode()
    blank = _IS_BLANK[np.frombuffer(data, dtype=np.uint8)]
    words = int(np.count_nonzero(blank[:-1] & ~blank[1:])) + (len(blank) > 0 and not blank[0])
    lines = data.count(b"\n") + (text.last and not data.endswith(b"\n"))
    return TextCounts(int(text.first), tokens, len(data), words, lines)


class TokenWriter:
    """Writes the tokens that a split has of one shard.

    Args:
        folder: an existing folder.
        split: its name.
        number: of the shard.
        vocab_size: tokens are 0 … vocab_size − 1.
    """

    def __init__(self, folder: Path, split: str, number: int, vocab_size: int) -> None:
        self._where, self._vocab_size = f"{folder}: split {split}", vocab_size
        self._tokens = ArrayFile(folder / f"{split}_tokens_{number:05d}.npy", token_dtype(vocab_size))
        self._starts = ArrayFile(folder / f"{split}_starts_{number:05d}.npy", "<i8")
        self._sources = defaultdict[str, TextCounts](TextCounts)

    def append(self, tokens: npt.ArrayLike, starts: npt.ArrayLike) -> None:
        """Appends tokens (n,) of any integer dtype, among which documents begin at starts (m,), rising.

        Raises:
            InputError: a token is not in the vocabulary.
        """
        tokens = np.asarray(tokens)
        if (wrong := first_outside(tokens, self._vocab_size)) is not None:
            raise InputError(
                f"{self._where}, token number {self._tokens.count + wrong}: {tokens[wrong]} is no token: there are"
                f" {self._vocab_size}, 0 to {self._vocab_size - 1}"
            )
        self._starts.append(np.asarray(starts, dtype=np.int64) + self._tokens.count)
        self._tokens.append(tokens)

    def tally(self, text: Passage, tokens: int) -> None:
        """Counts a text that became so many tokens."""
        self._sources[text.source] = summed((self._sources[text.source], count(text, tokens)))

    def close(self) -> dict[str, Any]:
        """Finishes the files; returns a split's entry in the manifest, of this shard."""
        return split_entry([self._sources], [{"tokens": self._tokens.close(), "starts": self._starts.close()}])


def split_entry(counts: Sequence[Mapping[str, TextCounts]], arrays: Sequence[Any]) -> dict[str, Any]:
    """A split's entry in the manifest: counts by source, of each shard, and their arrays."""
    names = sorted({name for of_shard in counts for name in of_shard})
    sources = {name: summed(of_shard[name] for of_shard in counts if name in of_shard) for name in names}
    by_source = {name: total._asdict() for name, total in sources.items()}
    return {**summed(sources.values())._asdict(), "sources": by_source, "shards": arrays}


def shard_folder(shards: Path, number: int) -> Path:
    """Where a shard is, or will be."""
    return shards / f"{number:06d}"


def is_there(shards: Path, number: int) -> bool:
    return (shard_folder(shards, number) / RECORD).is_file()


def read_shard(shards: Path, number: int) -> dict[str, Any]:
    """What shard.json says: `splits` as the manifest has them, and how many documents were `empty`.

    Raises:
        InputError: it is damaged.
    """
    file = shard_folder(shards, number) / RECORD
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {key: found[key] for key in ("splits", "empty")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{file}: is not what was written; delete the folder {file.parent} and prepare again: it alone is made anew"
        ) from error


def write_shard(shards: Path, reader: CorpusReader, tokenizer: TextTokenizer, numbered: tuple[int, Shard]) -> int:
    """Makes a shard of a corpus, given with its number, in the folder of all, unless it is there.

    Returns:
        Its bytes of files.

    Raises:
        InputError: as the reader; nothing is left behind.
    """
    number, shard = numbered
    try:
        if not is_there(shards, number):
            with new_folder(shard_folder(shards, number)) as folder:
                _fill(folder, number, shard, reader, tokenizer)
    except OSError:
        if not is_there(shards, number):  # else another process has just made the same
            raise
    return shard.size


def _fill(folder: Path, number: int, shard: Shard, reader: CorpusReader, tokenizer: TextTokenizer) -> None:
    writers: dict[str, TokenWriter] = {}
    empty = 0
    for found in _batches(reader.texts(shard)):
        batch = [text for text in found if text.text]
        empty += len(found) - len(batch)
        tokens, lengths = tokenizer.encode([text.text for text in batch], [text.last for text in batch])
        splits = np.array([text.split for text in batch])
        firsts = np.array([text.first for text in batch], dtype=bool)
        for split in np.unique(splits).tolist():
            if split not in writers:
                writers[split] = TokenWriter(folder, split, number, tokenizer.vocab_size)
            chosen = splits == split
            begins = np.cumsum(lengths[chosen]) - lengths[chosen]
            writers[split].append(tokens[np.repeat(chosen, lengths)], begins[firsts[chosen]])
        for text, length in zip(batch, lengths.tolist(), strict=True):
            writers[text.split].tally(text, length)
    write_json(folder / RECORD, {"splits": {name: writer.close() for name, writer in writers.items()}, "empty": empty})


def _batches(texts: Iterable[Passage]) -> Iterator[list[Passage]]:
    """Texts, as many at a time as are tokenised together."""
    batch: list[Passage] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text.text)
        if size >= _BATCH_BYTES or len(batch) == _BATCH_TEXTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
