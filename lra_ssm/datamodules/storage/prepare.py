"""Preparation that happens once, whoever asks, and leaves either a whole folder or none."""

import errno
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from lra_ssm.datamodules.storage.disk import sync_folder
from lra_ssm.datamodules.storage.format import MANIFEST
from lra_ssm.datamodules.storage.root import ensure_root
from lra_ssm.errors import InputError
from lra_ssm.files import UNFINISHED

log = logging.getLogger(__name__)

LOCK = ".lock"


def prepare(root: Path, dataset: str, name: str, build: Callable[[Path], None]) -> Path:
    """Makes sure that <root>/<dataset>/<name> is there, calling `build` at most once over all processes.

    `build` fills an empty folder beside the target, which is flushed to the disk and renamed when it is complete;
    a process killed at any moment leaves no target, and what it leaves is removed by the next preparation. Other
    processes wait for the lock of the dataset's folder and find the target ready. The kernel drops the lock with its
    holder. Nothing is locked or written where the target is ready, so a read-only root serves prepared data.

    Args:
        root: the data root; created if only it is missing.
        dataset: the dataset's folder below it.
        name: the prepared folder below that.
        build: fills the folder it is given, its manifest last; files it writes must be flushed to the disk.

    Returns:
        The prepared folder.

    Raises:
        InputError: the root cannot be used, or `build` raised it; nothing new is left behind.
    """
    folder = root / dataset
    target = folder / name
    if (target / MANIFEST).is_file():
        return target
    created_root = ensure_root(root)
    with _locked(root, folder):
        for leftover in folder.glob(f"{UNFINISHED}*"):
            if leftover.is_file():
                leftover.unlink(missing_ok=True)
            shutil.rmtree(leftover, ignore_errors=True)
        if target.exists():
            return target
        temporary = folder / f"{UNFINISHED}{name}-{os.getpid()}"
        try:
            temporary.mkdir()
            build(temporary)
            sync_folder(temporary)
            temporary.rename(target)
            sync_folder(folder)
        except BaseException as error:
            shutil.rmtree(temporary, ignore_errors=True)
            _remove_if_unused(folder)
            if created_root:
                with suppress(OSError):
                    root.rmdir()
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
                raise InputError(f"{folder}: cannot be written ({error.strerror})") from error
            raise
    return target


@contextmanager
def _locked(root: Path, folder: Path) -> Iterator[None]:
    """Holds the lock of a dataset's folder, creating both."""
    lock = FileLock(folder / LOCK)
    while not lock.is_locked:
        try:
            folder.mkdir(exist_ok=True)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                log.warning("%s: waiting for another process that prepares this dataset", folder)
                lock.acquire()
        except FileNotFoundError:
            ensure_root(root)  # removed again by a failed preparation after we had looked
        except OSError as error:
            raise InputError(f"{folder}: cannot be written or locked ({error.strerror})") from error
    try:
        yield
    finally:
        lock.release()


def _remove_if_unused(folder: Path) -> None:
    """Removes the dataset's folder, lock included, if nothing else is in it. The lock must be held."""
    if [entry.name for entry in folder.iterdir()] == [LOCK]:
        (folder / LOCK).unlink()
        with suppress(OSError):  # a process that has just come put its own lock there
            folder.rmdir()
