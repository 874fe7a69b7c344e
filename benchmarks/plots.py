"""The pictures: time and memory against length, and bars for what has no lengths."""

import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from bench import Row

_COLORS = ("#0b5fa5", "#d1495b", "#2e8b57", "#7b4fa3", "#b8860b", "#00798c")
_GREY = "#8a8a8a"


class Bar(NamedTuple):
    """group: bars of one group share a panel and its scale."""

    group: str
    name: str
    value: float


def growth_plot(lines: dict[str, Sequence[Row]], title: str) -> Figure:
    """Milliseconds and megabytes over length, both axes logarithmic: a line for each name's rows."""
    figure = Figure(figsize=(13, 6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _lines(left, lines, lambda row: row.ms, "time of forward + backward, ms")
    _lines(right, lines, lambda row: row.megabytes, "peak memory beyond the inputs, MB")
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return figure


def _lines(axes: Axes, lines: dict[str, Sequence[Row]], value: Callable[[Row], float | None], title: str) -> None:
    for number, (name, rows) in enumerate(lines.items()):
        points = [(row.shape["L"], y) for row in rows if (y := value(row))]
        if points:
            style = {"color": _COLORS[number % len(_COLORS)], "marker": "o", "markersize": 3.5, "label": name}
            axes.loglog(*zip(*points, strict=True), **style)
    lengths = sorted({row.shape["L"] for rows in lines.values() for row in rows})
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axes.xaxis.set_minor_locator(NullLocator())
    if axes.lines:
        low, high = axes.get_ylim()
        end = min(lengths[-1], lengths[0] * high / low)
        axes.plot([lengths[0], end], [low, low * end / lengths[0]], color="#bbbbbb", lw=0.8, label="slope 1: linear")
        axes.set_ylim(low, high)
        axes.legend(fontsize=8, frameon=False)
    axes.set_xlabel("length L")
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#eeeeee")


def bar_plot(bars: Sequence[Bar], unit: str, title: str) -> Figure:
    """Horizontal bars with their values, a panel for each group. "ours" stands out."""
    groups = {group: [bar for bar in bars if bar.group == group] for group in dict.fromkeys(bar.group for bar in bars)}
    sizes = [len(own) + 0.6 for own in groups.values()]
    figure = Figure(figsize=(10, 1.4 + 0.34 * sum(sizes) + 0.5 * len(groups)), layout="constrained")
    figure.suptitle(title if bars else f"{title}\nnothing could be measured", fontsize=10, x=0.01, ha="left")
    panels: Any = figure.subplots(len(groups), squeeze=False, height_ratios=sizes)[:, 0] if groups else []
    with_others = any(bar.name == "ours" for bar in bars)
    for axes, (group, own) in zip(panels, groups.items(), strict=True):
        colors = [_GREY if with_others and bar.name != "ours" else _COLORS[0] for bar in own]
        drawn = axes.barh(range(len(own)), [bar.value for bar in own], color=colors, height=0.6)
        axes.bar_label(drawn, [_number(bar.value) for bar in own], padding=4, fontsize=9)
        axes.set_yticks(range(len(own)), ["\n".join(textwrap.wrap(bar.name, 48)) for bar in own], fontsize=9)
        axes.set_ylim(len(own) - 0.5, -0.5)
        axes.margins(x=0.15)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(group, loc="left", fontsize=10)
        axes.xaxis.set_major_formatter(lambda value, _: _number(value))
        axes.set_xlabel(unit if own is list(groups.values())[-1] else "")
    return figure


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
