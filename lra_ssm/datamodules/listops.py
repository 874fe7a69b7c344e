"""ListOps: nested operators on digits, ten classes; generated with LRA's distribution or read from LRA's files.

LRA's own generator has no seed and takes its splits from the iteration order of a set. Here expressions come in
numbered blocks, each a pure function of (seed, number), and repeated expressions are dropped.

LRA's files are basic_{train,val,test}.tsv: a header `Source\\tTarget`, then one expression and its value per line:
`( ( ( [MAX 2 ) 9 ) ] )\\t9`. The parentheses only repeat the structure that `[OP … ]` already shows; as in the public
code they are dropped, and `X`, its spelling of `]`, is accepted.

Sources: Nangia and Bowman, "ListOps" (2018); Tay et al., "Long Range Arena" (2021), whose settings are the defaults
(google-research/long-range-arena, lra_benchmarks/data/listops.py).
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import count as count_from
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lra_ssm.bars import with_bar
from lra_ssm.datamodules.download import LRA_DOWNLOAD, LRAFolder
from lra_ssm.datamodules.sequences import SequenceData
from lra_ssm.datamodules.storage import read_lines
from lra_ssm.errors import InputError

SPLITS = ("train", "val", "test")
PUBLISHED = LRAFolder("listops-1000", ("basic_train.tsv", "basic_val.tsv", "basic_test.tsv"), ("listops",))

DIGITS = tuple("0123456789")
CLOSE = "]"


def _median(values: Sequence[int]) -> int:
    """Return int(np.median(values)): the middle value, or the truncated mean of the middle two."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) // 2


def _sum_modulo(values: Sequence[int]) -> int:
    return sum(values) % 10


# In the order of their vocabulary ids.
OPERATORS: dict[str, Callable[[Sequence[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": _median,
    "[SM": _sum_modulo,
}

# This order must not change.
VOCABULARY: tuple[str, ...] = ("<pad>", "<unk>", "<eos>", *DIGITS, *OPERATORS, CLOSE)
PAD_ID, UNK_ID, EOS_ID = 0, 1, 2
FIRST_DIGIT_ID = VOCABULARY.index("0")
FIRST_OPERATOR_ID = VOCABULARY.index("[MIN")
CLOSE_ID = VOCABULARY.index(CLOSE)

OPERATOR_PROBABILITY = 0.25
ATTEMPTS_PER_BLOCK = 500
# Generation stops with an error after this many blocks (50,000 attempts) without a new expression.
WINDOW_BLOCKS = 100

_IDS = {token.encode(): index for index, token in enumerate(VOCABULARY) if index >= FIRST_DIGIT_ID} | {b"X": CLOSE_ID}
_EOS = bytes([EOS_ID])


class ListOps(SequenceData):
    """ListOps, generated or from LRA's files. Batches are `Batch`; every sequence ends with `<eos>`.

    Args:
        source: "generated"; "lra" for LRA's files below the root, which `lra-ssm prepare` can download; or a folder
            with them.
        max_length: longest permitted sequence, `<eos>` included. Nothing is cut: a longer one is an error.
        length_bounds: generated expressions are strictly longer than the first and shorter than the second
            (tokens without parentheses and `<eos>`). This and the following six are only for source "generated".
        max_depth: deepest level of a generated tree; its root is level 1.
        max_args: largest number of arguments of a generated operator; at least 2 are drawn.
        num_train: number of generated training examples.
        num_val: number of generated validation examples.
        num_test: number of generated test examples. No expression occurs twice, within a split or across splits.
        generator_seed: seed of the generated data.
        limit: keep at most this many examples in each split, for trials: the first ones of each file. Only so many are
            generated; val follows train, so they are not the first ones of a larger split. None for all.
    """

    dataset = "listops"
    sources = ("generated", "lra")
    vocabulary = VOCABULARY
    num_classes = 10
    class_names = DIGITS

    source: str = "generated"
    max_length: int = 2048
    length_bounds: tuple[int, int] = (500, 2000)
    max_depth: int = 10
    max_args: int = 10
    num_train: int = 96_000
    num_val: int = 2_000
    num_test: int = 2_000
    generator_seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source != "generated":
            return
        low, high = self.length_bounds = (self.length_bounds[0], self.length_bounds[1])
        self.require(
            low >= 1 and high - low >= 2, "length_bounds", "lengths lie strictly between them (LRA: 500, 2000)"
        )
        what = f"an expression of {high - 1} tokens and its <eos> are longer than max_length {self.max_length}"
        self.require(high <= self.max_length, "length_bounds", what)
        self.require(self.max_args >= 2, "max_args", "must be at least 2 (LRA: 10)")

    def examples(self) -> Iterator[tuple[str, Any, int]]:
        return self._generated() if self.source == "generated" else self._read()

    def files(self) -> list[Path]:
        root = self.source_path() if self.kind == "files" else self.data_root
        if (folder := PUBLISHED.find(root)) is None:
            raise self.missing(f"files of ListOps ({', '.join(PUBLISHED.names)})", how=LRA_DOWNLOAD)
        return [folder / name for name in PUBLISHED.names]

    def fetch(self) -> None:
        if self.source == "lra":
            PUBLISHED.fetch(self.data_root)

    # -- generated -------------------------------------------------------------------------------------------------

    def _generated(self) -> Iterator[tuple[str, Any, int]]:
        counts = {split: getattr(self, f"num_{split}") for split in SPLITS}
        if self.limit is not None:
            counts = {split: min(count, self.limit) for split, count in counts.items()}
        total = sum(counts.values())
        trees = TreeSettings(*self.length_bounds, self.max_depth, self.max_args)
        expressions = generate(trees, self.generator_seed, total)
        drawn = with_bar(expressions, f"generating {total:,} ListOps expressions", total)
        for split, count in counts.items():
            for expression, label in islice(drawn, count):
                yield split, np.frombuffer(expression + _EOS, np.uint8), label

    # -- LRA's files -----------------------------------------------------------------------------------------------

    def _read(self) -> Iterator[tuple[str, Any, int]]:
        for split, path in zip(SPLITS, self.files(), strict=True):
            lines = read_lines(path)
            where, header = next(lines)
            if header != b"Source\tTarget":
                raise InputError(f"{where}: the header is {_quote(header)} instead of 'Source\\tTarget'")
            for where, line in lines:
                source, _, label = line.partition(b"\t")
                if label not in _IDS or not label.isdigit():
                    raise InputError(f"{where}: the label is {_quote(label)} instead of one digit 0-9, after a tab")
                yield split, self._parse(source, where), int(label)

    def _parse(self, source: bytes, where: str) -> list[int]:
        """Return the tokens of an expression with `<eos>`. Raises InputError, which begins with `where`."""
        try:
            sequence = [_IDS[token] for token in source.replace(b"(", b" ").replace(b")", b" ").split()]
        except KeyError as error:
            known = " ".join(VOCABULARY[FIRST_DIGIT_ID:])
            raise InputError(f"{where}: token {_quote(error.args[0])} is not one of {known} ( )") from None
        if len(sequence) >= self.max_length:
            raise InputError(
                f"{where}: the expression has {len(sequence)} tokens and <eos>, more than max_length {self.max_length};"
                " raise it"
            )
        return [*sequence, EOS_ID]


def _quote(data: bytes) -> str:
    return repr(data[:60].decode("utf-8", errors="replace"))


# -- the generator -----------------------------------------------------------------------------------------------------


class TreeSettings(NamedTuple):
    """Parameters of random expressions. Lengths count leaves and two tokens per operator; both bounds are strict."""

    min_length: int = 500
    max_length: int = 2000
    max_depth: int = 10
    max_args: int = 10


class _TooLong(Exception):
    pass


def sample_block(settings: TreeSettings, seed: int, number: int) -> Iterator[tuple[bytes, int]]:
    """Draw ATTEMPTS_PER_BLOCK expressions and yield those within the length bounds, each with its value.

    An expression is its vocabulary ids, one byte each, without `<eos>`.

    Bit for bit a function of its arguments on every supported Python: of `random.Random` it uses seeding with an
    integer and `.random()` only, which the standard library promises not to change.

    LRA draws trees whose root is an operator with probability .25 and a leaf otherwise, then drops those outside the
    bounds. Two shortcuts do not change the distribution of the kept ones. The root is always an operator here: a
    leaf has length 1 and is never kept. And a tree is abandoned as soon as it is too long: how far the stream was
    read by then depends only on numbers already drawn, so what follows is as independent of the past as before.
    """
    digest = hashlib.sha256(f"listops/{seed}/{number}".encode()).digest()
    draw = random.Random(int.from_bytes(digest, "big")).random
    max_length, max_depth, argument_choices = settings.max_length, settings.max_depth, settings.max_args - 1
    functions = tuple(OPERATORS.values())
    tokens = bytearray()
    emit = tokens.append

    def operator(depth: int) -> int:
        kind = int(draw() * 4)
        emit(FIRST_OPERATOR_ID + kind)
        child_depth = depth + 1
        values = []
        for _ in range(2 + int(draw() * argument_choices)):
            if child_depth < max_depth and draw() < OPERATOR_PROBABILITY:
                values.append(operator(child_depth))
            else:
                digit = int(draw() * 10)
                emit(FIRST_DIGIT_ID + digit)
                values.append(digit)
        emit(CLOSE_ID)
        if len(tokens) >= max_length:
            raise _TooLong
        return functions[kind](values)

    for _ in range(ATTEMPTS_PER_BLOCK):
        tokens.clear()
        try:
            label = operator(1)
        except _TooLong:
            continue
        if len(tokens) > settings.min_length:
            yield bytes(tokens), label


def generate(trees: TreeSettings, seed: int, count: int) -> Iterator[tuple[bytes, int]]:
    """Yield `count` distinct expressions with their values, in an order that depends only on (trees, seed).

    Args:
        trees: the distribution of expressions.
        seed: any integer.
        count: how many expressions; a larger count begins with those of a smaller one.

    Raises:
        InputError: too few (new) expressions turn up.
    """
    seen: set[bytes] = set()
    last_new = -1  # the number of the last block that had a new expression
    for number in count_from():
        for expression, label in sample_block(trees, seed, number):
            if expression not in seen:
                seen.add(expression)
                last_new = number
                yield expression, label
                if len(seen) == count:
                    return
        if number - last_new == WINDOW_BLOCKS:
            raise InputError(
                f"ListOps length_bounds ({trees.min_length}, {trees.max_length}), max_depth {trees.max_depth},"
                f" max_args {trees.max_args}: {count} different expressions are asked for, but only {len(seen)}"
                f" turned up in {(number + 1) * ATTEMPTS_PER_BLOCK} attempts; widen the bounds or ask for fewer"
            )
