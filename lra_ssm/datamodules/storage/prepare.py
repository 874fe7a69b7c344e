"""Preparation that happens once, whoever asks, and leaves either a whole folder or none."""

import errno
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from lra_ssm.datamodules.storage.format import MANIFEST
from lra_ssm.datamodules.storage.root import ensure_root
from lra_ssm.errors import InputError
from lra_ssm.files import UNFINISHED, locked, new_folder

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
    with locked(folder / LOCK, "prepares this dataset", keep=True):
        for leftover in folder.glob(f"{UNFINISHED}*"):
            if leftover.is_file():
                leftover.unlink(missing_ok=True)
            shutil.rmtree(leftover, ignore_errors=True)
        if target.exists():
            return target
        try:
            with new_folder(target) as temporary:
                build(temporary)
        except BaseException as error:
            _remove_if_unused(folder)
            if created_root:
                with suppress(OSError):
                    root.rmdir()
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
                raise InputError(f"{folder}: cannot be written ({error.strerror})") from error
            raise
    return target


def _remove_if_unused(folder: Path) -> None:
    """Removes the dataset's folder if only the lock, which is held, is in it."""
    if [entry.name for entry in folder.iterdir()] == [LOCK]:
        (folder / LOCK).unlink()
        with suppress(OSError):  # a process that has just come put its own lock there
            folder.rmdir()
