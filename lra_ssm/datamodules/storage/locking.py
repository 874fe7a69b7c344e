"""A lock file for work on other files, held while it lasts and gone afterwards."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from lra_ssm.errors import InputError

log = logging.getLogger(__name__)


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Holds a lock file and removes it; who waits on the removed one notices and takes a new one.

    Args:
        path: the lock file; its folder exists.
        what: what the other process does, as one who waits is told.

    Raises:
        InputError: the file cannot be locked.
    """
    lock = FileLock(path)
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            log.warning("%s: waiting for another process that %s", path, what)
            lock.acquire()
    except OSError as error:
        raise InputError(f"{path}: cannot be locked ({error.strerror})") from error
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        lock.release()
