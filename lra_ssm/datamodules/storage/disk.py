"""Bytes on their way to the disk: whether there is room, writing them through, and the bar that shows them."""

import ctypes
import os
import shutil
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from lra_ssm.errors import InputError

if TYPE_CHECKING:
    from rich.progress import Progress

Item = TypeVar("Item")

TRIVIAL_BYTES = 10_000_000  # below this nobody waits long enough for a bar


def check_disk_space(folder: Path, needed_bytes: int, what: str) -> None:
    """Makes sure that a folder's disk has room.

    Args:
        folder: an existing folder on the disk.
        needed_bytes: what is still to be written.
        what: what needs the room, as the message begins.

    Raises:
        InputError: there is less; names both amounts in GB (10⁹ bytes).
    """
    free = shutil.disk_usage(folder).free
    if needed_bytes > free:
        raise InputError(
            f"{what} needs {needed_bytes / 1e9:.3f} GB on the disk of {folder}, where {free / 1e9:.3f} GB are free;"
            " make room or choose another data root"
        )


def sync_folder(folder: Path) -> None:
    """Writes a folder's entries to the disk, so that they survive a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_filesystem(folder: Path) -> None:
    """Writes everything that waits for a folder's file system to the disk: one call for 100,000 files.

    An fsync for each of them takes minutes. Linux can flush one file system (syncfs; Python does not offer it), other
    systems only all of them.

    Raises:
        OSError: the disk did not take it.
    """
    try:
        syncfs = ctypes.CDLL(None, use_errno=True).syncfs
    except (AttributeError, OSError, TypeError):  # not Linux
        getattr(os, "sync", lambda: None)()
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(descriptor)


def with_bar(items: Iterable[Item], what: str, total: int) -> Iterable[Item]:
    """The items, `total` of them, with a bar on the standard error that counts them; none where nobody looks."""
    if not sys.stderr.isatty():
        return items
    from rich.console import Console
    from rich.progress import track

    return track(items, what, total, console=Console(stderr=True))


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
        self._task = self._progress.add_task(self._what, completed=done, total=total)
        self._progress.start()
