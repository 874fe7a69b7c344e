"""Prepared text: one stream of tokens for each split, in shards, and a manifest. Needs no torch.

The manifest has `vocab_size`, `end_of_text`, `tokenizer` (file, sha256, specification) and for each split

    documents, tokens
    bytes           of the documents' UTF-8
    words, lines    separated by whitespace; ended by a newline or the document's end
    sources         {name: {documents, tokens, bytes}}, which add up to the split's
    shards          [{"tokens": entry, "starts": entry}, …], entries as other arrays have them

All shards but the last hold the same number of tokens: how they were appended does not show.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lra_ssm.datamodules.storage.arrays import ArrayFile, IntArray
from lra_ssm.datamodules.storage.format import TokenSplit
from lra_ssm.datamodules.storage.writer import first_outside, token_dtype, write_manifest
from lra_ssm.errors import InputError

__all__ = ["SHARD_BYTES", "TokenSplit", "TokenWriter", "finish"]

SHARD_BYTES = 1 << 30


class TokenWriter:
    """Writes the tokens of a split as `TokenSplit` reads them.

    Args:
        folder: an existing folder; `<split>_tokens_00000.npy`, `<split>_starts_00000.npy` and so on are written there.
        split: its name.
        vocab_size: tokens are 0 … vocab_size − 1.
        shard_bytes: of the tokens of a shard, at most.
        within: the first tokens may belong to a document that began elsewhere.
    """

    def __init__(
        self, folder: Path, split: str, vocab_size: int, shard_bytes: int = SHARD_BYTES, within: bool = False
    ) -> None:
        self.split, self.num_tokens, self.num_documents = split, 0, 0
        self._folder, self._vocab_size, self._within = folder, vocab_size, within
        self._dtype = token_dtype(vocab_size)
        self._shard_tokens = shard_bytes // np.dtype(self._dtype).itemsize
        assert self._shard_tokens >= 1
        self._tokens: ArrayFile | None = None  # of the shard that is being written
        self._starts: ArrayFile | None = None
        self._shards: list[dict[str, Any]] = []

    def append(self, tokens: npt.ArrayLike, starts: npt.ArrayLike) -> None:
        """Appends tokens (n,), or none of them if one is refused.

        Args:
            tokens: of any integer dtype.
            starts: where among these tokens documents begin, rising (m,). What comes before the first of them belongs
                to the document that was appended last.

        Raises:
            InputError: a token is not in the vocabulary.
        """
        tokens, positions = np.asarray(tokens), np.asarray(starts, dtype=np.int64)
        assert tokens.ndim == 1 and (tokens.dtype.kind in "iu" or not tokens.size)
        assert not positions.size or (
            positions[0] >= 0 and positions[-1] < len(tokens) and (np.diff(positions) > 0).all()
        )
        begins = self.num_documents or not tokens.size or (positions.size and positions[0] == 0)
        assert self._within or begins
        wrong = first_outside(tokens, self._vocab_size)
        if wrong is not None:
            raise InputError(
                f"{self._folder.parent.name}: split {self.split}, token number {self.num_tokens + wrong}:"
                f" {tokens[wrong]} is no token: there are {self._vocab_size}, 0 to {self._vocab_size - 1}"
            )
        positions = positions + self.num_tokens
        while tokens.size:
            room = self._shard_tokens - self.num_tokens % self._shard_tokens
            if room == self._shard_tokens:
                self._next_shard()
            self._extend(tokens[:room], positions[positions < self.num_tokens + room])
            tokens, positions = tokens[room:], positions[positions >= self.num_tokens]

    def close(self) -> dict[str, Any]:
        """Finishes the files; returns `shards`, `tokens` and `documents` of the split's entry in the manifest.

        Raises:
            InputError: nothing was appended.
        """
        if not self.num_tokens:
            raise InputError(f"{self._folder.parent.name}: split {self.split} has no documents")
        self._close_shard()
        return {"documents": self.num_documents, "tokens": self.num_tokens, "shards": self._shards}

    def _extend(self, tokens: IntArray, positions: IntArray) -> None:
        assert self._tokens is not None and self._starts is not None
        self._tokens.append(tokens)
        self._starts.append(positions)
        self.num_tokens += len(tokens)
        self.num_documents += len(positions)

    def _next_shard(self) -> None:
        self._close_shard()
        name = f"{len(self._shards):05}.npy"
        self._tokens = ArrayFile(self._folder / f"{self.split}_tokens_{name}", self._dtype)
        self._starts = ArrayFile(self._folder / f"{self.split}_starts_{name}", "<i8")

    def _close_shard(self) -> None:
        if self._tokens is not None and self._starts is not None:
            self._shards.append({"tokens": self._tokens.close(), "starts": self._starts.close()})


def finish(
    folder: Path,
    *,
    dataset: str,
    vocab_size: int,
    end_of_text: int,
    tokenizer: dict[str, Any],
    source: dict[str, Any],
    splits: dict[str, dict[str, Any]],
) -> None:
    """Writes the manifest, last.

    Args:
        folder: with all files in it, the tokenizer's too.
        dataset: its name.
        vocab_size: tokens are 0 … vocab_size − 1.
        end_of_text: the token that ends every document.
        tokenizer: file, sha256, specification.
        source: where the data came from: kind, settings.
        splits: of each what `TokenWriter.close` gave, with bytes, words, lines and sources.
    """
    head = {"dataset": dataset, "vocab_size": vocab_size, "end_of_text": end_of_text}
    write_manifest(folder, {**head, "tokenizer": tokenizer, "source": source, "splits": splits})
