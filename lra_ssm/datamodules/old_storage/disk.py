"""Bytes on their way to the disk: whether there is room, and writing them through."""

import ctypes
import os
import shutil
import sys
from pathlib import Path

from lra_ssm.errors import InputError
from lra_ssm.tables import duration, wrapped

SOON_S = 5.0


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


def say_cost(what: str, seconds: float, needed_bytes: int) -> None:
    """Says what time and room something takes whose parts are kept when it is stopped; nothing of what is soon over."""
    if seconds >= SOON_S:
        more = "stopped, the same command goes on from what is drawn"
        said = f"{what}: about {duration(seconds)} and {needed_bytes / 1e9:.1f} GB; {more}"
        print(wrapped(said), file=sys.stderr, flush=True)


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
