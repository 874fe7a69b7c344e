"""ListOps: vocabulary, meaning of the operators, and the sampling of one numbered block of expressions.

Source: Nangia and Bowman, "ListOps" (2018); settings as in google-research/long-range-arena,
lra_benchmarks/data/listops.py.
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

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
