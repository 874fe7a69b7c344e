"""Progress on the standard error. rich is imported only where a bar is drawn."""

import sys
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from lra_ssm.errors import squeeze

if TYPE_CHECKING:
    from rich.progress import Progress

Item = TypeVar("Item")

AFTER_S = 2.0  # nobody waits for a bar that long
LINE_EVERY_S = 30.0  # where there is no terminal


class Bar:
    """How much is done, how fast, and what time is left: in a terminal a bar, elsewhere (a job's log) now and then a
    plain line; neither of what is soon over.

    Args:
        what: what stands before it.
        total: of bytes or of examples; None where nobody knows.
        in_bytes: whether these are bytes.
        done: what was done before, which does not count for the speed.
        show: False for none at all (rich draws one at a time, so a caller with its own wants none here).
    """

    def __init__(
        self, what: str, total: int | None = None, *, in_bytes: bool = False, done: int = 0, show: bool = True
    ) -> None:
        self._what, self._total, self._in_bytes, self._show = squeeze(what), total, in_bytes, show
        self._done = self._before = done
        self._began = time.monotonic()
        self._next = self._began + (AFTER_S if sys.stderr.isatty() else LINE_EVERY_S)
        self._progress: Progress | None = None
        self._task: Any = None

    def __enter__(self) -> "Bar":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._draw()
            self._progress.stop()

    def advance(self, count: int) -> None:
        """So much more is done."""
        self.update(self._done + count, self._total)

    def update(self, done: int, total: int | None) -> None:
        """So much is done, of so much."""
        self._done, self._total = done, total
        now = time.monotonic()
        if not self._show or now < self._next:
            return
        if sys.stderr.isatty():
            self._next = now + 0.1
            self._draw()
        else:
            self._next = now + LINE_EVERY_S
            print(self._line(now - self._began), file=sys.stderr, flush=True)

    def _draw(self) -> None:
        from rich import progress
        from rich.console import Console
        from rich.markup import escape  # a file's name may have brackets, which would be markup

        if self._progress is None:
            counts = (
                (progress.DownloadColumn(), progress.TransferSpeedColumn())
                if self._in_bytes
                else (progress.MofNCompleteColumn(),)
            )
            columns = progress.TextColumn("{task.description}"), progress.BarColumn(), *counts
            self._progress = progress.Progress(*columns, progress.TimeRemainingColumn(), console=Console(stderr=True))
            self._task = self._progress.add_task(escape(self._what), completed=self._before, total=self._total)
            self._progress.start()
        self._progress.update(self._task, completed=self._done, total=self._total)

    def _line(self, seconds: float) -> str:
        scale, unit = (1e6, " MB") if self._in_bytes else (1, "")
        rate = (self._done - self._before) / max(seconds, 1e-9)
        of = "" if self._total is None else f" of {self._total / scale:,.0f}"
        left = timedelta(seconds=round((self._total - self._done) / rate)) if self._total and rate else "?"
        return f"{self._what}: {self._done / scale:,.0f}{of}{unit}, {rate / scale:,.1f}{unit}/s, {left} left"


def with_bar(items: Iterable[Item], what: str, total: int) -> Iterator[Item]:
    """The items, `total` of them, with a bar that counts them."""
    with Bar(what, total) as bar:
        for item in items:
            yield item
            bar.advance(1)
