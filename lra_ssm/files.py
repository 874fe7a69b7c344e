"""Files and folders that are written whole or not at all; their digests; a lock on what several processes write."""

import errno
import hashlib
import io
import json
import logging
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import IO, Any

from lra_ssm.errors import InputError

log = logging.getLogger(__name__)

UNFINISHED = ".unfinished-"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class _Counting(io.RawIOBase):
    """A binary file that counts what it is given, and once the disk has refused some of it takes the rest in silence.

    torch.save, told of an error, dies of several; and so the message can say how much room is needed.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.size, self.error = file, 0, None  # type: tuple[IO[bytes], int, OSError | None]

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.size += size
        try:
            if self.error is None:
                self.file.write(data)
        except OSError as error:
            self.error = error
        return size

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        try:
            return self.file.seek(offset, whence)
        except OSError as error:  # what was buffered is written first
            self.error = self.error or error
            return 0

    def readable(self) -> bool:
        return self.file.readable()

    def readinto(self, buffer: Any) -> int:
        return 0 if self.error else self.file.readinto(buffer)  # type: ignore[attr-defined]

    def flush(self) -> None:
        try:
            if self.error is None and not self.file.closed:  # Python flushes once more when it lets go of this
                self.file.flush()
        except OSError as error:
            self.error = error


def unused(path: Path) -> Path:
    """The path, or the first of path-2, path-3, … that is not taken: photos.csv, photos-2.csv."""
    numbered = (path.with_stem(f"{path.stem}-{number}") for number in count(2))
    return path if not path.exists() else next(other for other in numbered if not other.exists())


@contextmanager
def replacing(path: Path, mode: str = "w", **options: Any) -> Iterator[IO[Any]]:
    """A file beside `path`, open for writing, which takes its place when the block ends well.

    Whoever reads `path` finds the old file or the new one, whole: it is flushed to the disk before it is renamed. Where
    the block fails it is removed; a killed process leaves a file whose name begins with UNFINISHED. mode, options: as
    `open` has them.

    Raises:
        OSError: the disk does not take it; names `path`, and says how much room there is where that is why.
    """
    path = path.resolve()  # what a link points to is replaced, not the link
    # The thread is part of the name: the one that ends a process may write what the main one was writing.
    partial = path.with_name(f"{UNFINISHED}{path.name}-{os.getpid()}-{threading.get_ident()}")
    size = None
    try:
        with open(partial, mode, **options) as file:
            if "b" in mode:
                counting = _Counting(file)
                yield counting  # type: ignore[misc]
                counting.flush()
                size = counting.size
                if counting.error is not None:
                    raise counting.error
            else:
                yield file
                file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        sync_folder(path.parent)
    except OSError as error:
        raise _named(error, path, size) from error
    finally:
        with suppress(OSError):  # of a disk that has become read-only; the error above says what is wrong
            partial.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """An empty folder beside `path`, which takes that name when the block ends well, and else is removed.

    What is written there must be flushed to the disk. A killed process leaves a folder whose name begins with
    UNFINISHED and is that of no other process, on no other machine.

    Raises:
        OSError: the disk does not take it, or `path` is there.
    """
    partial = path.with_name(f"{UNFINISHED}{path.name}-{os.urandom(8).hex()}")
    try:
        partial.mkdir()
        yield partial
        sync_folder(partial)
        partial.rename(path)
        sync_folder(path.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Writes a folder's names to the disk: without, power that fails may leave the old file, or none."""
    with suppress(OSError):  # some systems and network drives know no such thing
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sha256(path: Path, start: int = 0) -> str:
    """The sha256 of a file from a byte on, in hexadecimal."""
    with open(path, "rb") as file:
        file.seek(start)
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def locked(path: Path, what: str, keep: bool = False) -> Iterator[None]:
    """Holds a lock file, made with the folders above it; the kernel drops the lock with its holder.

    Args:
        path: the lock file.
        what: what the other process does, as one who waits is told.
        keep: leave the file; else it is removed, and who waits on the removed one notices and takes a new one (on
            network drives not everybody does).

    Raises:
        InputError: the file cannot be locked.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        while not lock.is_locked:
            path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # who held it has removed its folder
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
        if not keep:
            with suppress(OSError):
                path.unlink()
        lock.release()


@contextmanager
def appending(path: Path, **options: Any) -> Iterator[IO[str]]:
    """`path`, open for adding to its end; where the disk does not take all of it, it is as before.

    Raises:
        OSError: as `replacing` does.
    """
    size = path.stat().st_size if path.exists() else None
    try:
        with open(path, "a", **options) as file:
            yield file
    except OSError as error:
        try:
            if size is None:
                path.unlink(missing_ok=True)
            else:
                os.truncate(path, size)
        except OSError:
            pass  # the disk takes nothing at all any more; a row that is cut off is dropped when the run goes on
        raise _named(error, path, None) from error


def _named(error: OSError, path: Path, size: int | None) -> OSError:
    """The error with the file that it is about; of a disk that is full the room that is needed and that is left."""
    if error.errno is None or (error.filename is not None and UNFINISHED not in str(error.filename)):
        return error  # it is about something else
    why = error.strerror
    if error.errno in _FULL:
        needed = f"{size / 1e6:.3g} MB needed, " if size else ""
        why = f"{why}: {needed}{shutil.disk_usage(path.parent).free / 1e6:.3g} MB free"
    return type(error)(error.errno, why, str(path))


def one_reason(error: BaseException) -> str:
    """What an error says, in one line; of a file or folder that cannot be read or written which one it is."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: cannot be read or written ({error.strerror})"
    return " ".join(str(error).split()) or type(error).__name__


def set_aside(path: Path) -> Path:
    """Renames a damaged file: a.json becomes a.damaged.json, or where there is one a.damaged-2.json; returns it."""
    return path.replace(unused(path.with_stem(f"{path.stem}.damaged")))


def write_json(path: Path, data: Any) -> None:
    """Writes `data` as JSON, what JSON has no type for as text."""
    with replacing(path) as file:
        file.write(json.dumps(data, indent=2, default=str) + "\n")
