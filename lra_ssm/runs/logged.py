"""What a metrics.csv holds, read without Lightning."""

import csv
import io
import os
from pathlib import Path

_TAIL = 1 << 18  # bytes at the end in which the latest values are looked for


def read_metrics(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Columns, and the rows that are whole and have a step (a kill may leave half a row at the end), of a metrics.csv;
    none of another file."""
    try:
        text = path.read_text(encoding="utf-8")
        reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))
        columns, rows = list(reader.fieldnames or []), list(reader)
    except (FileNotFoundError, UnicodeDecodeError, csv.Error):
        return [], []
    if not {"step", "epoch"} <= set(columns):
        return [], []
    return columns, [row for row in rows if (row["step"] or "").isdecimal()]


def latest(path: Path) -> dict[str, float]:
    """The last value of every column, by name, read from the file's end; of what was logged long ago none."""
    try:
        with open(path, "rb") as file:
            columns = next(csv.reader([file.readline().decode()]), [])
            first, tail = file.tell(), file.seek(0, os.SEEK_END) - _TAIL
            file.seek(max(first, tail))
            lines = file.read().decode(errors="replace").split("\n")[int(tail > first) : -1]  # the whole ones
            rows = [zip(columns, row, strict=False) for row in csv.reader(lines)]
            return {name: float(text) for row in rows for name, text in row if text}
    except (OSError, ValueError, csv.Error):
        return {}
