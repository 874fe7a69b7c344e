"""A metric over one setting or two: lines, bars or a heat map."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lra_ssm.errors import InputError
from lra_ssm.results.groups import Group
from lra_ssm.results.pictures import FAINT, INK, axis_name, line_style, save, tidy
from lra_ssm.results.settings import shown
from lra_ssm.results.tables import spread


def draw_ablation(groups: Sequence[Group], by: Sequence[str], path: Path) -> None:
    """Draws groups over the settings that tell them apart: over one a line (bars where its values are words), over two
    a heat map with the values in its cells. Bars of error are one standard deviation over seeds.

    Raises InputError where no group has a value.
    """
    from matplotlib.figure import Figure

    drawn = [g for g in groups if g.mean is not None]
    if not drawn:
        raise InputError("no run that counts is finished and tested: nothing to draw")
    families: dict[tuple[str, ...], list[Group]] = {}
    for g in drawn:
        families.setdefault((g.task, g.metric) if len(by) == 1 else (g.task, g.metric, g.model, g.variant), []).append(g)
    columns = min(len(families), 3)
    rows = -(-len(families) // columns)
    figure = Figure(figsize=(max(6.5, 5.6 * columns), 0.4 + 4.2 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, members in zip(panels, families.values(), strict=False):
        if len(by) == 1:
            _lines(axes, members, by[0])
        else:
            _heat_map(figure, axes, members, by)
    for axes in panels[len(families) :]:
        axes.set_visible(False)
    save(figure, path)


def _lines(axes: Any, groups: Sequence[Group], name: str) -> None:
    values = sorted({g.by[0] for g in groups if _is_number(g.by[0])})
    numbers = all(_is_number(g.by[0]) for g in groups)
    words = list(dict.fromkeys(shown(g.by[0]) for g in groups))
    lines = list(dict.fromkeys((g.model, g.variant) for g in groups))
    width = 0.8 / len(lines)
    for number, line in enumerate(lines):
        own = [g for g in groups if (g.model, g.variant) == line]
        seeds = sorted({len(g.values) for g in own})
        label = ", ".join(filter(None, line)) + f" ({'–'.join(map(str, {seeds[0]: 0, seeds[-1]: 0}))} seeds)"
        means, errors = [g.mean for g in own], [g.std or 0.0 for g in own]
        style = line_style(number)
        theirs = [(g.by[0], g.comparable) for g in own]
        if numbers:
            places: list[float] = [g.by[0] for g in own]
            axes.errorbar(places, means, errors, marker="o", markersize=4, capsize=3, label=label, **style)
        else:
            places = [words.index(shown(g.by[0])) + (number - (len(lines) - 1) / 2) * width for g in own]
            axes.bar(places, means, width, yerr=errors if any(errors) else None, capsize=3, label=label, color=style["color"])  # fmt: skip
        printed = [(p, r.value) for p, (_, r) in zip(places, theirs, strict=True) if r and math.isfinite(r.value)]
        if printed:
            axes.plot(*zip(*printed, strict=True), "D", color=style["color"], markerfacecolor="white", label=f"{line[0]}, published")  # fmt: skip
    if numbers:
        if values[0] > 0 and values[-1] >= 30 * values[0]:
            axes.set_xscale("log")
    else:
        axes.set_xticks(range(len(words)), words)
        shown_values = [g.mean or 0.0 for g in groups]
        if min(shown_values) > 0 and max(shown_values) < 2 * min(shown_values):
            room = max(max(shown_values) - min(shown_values), 0.02 * max(shown_values))
            axes.set_ylim(bottom=max(0.0, min(shown_values) - room))
            axes.annotate("axis cut", (0.01, 0.01), xycoords="axes fraction", fontsize=7, color=FAINT)
    deviation = "; error bars: ± one standard deviation over seeds" if any(g.std for g in groups) else ""
    axes.set_title(f"{groups[0].task}{deviation}", fontsize=9)
    axes.set(xlabel=name, ylabel=axis_name(groups[0].metric))
    tidy(axes)
    axes.legend(frameon=False, fontsize=8)


def _heat_map(figure: Any, axes: Any, groups: Sequence[Group], by: Sequence[str]) -> None:
    down, across = ([*dict.fromkeys(g.by[i] for g in sorted(groups, key=lambda g: _order(g.by[i])))] for i in (0, 1))
    cells = [[math.nan] * len(across) for _ in down]
    text = {}
    for g in groups:
        place = down.index(g.by[0]), across.index(g.by[1])
        cells[place[0]][place[1]] = float(g.mean or 0.0)
        text[place] = f"{spread(g).replace(' ± ', chr(10) + '± ')}\n({len(g.values)})"
    mapped = axes.imshow(cells, cmap="viridis", aspect="auto")
    finite = [v for row in cells for v in row if math.isfinite(v)]
    middle = (min(finite) + max(finite)) / 2 if finite else 0.0
    for (row, column), words in text.items():
        dark = cells[row][column] < middle
        axes.text(column, row, words, ha="center", va="center", fontsize=8, color="white" if dark else INK)
    axes.set_xticks(range(len(across)), map(shown, across))
    axes.set_yticks(range(len(down)), map(shown, down))
    one = groups[0]
    title = ", ".join(filter(None, (one.task, one.model, one.variant)))
    deviation = "± std " if any(g.std for g in groups) else ""
    axes.set_title(f"{title}; in the cells mean {deviation}(seeds)", fontsize=9)
    axes.set(xlabel=by[1], ylabel=by[0])
    figure.colorbar(mapped, ax=axes, label=axis_name(one.metric))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _order(value: Any) -> tuple[int, float, str]:
    return (0, float(value), "") if _is_number(value) else (1, 0.0, shown(value))
