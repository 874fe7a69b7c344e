"""Where a source's files are: at a user's path, or in a folder below the root."""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from lra_ssm.datamodules.storage import ensure_root
from lra_ssm.errors import InputError


def named_source(dataset: str, source: str, words: str, *, folder: bool = False) -> Path:
    """The existing path that a user's `source` names.

    Args:
        dataset: how messages begin: "Text".
        source: what the user gave; `~` is the home folder.
        words: what else it might have been: "original, huggingface".
        folder: whether it must be a folder.

    Raises:
        InputError: it is empty (which would be the working folder), or names nothing that can be seen.
    """
    what = "folder" if folder else "path"
    if not source.strip():
        raise InputError(f"{dataset} source {source!r}: is empty; give {words} or an existing {what}")
    path = Path(os.path.expanduser(source)).absolute()
    if not (os.path.isdir if folder else os.path.exists)(path):
        raise InputError(f"{dataset} source {source!r}: is neither {words} nor an existing {what}")
    return path


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """A file of the user's, open for reading.

    Raises:
        InputError: it cannot be opened.
    """
    try:
        file = open(path, "rb")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    with file:
        yield file


def content(path: Path) -> bytes:
    """All of a user's file. Raises InputError: it cannot be opened."""
    with opened(path) as file:
        return file.read()


class LineFile:
    """A user's file, read line by line once: numbered, counted and hashed on the way.

    Args:
        path: the file.
        advance: told the bytes of each line (for a progress bar).
    """

    def __init__(self, path: Path, advance: Callable[[int], object] = lambda size: None) -> None:
        self.path, self.number, self._advance = path, 0, advance
        self._digest = hashlib.sha256()

    def __iter__(self) -> Iterator[bytes]:
        with opened(self.path) as file:
            for self.number, line in enumerate(file, start=1):
                self._digest.update(line)
                self._advance(len(line))
                yield line

    def wrong(self, what: str) -> InputError:
        """The error for the line that was read last."""
        return InputError(f"{self.path}:{max(self.number, 1)}: {what}")

    def entry(self, **counts: Any) -> dict[str, Any]:
        """What the manifest says of the file; no digests are published."""
        size, digest = self.path.stat().st_size, self._digest.hexdigest()
        return {"file": str(self.path), "bytes": size, **counts, "sha256": digest, "digest": "unknown"}


@contextmanager
def download_folder(root: Path, below: str = "") -> Iterator[Path]:
    """The folder <root>/<below>, created for a download with everything above it down from the root.

    Where the download fails, those that are empty are removed again, the root only if it was created here.

    Args:
        root: the data root; created if only it is missing.
        below: path below it; "" for the root itself.

    Raises:
        InputError: the root cannot be used, or the folder cannot be created.
    """
    created = ensure_root(root)
    folder = root / below
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder}: cannot be created ({error.strerror})") from error
        yield folder
    except BaseException:
        with suppress(OSError):  # not empty
            while folder != root:
                folder.rmdir()
                folder = folder.parent
            if created:
                root.rmdir()
        raise
