"""Batches of windows over streams of tokens.

Of a stream t_0 … t_{N−1} every token is a target once, and the input at its position is the token before: before t_0,
which begins a document as any that an end-of-text token precedes, stands the end-of-text token.

B batch, L length of a window, N tokens of a split.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from lra_ssm.datamodules.batches import BatchDataset, TokenBatch
from lra_ssm.datamodules.old_storage.arrays import IntArray
from lra_ssm.datamodules.old_storage.format import NOT_SCORED, TokenSplit
from lra_ssm.errors import InputError


class _Rows(NamedTuple):
    """The rows of a batch: targets begin … end − 1, scored from `scored` on."""

    stream: IntArray  # (B,), as begin, end and scored
    begin: IntArray
    end: IntArray
    scored: IntArray
    fresh: IntArray  # (B,) bool: whether it is a row's first window, where a carried state is dropped


class TokenWindows(BatchDataset):
    """Windows over one or several streams of the same vocabulary, which examples number through.

    `batch` gives `TokenBatch`. reset is true where a document begins: at the positions whose input is the end-of-text
    token that precedes it.

    Args:
        streams: where from.
        length: L, of a window.
        isolate: whether documents are isolated by reset.
    """

    def __init__(self, streams: Sequence[TokenSplit], length: int, isolate: bool) -> None:
        self.streams, self.length, self.isolate = list(streams), length, isolate
        self.sizes = np.array([stream.num_tokens for stream in streams])
        counts = [self.count(size) for size in self.sizes.tolist()]
        self.firsts = np.cumsum([0, *counts])  # of each stream its first example; at the end how many there are

    @abstractmethod
    def count(self, size: int) -> int:
        """How many examples a stream of so many tokens has."""

    @abstractmethod
    def rows(self, streams: IntArray, examples: IntArray) -> _Rows:
        """Of examples, numbered within their streams."""

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def settings(self) -> dict[str, Any]:
        return {"length": self.length, "isolate": self.isolate}

    def batch(self, examples: IntArray, epoch: int) -> TokenBatch:
        streams = self.firsts.searchsorted(examples, side="right") - 1
        rows = self.rows(streams, examples - self.firsts[streams])
        lengths = rows.end - rows.begin
        width = int(lengths.max())
        found = np.zeros((len(examples), width + 1), dtype=self.streams[0].dtype)
        places = zip(rows.stream.tolist(), rows.begin.tolist(), rows.end.tolist(), strict=True)
        for row, (number, begin, end) in enumerate(places):
            stream = self.streams[number]
            if begin:
                found[row, : end - begin + 1] = stream.tokens(begin - 1, end)
            else:
                found[row, 0], found[row, 1 : end + 1] = stream.end_of_text, stream.tokens(0, end)
        inputs, targets = found[:, :-1].astype(np.int64), found[:, 1:].astype(np.int64)
        same = (lengths == width).all()
        if not same:
            padding = np.arange(width) >= lengths[:, None]
            inputs[padding], targets[padding] = 0, NOT_SCORED
        if (rows.scored > rows.begin).any():
            targets[np.arange(width) < (rows.scored - rows.begin)[:, None]] = NOT_SCORED
        return TokenBatch(
            torch.from_numpy(inputs),
            torch.from_numpy(targets),
            self._reset(rows, width),
            None if same else torch.from_numpy(lengths),
        )

    def _reset(self, rows: _Rows, width: int) -> torch.Tensor | None:
        if not (self.isolate or rows.fresh.any()):
            return None
        reset = np.zeros((len(rows.begin), width), dtype=bool)
        reset[:, 0] = rows.fresh
        for number in np.unique(rows.stream).tolist() if self.isolate else ():
            here = np.flatnonzero(rows.stream == number)
            row, positions = self.streams[number].starts_within(rows.begin[here], rows.end[here])
            reset[here[row], positions - rows.begin[here[row]]] = True
        return torch.from_numpy(reset)


class Windows(TokenWindows):
    """Windows of a stream as examples by themselves: in any order for training, in order for evaluation.

    Window k has the targets kS … kS + L − 1, S the stride. With S = L every token is in one window; with less, windows
    overlap, and of all but a stream's first the last S targets alone are scored: each with at least L − S tokens before
    it that the model sees.

    Args:
        streams: where from.
        length: L, of a window; a stream's last one may be shorter.
        isolate: whether documents are isolated by reset; without, it is None.
        stride: S; None for L.
    """

    def __init__(
        self, streams: Sequence[TokenSplit], length: int, isolate: bool = True, stride: int | None = None
    ) -> None:
        self.stride = length if stride is None else stride
        super().__init__(streams, length, isolate)

    def count(self, size: int) -> int:
        return 1 + -(-max(size - self.length, 0) // self.stride)

    def rows(self, streams: IntArray, examples: IntArray) -> _Rows:
        begin = examples * self.stride
        end = np.minimum(begin + self.length, self.sizes[streams])
        scored = np.where(examples == 0, 0, begin + self.length - self.stride)
        return _Rows(streams, begin, end, scored, np.zeros(len(examples), dtype=bool))


class Streams(TokenWindows):
    """A stream cut into as many rows as a batch has: batch t holds window t of each, so that states can be carried on.

    Rows are cut as evenly as can be, so that none is more than a token longer than another, and where the last windows
    would be a token in some rows and none in the others, those of the longer rows are of L + 1: no row of a batch is
    ever without tokens. Example t · B + r of a stream is window t of row r. reset is true where a row begins, at the
    first position of its first batch, and where a document does if they are isolated; else it is None.

    Several streams follow each other, each cut by itself.

    Args:
        streams: where from.
        length: L, of a window.
        num_rows: B, of the global batch.
        isolate: whether documents are isolated by reset.

    Raises:
        InputError: a stream has fewer tokens than there are rows.
    """

    def __init__(self, streams: Sequence[TokenSplit], length: int, num_rows: int, isolate: bool = True) -> None:
        self.num_rows = num_rows
        for stream in streams:
            if stream.num_tokens < num_rows:
                raise InputError(
                    f"{stream.folder}: a split of {stream.num_tokens} tokens cannot be cut into {num_rows} streams, one"
                    " for each row of a batch; make batch_size (for evaluation eval_batch_size) smaller"
                )
        super().__init__(streams, length, isolate)

    def count(self, size: int) -> int:
        return self.num_rows * -(-(size // self.num_rows) // self.length)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "streams": self.num_rows}

    def rows(self, streams: IntArray, examples: IntArray) -> _Rows:
        window, row = np.divmod(examples, self.num_rows)
        sizes = self.sizes[streams]
        first, last = row * sizes // self.num_rows, (row + 1) * sizes // self.num_rows
        begin = first + window * self.length
        is_last = (window + 1) * self.num_rows == np.diff(self.firsts)[streams]
        end = np.where(is_last, last, begin + self.length)
        return _Rows(streams, begin, end, begin, window == 0)
