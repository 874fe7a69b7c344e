"""Progress bars on the standard error. rich is imported only where one is drawn."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from lra_ssm.errors import squeeze

if TYPE_CHECKING:
    from rich.progress import Progress

Item = TypeVar("Item")

# Below these nobody waits long enough for a bar: images are decoded within a second.
TRIVIAL_BYTES = 10_000_000
TRIVIAL_IMAGES = 5000


def _shown(what: str) -> str:
    """A description for rich, which would take brackets in a file's name for its markup."""
    from rich.markup import escape

    return escape(squeeze(what))


def with_bar(items: Iterable[Item], what: str, total: int) -> Iterable[Item]:
    """The items, `total` of them, with a bar on the standard error that counts them; none where nobody looks."""
    if not sys.stderr.isatty():
        return items
    from rich.console import Console
    from rich.progress import track

    return track(items, _shown(what), total, console=Console(stderr=True))


@contextmanager
def image_bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on the standard error, unless there are few images; gives what is called with how many were done."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), disable=total < TRIVIAL_IMAGES) as progress:
        task = progress.add_task(_shown(what), total=total)
        yield lambda count: progress.advance(task, count)


class ByteBar:
    """A bar on the standard error with bytes, speed and time left; stays away where it is trivial or nobody looks.

    Args:
        what: what stands before the bar.
        show: False for none at all (rich draws one at a time, so a caller with its own wants none here).
    """

    def __init__(self, what: str, show: bool = True) -> None:
        self._what = what
        self._show = show and sys.stderr.isatty()
        self._progress: Progress | None = None
        self._task: Any = None
        self._next = 0.0

    def __enter__(self) -> "ByteBar":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def update(self, done: int, total: int | None) -> None:
        """Shows that `done` of `total` bytes are there (None: nobody knows how many come)."""
        now = time.monotonic()
        if not self._show or (now < self._next and done != total):
            return
        self._next = now + 0.1
        if self._progress is None:
            if max(done, total or 0) < TRIVIAL_BYTES:
                return
            self._start(done, total)  # what a resumed download has already does not count for its speed
        assert self._progress is not None
        self._progress.update(self._task, completed=done, total=total)

    def _start(self, done: int, total: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.progress import TransferSpeedColumn as Speed

        columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), Speed(), TimeRemainingColumn()
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._task = self._progress.add_task(_shown(self._what), completed=done, total=total)
        self._progress.start()


class TokenBar:
    """How far a corpus is on its way to tokens: bytes of its files, MB/s (10⁶ bytes), tokens/s and the time left.

    In a terminal a bar, elsewhere a plain line every `line_every_s` (a job's log); neither before two seconds are over.

    Args:
        what: what stands before it.
        total: bytes of the files.
        done: those that were done before, which do not count for the rates.
        line_every_s: seconds between lines where there is no terminal.
    """

    def __init__(self, what: str, total: int, done: int = 0, line_every_s: float = 30.0) -> None:
        self._what, self._total, self._done, self._before = what, total, done, done
        self._tokens = 0
        self._line_every_s = line_every_s
        self._progress: Progress | None = None
        self._task: Any = None

    def __enter__(self) -> "TokenBar":
        self._began = time.monotonic()
        self._next = self._began + (2.0 if sys.stderr.isatty() else self._line_every_s)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._show()
            self._progress.stop()

    def advance(self, size: int, tokens: int) -> None:
        """So many bytes of files and tokens more are done."""
        self._done += size
        self._tokens += tokens
        now = time.monotonic()
        if now < self._next:
            return
        if sys.stderr.isatty():
            self._next = now + 0.2
            self._show()
        else:
            self._next = now + self._line_every_s
            done = f"{self._done / 1e6:,.0f} of {self._total / 1e6:,.0f} MB"
            print(f"{squeeze(self._what)}: {done}, {self._rates()}, {self._left()} left", file=sys.stderr, flush=True)

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        if self._progress is None:
            columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[figures]}")
            self._progress = Progress(*columns, console=Console(stderr=True))
            self._task = self._progress.add_task(_shown(self._what), total=self._total, figures="")
            self._progress.start()
        figures = f"{self._done / 1e6:,.0f}/{self._total / 1e6:,.0f} MB  {self._rates()}  {self._left()} left"
        self._progress.update(self._task, completed=self._done, figures=figures)

    def _rates(self) -> str:
        seconds = max(time.monotonic() - self._began, 1e-9)
        rates = f"{(self._done - self._before) / seconds / 1e6:.1f} MB/s"
        return f"{rates}  {self._tokens / seconds / 1e3:,.0f} k tokens/s" if self._tokens else rates

    def _left(self) -> str:
        rate = (self._done - self._before) / max(time.monotonic() - self._began, 1e-9)
        return str(timedelta(seconds=round(max(self._total - self._done, 0) / rate))) if rate else "?"
