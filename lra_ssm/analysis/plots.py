"""The figures of a report: every panel is drawn for one network or for two side by side, on the same scales.

A panel is a function (axes, measures); `FIGURES` says which make a figure, what it is called and what is to be seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from torch import Tensor

from lra_ssm.analysis.measure import SCALES, LayerMeasures, Measures

INK, FAINT, ALARM = "#222222", "#777777", "#c0392b"
_DOTS = 3000  # eigenvalues of a layer that are drawn
_VALUES = 1_000_000  # of Δ that quantiles are taken of: torch takes no more than 16 million
_BINS = 120  # points of a curve over positions


def colors(count: int) -> list[str]:
    """One for each layer, the first dark, the last light."""
    return [to_hex(colormaps["viridis"](i / max(1, count - 1) * 0.88)) for i in range(count)]


def short(value: float) -> str:
    """Three digits, and no power of ten below a million."""
    return f"{value:,.0f}" if 1000 <= value < 1e6 else f"{value:.3g}"


def _lines(axes: Axes, measures: Measures, points: Callable[[LayerMeasures], tuple[Any, Any] | None]) -> bool:
    """A line for each layer that has points; whether any has."""
    drawn = False
    for layer, color in zip(measures.layers, colors(len(measures.layers)), strict=True):
        if (xy := points(layer)) is not None:
            axes.plot(*xy, color=color, linewidth=1.4)
            drawn = True
    return drawn


def _binned(values: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Positions and root mean squares of at most _BINS stretches of a curve (L,)."""
    parts = values.double().tensor_split(min(_BINS, len(values)))
    starts = np.cumsum([0, *(len(part) for part in parts[:-1])])
    return starts, np.array([float(part.square().mean().sqrt()) for part in parts])


def _some(values: Tensor, most: int) -> Tensor:
    """At most so many of its values (n,), evenly spaced from the first to the last."""
    return values[torch.linspace(0, len(values) - 1, min(most, len(values)), dtype=torch.float64).long()]


def _nothing(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, ha="center", va="center", color=FAINT, transform=axes.transAxes, fontsize=9)
    axes.set_axis_off()


def _log(axes: Axes, which: str, low: float | None = None) -> None:
    getattr(axes, f"set_{which}scale")("log")
    getattr(axes, f"{which}axis").set_minor_formatter(NullFormatter())
    if low is not None:
        getattr(axes, f"set_{which}lim")(**{"bottom" if which == "y" else "left": low})


def memory(axes: Axes, measures: Measures) -> None:
    def points(m: LayerMeasures) -> tuple[Any, Any]:
        return np.arange(1, len(m.memory) + 1), 100 * m.memory.double().cumsum(0).numpy()

    _lines(axes, measures, points)
    for layer, color in zip(measures.layers, colors(len(measures.layers)), strict=True):
        at = int(layer.effective)
        axes.plot(at, points(layer)[1][at - 1], "o", color=color, markersize=7, mec="white", clip_on=False)
    axes.axhline(95, color=FAINT, linewidth=0.9, linestyle="--")
    axes.annotate("95 %", (1, 95), va="bottom", fontsize=8, color=FAINT)
    _log(axes, "x")
    axes.set_ylim(0, 103)
    axes.set_xlabel("the nearest so many positions")
    axes.set_ylabel("hold this share of the dependence, %")


def timescales(axes: Axes, measures: Measures) -> None:
    def points(m: LayerMeasures) -> tuple[Any, Any] | None:
        if m.timescales is None:
            return None
        values = m.timescales.clamp(max=1e9).sort(descending=True).values
        return torch.linspace(0, 100, len(values)).numpy(), values.clamp(min=1e-2).numpy()

    if not _lines(axes, measures, points):
        return _nothing(axes, "no layer shows its eigenvalues")
    axes.axhline(measures.length, color=FAINT, linewidth=0.9, linestyle="--")
    axes.annotate("length of the sequence", (99, measures.length), ha="right", va="bottom", fontsize=8, color=FAINT)
    _log(axes, "y")
    axes.set_xlabel("share of states that last longer, %")
    axes.set_ylabel("timescale −1/log|λ|, positions")


def delta_range(axes: Axes, measures: Measures) -> None:
    drawn = False
    for i, (m, color) in enumerate(zip(measures.layers, colors(len(measures.layers)), strict=True)):
        if m.delta is None or m.movement is None:
            continue
        q = torch.quantile(_some(m.delta.flatten(), _VALUES), torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95])).tolist()
        axes.plot([i + 1, i + 1], [q[0], q[4]], color=color, linewidth=2)
        axes.plot([i + 1, i + 1], [q[1], q[3]], color=color, linewidth=7, solid_capstyle="butt")
        axes.plot(i + 1, q[2], "o", color="white", markersize=4, mec=INK)
        axes.annotate(f"×{m.movement:.3g}", (i + 1, q[4]), xytext=(0, 4), textcoords="offset points", ha="center",
                      fontsize=8, color=INK)  # fmt: skip
        drawn = True
    if not drawn:
        return _nothing(axes, "no layer has a Δ")
    _log(axes, "y")
    axes.margins(y=0.15)
    _layer_axis(axes, measures)
    axes.set_ylabel("step size Δ")


def delta_moves(axes: Axes, measures: Measures) -> None:
    def points(m: LayerMeasures) -> tuple[Any, Any] | None:
        if m.delta is None:
            return None
        relative = (m.delta.clamp(min=1e-30).log() - m.delta.clamp(min=1e-30).log().mean(0)).mean(1).exp()
        return _binned(relative)

    if not _lines(axes, measures, points):
        return _nothing(axes, "no layer has a Δ")
    _log(axes, "y")
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.45), max(high, 2.2))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"×{value:g}"))
    axes.set_xlabel("position in the sequence")
    axes.set_ylabel("Δ over its channel's mean")


def circle(axes: Axes, measures: Measures) -> None:
    drawn, beyond = False, 0
    for m, color in zip(measures.layers, colors(len(measures.layers)), strict=True):
        if m.eigenvalues is None:
            continue
        values = m.eigenvalues.flatten()
        beyond += int((values.abs() >= 1).sum())
        inside = _some(values[values.abs() < 1], _DOTS)
        turns = inside.angle().abs().numpy() / (2 * math.pi)
        axes.plot(turns, (1 - inside.abs()).clamp(min=1e-9).numpy(), ".", color=color, markersize=2.5, alpha=0.5)
        drawn = True
    if not drawn:
        return _nothing(axes, "no layer shows its eigenvalues")
    axes.axhline(1 / measures.length, color=FAINT, linewidth=0.9, linestyle="--")
    axes.annotate("1 / length", (0.5, 1 / measures.length), ha="right", va="bottom", fontsize=8, color=FAINT)
    _log(axes, "y")
    axes.set_xlim(-0.01, 0.51)
    axes.invert_yaxis()
    said = f"{beyond:,} at or beyond it" if beyond else "none at or beyond it"
    axes.set_title(f"stability boundary above; {said}", fontsize=8.5, color=ALARM if beyond else FAINT, loc="right")
    axes.set_xlabel("frequency, turns per position")
    axes.set_ylabel("distance from it, 1 − |λ|")


def ratios(axes: Axes, measures: Measures) -> None:
    names = list(dict.fromkeys(name for m in measures.layers for name in m.ratios))
    if not names:
        return _nothing(axes, "no layer has parameters")
    if _diverged(measures):
        return _nothing(axes, "the gradients are not finite")
    for m, color in zip(measures.layers, colors(len(measures.layers)), strict=True):
        for name, ratio in m.ratios.items():
            axes.plot(max(ratio.norm, 1e-12), names.index(name), "o", color=color, markersize=5, alpha=0.85)
            axes.plot(max(ratio.largest, 1e-12), names.index(name), "|", color=color, markersize=9)
    _log(axes, "x")
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="y", color="#eeeeee")
    axes.set_xlabel("|gradient| / |weight|: ● of the whole parameter, | of its worst entry")


def scaled(axes: Axes, measures: Measures) -> None:
    m = measures.layers[0]
    for scale, shade in zip(SCALES, ("#b9c7d6", "#5f87b2", "#0b3c6f"), strict=True):
        S = m.scaled[scale].clamp(min=1e-12)
        axes.plot(*_binned(S), color=shade, linewidth=1.4, label=f"× {scale:g}")
    axes.axvline(len(S) // 2, color=ALARM, linewidth=0.8, linestyle=":")
    _log(axes, "y", 1e-12)
    axes.legend(title="that input", fontsize=8, title_fontsize=8, frameon=False, loc="lower right")
    axes.set_xlabel("position k (dotted: the input made larger)")
    axes.set_ylabel("relative gradient S_k, layer 1")


def forgotten(axes: Axes, measures: Measures) -> None:
    for i, (m, color) in enumerate(zip(measures.layers, colors(len(measures.layers)), strict=True)):
        if not math.isfinite(m.forgotten):
            continue
        axes.bar(i + 1, max(m.forgotten, 1e-3) - 1, bottom=1, color=color, width=0.6)
        top = (i + 1, max(1.0, m.forgotten))
        axes.annotate(f"÷{short(m.forgotten)}", top, xytext=(0, 3), textcoords="offset points", ha="center",
                      fontsize=8, color=INK)  # fmt: skip
    axes.axhline(1, color=FAINT, linewidth=0.8)
    _log(axes, "y")
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.5), max(high * 2, 10))
    _layer_axis(axes, measures)
    axes.set_ylabel("share of all before it falls by")


_NOT_FINITE = "the gradients are not finite: the model has diverged, or its batch norm has no statistics yet"


def _diverged(measures: Measures) -> bool:
    return not all(m.gradient.isfinite().all() for m in measures.layers)


def gradients(axes: Axes, measures: Measures) -> None:
    if _diverged(measures):
        return _nothing(axes, _NOT_FINITE)
    _lines(axes, measures, lambda m: _binned(m.gradient.clamp(min=1e-20)))
    _log(axes, "y")
    axes.set_xlabel("position in the sequence")
    axes.set_ylabel("‖∂loss/∂x_k‖ at the layer's input")


def depth(axes: Axes, measures: Measures) -> None:
    if _diverged(measures):
        return _nothing(axes, "")
    sizes = [max(float(m.gradient.double().norm()), 1e-20) for m in measures.layers]
    axes.plot(range(1, len(sizes) + 1), sizes, color=FAINT, linewidth=1, zorder=0)
    for i, (size, color) in enumerate(zip(sizes, colors(len(sizes)), strict=True)):
        axes.plot(i + 1, size, "o", color=color, markersize=8)
    _log(axes, "y")
    axes.margins(y=0.3)
    _layer_axis(axes, measures)
    axes.set_ylabel("‖∂loss/∂x‖ of the whole sequence")


def _layer_axis(axes: Axes, measures: Measures) -> None:
    count = len(measures.layers)
    axes.set_xlim(0.4, count + 0.6)
    axes.set_xticks(range(1, count + 1))
    axes.set_xlabel("layer")


class FigureOf(NamedTuple):
    title: str
    see: str
    panels: tuple[Callable[[Axes, Measures], None], ...]


FIGURES = {
    "memory": FigureOf(
        "What each layer remembers, and for how long",
        "Left: how much of all that a layer's output depends on lies within so many positions (relative gradient,"
        " B2S6 eq. 6, summed up): the further to the right a line rises, the longer the memory; the dot is at 95 "
        "%. Right: how long its states last: above the dashed line they outlive the sequence.",
        (memory, timescales),
    ),
    "delta": FigureOf(
        "How Δ moves with the input",
        "Left: Δ over all channels and positions (dot: median, thick: half, thin: 90 %), and by what factor one "
        "channel's Δ moves within a sequence: ×1 does not look at its input. Right: when it moves, mean over "
        "channels: up is attention to what comes in, down is holding on to what is there.",
        (delta_range, delta_moves),
    ),
    "stability": FigureOf(
        "Which parameters sit near instability",
        "Left: every eigenvalue λ by its distance from |λ| = 1: the higher, the longer it remembers and the more "
        "a small change of its parameters matters; above the dashed line it outlives the sequence. Right: how far"
        " a gradient moves a parameter for its size (StableSSM, fig. 3): the dots on the right are the first to "
        "diverge when the learning rate grows; an entry that is nearly 0 has a large ratio whatever its gradient.",
        (circle, ratios),
    ),
    "bias": FigureOf(
        "What one large input does to memory",
        "Left: the relative gradient of the last output when the input in the middle is made larger (B2S6, "
        "theorems 2 and 5): where the dark line falls left of the dotted one, a large input erases what came "
        "before; lines upon each other mean that it changes nothing. Right: by how much the share of all that "
        "came before falls at × 100: ÷1 keeps it, below 1 it gains, as the large input itself is ignored.",
        (scaled, forgotten),
    ),
    "gradients": FigureOf(
        "Where gradients grow",
        "Left: the loss's gradient at every position of each layer's input: a line that rises or falls over "
        "decades explodes or vanishes along the sequence. Right: its size at each layer: steep means that it "
        "grows or vanishes with depth.",
        (gradients, depth),
    ),
}


def draw(figure: Any, name: str, networks: Sequence[Measures]) -> None:
    """One figure into a matplotlib Figure or SubFigure: a row for each network, a column for each panel, which has the
    same scales in all rows."""
    panels = FIGURES[name].panels
    grid = figure.subplots(len(networks), len(panels), squeeze=False)
    for row, measures in enumerate(networks):
        for column, panel in enumerate(panels):
            axes = grid[row, column]
            panel(axes, measures)
            axes.tick_params(labelsize=8, colors=INK)
            axes.xaxis.label.set_fontsize(9)
            axes.yaxis.label.set_fontsize(9)
            axes.spines[["top", "right"]].set_visible(False)
        if len(networks) > 1:
            grid[row, 0].set_title(measures.title, fontsize=10, loc="left", color=INK, weight="bold")
    for column in range(len(panels)):
        same_scales([grid[row, column] for row in range(len(networks))])
    count = max(len(measures.layers) for measures in networks)
    if count > 1:
        lines = [Line2D([], [], color=color, linewidth=3) for color in colors(count)]
        figure.legend(lines, [f"layer {i + 1}" for i in range(count)], loc="outside upper right", ncols=min(count, 8),
                      fontsize=8, frameon=False, handlelength=1.2)  # fmt: skip


def same_scales(column: Sequence[Axes]) -> None:
    """The widest limits of all panels for each."""
    shown = [axes for axes in column if axes.axison]
    for which in ("x", "y"):
        limits = [getattr(axes, f"get_{which}lim")() for axes in shown]
        if len(limits) < 2 or (which == "y" and shown[0].get_yticklabels() and _named(shown[0])):
            continue
        backwards = limits[0][0] > limits[0][1]
        low, high = min(min(pair) for pair in limits), max(max(pair) for pair in limits)
        for axes in shown:
            getattr(axes, f"set_{which}lim")((high, low) if backwards else (low, high))


def _named(axes: Axes) -> bool:
    """Whether its rows are parameters' names, of each network its own."""
    return any(label.get_text()[:1].isalpha() for label in axes.get_yticklabels())
