"""A metric over one setting or two: lines, bars or a heat map."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lra_ssm.errors import InputError
from lra_ssm.results.groups import Group
from lra_ssm.results.pictures import INK, axis_name, line_name, panels_of, save, seeds, styles, tidy
from lra_ssm.results.settings import shown
from lra_ssm.results.tables import spread

_MOST_TICKS = 10  # values that stand on an axis, each


def draw_ablation(groups: Sequence[Group], by: list[str], path: Path) -> None:
    """Draws groups over the settings that tell them apart: over one a line (bars where its values are words), over two
    a heat map with the values in its cells. Bars of error are one standard deviation over seeds.

    Raises InputError where no group has a value.
    """
    drawn = [g for g in groups if g.mean is not None]
    if not drawn:
        raise InputError("no run that counts is finished and tested: nothing to draw")
    families: dict[tuple[str, ...], list[Group]] = {}
    for g in drawn:
        of = (g.task, g.metric) if len(by) == 1 else (g.task, g.metric, g.model, g.variant)
        families.setdefault(of, []).append(g)
    figure, panels = panels_of(len(families), 4.2)
    style = styles(drawn, by=False)
    for axes, members in zip(panels, families.values(), strict=True):
        if len(by) == 2:
            _heat_map(figure, axes, members, by)
            continue
        numbers = all(_is_number(_by(g)[0]) for g in members)
        (_lines if numbers else _bars)(axes, members, style)
        deviation = "; error bars: ± one standard deviation over seeds" if any(g.std for g in members) else ""
        axes.set_title(f"{members[0].task}{deviation}", fontsize=9)
        axes.set(xlabel=by[0], ylabel=axis_name(members[0].metric))
        tidy(axes)
    save(figure, path)


def _lines(axes: Any, groups: Sequence[Group], style: dict[str, dict[str, Any]]) -> None:
    """Over numbers, on a logarithmic axis where they span more than a decade and a half."""
    for name in dict.fromkeys(line_name(g, by=False) for g in groups):
        own = [g for g in groups if line_name(g, by=False) == name]
        places, means, errors = [_by(g)[0] for g in own], [g.mean for g in own], [g.std or 0.0 for g in own]
        label = f"{name} {seeds(len(g.values) for g in own)}"
        axes.errorbar(places, means, errors, marker="o", markersize=4, capsize=3, label=label, **style[name])
        # Of a table that varies the same setting; any other row stands at none of these values.
        (key,) = own[0].by
        rows = [(_by(g)[0], r.value) for g in own if (r := g.comparable) and key.rpartition(".")[2] in dict(r.settings)]
        rows = [row for row in rows if math.isfinite(row[1])]
        if rows:
            mark = {"-": "D", "--": "s", ":": "^", "-.": "v"}[style[name]["linestyle"]]
            look = {"color": style[name]["color"], "markerfacecolor": "white", "label": f"{name}, published"}
            axes.plot(*zip(*rows, strict=True), mark, **look)
    values = sorted({_by(g)[0] for g in groups})
    if min(values) > 0 and max(values) >= 30 * min(values):
        axes.set_xscale("log")
    if len(values) <= _MOST_TICKS:
        axes.set_xticks(values, map(shown, values))
        axes.minorticks_off()


def _bars(axes: Any, groups: Sequence[Group], style: dict[str, dict[str, Any]]) -> None:
    """Over words, beside each other those of one word; the value stands above its bar."""
    words = list(dict.fromkeys(shown(_by(g)[0]) for g in groups))
    width = 0.85 / max(Counter(shown(_by(g)[0]) for g in groups).values())
    for number, word in enumerate(words):
        own = [g for g in groups if shown(_by(g)[0]) == word]
        for i, g in enumerate(own):
            place = number + (i - (len(own) - 1) / 2) * width
            color, dash = style[line_name(g, by=False)].values()
            look = {"color": color, "hatch": {"-": "", "--": "//", ":": "..", "-.": "xx"}[dash], "edgecolor": "white"}
            label = f"{line_name(g, by=False)} {seeds([len(g.values)])}"
            axes.bar(place, g.mean, 0.95 * width, yerr=g.std, capsize=3, label=label, **look)
            height = (g.mean or 0.0) + (g.std or 0.0)
            axes.annotate(f"{g.mean:.{g.decimals}f}", (place, height), (0, 2), textcoords="offset points",
                          ha="center", fontsize=7, color=INK, rotation=90 if len(groups) > 8 else 0)  # fmt: skip
    axes.set_xticks(range(len(words)), words)
    axes.margins(y=0.18)


def _heat_map(figure: Any, axes: Any, groups: Sequence[Group], by: list[str]) -> None:
    # By their text: a value may be a list, and 1 is true.
    places = [[shown(value) for value in _by(g)] for g in groups]
    means = pd.DataFrame([[*place, g.mean] for place, g in zip(places, groups, strict=True)]).pivot(index=0, columns=1)[
        2
    ]
    down, across = (
        [*dict.fromkeys(shown(_by(g)[i]) for g in sorted(groups, key=lambda g: _order(_by(g)[i])))] for i in (0, 1)
    )
    means = means.reindex(index=down, columns=across)
    mapped = axes.imshow(means, cmap="viridis", aspect="auto")
    finite = means.where(np.isfinite(means)).stack()
    middle = (finite.min() + finite.max()) / 2
    for place, g in zip(places, groups, strict=True):
        words = f"{spread(g).replace(' ± ', chr(10) + '± ')}\n({len(g.values)})"
        color = "white" if means.loc[*place] < middle else INK
        axes.text(
            across.index(place[1]), down.index(place[0]), words, ha="center", va="center", fontsize=8, color=color
        )
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


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _order(value: Any) -> tuple[int, float, str]:
    return (0, float(value), "") if _is_number(value) else (1, 0.0, shown(value))
