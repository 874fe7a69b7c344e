"""What an experiment is: cells that are run one by one, claims that judge their rows, and a figure.

A cell is a set of settings, numbers and names alone: it runs in a process of its own, is kept when it is done, and is
not run again. Its rows are dicts of numbers and names too. All rows together are a table, with the settings of its cell
in each; claims and the figure are made of that table alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import product
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Form = Literal["default", "quick", "long"]
Cell = dict[str, Any]
Rows = Iterable[dict[str, Any]]  # of a table
Outcome = Literal["holds", "does not hold", "undecided"]


class Judgement(NamedTuple):
    """What became of a claim."""

    outcome: Outcome
    numbers: str  # those that it rests on, as text

    @classmethod
    def of(cls, holds: Any, numbers: str) -> "Judgement":
        return cls("holds" if holds else "does not hold", numbers)

    @classmethod
    def beyond(cls, difference: float, spread: float, numbers: str) -> "Judgement":
        """Whether a difference is positive; undecided where it is no larger than the spread."""
        return cls("undecided", numbers) if abs(difference) <= spread else cls.of(difference > 0, numbers)


class Claim(NamedTuple):
    """A statement of a paper, and what decides it; all of it is written down before anything is run."""

    name: str  # short, unique within its experiment
    statement: str  # what the paper says, in our words
    rule: str  # when it holds: which number is taken, and the tolerance; results.csv is enough to judge by it
    judge: Callable[..., Judgement]  # (experiment, table of all rows)


def claim(
    rule: str, name: str = "", cases: Iterable[Cell] = ({},)
) -> Callable[[Callable[..., Judgement]], list[Claim]]:
    """Makes a claim of a method (self, rows) of an experiment that judges it; its docstring is the statement.

    Args:
        rule: see `Claim`.
        name: where it is not the method's.
        cases: of several claims, what the method is given by name; it is filled into name, statement and rule.
    """

    def made(judge: Callable[..., Judgement]) -> list[Claim]:
        named, statement = name or judge.__name__, " ".join((judge.__doc__ or "").split())
        return [
            Claim(named.format(**case), statement.format(**case), rule.format(**case), partial(judge, **case))
            for case in cases
        ]

    return made


class Experiment(ABC):
    """A figure, table or theorem of a paper.

    A subclass has its claims, `cells`, `run` and `draw`; it takes no arguments. How long its forms take stands in
    artifacts.yaml.
    """

    claims: ClassVar[list[Claim]]  # all that are made in its body, in their order, unless it says which

    def __init_subclass__(cls) -> None:
        lists = [value for value in vars(cls).values() if isinstance(value, list)]
        found = [one for each in lists for one in each if isinstance(one, Claim)]
        if found and "claims" not in vars(cls):
            cls.claims = found

    @abstractmethod
    def cells(self, form: Form) -> list[Cell]:
        """What is run. "default": the paper's sizes, or what two cores manage of them in under half an hour; "quick": a
        few seconds that show that it runs; "long", where artifacts.yaml has it: up to two hours."""

    @abstractmethod
    def run(self, cell: Cell) -> Rows:
        """One cell's rows, the same whenever it is run: it seeds what it draws from what the cell says."""

    @abstractmethod
    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        """The figure, for a reader who sees nothing else. Its size may be set."""


def grid(**settings: Iterable[Any]) -> list[Cell]:
    """A cell for every combination; the last setting changes first."""
    return [dict(zip(settings, values, strict=True)) for values in product(*settings.values())]


def only(rows: pd.DataFrame, **settings: Any) -> pd.DataFrame:
    """The rows that have these settings."""
    for name, value in settings.items():
        rows = rows[rows[name] == value]
    return rows


def by_seed(rows: pd.DataFrame, keys: Sequence[str], value: str) -> pd.DataFrame:
    """Mean, deviation (0 of a single one) and count of a column over seeds, by `keys`."""
    found = rows.groupby(list(keys), sort=False)[value].agg(["mean", "std", "count"]).reset_index()
    return found.fillna({"std": 0.0})


def draw_mean(axes: Axes, rows: pd.DataFrame, x: str, y: str, style: str = "-", **line: Any) -> None:
    """The mean of a column over another, and its deviation over seeds as a band, cut where an axis of logarithms would
    lose it."""
    found = by_seed(rows, [x], y)
    low, high = found["mean"] - found["std"], found["mean"] + found["std"]
    if axes.get_yscale() == "log":
        low = low.clip(lower=found["mean"] / 10)
    (drawn,) = axes.plot(found[x], found["mean"], style, **line)
    axes.fill_between(found[x], low, high, color=drawn.get_color(), alpha=0.2, linewidth=0)


def slope(x: "pd.Series[float] | pd.Index[float]", y: "pd.Series[float]") -> float:
    """Of log y over log x, by least squares."""
    return float(np.polyfit(np.log(x.to_numpy(float)), np.log(y.to_numpy(float)), 1)[0])
