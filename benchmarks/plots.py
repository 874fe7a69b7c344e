"""The pictures: time and memory against length, and bars for what has no lengths."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter

if TYPE_CHECKING:
    from bench import Row

_COLORS = ("#0b5fa5", "#d1495b", "#2e8b57", "#7b4fa3", "#b8860b", "#00798c")
_GREY = "#8a8a8a"
_REST = "other"


class Bar(NamedTuple):
    """group: bars of one group share a panel and its scale."""

    group: str
    name: str
    value: float


def growth_plot(lines: dict[str, list["Row"]], title: str) -> Figure:
    """Milliseconds and megabytes over length, both axes logarithmic: a line for each name's rows."""
    figure = Figure(figsize=(13, 6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _lines(left, lines, lambda row: row.ms, "time of forward + backward, ms")
    _lines(right, lines, lambda row: row.megabytes, "peak memory beyond the inputs, MB")
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return figure


def _lines(axes: Axes, lines: dict[str, list["Row"]], value: Callable[["Row"], float | None], title: str) -> None:
    axes.set_prop_cycle(color=_COLORS)
    known = {name: [row for row in rows if value(row)] for name, rows in lines.items()}
    for name, rows in known.items():
        places = [row.shape["L"] for row in rows]
        axes.loglog(places, list(map(value, rows)), marker="o", markersize=3.5, label=name)
    lengths = sorted({row.shape["L"] for rows in lines.values() for row in rows})
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axes.xaxis.set_minor_locator(NullLocator())
    if any(known.values()):
        low, high = axes.get_ylim()
        first = lengths[0]
        last = min(lengths[-1], first * high / low)
        axes.plot([first, last], [low, low * last / first], color="#bbbbbb", lw=0.8, label="slope 1: linear")
        axes.set_ylim(low, high)
        axes.legend(fontsize=8, frameon=False)
    axes.set_xlabel("length L")
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#eeeeee")


def bar_plot(bars: Sequence[Bar], unit: str, title: str) -> Figure:
    """Horizontal bars with their values, a panel for each group. "ours" stands out."""
    groups: dict[str, list[Bar]] = {}
    for bar in bars:
        groups.setdefault(bar.group, []).append(bar)
    sizes = [len(own) + 0.6 for own in groups.values()]
    height = 1.4 + 0.34 * sum(sizes) + 0.5 * len(groups)
    figure = Figure(figsize=(10, height), layout="constrained")
    if not groups:
        title += "\nnothing could be measured"
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    if not groups:
        return figure
    panels = figure.subplots(len(groups), squeeze=False, height_ratios=sizes)[:, 0]
    with_others = any(bar.name == "ours" for bar in bars)
    for axes, (group, own) in zip(panels, groups.items(), strict=True):
        colors = [_GREY if with_others and bar.name != "ours" else _COLORS[0] for bar in own]
        names = ["\n".join(textwrap.wrap(bar.name, 48)) for bar in own]
        values = [bar.value for bar in own]
        drawn = axes.barh(range(len(own)), values, color=colors, height=0.6)
        axes.bar_label(drawn, map(_number, values), padding=4, fontsize=9)
        axes.set_yticks(range(len(own)), names, fontsize=9)
        axes.set_ylim(len(own) - 0.5, -0.5)
        axes.margins(x=0.15)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(group, loc="left", fontsize=10)
        axes.xaxis.set_major_formatter(lambda value, _: _number(value))
    panels[-1].set_xlabel(unit)
    return figure


def parts_plot(profiles: Mapping[str, Mapping[str, float]], title: str) -> Figure:
    """A bar for each step, by share of its parts, with its time; parts that are nowhere a tenth are one."""
    totals = {name: sum(parts.values()) for name, parts in profiles.items()}
    known = {
        part for name, parts in profiles.items() for part, ms in parts.items() if ms > totals[name] / 10
    } - {_REST}  # fmt: skip
    figure = Figure(figsize=(11, 1.6 + 0.34 * len(profiles)), layout="constrained")
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    axes = figure.subplots()
    begin = dict.fromkeys(profiles, 0.0)
    for number, part in enumerate((*sorted(known), _REST)):
        share = {
            name: sum(ms for key, ms in parts.items() if (key if key in known else _REST) == part) / totals[name]
            for name, parts in profiles.items()
        }
        color = "#d5d5d5" if part == _REST else colormaps["tab10"](number % 10)
        axes.barh(list(profiles), list(share.values()), left=list(begin.values()), color=color, label=part, height=0.7)
        begin = {name: begin[name] + share[name] for name in profiles}
    for row, name in enumerate(profiles):
        axes.text(1.01, row, f"{_number(totals[name])} ms", va="center", fontsize=9)
    axes.set_xlim(0, 1)
    axes.set_ylim(len(profiles) - 0.5, -0.5)
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower left", ncols=4, fontsize=8, frameon=False)
    return figure


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
