"""Tables as plain text."""

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from io import StringIO
from typing import IO, Literal

from lra_ssm.errors import printable

_BREAKS = re.compile(r"(\s+|(?<=[/_])(?=[^\s/_]))")


def terminal_width(stream: IO[str] | None = None) -> int | None:
    """Columns of the terminal that a stream is (default: the standard output); None where it is a file, a pipe or a
    notebook, or where the terminal takes plain lines alone."""
    if not (stream or sys.stdout).isatty() or os.environ.get("TERM") == "dumb":
        return None
    return shutil.get_terminal_size().columns


def wrapped(line: str, indent: int = 2) -> str:
    """A line broken between words where the terminal ends, its further lines indented."""
    return textwrap.fill(
        line, terminal_width() or 10_000, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


def duration(seconds: float, at_least: bool = False) -> str:
    """30 s, 10.3 min, 2.8 h, 4.6 d; ≥ 2.8 h of what took at least so long."""
    size, unit = next((s, u) for s, u in ((86400, "d"), (3600, "h"), (60, "min"), (0, "s")) if seconds >= 2 * s)
    return f"{'≥ ' * at_least}{seconds / (size or 1):.{int(size > 0)}f} {unit}"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1, width: int | None = None) -> str:
    """Rows under their columns' names; the first `left` columns are aligned to the left, the others to the right.

    width: columns of the terminal, in which cells that are too long take several lines; None for no limit.

    What cannot be printed in a cell stands there as its escape.

    Raises ValueError for a row of another width.
    """
    rows = list(rows)
    if any(len(row) != len(columns) for row in rows):
        raise ValueError(f"a row has not {len(columns)} cells")
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [[printable(" ".join(cell.split())) for cell in row] for row in (columns, *rows)]
    widths = _longest(cells, lambda cell: [cell])
    if width is not None:  # by rich's own widths (15.0) a number loses its last digit where a text could take two lines
        room = width - len(columns) + 1
        least = _longest(cells, str.split)
        if sum(least) > room:  # then words are broken behind / and _, and where that is not enough the longest anywhere
            least = _longest(cells, _BREAKS.split)
        while sum(widths) > room and max(widths) > 1:
            widest = max(range(len(widths)), key=lambda i: (widths[i] > least[i], widths[i]))
            widths[widest] -= 1
    gap = 2 if width is None or sum(widths) + 2 * (len(columns) - 1) <= width else 1
    drawn = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="none")
    for i, name in enumerate(cells[0]):
        justify: Literal["left", "right"] = "left" if i < left else "right"
        drawn.add_column(Text(_folded(name, widths[i])), justify=justify, overflow="fold", width=widths[i])
    for row in cells[1:]:
        drawn.add_row(*(Text(_folded(cell, size)) for cell, size in zip(row, widths, strict=True)))
    text = StringIO()
    # In a notebook rich would show it there and write nothing.
    Console(file=text, width=width or 10_000, color_system=None, force_jupyter=False, force_terminal=False).print(drawn)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())


def _longest(cells: list[list[str]], parts: Callable[[str], list[str]]) -> list[int]:
    """The length of the longest part of each column's cells."""
    return [max(len(part) for cell in column for part in [*parts(cell), ""]) for column in zip(*cells, strict=True)]


def _folded(cell: str, width: int) -> str:
    """In lines of at most `width`, but for what can be broken neither between words nor behind / and _."""
    wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    if any(len(word) > width for word in cell.split()):
        wrapper.wordsep_simple_re = _BREAKS
    return "\n".join(wrapper.wrap(cell))
