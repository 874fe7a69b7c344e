"""Where a source's files are: at a path that the user names, or in a folder that a download makes below the root."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from lra_ssm.datamodules.storage.root import ensure_root
from lra_ssm.errors import InputError

_SHOWN = 80  # characters of a source in a message: nobody reads 300 of them


def named_source(dataset: str, source: str, words: str, *, folder: bool = False) -> Path:
    """The existing path that a user's `source` names.

    Args:
        dataset: how messages begin: "Text".
        source: what the user gave; `~` is the home folder.
        words: what else it might have been: "original, huggingface".
        folder: whether it must be a folder.

    Raises:
        InputError: it is empty (which would be the working folder), names nothing, or cannot be looked at.
    """
    shown = repr(source if len(source) <= _SHOWN else source[:_SHOWN] + "…")
    what = "folder" if folder else "path"
    if not source.strip():
        raise InputError(f"{dataset} source {shown}: is empty; give {words} or an existing {what}")
    try:
        path = Path(source).expanduser().absolute()
        path.stat()
        found = path.is_dir() or not folder
    except (FileNotFoundError, NotADirectoryError):
        found = False
    except (OSError, ValueError, RuntimeError) as error:  # too long, no permission; a zero byte; no such user's home
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise InputError(f"{dataset} source {shown}: cannot be looked at ({reason})") from error
    if not found:
        raise InputError(f"{dataset} source {shown}: is neither {words} nor an existing {what}")
    return path


def split_files(folder: Path, layouts: Iterable[str], names: Mapping[str, str], dataset: str) -> dict[str, Path] | None:
    """The files of a dataset by split, in the first of `layouts` below `folder` that has any of them; None if none has.

    Args:
        folder: where to look.
        layouts: paths below it; "" for itself.
        names: of the files, by split.
        dataset: as messages call it: "ListOps".

    Raises:
        InputError: some are there and others not; names a missing one.
    """
    for layout in layouts:
        files = {split: folder / layout / name for split, name in names.items()}
        missing = [path for path in files.values() if not path.is_file()]
        if not missing:
            return files
        if len(missing) < len(files):
            there = next(path for path in files.values() if path not in missing)
            raise InputError(
                f"{missing[0]}: missing, though {there.name} is there; {dataset} needs all {len(files)} files"
            )
    return None


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """A file of the user's, open for reading.

    Raises:
        InputError: it cannot be opened; without this, the one who prepares would blame the data root.
    """
    try:
        file = open(path, "rb")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    with file:
        yield file


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
