"""Tables as plain text."""

from collections.abc import Iterable, Sequence
from io import StringIO

from lra_ssm.errors import printable


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Rows under their columns' names; the first `left` columns are aligned to the left, the others to the right.

    What cannot be printed in a cell stands there as its escape.

    Raises ValueError for a row of another width.
    """
    rows = list(rows)
    if any(len(row) != len(columns) for row in rows):
        raise ValueError(f"a row has not {len(columns)} cells")
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, padding=(0, 1), header_style="none")
    for i, name in enumerate(columns):
        drawn.add_column(Text(name), justify="left" if i < left else "right", no_wrap=True)
    for row in rows:
        drawn.add_row(*(Text(printable(" ".join(cell.split()))) for cell in row))
    text = StringIO()
    # In a notebook rich would show it there and write nothing.
    Console(file=text, width=10_000, color_system=None, force_jupyter=False, force_terminal=False).print(drawn)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())
