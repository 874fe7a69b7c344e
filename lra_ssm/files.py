"""Files that are written whole or not at all."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

UNFINISHED = ".unfinished-"


@contextmanager
def replacing(path: Path, mode: str = "w", **options: Any) -> Iterator[IO[Any]]:
    """A file beside `path`, open for writing, which takes its place when the block ends well.

    Whoever reads `path` finds the old file or the new one, whole: it is flushed to the disk before it is renamed. Where
    the block fails it is removed; a killed process leaves a file whose name begins with UNFINISHED. mode, options: as
    `open` has them.

    Raises:
        OSError: the disk does not take it.
    """
    path = path.resolve()  # what a link points to is replaced, not the link
    partial = path.with_name(f"{UNFINISHED}{path.name}-{os.getpid()}")
    try:
        with open(partial, mode, **options) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        _flush(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def _flush(folder: Path) -> None:
    """Writes a folder's names to the disk: without, power that fails may leave the old file, or none."""
    with suppress(OSError):  # some systems and network drives know no such thing
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_json(path: Path, data: Any) -> None:
    """Writes `data` as JSON, what JSON has no type for as text."""
    with replacing(path) as file:
        file.write(json.dumps(data, indent=2, default=str) + "\n")
