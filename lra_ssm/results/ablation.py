"""A metric over one setting or two: lines, bars or a heat map."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lra_ssm.errors import InputError
from lra_ssm.results.groups import Group, is_number, sortable
from lra_ssm.results.pictures import DASHES, INK, axis_name, line_name, panels_of, save, seeds, styles, tidy
from lra_ssm.results.settings import shown
from lra_ssm.results.tables import spread

_MOST_TICKS = 10  # values that stand on an axis, each
# By the dashes of a line: of its published values, and of its bars.
_MARKS = dict(zip(DASHES, "Ds^vP*X", strict=True))
_HATCHES = dict(zip(DASHES, ("", "//", "..", "xx", "\\\\", "++", "oo"), strict=True))


def draw_ablation(groups: Sequence[Group], by: list[str], path: Path) -> None:
    """Draws groups over the settings that tell them apart.

    Over one a line (bars where its values are words), over two a heat map. Error bars are one standard deviation over
    seeds. Raises InputError where no group has a value.
    """
    drawn = [g for g in groups if g.mean is not None]
    if not drawn:
        raise InputError("no run that counts is finished and tested: nothing to draw")
    families: dict[tuple[str, ...], list[Group]] = {}
    for g in drawn:
        lines = () if len(by) == 1 else (g.model, g.variant)
        families.setdefault((g.task, g.metric, *lines), []).append(g)
    figure, panels = panels_of(len(families), 4.2)
    style = styles(drawn, by=False)
    for axes, members in zip(panels, families.values(), strict=True):
        if len(by) == 2:
            _heat_map(figure, axes, members, by)
            continue
        numbers = all(is_number(_by(g)[0]) for g in members)
        draw = _lines if numbers else _bars
        draw(axes, members, style)
        title = members[0].task
        if any(g.std for g in members):
            title += "; error bars: ± one standard deviation over seeds"
        axes.set_title(title, fontsize=9)
        axes.set(xlabel=by[0], ylabel=axis_name(members[0].metric))
        tidy(axes)
    save(figure, path)


def _lines(axes: Any, groups: Sequence[Group], style: dict[str, dict[str, Any]]) -> None:
    """Over numbers, on a logarithmic axis where they span more than a decade and a half."""
    for name in dict.fromkeys(line_name(g, by=False) for g in groups):
        own = [g for g in groups if line_name(g, by=False) == name]
        places = [_by(g)[0] for g in own]
        means = [g.mean for g in own]
        errors = [g.std or 0.0 for g in own]
        look = style[name]
        label = f"{name} {seeds(len(g.values) for g in own)}"
        axes.errorbar(places, means, errors, marker="o", markersize=4, capsize=3, label=label, **look)
        # Of a table that varies the same setting; any other row stands at none of these values.
        (key,) = own[0].by
        setting = key.rpartition(".")[2]
        points = []
        for place, g in zip(places, own, strict=True):
            row = g.comparable
            if row and setting in dict(row.settings) and math.isfinite(row.value):
                points.append((place, row.value))
        if points:
            label = f"{name}, published"
            mark = _MARKS[look["linestyle"]]
            axes.plot(*zip(*points, strict=True), mark, color=look["color"], markerfacecolor="white", label=label)
    values = sorted({_by(g)[0] for g in groups})
    if min(values) > 0 and max(values) >= 30 * min(values):
        axes.set_xscale("log")
    if len(values) <= _MOST_TICKS:
        axes.set_xticks(values, map(shown, values))
        axes.minorticks_off()


def _bars(axes: Any, groups: Sequence[Group], style: dict[str, dict[str, Any]]) -> None:
    """Over words, beside each other those of one word; the value stands above its bar."""
    words: dict[str, list[Group]] = {}
    for g in groups:
        words.setdefault(shown(_by(g)[0]), []).append(g)
    width = 0.85 / max(map(len, words.values()))
    for number, own in enumerate(words.values()):
        for i, g in enumerate(own):
            place = number + (i - (len(own) - 1) / 2) * width
            name = line_name(g, by=False)
            color, dash = style[name].values()
            label = f"{name} {seeds([len(g.values)])}"
            look = {"color": color, "hatch": _HATCHES[dash], "edgecolor": "white"}
            axes.bar(place, g.mean, 0.95 * width, yerr=g.std, capsize=3, label=label, **look)
            top = (place, (g.mean or 0.0) + (g.std or 0.0))
            font = {"fontsize": 7, "color": INK, "rotation": 90 if len(groups) > 8 else 0}
            axes.annotate(f"{g.mean:.{g.decimals}f}", top, (0, 2), textcoords="offset points", ha="center", **font)
    axes.set_xticks(range(len(words)), words)
    axes.margins(y=0.18)


def _heat_map(figure: Any, axes: Any, groups: Sequence[Group], by: list[str]) -> None:
    # By their text: a value may be a list, and 1 is true.
    places = [[shown(value) for value in _by(g)] for g in groups]
    down = _ordered([_by(g)[0] for g in groups])
    across = _ordered([_by(g)[1] for g in groups])
    means = pd.DataFrame(index=down, columns=across, dtype=float)
    for place, g in zip(places, groups, strict=True):
        means.loc[*place] = g.mean
    mapped = axes.imshow(means, cmap="viridis", aspect="auto")
    finite = means.where(np.isfinite(means)).stack()
    middle = (finite.min() + finite.max()) / 2
    for place, g in zip(places, groups, strict=True):
        value = spread(g).replace(" ± ", "\n± ")
        color = "white" if means.loc[*place] < middle else INK
        x, y = across.index(place[1]), down.index(place[0])
        axes.text(x, y, f"{value}\n({len(g.values)})", ha="center", va="center", fontsize=8, color=color)
    axes.set_xticks(range(len(across)), across)
    axes.set_yticks(range(len(down)), down)
    one = groups[0]
    title = ", ".join(filter(None, (one.task, one.model, one.variant)))
    deviation = "± std " if any(g.std for g in groups) else ""
    axes.set_title(f"{title}; in the cells mean {deviation}(seeds)", fontsize=9)
    axes.set(xlabel=by[1], ylabel=by[0])
    figure.colorbar(mapped, ax=axes, label=axis_name(one.metric))


def _by(g: Group) -> list[Any]:
    return list(g.by.values())


def _ordered(values: list[Any]) -> list[str]:
    """Their texts, each once: numbers by size, then words."""
    return list(dict.fromkeys(map(shown, sorted(values, key=sortable))))
