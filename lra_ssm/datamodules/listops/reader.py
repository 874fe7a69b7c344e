"""Reads ListOps in the layout that the Long Range Arena published it in.

Three files basic_{train,val,test}.tsv, a header `Source\\tTarget`, then one expression and its value per line:
`( ( ( [MAX 2 ) 9 ) ] )\\t9`. The parentheses only repeat the structure that `[OP … ]` already shows; as in the public
code they are dropped, and `X`, its spelling of `]`, is accepted.
"""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from lra_ssm.datamodules.fetch.lra_release import ReleasedFiles
from lra_ssm.datamodules.fetch.sources import LineFile
from lra_ssm.datamodules.listops.trees import CLOSE_ID, EOS_ID, FIRST_DIGIT_ID, FIRST_OPERATOR_ID, VOCABULARY
from lra_ssm.datamodules.storage.arrays import IntArray
from lra_ssm.errors import InputError

NAMES = {"train": "basic_train.tsv", "val": "basic_val.tsv", "test": "basic_test.tsv"}
FILES = ReleasedFiles("ListOps", "listops-1000", NAMES, ("listops",))
PUBLISHED_COUNTS = {"train": 96_000, "val": 2_000, "test": 2_000}
HEADER = b"Source\tTarget"

_IDS = {token.encode(): index for index, token in enumerate(VOCABULARY) if index >= FIRST_DIGIT_ID} | {b"X": CLOSE_ID}
_LABELS = {str(digit).encode(): digit for digit in range(10)}
_LINES_PER_CHUNK = 1000


class Chunk(NamedTuple):
    """Consecutive sequences of a file, `<eos>` included: tokens one after another, lengths (n,), labels (n,)."""

    tokens: IntArray
    lengths: list[int]
    labels: list[int]


def read(file: LineFile, max_length: int, limit: int | None = None) -> Iterator[Chunk]:
    """Yields a file's sequences in order.

    Args:
        file: not read yet.
        max_length: longest permitted sequence, `<eos>` included. Nothing is ever cut.
        limit: only so many expressions; None for all.

    Raises:
        InputError: `FILE:LINE: what is wrong`, at the first line that is not as published.
    """
    lines = iter(file)
    header = next(lines, b"")
    if header.rstrip(b"\r\n") != HEADER:
        raise file.wrong(f"the header is {_quote(header)} instead of 'Source\\tTarget'")
    parsed = (_parse(line, file, max_length) for line in islice(lines, limit))
    while some := list(islice(parsed, _LINES_PER_CHUNK)):
        sequences, labels = zip(*some, strict=True)
        flat = b"".join(map(bytes, sequences))
        yield Chunk(np.frombuffer(flat, np.uint8), list(map(len, sequences)), list(labels))
    if file.number == 1:
        raise file.wrong("the file ends after its header; it holds no expression")


def _parse(line: bytes, file: LineFile, max_length: int) -> tuple[list[int], int]:
    source, tab, target = line.rstrip(b"\r\n").partition(b"\t")
    if not tab:
        raise file.wrong(f"no tab and label after the expression (truncated?): …{_quote(line[-40:])}")
    if target not in _LABELS:
        raise file.wrong(f"the label is {_quote(target)} instead of one digit 0-9")
    where = f"{file.path}:{file.number}"
    return parse_expression(source, max_length, where, ", so raise max_length"), _LABELS[target]


def parse_expression(source: bytes, max_length: int, where: str, advice: str = "") -> list[int]:
    """The tokens of one expression, `<eos>` included; parentheses are dropped.

    Args:
        source: the expression alone.
        max_length: longest permitted sequence, `<eos>` included.
        where: what errors begin with.
        advice: what is said of one that is too long.

    Raises:
        InputError: a token is unknown, brackets do not match, or the sequence is too long.
    """
    tokens = source.replace(b"(", b" ").replace(b")", b" ").split()
    try:
        sequence = [_IDS[token] for token in tokens]
    except KeyError as error:
        known = " ".join(VOCABULARY[FIRST_DIGIT_ID:])
        raise InputError(f"{where}: token {_quote(error.args[0])} is none of {known} ( )") from None
    if len(sequence) > max_length - 1:
        raise InputError(
            f"{where}: the expression has {len(sequence)} tokens, more than max_length - 1 = {max_length - 1} (one is"
            f" for <eos>); nothing is cut silently{advice}"
        )
    _check_brackets(sequence, where)
    sequence.append(EOS_ID)
    return sequence


def _check_brackets(sequence: list[int], where: str) -> None:
    ids = np.array(sequence, dtype=np.uint8)
    closing = ids == CLOSE_ID
    depth = np.cumsum((ids >= FIRST_OPERATOR_ID).astype(np.int32) - 2 * closing)
    # An operator counts +1 and, being no larger than CLOSE_ID, a closing bracket +1 - 2. The expression is whole where
    # the depth comes back to 0 at its last token and not before.
    if not len(ids) or depth[-1] != 0 or (depth[:-1] <= 0).any():
        opened, closed = int((ids >= FIRST_OPERATOR_ID).sum() - closing.sum()), int(closing.sum())
        raise InputError(
            f"{where}: brackets do not match ({opened} operators, {closed} closing; truncated expression?)"
        )


def _quote(data: bytes) -> str:
    return repr(data[:60].decode("utf-8", errors="replace").rstrip("\r\n"))
