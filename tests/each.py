"""Cases too small to be tests of their own: what pytest does for each test would cost more than they compute."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest


def each(names: str | Sequence[str], cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As `pytest.mark.parametrize`, but one test goes through all cases and stops at the first that fails, which its
    failure names; cases with marks of their own, as slow, are a test more."""
    argnames = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    groups: dict[str, Any] = {}
    for case in cases:
        if not hasattr(case, "marks"):
            case = pytest.param(*(case if len(argnames) > 1 else (case,)))
        marks = groups.setdefault(" ".join(mark.name for mark in case.marks), (case.marks, []))
        marks[1].append(dict(zip(argnames, case.values, strict=True)))

    usual = list(groups) == [""]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        label = "_".join(["each", *argnames])

        def through_all(**given: Any) -> None:
            for case in groups[given.pop(label, "")][1]:
                try:
                    test(**given, **case)
                except BaseException as error:
                    error.add_note(f"in the case {case}")
                    raise

        left = [p for name, p in inspect.signature(test).parameters.items() if name not in argnames]
        own = [] if usual else [inspect.Parameter(label, inspect.Parameter.KEYWORD_ONLY)]
        through_all.__signature__ = inspect.Signature([*left, *own])  # type: ignore[attr-defined]
        for name in ("__name__", "__qualname__", "__doc__", "__module__"):
            setattr(through_all, name, getattr(test, name))
        through_all.__dict__["pytestmark"] = getattr(test, "pytestmark", [])
        if usual:
            return through_all
        params = [pytest.param(name, marks=marks, id=name or "usual") for name, (marks, _) in groups.items()]
        return pytest.mark.parametrize(label, params)(through_all)

    return decorate
