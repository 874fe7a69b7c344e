"""The pictures: time and memory against length, and bars for suites without lengths."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from typing import IO, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lra_ssm.bench.compare import Bar, Row

_OURS = ("#0b5fa5", "#d1495b", "#2e8b57", "#7b4fa3", "#b8860b", "#00798c")
_OTHERS = "#8a8a8a"
_LABEL_GAP = 0.045  # of the panel's height


def growth_plot(rows: Sequence[Row], title: str) -> Callable[[IO[bytes]], None]:
    """Two panels, milliseconds and megabytes of forward and backward over length, both axes logarithmic."""
    figure = Figure(figsize=(13, 6.4), layout="constrained")
    panels = figure.subplots(1, 2)
    _lines(panels[0], rows, lambda row: row.ms)
    _lines(panels[1], rows, lambda row: row.memory.megabytes if row.memory else None)
    panels[0].set_title("time of forward + backward, ms", loc="left", fontsize=11)
    panels[1].set_title("peak memory beyond the inputs, MB", loc="left", fontsize=11)
    shape = rows[0].shape
    about = f"batch {shape['batch']}, D = {shape['channels']}, N = {shape['states']}, float32"
    figure.suptitle(f"{about}\n{title}", fontsize=10, x=0.01, ha="left")
    return lambda file: figure.savefig(file, dpi=130, format="png")


def _lines(axes: Axes, rows: Sequence[Row], value: Callable[[Row], float | None]) -> None:
    ends: list[tuple[float, float, str, str]] = []
    names = list(dict.fromkeys(row.contender for row in rows))
    own = [name for name in names if not _is_baseline(name)]
    for name in names:
        points = [(row.shape["length"], v) for row in rows if row.contender == name and (v := value(row))]
        if not points:
            continue
        color = _OTHERS if _is_baseline(name) else _OURS[own.index(name) % len(_OURS)]
        x, y = zip(*points, strict=True)
        axes.plot(x, y, "--" if _is_baseline(name) else "-", color=color, marker="o", markersize=3.5, linewidth=1.8)
        ends.append((x[-1], y[-1], name, color))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    lengths = sorted({row.shape["length"] for row in rows})
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths], fontsize=8)
    axes.minorticks_off()
    axes.set_xlabel("length L")
    axes.set_xlim(lengths[0] * 0.85, lengths[-1] * max(2, lengths[-1] / lengths[0]) ** 0.42)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#eeeeee")
    if ends:
        _slope_one(axes, lengths)
        _direct_labels(axes, ends)


def _is_baseline(name: str) -> bool:
    return name.endswith(("loop over time", "parallel scan"))


def _slope_one(axes: Axes, lengths: Sequence[int]) -> None:
    """A thin line for "twice the length, twice the cost", below all others."""
    low, high = axes.get_ylim()
    start = low * (high / low) ** 0.03
    end = min(lengths[-1], lengths[0] * high / start)
    axes.plot([lengths[0], end], [start, start * end / lengths[0]], color="#bbbbbb", linewidth=0.8, zorder=0)
    axes.set_ylim(low, high)
    axes.annotate("slope 1: linear", (lengths[0], start), xytext=(4, -2), textcoords="offset points",
                  color="#999999", fontsize=8, va="top")  # fmt: skip


def _direct_labels(axes: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Names at the ends of the lines, pushed apart where they would overlap."""
    low, high = (math.log(v) for v in axes.get_ylim())
    heights = {name: (math.log(y) - low) / (high - low) for _, y, name, _ in ends}
    placed: list[tuple[float, float]] = []  # (end of the line, height of its label)
    for x, y, name, color in sorted(ends, key=lambda end: heights[end[2]]):
        height = heights[name]
        for other_x, other in placed:
            if other_x == x and height < other + _LABEL_GAP:
                height = other + _LABEL_GAP
        placed.append((x, height))
        axes.annotate(name, (x, y), xytext=(x * 1.12, math.exp(low + height * (high - low))), textcoords="data",
                      color=color, fontsize=9, va="center")  # fmt: skip


def bar_plot(bars: Sequence[Bar], unit: str, title: str) -> Callable[[IO[bytes]], None]:
    """Horizontal bars with their values, a panel for each group, for suites without lengths. "ours" stands out."""
    if not bars:
        title += "\nnothing could be measured: the table says why"
    groups = {group: [bar for bar in bars if bar.group == group] for group in dict.fromkeys(bar.group for bar in bars)}
    sizes = [len(own) + 0.6 for own in groups.values()]
    figure = Figure(figsize=(10, 1.4 + 0.34 * sum(sizes) + 0.5 * len(groups)), layout="constrained")
    panels: Any = figure.subplots(len(groups), squeeze=False, height_ratios=sizes)[:, 0] if groups else []
    others = any(bar.name == "ours" for bar in bars)
    for axes, (group, own) in zip(panels, groups.items(), strict=True):
        places = range(len(own))
        colors = [_OTHERS if others and bar.name != "ours" else _OURS[0] for bar in own]
        drawn: Any = axes.barh(places, [bar.value for bar in own], color=colors, height=0.6)
        axes.bar_label(drawn, [_number(bar.value) for bar in own], padding=4, fontsize=9)
        axes.set_yticks(places, ["\n".join(textwrap.wrap(bar.name, 48)) for bar in own], fontsize=9)
        axes.set_ylim(len(own) - 0.5, -0.5)
        axes.margins(x=0.15)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(group, loc="left", fontsize=10)
        axes.xaxis.set_major_formatter(lambda value, _: _number(value))
        axes.tick_params(axis="x", labelsize=8)
        if axes is panels[-1]:
            axes.set_xlabel(unit)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return lambda file: figure.savefig(file, dpi=130, format="png")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
