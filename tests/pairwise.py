"""Cross products of a test's cases: by default as many as show every pair of values once; the others in `slow`."""

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

import pytest


def pairwise(*, rest: bool = True, **axes: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrizes a test over the product of its arguments' values.

    The cases that run by default hold each pair of two arguments' values at least once; the others are marked slow, or
    without `rest` left out. A value may be a pytest.param with marks, which all of its cases have.
    """
    values = {name: [v if hasattr(v, "marks") else pytest.param(v) for v in of] for name, of in axes.items()}
    every = list(product(*values.values()))
    usual = [case for case in every if not any(v.marks for v in case)]
    chosen = _covering(usual)
    params = []
    for case in every:
        marks = [mark for v in case for mark in v.marks] or ([] if case in chosen else [pytest.mark.slow])
        if rest or case in chosen or case not in usual:
            label = "-".join(f"{name}={v.values[0]}" for name, v in zip(values, case, strict=True))
            params.append(pytest.param(*(v.values[0] for v in case), marks=marks, id=label))
    return pytest.mark.parametrize(",".join(values), params)


def _covering(cases: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """As few cases as a greedy choice needs for every pair that stands in one of them."""

    def pairs(case: tuple[int, ...]) -> set[Any]:
        return set(combinations(enumerate(case), 2))

    missing = {pair for case in cases for pair in pairs(case)}
    chosen = []
    while missing:
        best = max(cases, key=lambda case: len(pairs(case) & missing))
        chosen.append(best)
        missing -= pairs(best)
    return chosen
