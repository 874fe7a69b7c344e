"""What a metrics.csv holds, read without Lightning."""

import csv
import io
from pathlib import Path


def read_metrics(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Columns and whole rows of a metrics.csv (a kill may leave half a row at its end); none of another file."""
    try:
        text = path.read_text(encoding="utf-8")
        reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))
        columns, rows = list(reader.fieldnames or []), list(reader)
    except FileNotFoundError:
        return [], []
    except (UnicodeDecodeError, csv.Error):
        return [], []
    return (columns, rows) if {"step", "epoch"} <= set(columns) else ([], [])
