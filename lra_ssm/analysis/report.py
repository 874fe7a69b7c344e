"""The report of `lra-ssm inspect`: one PNG, and one HTML file that needs nothing else, of one network or two."""

import base64
import html
import io
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from lra_ssm.analysis.measure import LayerMeasures, Measures
from lra_ssm.analysis.plots import FAINT, FIGURES, INK, draw, short
from lra_ssm.tables import table

_WIDTH, _ROW = 11.5, 3.3  # inches, of a figure and of a row of its panels
_CSS = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1180px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; margin-bottom: 0; } h2 { font-size: 1.15em; margin: 2em 0 0; }
p.facts, figcaption { color: #555; } figure { margin: 0; } img { width: 100%; height: auto; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; margin: .6em 0 1.4em; }
th, td { padding: .25em .8em; text-align: right; border-bottom: 1px solid #e4e4e4; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; } th { font-weight: 600; vertical-align: bottom; }
.alarm { color: #c0392b; font-weight: 600; }
"""

_TITLE = {"fontsize": 13, "weight": "bold", "color": INK}
_FACTS = {"fontsize": 9, "color": FAINT}

# column -> what it says, shown under the table
COLUMNS = {
    "layer": "",
    "remembers": "positions that hold 95 % of what the last output depends on (of the middle one, and in both"
    " directions, where a layer looks ahead)",
    "longest timescale": "of its states, in positions",
    "outlive": "share of states with a timescale beyond the sequence",
    "Δ": "median over channels and positions",
    "Δ moves": "by this factor within a channel over the sequence",
    "least 1 − |λ|": "distance of the slowest state from instability",
    "forgets": "by how much one input made 100 times as large divides the share of what came before it",
    "‖∂loss/∂x‖": "at the layer's input",
    "worst parameter": "the one of the largest gradient for its size, and that ratio",
}


def row(number: int, layer: LayerMeasures, length: int) -> list[str]:
    """The cells of a layer's row, in the order of COLUMNS."""
    none = "–"
    long = none if layer.timescales is None else short(float(layer.timescales.max()))
    outlive = none if layer.timescales is None else f"{100 * float((layer.timescales > length).float().mean()):.3g} %"
    worst = max(layer.ratios.items(), key=lambda pair: pair[1].norm, default=None)
    return [
        f"{number} {layer.kind}" + ("" if layer.causal else ", both directions"),
        f"{layer.effective:,.0f}",
        long,
        outlive,
        none if layer.delta is None else f"{float(layer.delta.median()):.3g}",
        none if layer.movement is None else f"×{layer.movement:.3g}",
        none if layer.distance is None else f"{layer.distance:.2g}",
        f"÷{short(layer.forgotten)}",
        f"{float(layer.gradient.double().norm()):.2g}",
        none if worst is None else f"{worst[0]} {worst[1].norm:.2g}",
    ]


def page(networks: Sequence[Measures], drawn: dict[str, Image.Image]) -> str:
    """The report as one HTML page: images within it, no script, nothing fetched; `drawn` is what `figures` gives."""
    title = " and ".join(measures.title for measures in networks)
    parts = [f"<h1>{html.escape(title)}</h1>"]
    for measures in networks:
        if len(networks) > 1:
            parts.append(f"<h2>{html.escape(measures.title)}</h2>")
        parts.append(f'<p class="facts">{html.escape("; ".join(measures.facts))}</p>')
        parts.append(_table(measures))
    legend = "; ".join(f"<b>{html.escape(name)}</b>: {text}" for name, text in COLUMNS.items() if text)
    parts.append(f'<p class="facts">{legend}.</p>')
    for name, image in drawn.items():
        figure = FIGURES[name]
        source = base64.b64encode(_png(image)).decode()
        parts.append(
            f"<h2>{html.escape(figure.title)}</h2><figure>"
            f'<img alt="{html.escape(figure.title)}" src="data:image/png;base64,{source}">'
            f"<figcaption>{html.escape(figure.see)}</figcaption></figure>"
        )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_CSS}</style></head>\n'
        f"<body>{chr(10).join(parts)}</body></html>\n"
    )


def _table(measures: Measures) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in COLUMNS)
    alarm = list(COLUMNS).index("least 1 − |λ|")
    rows = []
    for i, layer in enumerate(measures.layers):
        bad = layer.distance is not None and layer.distance <= 0
        cells = (
            f'<td class="alarm">{html.escape(cell)}</td>' if bad and j == alarm else f"<td>{html.escape(cell)}</td>"
            for j, cell in enumerate(row(i + 1, layer, measures.length))
        )
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def figures(networks: Sequence[Measures]) -> dict[str, Image.Image]:
    """Those of `FIGURES` that say something, drawn: none about Δ where no layer has one."""
    selective = any(layer.delta is not None for measures in networks for layer in measures.layers)
    return {name: _figure(name, networks) for name in FIGURES if name != "delta" or selective}


def _figure(name: str, networks: Sequence[Measures]) -> Image.Image:
    figure = Figure(figsize=(_WIDTH, _ROW * len(networks) + 0.35), layout="constrained")
    draw(figure, name, networks)
    return _drawn(figure)


def picture(networks: Sequence[Measures], drawn: dict[str, Image.Image]) -> bytes:
    """Facts, figures and sentences below each other, as one PNG."""
    texts = []
    for measures in networks:
        cells = table(list(COLUMNS), [row(i + 1, layer, measures.length) for i, layer in enumerate(measures.layers)])
        texts += [(measures.title, _TITLE | {"fontsize": 15}), ("; ".join(measures.facts), _FACTS)]
        texts.append((cells, {"fontsize": 7.5, "color": INK, "family": "monospace"}))
    images = [_texts(texts)]
    for name, image in drawn.items():
        see = "\n".join(textwrap.wrap(FIGURES[name].see, 165))
        images += [_texts([(FIGURES[name].title, _TITLE)]), image, _texts([(see, _FACTS)])]
    sheet = Image.new("RGB", (max(i.width for i in images), sum(i.height for i in images)), "white")
    top = 0
    for image in images:
        sheet.paste(image, (0, top))
        top += image.height
    return _png(sheet)


def _texts(texts: Sequence[tuple[str, dict[str, Any]]]) -> Image.Image:
    """Texts in their fonts, below each other, each with 4 points of space above and below."""
    heights = [(1.35 * font["fontsize"] * (text.count("\n") + 1) + 8) / 72 for text, font in texts]
    figure, top = Figure(figsize=(_WIDTH, sum(heights))), sum(heights)
    for (text, font), height in zip(texts, heights, strict=True):
        figure.text(0.01, (top - 4 / 72) / sum(heights), text, va="top", linespacing=1.35, **font)
        top -= height
    return _drawn(figure)


def _drawn(figure: Figure) -> Image.Image:
    figure.set(dpi=110, facecolor="white")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, format="png")
    return file.getvalue()
