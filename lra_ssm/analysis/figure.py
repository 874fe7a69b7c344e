"""The figure of `lra-ssm inspect`: one network, or two below each other on the same scales.

A panel is a function (axes, measures, colors) that draws one network, with a color for each layer. `ROWS` arranges the
panels.
"""

import math
import textwrap
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from torch import Tensor

from lra_ssm.analysis.measure import SCALES, LayerMeasures, Measures, format_value

_GRAY, _RED = "#666666", "#c0392b"
_MAX_EIGENVALUES = 3000  # drawn for a layer
_MAX_POINTS = 120  # in a curve over positions
_MAX_PARAMETERS = 12  # rows that have room for their names
_STYLE: Any = {
    "font.size": 9,
    "axes.labelsize": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
}

Points = tuple[Any, Any]


def _colors(count: int) -> list[str]:
    """Return a color for each layer, from dark to light."""
    return [to_hex(colormaps["viridis"](i / max(1, count - 1) * 0.88)) for i in range(count)]


def _draw_lines(
    axes: Axes, measures: Measures, colors: Sequence[str], points: Callable[[LayerMeasures], Points | None]
) -> bool:
    """Draw a line for each layer that has points; return whether any has."""
    drawn = False
    for layer, color in zip(measures.layers, colors, strict=False):
        if (xy := points(layer)) is not None:
            axes.plot(*xy, color=color, linewidth=1.4)
            drawn = True
    return drawn


def _rms_by_bin(values: Tensor) -> Points:
    """Return start and root mean square of at most _MAX_POINTS stretches of a curve (L,)."""
    stretches = values.double().tensor_split(min(_MAX_POINTS, len(values)))
    starts = np.cumsum([0, *(len(stretch) for stretch in stretches[:-1])])
    return starts, np.array([float(stretch.square().mean().sqrt()) for stretch in stretches])


def _subsample(values: Tensor, limit: int) -> Tensor:
    """Return at most `limit` of the values (n,), evenly spaced from the first to the last."""
    return values[torch.linspace(0, len(values) - 1, min(limit, len(values)), dtype=torch.float64).long()]


def _write_instead(axes: Axes, text: str) -> None:
    """Write why a panel is empty."""
    axes.text(0.5, 0.5, text, ha="center", va="center", color=_GRAY, transform=axes.transAxes)
    axes.set(xlabel="", ylabel="")
    axes.tick_params(which="both", left=False, bottom=False, labelleft=False, labelbottom=False)


def _dashed(axes: Axes, y: float, text: str, x: float, ha: str) -> None:
    """Draw a dashed line at y with its name; x as a fraction of the panel."""
    axes.axhline(y, color=_GRAY, linewidth=0.9, linestyle="--")
    box = {"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 1}
    axes.annotate(text, (x, y), xytext=(0, 3), xycoords=axes.get_yaxis_transform(), textcoords="offset points",
                  ha=ha, va="bottom", fontsize=8, color=_GRAY, bbox=box)  # fmt: skip


def _layer_axis(axes: Axes, measures: Measures) -> None:
    axes.set_xlabel("layer")
    axes.axvspan(0.5, len(measures.layers) + 0.5, alpha=0)
    axes.margins(x=0.01, y=0.12)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


# -- panels --------------------------------------------------------------------------------------------------------


def memory(axes: Axes, measures: Measures, colors: Sequence[str]) -> None:
    axes.set(title="Memory", xlabel="distance from the output, positions", ylabel="dependence within it, %")
    for layer, color in zip(measures.layers, colors, strict=False):
        share = 100 * layer.memory.double().cumsum(0).numpy()
        axes.plot(np.arange(1, len(share) + 1), share, color=color, linewidth=1.4)
        end = int(layer.memory_length)
        axes.plot(end, share[end - 1], "o", color=color, markersize=6, mec="white", clip_on=False, zorder=3)
    _dashed(axes, 95, "95 %", 0.02, "left")
    axes.set_xscale("log")
    axes.xaxis.set_minor_formatter(NullFormatter())  # over few positions their labels would cover each other
    axes.set_ylim(0, 106)


def timescales(axes: Axes, measures: Measures, colors: Sequence[str]) -> None:
    def points(layer: LayerMeasures) -> Points | None:
        if layer.timescales is None:
            return None
        values = layer.timescales.clamp(1e-2, 1e9).sort(descending=True).values
        return torch.linspace(0, 100, len(values)).numpy(), values.numpy()

    axes.set(title="Timescales of the states", xlabel="states that last longer, %")
    axes.set_ylabel("−1/log|λ|, positions")
    if not _draw_lines(axes, measures, colors, points):
        return _write_instead(axes, "no layer has eigenvalues")
    _dashed(axes, measures.length, "sequence length", 0.98, "right")
    axes.set_yscale("log")


def large_input(axes: Axes, measures: Measures, _: Sequence[str]) -> None:
    axes.set(title="Layer 1 with one input enlarged", xlabel="position k", ylabel="relative gradient $S_k$")
    scaled = measures.layers[0].scaled
    for scale, shade in zip(SCALES, ("#b9c7d6", "#5f87b2", "#0b3c6f"), strict=True):
        axes.plot(*_rms_by_bin(scaled[scale].clamp(min=1e-12)), color=shade, linewidth=1.4, label=f"× {scale:g}")
    axes.axvline(len(scaled[SCALES[0]]) // 2, color=_RED, linewidth=0.9, linestyle=":", label="that input")
    axes.set_yscale("log")
    axes.legend(loc="best", handlelength=1, labelspacing=0.2)


def spectrum(axes: Axes, measures: Measures, colors: Sequence[str]) -> None:
    axes.set(title="Eigenvalues λ", xlabel="frequency, turns per position", ylabel="1 − |λ|; the top is unstable")
    drawn, unstable = False, 0
    for layer, color in zip(measures.layers, colors, strict=False):
        if layer.eigenvalues is None:
            continue
        values = layer.eigenvalues.flatten()
        unstable += int((values.abs() >= 1).sum())
        stable = values[values.abs() < 1]
        stable = _subsample(stable[stable.abs().argsort()], _MAX_EIGENVALUES)  # sorted: the slowest one is kept
        turns = stable.angle().abs() / (2 * math.pi)
        axes.plot(turns.numpy(), (1 - stable.abs()).clamp(min=1e-9).numpy(), ".", color=color, markersize=3, alpha=0.5)
        drawn = True
    if not drawn:
        return _write_instead(axes, "no layer has eigenvalues")
    _dashed(axes, 1 / measures.length, "1 / sequence length", 0.98, "right")
    axes.set_yscale("log")
    axes.set_xlim(-0.01, 0.51)
    axes.yaxis.set_inverted(True)
    if unstable:
        axes.set_title(f"{unstable:,} with |λ| ≥ 1", color=_RED, loc="right", fontsize=9)


def gradient_over_weight(axes: Axes, measures: Measures, colors: Sequence[str]) -> None:
    axes.set(title="Gradient over weight", xlabel="● whole parameter   | worst entry")
    norms: dict[str, float] = {}
    for layer in measures.layers:
        for name, ratio in layer.ratios.items():
            norms[name] = max(norms.get(name, 0.0), ratio.norm)
    if not norms:
        return _write_instead(axes, "no layer has parameters")
    if not measures.finite:
        return _write_instead(axes, "gradients are not finite")
    largest = set(sorted(norms, key=lambda name: norms[name], reverse=True)[:_MAX_PARAMETERS])
    names = [name for name in norms if name in largest]
    for layer, color in zip(measures.layers, colors, strict=False):
        for name, ratio in layer.ratios.items():
            if name in largest:
                axes.plot(max(ratio.norm, 1e-12), names.index(name), "o", color=color, markersize=5, alpha=0.85)
                axes.plot(max(ratio.largest, 1e-12), names.index(name), "|", color=color, markersize=9)
    axes.set_xscale("log")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="y", color="#eeeeee")


def gradient(axes: Axes, measures: Measures, colors: Sequence[str]) -> None:
    axes.set(title="Gradient along the sequence", xlabel="position k")
    axes.set_ylabel("‖∂loss/∂$x_k$‖ at its input")
    if not measures.finite:
        return _write_instead(axes, "gradients are not finite: diverged,\nor batch norm without statistics")
    _draw_lines(axes, measures, colors, lambda layer: _rms_by_bin(layer.gradient.clamp(min=1e-20)))
    axes.set_yscale("log")


def step_sizes(axes: Axes, measures: Measures, colors: Sequence[str]) -> None:
    axes.set(title="Step size Δ", ylabel="Δ: 5, 25, 50, 75, 95 %")
    for number, layer, color in zip(count(1), measures.layers, colors, strict=False):
        if layer.delta is None:
            continue
        low, quarter, median, three_quarters, high = np.quantile(layer.delta.numpy(), [0.05, 0.25, 0.5, 0.75, 0.95])
        axes.plot([number] * 2, [low, high], color=color, linewidth=2)
        axes.plot([number] * 2, [quarter, three_quarters], color=color, linewidth=7, solid_capstyle="butt")
        axes.plot(number, median, "o", color="white", markersize=4, mec="#222222")
    _layer_axis(axes, measures)
    if all(layer.delta is None for layer in measures.layers):
        return _write_instead(axes, "no layer has a Δ")
    axes.set_yscale("log")


def step_sizes_by_position(axes: Axes, measures: Measures, colors: Sequence[str]) -> None:
    def points(layer: LayerMeasures) -> Points | None:
        if layer.delta is None:
            return None
        log_delta = layer.delta.clamp(min=1e-30).log()
        return _rms_by_bin((log_delta - log_delta.mean(0)).mean(1).exp())

    axes.set(title="Δ along the sequence", xlabel="position k", ylabel="Δ over its channel's mean")
    if not _draw_lines(axes, measures, colors, points):
        return _write_instead(axes, "no layer has a Δ")
    axes.plot([0, 0], [0.5, 2], alpha=0)  # so that a constant Δ is a flat line, not magnified rounding
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"×{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def forgetting(axes: Axes, measures: Measures, colors: Sequence[str]) -> None:
    axes.set(title="Forgetting by one input × 100", ylabel="earlier share divided by")
    for number, layer, color in zip(count(1), measures.layers, colors, strict=False):
        if math.isfinite(layer.forgetting):
            height = max(layer.forgetting, 1e-3)
            axes.plot([number] * 2, [1, height], color=color, linewidth=2)
            axes.plot(number, height, "o", color=color, markersize=7)
            if len(measures.layers) <= 4:
                axes.annotate(format_value(layer.forgetting), (number, height), xytext=(6, 2), fontsize=8,
                              textcoords="offset points", va="bottom")  # fmt: skip
    axes.axhline(1, color=_GRAY, linewidth=0.9)
    axes.plot([1, 1], [0.5, 10], alpha=0)  # so that 1.001 does not look like a lot
    axes.set_yscale("log")
    _layer_axis(axes, measures)


ROWS = (
    (memory, timescales, large_input),
    (spectrum, gradient_over_weight, gradient),
    (step_sizes, step_sizes_by_position, forgetting),  # left out if no layer has a Δ
)


def draw(networks: Sequence[Measures]) -> Figure:
    """Draw one figure, 12 inches wide: a row of panels for each network and row of `ROWS`.

    The same panel has the same scales for both networks, apart from parameters' names.
    """
    selective = any(layer.delta is not None for measures in networks for layer in measures.layers)
    rows = ROWS if selective else ROWS[:-1]
    header = "\n".join(textwrap.fill(f"{m.title}: {'; '.join(m.facts)}", 165) for m in networks)
    height = 2.75 * len(rows) * len(networks) + 0.19 * header.count("\n") + 0.8
    layout = ConstrainedLayoutEngine(h_pad=0.08, w_pad=0.06)  # inches
    with rc_context(_STYLE):
        figure = Figure(figsize=(12, height), dpi=110, layout=layout, facecolor="white")
        figure.suptitle(header, x=0.008, ha="left", fontsize=9)
        grid = figure.subplots(len(rows) * len(networks), 3, squeeze=False)
        colors = _colors(max(len(measures.layers) for measures in networks))
        for i, panels in enumerate(rows):
            block = grid[i * len(networks) : (i + 1) * len(networks)]
            for column, panel in enumerate(panels):
                first = block[0, column]
                for axes in block[1:, column]:
                    axes.sharex(first)
                    if panel is not gradient_over_weight:  # whose rows are parameters
                        axes.sharey(first)
                for axes, measures in zip(block[:, column], networks, strict=True):
                    panel(axes, measures, colors)
            if len(networks) > 1:
                for axes, measures in zip(block[:, 0], networks, strict=True):
                    axes.set_title(f"{measures.title}\n{axes.get_title(loc='left')}", loc="left")
        lines = [Line2D([], [], color=color, linewidth=3) for color in colors]
        names = [f"layer {i + 1}" for i in range(len(colors))]
        figure.legend(lines, names, loc="outside lower center", ncols=min(len(colors), 12))
    return figure
