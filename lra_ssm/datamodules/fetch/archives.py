"""Tar (plain, gz, bz2, xz) and zip archives, read in one pass.

The kind is told by the content, not the name. A wanted
member with an absolute or parent path, a link or a device ends the work with an error. What nobody
asked for is passed over, whatever it is, and so are the files in which macOS keeps its own data.
"""

import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from lra_ssm.bars import Bar
from lra_ssm.datamodules.fetch.download_note import DownloadNote, write_note
from lra_ssm.datamodules.old_storage.disk import sync_filesystem
from lra_ssm.errors import InputError
from lra_ssm.files import UNFINISHED, sync_folder

_CHUNK_BYTES = 1 << 20


def extract(archive: Path, target: Path, place: Callable[[str], str | None], note: DownloadNote | None = None) -> None:
    """Unpacks an archive into a new folder, which is there whole or not at all.

    The files are written to `.unfinished-<target>` beside it, flushed to the disk with one call (one per file takes
    minutes for 100,000) and renamed. What a killed process left is removed first: the caller holds a lock.

    Args:
        archive: the file.
        target: the folder to be.
        place: where a member belongs below the target, by its path in the archive; None: it is not wanted.
        note: of the archive, to be kept in the folder.

    Raises:
        InputError: the archive is missing, damaged, has a forbidden member or none that is wanted, the target is there
            already, or the disk does not take it; nothing new is left behind.
    """
    temporary = target.with_name(f"{UNFINISHED}{target.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with _explained(archive):
            temporary.mkdir(parents=True)
            for name, source in _members(archive, place):
                path = temporary / name
                path.parent.mkdir(parents=True, exist_ok=True)
                with source, open(path, "xb") as out:
                    shutil.copyfileobj(source, out, _CHUNK_BYTES)
            if not any(temporary.iterdir()):
                raise InputError(f"{archive}: holds none of the wanted files")
            if note is not None:
                write_note(temporary, note)
            sync_filesystem(temporary)
            temporary.rename(target)
            sync_folder(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def iterate(archive: Path, wanted: Callable[[str], bool], *, progress: bool = True) -> Iterator[tuple[str, bytes]]:
    """Reads the wanted files of an archive in its order, without unpacking them to the disk.

    Only the end of the archive tells that all of it was sound.

    Yields:
        Path in the archive, and content.

    Raises:
        InputError: as `extract`, but an archive without wanted files is an empty iterator.
    """
    with _explained(archive):
        members = _members(archive, lambda name: name if wanted(name) else None, progress)
        for name, source in members:
            yield name, source.read()


def _members(
    archive: Path, place: Callable[[str], str | None], progress: bool = True
) -> Iterator[tuple[str, IO[bytes]]]:
    """The wanted files by where they belong, each to be read before the next is asked for."""
    with open(archive, "rb") as file, Bar(f"reading {archive.name}", in_bytes=True, show=progress) as bar:
        size, is_zip = os.fstat(file.fileno()).st_size, file.read(2) == b"PK"
        file.seek(0)
        for name, plain, opened in (_zipped if is_zip else _tarred)(file):
            bar.update(file.tell(), size)
            path = PurePosixPath(name)
            added = "__MACOSX" in path.parts or path.name.startswith("._")
            to = None if added else place("/".join(path.parts))
            if to is None:
                continue
            if path.is_absolute() or ".." in path.parts or not plain:
                what = "leads out of its folder" if plain else "is no plain file"
                raise InputError(f"{archive}: member {name!r} {what}; refused")
            yield to, opened()


_Member = tuple[str, bool, Callable[[], Any]]  # path, whether it is a plain file, and what opens it


def _zipped(file: IO[bytes]) -> Iterator[_Member]:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if not info.is_dir():
                yield info.filename, True, partial(archive.open, info)


def _tarred(file: IO[bytes]) -> Iterator[_Member]:
    try:
        opened = tarfile.open(fileobj=file, mode="r:*", tarinfo=_Header)
    except tarfile.ReadError as error:
        raise InputError(f"{file.name}: is neither a tar nor a zip archive, or its beginning is damaged") from error
    with opened as tar:
        while (header := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # it would keep all: of LRA's archive, millions
            if not header.isdir():
                yield header.name, header.isfile(), partial(tar.extractfile, header)
        while tar.fileobj and tar.fileobj.read(_CHUNK_BYTES):  # behind the last member is the sum of all
            pass


class _Header(tarfile.TarInfo):
    """An error where tarfile takes a damaged header, or a file that is cut off, for the archive's end."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> "_Header":
        try:
            return super().fromtarfile(tar)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from error


@contextmanager
def _explained(archive: Path) -> Iterator[None]:
    """Errors as one line that names the archive; of damaged bytes they may be any at all."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise InputError(f"{archive}: cannot be unpacked ({error.strerror})") from error
        what = str(error) or type(error).__name__
        raise InputError(f"{archive}: is broken off or damaged ({what}); delete it and start again") from error
