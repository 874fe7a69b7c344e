"""What the pictures of results share."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lra_ssm.errors import InputError
from lra_ssm.files import replacing
from lra_ssm.results.groups import Group
from lra_ssm.results.settings import shown

INK = "#222222"
_COLORS = ("#1f77b4", "#d95f02", "#2a9d5c", "#8b4fbf", "#c0392b", "#8c6d31", "#e377c2", "#5f6b76", "#b5bd00", "#17becf")
_DASHES = ("-", "--", ":", "-.")
_MOST_INSIDE = 4  # entries of a legend that stands in its panel


def styles(groups: Sequence[Group], by: bool) -> dict[str, dict[str, Any]]:
    """Of every line's name how it is drawn: a color for each model and a dash for each of its variants; a color for
    each line where there is one model, or more variants than dashes."""
    models = list(dict.fromkeys(g.model for g in groups))
    lines = list(dict.fromkeys((g.model, line_name(g, by)) for g in groups))
    variants = {model: [name for m, name in lines if m == model] for model in models}
    by_model = len(models) > 1 and max(map(len, variants.values())) <= len(_DASHES)
    found = {}
    for number, (model, name) in enumerate(lines):
        color = models.index(model) if by_model else number
        dash = (variants[model].index(name) if by_model else 0) + color // len(_COLORS)
        found[name] = {"color": _COLORS[color % len(_COLORS)], "linestyle": _DASHES[dash % len(_DASHES)]}
    return found


def line_name(g: Group, by: bool = True) -> str:
    """A group's model and what tells it from others; by: with its values of the settings that make rows."""
    values = [f"{name}={shown(value)}" for name, value in g.by.items()] if by else []
    return ", ".join(filter(None, (g.model, *values, g.variant)))


def seeds(counts: Iterable[int]) -> str:
    """(3 seeds), (1 to 3 seeds)."""
    least, most = min(found := list(counts)), max(found)
    return f"({least} to {most} seeds)" if least != most else f"({most} seed{'s' * (most != 1)})"


def panels_of(count: int, height: float) -> tuple[Any, list[Any]]:
    """A figure and so many panels in it, at most three beside each other."""
    from matplotlib.figure import Figure

    columns = min(count, 3)
    rows = -(-count // columns)
    figure = Figure(figsize=(max(7.0, 5.2 * columns), 0.6 + height * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flatten())
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, panels[:count]


def axis_name(metric: str) -> str:
    """val/accuracy as `validation accuracy, %`; a loss has no unit that we know."""
    split, _, name = metric.rpartition("/")
    words = {"val": "validation", "test": "test", "train": "training"}.get(split.split()[-1] if split else "", split)
    return f"{words} {name.replace('_', ' ')}{', %' if name.endswith('accuracy') else ''}".strip()


def tidy(axes: Any) -> None:
    """A grid, no frame, and a legend: beside the panel where it would cover much of it."""
    axes.grid(color="#e5e5e5", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    count = len(axes.get_legend_handles_labels()[1])
    outside = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if count > _MOST_INSIDE else {}
    axes.legend(frameon=False, fontsize=8, **outside)


def save(figure: Any, path: Path) -> None:
    """Writes a PNG file, whole or not at all. Raises InputError where it cannot be written."""
    try:
        with replacing(path, "wb") as file:
            figure.savefig(file, format="png", dpi=110, metadata={"Software": None})
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from error
