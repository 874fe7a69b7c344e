"""Files and folders that are written whole or not at all, their digests, and a lock for several processes."""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import IO, Any

log = logging.getLogger(__name__)

UNFINISHED = ".unfinished-"


def unused(path: Path) -> Path:
    """Return the path, or the first of path-2, path-3, … that does not exist: photos.csv, photos-2.csv."""
    numbered = (path.with_stem(f"{path.stem}-{number}") for number in count(2))
    return path if not path.exists() else next(other for other in numbered if not other.exists())


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Name `path` in an OSError of the block that writes it."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None and UNFINISHED not in str(error.filename):
            raise  # it is about another file
        raise type(error)(error.errno, error.strerror, str(path)) from error


@contextmanager
def replacing(path: Path, mode: str = "w", **options: Any) -> Iterator[IO[Any]]:
    """Open a file next to `path`, which replaces `path` if the block succeeds.

    A reader of `path` finds the old file or the new one, whole: it is flushed to the disk before it is renamed. If the
    block fails it is removed; a killed process leaves a file whose name begins with UNFINISHED.

    Args:
        path: the file; if it is a link, its target is replaced.
        mode, options: as in `open`.

    Raises:
        OSError: the file cannot be written; the error names `path`.
    """
    path = path.resolve()
    partial = path.with_name(f"{UNFINISHED}{path.name}-{os.getpid()}")
    with naming_file(path):
        try:
            with open(partial, mode, **options) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        finally:
            with suppress(OSError):  # the disk may have become read-only
                partial.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Make an empty folder next to `path`, which is renamed to `path` if the block succeeds and else is removed.

    A killed process leaves a folder whose name begins with UNFINISHED and is unique among processes and machines.

    Raises:
        OSError: the folder cannot be written, or `path` exists.
    """
    partial = path.with_name(f"{UNFINISHED}{path.name}-{os.urandom(8).hex()}")
    try:
        partial.mkdir()
        yield partial
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def sha256(path: Path) -> str:
    """Return the sha256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def locked(path: Path, what: str, keep: bool = False) -> Iterator[None]:
    """Hold a lock file within the block; create it and its folder. The kernel releases the lock of a killed process.

    Args:
        path: the lock file.
        what: what the other process does, for the message of a process that waits.
        keep: leave the file; else it is removed, and a process that waited for it locks a new one.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    while not lock.is_locked:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # the holder of the lock has removed the folder
            try:
                lock.acquire(timeout=0)
            except Timeout:
                log.warning("%s: waiting for another process that %s", path, what)
                lock.acquire()
    try:
        yield
    finally:
        if not keep:
            with suppress(OSError):
                path.unlink()
        lock.release()


def write_json(path: Path, data: Any) -> None:
    """Write `data` as JSON; objects that JSON has no type for become text."""
    with replacing(path) as file:
        file.write(json.dumps(data, indent=2, default=str) + "\n")
