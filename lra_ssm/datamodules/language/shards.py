"""A shard of a corpus as tokens: a folder, whole or not there at all.

    <shards>/plan.json                            which shards there are, made with which tokenizer
    <shards>/<number>/shard.json                  counts by split and source, entries of the arrays
    <shards>/<number>/<split>_tokens_<number>.npy uint8, uint16 or uint32 by the size of the vocabulary
    <shards>/<number>/<split>_starts_<number>.npy where documents begin, int64; a shard may begin within one

A shard depends on its place in the corpus and the tokenizer alone, so whichever process makes it, in whatever order, it
is the same. Prepared data takes its arrays as they are.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lra_ssm.datamodules.language.documents import CorpusReader, Passage, Shard
from lra_ssm.datamodules.language.tokenizers import TextTokenizer
from lra_ssm.datamodules.storage.arrays import ArrayFile, IntArray
from lra_ssm.datamodules.storage.writer import first_outside, token_dtype
from lra_ssm.errors import InputError
from lra_ssm.files import new_folder, write_json

RECORD = "shard.json"

_BATCH_BYTES = 1 << 20  # of text that is tokenised at a time
_BATCH_TEXTS = 4096
_IS_BLANK = np.zeros(256, dtype=bool)
_IS_BLANK[[*range(9, 14), *range(28, 33)]] = True  # ASCII's part of what str.split takes for blanks


@dataclass
class Tally:
    """What a split, or one source in it, holds. Words are runs of bytes that are no ASCII blanks."""

    documents: int = 0
    tokens: int = 0
    bytes: int = 0
    words: int = 0
    lines: int = 0

    def add(self, other: "Tally") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def count(text: Passage, tokens: int) -> Tally:
    """One text, which became so many tokens."""
    data = text.text.encode()
    blank = _IS_BLANK[np.frombuffer(data, dtype=np.uint8)]
    words = int(np.count_nonzero(blank[:-1] & ~blank[1:])) + (len(blank) > 0 and not blank[0])
    lines = data.count(b"\n") + (text.last and not data.endswith(b"\n"))
    return Tally(int(text.first), tokens, len(data), words, lines)


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
        self.num_tokens, self.total, self.sources = 0, Tally(), dict[str, Tally]()

    def append(self, tokens: npt.ArrayLike, starts: npt.ArrayLike) -> None:
        """Appends tokens (n,) of any integer dtype, among which documents begin at starts (m,), rising.

        Raises:
            InputError: a token is not in the vocabulary.
        """
        tokens = np.asarray(tokens)
        wrong = first_outside(tokens, self._vocab_size)
        if wrong is not None:
            raise InputError(
                f"{self._where}, token number {self.num_tokens + wrong}: {tokens[wrong]} is no token: there are"
                f" {self._vocab_size}, 0 to {self._vocab_size - 1}"
            )
        self._tokens.append(tokens)
        self._starts.append(np.asarray(starts, dtype=np.int64) + self.num_tokens)
        self.num_tokens += len(tokens)

    def tally(self, text: Passage, tokens: int) -> None:
        """Counts a text that became so many tokens."""
        tally = count(text, tokens)
        self.total.add(tally)
        self.sources.setdefault(text.source, Tally()).add(tally)

    def close(self) -> dict[str, Any]:
        """Finishes the files; returns a split's entry in the manifest, of this shard."""
        sources = {name: vars(self.sources[name]) for name in sorted(self.sources)}
        arrays = {"tokens": self._tokens.close(), "starts": self._starts.close()}
        return {**vars(self.total), "tokens": self.num_tokens, "sources": sources, "shards": [arrays]}


def shard_folder(shards: Path, number: int) -> Path:
    """Where a shard is, or will be."""
    return shards / f"{number:06d}"


def is_there(shards: Path, number: int) -> bool:
    return (shard_folder(shards, number) / RECORD).is_file()


def write_shard(shards: Path, number: int, shard: Shard, reader: CorpusReader, tokenizer: TextTokenizer) -> int:
    """Makes a shard, unless it is there; returns how many tokens were made.

    Args:
        shards: the folder of all.
        number: of the shard.
        shard: what to read.
        reader: how.
        tokenizer: what makes tokens of it.

    Raises:
        InputError: as the reader; nothing is left behind.
    """
    target = shard_folder(shards, number)
    if is_there(shards, number):
        return 0
    try:
        with new_folder(target) as folder:
            return _fill(folder, number, shard, reader, tokenizer)
    except OSError:
        if is_there(shards, number):  # another process has just made the same
            return 0
        raise


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


def _fill(folder: Path, number: int, shard: Shard, reader: CorpusReader, tokenizer: TextTokenizer) -> int:
    writers: dict[str, TokenWriter] = {}
    empty = 0
    for found in _batches(reader.texts(shard)):
        batch = [text for text in found if text.text]
        empty += len(found) - len(batch)
        if not batch:
            continue
        tokens, lengths = tokenizer.encode([text.text for text in batch], [text.last for text in batch])
        splits = np.array([shard.split or reader.held_out.split(text.key) for text in batch])
        firsts = np.array([text.first for text in batch])
        for split in np.unique(splits).tolist():
            if split not in writers:
                writers[split] = TokenWriter(folder, split, number, tokenizer.vocab_size)
            chosen = splits == split
            own: IntArray = tokens[np.repeat(chosen, lengths)]
            own_lengths = lengths[chosen]
            writers[split].append(own, (np.cumsum(own_lengths) - own_lengths)[firsts[chosen]])
        for text, split, length in zip(batch, splits.tolist(), lengths.tolist(), strict=True):
            writers[split].tally(text, length)
    write_json(folder / RECORD, {"splits": {name: writer.close() for name, writer in writers.items()}, "empty": empty})
    return sum(writer.num_tokens for writer in writers.values())


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
