"""What a metrics.csv holds, read without Lightning."""

import csv
import io
import os
from pathlib import Path

_TAIL = 1 << 14  # bytes at the end that are read first
_FAR = 1 << 20  # and at most


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
            start, size = file.tell(), file.seek(0, os.SEEK_END)
            found: dict[str, float] = {}
            tail = _TAIL
            while True:
                begin = max(start, size - tail)
                file.seek(begin)
                lines = file.read(size - begin).decode(errors="replace").split("\n")
                # A row whose beginning is not there, and one that is not whole yet.
                for row in csv.reader(reversed(lines[begin > start : -1])):
                    if len(found) == len(columns):
                        break
                    for name, text in zip(columns, row, strict=False):
                        if text and name not in found:
                            found[name] = float(text)
                if len(found) == len(columns) or begin == start or tail >= _FAR:
                    return found
                tail *= 8
    except (OSError, ValueError, csv.Error):
        return {}
