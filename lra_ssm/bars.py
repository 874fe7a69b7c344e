"""How far something is: a bar in a terminal, plain lines elsewhere. rich is imported only where a bar is drawn."""

import math
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Self, TypeVar

from lra_ssm.errors import squeeze
from lra_ssm.tables import duration, terminal_width

if TYPE_CHECKING:
    from rich.progress import Progress

Item = TypeVar("Item")

AFTER_S = 2.0  # nobody waits for a bar that long
LINE_EVERY_S = 30.0  # where there is no terminal


class Bar:
    """How much is done, how fast, and what time is left: in a terminal one bar, one line high, elsewhere (a job's log)
    now and then a plain line; neither of what is soon over.

    Args:
        what: what stands before it.
        total: of bytes, examples or steps; None or infinite where nobody knows.
        unit: what is counted, as it stands behind the rate.
        in_bytes: whether these are bytes.
        done: what was done before, which does not count for the rate; None where the first drawing tells it.
        show: False for none at all (rich draws one at a time, so a caller with its own wants none here).
        stream: where to; default: the standard error.
        bar_every_s: seconds between drawings of the bar.
        line_every_s: seconds between lines where there is no terminal.
    """

    def __init__(
        self,
        what: str,
        total: float | None = None,
        *,
        unit: str = "",
        in_bytes: bool = False,
        done: int | None = 0,
        show: bool = True,
        stream: IO[str] | None = None,
        bar_every_s: float = 0.1,
        line_every_s: float = LINE_EVERY_S,
    ) -> None:
        self.what, self.total, self.done, self.show = squeeze(what), total, done or 0, show
        self._scale = 1e6 if in_bytes else 1.0
        self._unit = " MB" if in_bytes else f" {unit}".rstrip()
        self._stream = sys.stderr if stream is None else stream
        self._in_terminal = terminal_width(self._stream) is not None
        self._every = bar_every_s if self._in_terminal else line_every_s
        now = time.monotonic()
        self._next = now + (AFTER_S if self._in_terminal else line_every_s)
        self._marks: deque[tuple[float, int]] = deque(maxlen=50)  # when it was drawn, and how much was done
        if done is not None:
            self._marks.append((now, done))
        self._live: Progress | None = None
        self._task: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self.draw()
            self.stop()

    def advance(self, count: int) -> None:
        """So much more is done."""
        self.update(self.done + count, self.total)

    def update(self, done: int, total: float | None) -> None:
        """So much is done, of so much."""
        self.done, self.total = done, total
        if self.due():
            self.draw()

    @property
    def is_drawn(self) -> bool:
        """Whether a bar stands in a terminal now."""
        return self._live is not None

    def start(self, text: str = "", at_once: bool = False) -> None:
        """Draws an empty bar, in a terminal. at_once: the first count is drawn, or printed, too, however early."""
        self._next = -math.inf if at_once else self._next
        self._say(text)

    def due(self) -> bool:
        """Whether it is time to draw it again."""
        return self.show and time.monotonic() >= self._next

    def draw(self, where: str = "", more: Iterable[str] = ()) -> None:
        """Draws the bar, or prints a line. where: stands behind the count; more: behind the time left."""
        now = time.monotonic()
        self._next = now + self._every
        self._marks.append((now, self.done))
        since, before = self._marks[0]
        rate = (self.done - before) / (now - since) if self.done > before and now > since else None
        done = f"{self.done / self._scale:,.0f}"
        total = self.total if self.total is not None and math.isfinite(self.total) else None
        parts = [done if total is None else f"{done}/{total / self._scale:,.0f}", where]
        parts[0] += self._unit if self._scale > 1 else ""
        if rate:
            shown = rate / self._scale
            at = f"{shown:.{1 if shown < 100 else 0}f}{self._unit}/s"
            parts.append(at if shown >= 0.1 or self._scale > 1 else f"{duration(1 / rate)} each")
            if total is not None and self.done < total:
                parts.append(f"{duration((total - self.done) / rate)} left")
        parts = [part for part in [*parts, *more] if part]
        if self._in_terminal:
            self._say("  ".join(parts), total)
        else:
            print(f"{self.what} {', '.join(parts)}", file=self._stream, flush=True)

    def _say(self, said: str, total: float | None = None) -> None:
        """Draws the bar with this text behind it, in a terminal."""
        if not self.show or not self._in_terminal:
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        if self._live is None:
            # Not as markup: a file's name may have brackets.
            column = partial(TextColumn, style="none", markup=False)
            what = column("{task.fields[what]}", table_column=Column(no_wrap=True, overflow="ellipsis"))
            text = column("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis"))
            console = Console(file=self._stream)
            self._live = Progress(what, BarColumn(None), text, console=console, auto_refresh=False, expand=True)
            self._task = self._live.add_task("", total=None, what=self.what)
            self._live.console.width = self._width()
            self._live.start()
        self._live.console.width = self._width()
        self._live.update(self._task, completed=self.done, total=total, description=said)
        self._live.refresh()

    def _width(self) -> int:
        """Leaves room for the ^C that a terminal shows: where it began a line, the bar would stay above it."""
        return max(20, (terminal_width(self._stream) or 80) - 2)

    def stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def with_bar(items: Iterable[Item], what: str, total: int) -> Iterator[Item]:
    """The items, `total` of them, with a bar that counts them."""
    with Bar(what, total) as bar:
        for item in items:
            yield item
            bar.advance(1)
