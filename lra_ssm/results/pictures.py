"""What the pictures of results share."""

from pathlib import Path
from typing import Any

from lra_ssm.errors import InputError
from lra_ssm.files import replacing

INK, FAINT = "#222222", "#777777"
COLORS = ("#1f77b4", "#d95f02", "#2a9d5c", "#8b4fbf", "#c0392b", "#8c6d31", "#e377c2", "#5f6b76", "#b5bd00", "#17becf")
DASHES = ("-", "--", ":", "-.")


def line_style(number: int) -> dict[str, Any]:
    """Color and dash of the line of that number: 40 that can be told apart."""
    return {"color": COLORS[number % len(COLORS)], "linestyle": DASHES[number // len(COLORS) % len(DASHES)]}


def axis_name(metric: str) -> str:
    """val/accuracy as `validation accuracy, %`; a loss has no unit that we know."""
    split, _, name = metric.rpartition("/")
    words = {"val": "validation", "test": "test", "train": "training"}.get(split.split()[-1] if split else "", split)
    return f"{words} {name.replace('_', ' ')}{', %' if name.endswith('accuracy') else ''}".strip()


def tidy(axes: Any) -> None:
    axes.grid(color="#e5e5e5", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Any, path: Path) -> None:
    """Writes a PNG file, whole or not at all. Raises InputError where it cannot be written."""
    try:
        with replacing(path, "wb") as file:
            figure.savefig(file, format="png", dpi=110, metadata={"Software": None})
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from error
