"""Batches of windows over a stream of tokens.

Every token of a stream t_0 … t_{N−1} is a target once, and the input at its position is the token before it. The
end-of-text token precedes t_0, as it precedes the first token of every document.

B batch, L length of a window, N tokens of a split.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch

from lra_ssm.datamodules.batches import NOT_SCORED, BatchDataset, TokenBatch
from lra_ssm.datamodules.storage import Array, IntArray
from lra_ssm.errors import InputError


class _Rows(NamedTuple):
    """The rows of a batch: targets begin … end − 1, scored from `scored` on."""

    begin: IntArray  # (B,), as end and scored
    end: IntArray
    scored: IntArray
    fresh: IntArray  # (B,) bool: whether it is a row's first window, where a carried state is dropped


class TokenWindows(BatchDataset):
    """Windows over a stream; `batch` returns a `TokenBatch`.

    reset is true where a document begins: at the positions whose input is the end-of-text token that precedes it.

    Args:
        stream: `tokens` (N,) unsigned, and `starts`, where documents begin, rising, int64: a `Split`, or a dict.
        end_of_text: the token that ends documents.
        length: L, of a window.
        isolate: whether documents are isolated by reset.
    """

    def __init__(self, stream: Mapping[str, Array], end_of_text: int, length: int, isolate: bool) -> None:
        self.stream, self.end_of_text, self.length, self.isolate = stream, end_of_text, length, isolate
        self.size = len(stream["tokens"])

    @abstractmethod
    def rows(self, examples: IntArray) -> _Rows:
        """Return where the rows of examples begin and end."""

    def batch(self, examples: IntArray, epoch: int) -> TokenBatch:
        rows, tokens = self.rows(examples), self.stream["tokens"]
        lengths = rows.end - rows.begin
        width = int(lengths.max())
        windows = np.zeros((len(examples), width + 1), dtype=tokens.dtype)
        for row, begin, end in zip(windows, rows.begin.tolist(), rows.end.tolist(), strict=True):
            if begin:
                row[: end - begin + 1] = tokens[begin - 1 : end]
            else:
                row[0], row[1 : end + 1] = self.end_of_text, tokens[:end]
        inputs, targets = windows[:, :-1].astype(np.int64), windows[:, 1:].astype(np.int64)
        all_full = (lengths == width).all()
        if not all_full:
            padding = np.arange(width) >= lengths[:, None]
            inputs[padding], targets[padding] = 0, NOT_SCORED
        if (rows.scored > rows.begin).any():
            targets[np.arange(width) < (rows.scored - rows.begin)[:, None]] = NOT_SCORED
        return TokenBatch(
            torch.from_numpy(inputs),
            torch.from_numpy(targets),
            self._reset(rows, width),
            None if all_full else torch.from_numpy(lengths),
        )

    def _reset(self, rows: _Rows, width: int) -> torch.Tensor | None:
        if not (self.isolate or rows.fresh.any()):
            return None
        reset = np.zeros((len(rows.begin), width), dtype=bool)
        reset[:, 0] = rows.fresh
        if self.isolate:
            starts = self.stream["starts"]
            low, high = starts.searchsorted(rows.begin), starts.searchsorted(rows.end)
            for row, begin, first, last in zip(reset, rows.begin, low.tolist(), high.tolist(), strict=True):
                row[starts[first:last] - begin] = True
        return torch.from_numpy(reset)


class Windows(TokenWindows):
    """Independent windows: in any order for training, in order for evaluation.

    Window k has the targets kS … kS + L − 1, S the stride. With S = L every token is in one window; with a smaller S,
    windows overlap, and every window but the first scores only its last S targets: the model sees at least L − S tokens
    before each of them.

    Args:
        stream, end_of_text: see `TokenWindows`.
        length: L, of a window; the last one may be shorter.
        isolate: whether documents are isolated by reset, which is None otherwise.
        stride: S; None for L.
    """

    def __init__(
        self,
        stream: Mapping[str, Array],
        end_of_text: int,
        length: int,
        isolate: bool = True,
        stride: int | None = None,
    ) -> None:
        super().__init__(stream, end_of_text, length, isolate)
        self.stride = length if stride is None else stride

    def __len__(self) -> int:
        return 1 + -(-max(self.size - self.length, 0) // self.stride)

    def rows(self, examples: IntArray) -> _Rows:
        begin = examples * self.stride
        end = np.minimum(begin + self.length, self.size)
        scored = np.where(examples == 0, 0, begin + self.length - self.stride)
        return _Rows(begin, end, scored, np.zeros(len(examples), dtype=bool))


class Streams(TokenWindows):
    """A stream cut into as many rows as a batch has: batch t holds window t of each, so that states can be carried on.

    Rows are cut as evenly as possible: none is more than a token longer than another. Where the last windows would have
    a token in some rows and none in the others, those of the longer rows have length L + 1, so that no row of a batch
    is ever without tokens. Example t · B + r is window t of row r. reset is true where a row begins, at the first
    position of its first batch, and where a document does if they are isolated; else it is None.

    Args:
        stream, end_of_text: see `TokenWindows`.
        length: L, of a window.
        num_rows: B, of the global batch.
        isolate: whether documents are isolated by reset.

    Raises:
        InputError: there are fewer tokens than rows.
    """

    def __init__(
        self, stream: Mapping[str, Array], end_of_text: int, length: int, num_rows: int, isolate: bool = True
    ) -> None:
        super().__init__(stream, end_of_text, length, isolate)
        self.num_rows = num_rows
        if self.size < num_rows:
            raise InputError(
                f"{getattr(stream, 'folder', 'text')}: a split of {self.size} tokens cannot be cut into {num_rows}"
                " streams, one for each row of a batch; make batch_size (for evaluation eval_batch_size) smaller"
            )

    def __len__(self) -> int:
        return self.num_rows * -(-(self.size // self.num_rows) // self.length)

    def rows(self, examples: IntArray) -> _Rows:
        window, row = np.divmod(examples, self.num_rows)
        first, last = row * self.size // self.num_rows, (row + 1) * self.size // self.num_rows
        begin = first + window * self.length
        is_last = (window + 1) * self.num_rows == len(self)
        end = np.where(is_last, last, begin + self.length)
        return _Rows(begin, end, begin, window == 0)
