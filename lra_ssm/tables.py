"""Tables and lines as plain text that fits a terminal."""

import itertools
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import IO

from lra_ssm.errors import printable


def terminal_width(stream: IO[str] | None = None) -> int | None:
    """Return the width of a stream's terminal (default: the standard output); None if it is not a terminal."""
    if not (stream or sys.stdout).isatty() or os.environ.get("TERM") == "dumb":
        return None
    return shutil.get_terminal_size().columns


def wrapped(line: str, indent: int = 2) -> str:
    """Break a line between words at the width of the terminal, and indent the lines after the first."""
    width = terminal_width() or 10_000
    wrapper = textwrap.TextWrapper(width, subsequent_indent=" " * indent)
    wrapper.break_long_words = wrapper.break_on_hyphens = False
    return wrapper.fill(line)


def duration(seconds: float) -> str:
    """Return a duration as text: 30 s, 10.3 min, 2.8 h, 4.6 d."""
    size, unit = next((s, u) for s, u in ((86400, "d"), (3600, "h"), (60, "min"), (0, "s")) if seconds >= 2 * s)
    return f"{seconds / (size or 1):.{int(size > 0)}f} {unit}"


class _Wrapper(textwrap.TextWrapper):
    """Breaks lines after / and _ too, and anywhere only if that is not enough."""

    wordsep_simple_re = re.compile(r"(\s+|(?<=[/_])(?=[^\s/_]))")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1, width: int | None = None) -> str:
    """Return rows under their columns' names; the first `left` columns are aligned to the left.

    width: columns of the terminal, in which cells that are too long take several lines; None for no limit. Raises
    ValueError for a row of another length.
    """
    cells = [[printable(" ".join(cell.split())) for cell in row] for row in (columns, *rows)]
    if any(len(row) != len(columns) for row in cells):
        raise ValueError(f"a row does not have {len(columns)} cells")
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    words = [max(len(word) for cell in column for word in ["", *cell.split()]) for column in zip(*cells, strict=True)]
    room = 10**9 if width is None else width - len(columns) + 1
    while sum(widths) > room and max(widths) > 1:  # the widest column that still has several words, else the widest
        widest = max(range(len(widths)), key=lambda i: (widths[i] > words[i], widths[i]))
        widths[widest] -= 1
    gap = "  " if sum(widths) + len(columns) - 1 <= room else " "
    lines = []
    for number, row in enumerate(cells):
        parts = [_Wrapper(size, break_on_hyphens=False).wrap(cell) for cell, size in zip(row, widths, strict=True)]
        height = max(map(len, parts))
        # Names stand directly above their columns.
        padded = [[""] * (height - len(part)) + part if number == 0 else part for part in parts]
        for line in itertools.zip_longest(*padded, fillvalue=""):
            texts = zip(line, widths, strict=True)
            lines.append(gap.join(t.ljust(n) if i < left else t.rjust(n) for i, (t, n) in enumerate(texts)).rstrip())
    return "\n".join(lines)
