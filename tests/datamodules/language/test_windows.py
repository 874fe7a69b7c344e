"""Windows, streams and sliding evaluation against naive loops over lists."""

from typing import Any

import numpy as np
import pytest
import torch

from lra_ssm.datamodules.batches import NOT_SCORED as NO
from lra_ssm.datamodules.batches import TokenBatch
from lra_ssm.datamodules.language.windows import Streams, TokenWindows, Windows
from lra_ssm.datamodules.loader import EpochBatches
from lra_ssm.errors import InputError
from tests.datamodules.language.helpers import END, documents, stream

SHAPES = [[1], [1, 1], [5], [5, 1, 1, 40, 3, 17, 2], [3] * 20, [97], [2, 60, 1, 1, 1, 9, 1]]
Row = tuple[list[int], list[int], list[bool]]  # inputs, targets, reset of a row without padding


Text = tuple[dict[str, Any], list[list[int]]]  # the arrays of a split, and its documents


@pytest.fixture(params=SHAPES, ids=str)
def text(request: pytest.FixtureRequest) -> Text:
    texts = documents(request.param)
    return stream(texts), texts


def naive_row(texts: list[list[int]], begin: int, end: int, scored: int = 0) -> Row:
    """The targets begin … end − 1, token by token."""
    tokens, starts = [END], []
    for text in texts:
        starts.append(len(tokens) - 1)
        tokens += text
    inputs = [tokens[i] for i in range(begin, end)]
    targets = [tokens[i + 1] if i >= scored else NO for i in range(begin, end)]
    return inputs, targets, [i in starts for i in range(begin, end)]


def naive_sliding(texts: list[list[int]], length: int, stride: int) -> list[Row]:
    """The windows of a stream: each ends `stride` tokens behind the one before, the first is all scored."""
    total, end, rows = sum(map(len, texts)), 0, []
    while end < total:
        scored, end = end, end + (stride if end else length)
        rows.append(naive_row(texts, end - length, min(end, total), scored))
    return rows


def naive_streams(texts: list[list[int]], length: int, num_rows: int) -> list[list[Row]]:
    """Of each row its windows."""
    total = sum(map(len, texts))
    bounds = [r * total // num_rows for r in range(num_rows + 1)]
    rows = []
    for first, last in zip(bounds[:-1], bounds[1:], strict=True):
        cuts = list(range(first, first + total // num_rows, length))
        windows = [naive_row(texts, a, b) for a, b in zip(cuts, [*cuts[1:], last], strict=True)]
        windows[0][2][0] = True
        rows.append(windows)
    return rows


def rows_of(batch: TokenBatch) -> list[Row]:
    """Without the padding, which is checked."""
    assert all(part.dtype == torch.int64 for part in (batch.inputs, batch.targets))
    assert batch.reset is not None and batch.reset.dtype == torch.bool
    width = batch.inputs.shape[1]
    lengths = [width] * len(batch.inputs) if batch.lengths is None else batch.lengths.tolist()
    assert max(lengths) == width and (batch.lengths is None or min(lengths) < width)
    rows = []
    for row, length in enumerate(lengths):
        assert (batch.inputs[row, length:] == 0).all() and (batch.targets[row, length:] == NO).all()
        assert not batch.reset[row, length:].any()
        parts = (batch.inputs, batch.targets, batch.reset)
        rows.append(tuple(part[row, :length].tolist() for part in parts))
    return rows  # type: ignore[return-value]


def in_order(dataset: TokenWindows, batch_size: int) -> list[list[Row]]:
    return [rows_of(dataset.batch(np.array(b), 0)) for b in EpochBatches(len(dataset), batch_size).batches(0)]


@pytest.mark.parametrize("length", [1, 7, 16, 100])
def test_windows_are_those_of_a_naive_loop(text: Text, length: int) -> None:
    split, texts = text
    total = len(split["tokens"])
    expected = [naive_row(texts, begin, min(begin + length, total)) for begin in range(0, total, length)]
    dataset = Windows(split, END, length)
    assert len(dataset) == len(expected)
    assert sum(in_order(dataset, 3), []) == expected
    assert sum(in_order(Windows(split, END, length, stride=length), 5), []) == expected
    assert dataset.batch(np.array([len(expected) - 1]), 0).inputs.shape == (1, len(expected[-1][0]))
    unisolated = Windows(split, END, length, isolate=False).batch(np.arange(len(expected)), 0)
    assert unisolated.reset is None
    assert torch.equal(unisolated.targets, dataset.batch(np.arange(len(expected)), 0).targets)


def test_sliding_windows_are_those_of_a_naive_loop(text: Text) -> None:
    split, texts = text
    for length, stride in ((1, 1), (2, 1), (7, 1), (7, 3), (7, 6), (16, 5), (16, 16), (100, 1), (100, 40)):
        rows = sum(in_order(Windows(split, END, length, stride=stride), 3), [])
        assert rows == naive_sliding(texts, length, stride)


@pytest.mark.parametrize(("length", "num_rows"), [(1, 2), (7, 1), (7, 3), (16, 8), (100, 3)])
def test_streams_go_on_from_batch_to_batch(text: Text, length: int, num_rows: int) -> None:
    split, texts = text
    if (dataset_size := len(split["tokens"])) < num_rows:
        with pytest.raises(InputError, match=f": a split of {dataset_size} tokens cannot be cut into {num_rows} "):
            Streams(split, END, length, num_rows)
        return
    batches = in_order(Streams(split, END, length, num_rows), num_rows)
    assert batches == [list(window) for window in zip(*naive_streams(texts, length, num_rows), strict=True)]


def test_streams_without_isolation_are_reset_only_at_their_beginning() -> None:
    dataset = Streams(stream(documents([3] * 20)), END, 8, 2, isolate=False)
    first, *others = [dataset.batch(np.array(b), 0) for b in EpochBatches(len(dataset), 2).batches(0)]
    assert first.reset is not None and first.reset.tolist() == [[True] + [False] * 7] * 2
    assert len(others) == 3 and all(batch.reset is None for batch in others)
