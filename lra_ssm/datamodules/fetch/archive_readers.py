"""The members of tar and zip files one after another, with every way to be damaged told apart from other errors.

`archives` decides which members are harmless; here they are only read. tarfile and zipfile are used for headers alone:
tarfile's own unpacking differs between Python 3.11 and 3.13 (its filters), and its compressed streams check no sums.
"""

import bz2
import gzip
import lzma
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from lra_ssm.errors import InputError

HEADER_BYTES = 1 << 20  # what one member's headers may take: extended ones are read into memory
BLOCK_BYTES = 1 << 18
PADDING_BYTES = 1 << 26  # behind a tar's end: tar itself fills up some kilobytes, tapes a little more
OPENERS: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
ZIP = (b"PK\3\4", b"PK\5\6")  # with members, and without
TAR_KINDS = {
    tarfile.SYMTYPE: "symbolic link",
    tarfile.LNKTYPE: "hard link",
    tarfile.CHRTYPE: "device",
    tarfile.BLKTYPE: "device",
    tarfile.FIFOTYPE: "fifo",
    tarfile.DIRTYPE: "folder",
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.CONTTYPE: "file",
}


class Damaged(Exception):
    """The archive is not what it should be; the message goes on after its name."""


@dataclass
class Member:
    """One entry. `kind` is "file", "folder" or what else it is; `size` what its header says, in bytes.

    `chunks(n)` yields the content in pieces of at most n bytes, for as long as this member is the current one.
    """

    name: str
    kind: str
    size: int
    chunks: Callable[[int], Iterator[bytes]]


class Source:
    """An archive file that is open, its kind told by its first bytes.

    Raises:
        InputError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.file = open(path, "rb")
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from error
        self.start = self.file.read(6)
        self.size = self.file.seek(0, 2)
        self.file.seek(0)
        self.is_zip = self.start.startswith(ZIP)

    def __enter__(self) -> "Source":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def position(self) -> int:
        """How many bytes of the archive are behind us."""
        return self.file.tell()


def tar_members(source: Source) -> Iterator[Member]:
    """The members of a tar file in one pass, and after the last the rest of the file, whose end has its checksum.

    Raises:
        Damaged: it breaks off or its bytes make no sense.
    """
    opener = next((o for start, o in OPENERS.items() if source.start.startswith(start)), None)
    with opener(source.file) if opener else source.file as plain:
        stream = _Stream(plain)
        with _sense():
            first = stream.start()
        if not _is_tar(first):
            raise Damaged("is neither a tar nor a zip archive, or its beginning is damaged")
        with _sense():
            tar = tarfile.open(fileobj=stream, mode="r|", bufsize=BLOCK_BYTES, tarinfo=_header_class(stream))  # type: ignore[call-overload]
        while True:
            with _sense():
                header = tar.next()
            if header is None:
                break
            tar.members.clear()  # it would keep all of them
            kind = TAR_KINDS.get(header.type, "special file")
            if header.issparse():
                kind = "sparse file"
            yield Member(header.name, kind, header.size, partial(_tar_chunks, tar, header))
        padding = 0
        with _sense():
            while data := stream.read(BLOCK_BYTES):
                padding += len(data)
                if padding > PADDING_BYTES:
                    raise tarfile.ReadError("data without end behind the last member")


def _tar_chunks(tar: tarfile.TarFile, header: tarfile.TarInfo, size: int) -> Iterator[bytes]:
    left = header.size
    file = tar.extractfile(header)
    assert file is not None
    while left:
        with _sense():
            data = file.read(min(size, left))
        if not data:
            raise _broken("unexpected end of data")
        left -= len(data)
        yield data


class _Stream:
    """The bytes of a tar file, with a look at the first ones and a bound for the headers."""

    def __init__(self, plain: IO[bytes]) -> None:
        self._plain = plain
        self._first = b""
        self.allowed: int | None = None  # bytes that may still be read; None: all

    def start(self) -> bytes:
        """The first block; it will be read again."""
        while len(self._first) < tarfile.BLOCKSIZE and (data := self._plain.read(tarfile.BLOCKSIZE - len(self._first))):
            self._first += data
        return self._first

    def read(self, size: int) -> bytes:
        if self._first:
            data, self._first = self._first[:size], self._first[size:]
        else:
            data = self._plain.read(size)
        if self.allowed is not None:
            self.allowed -= len(data)
            if self.allowed < 0:
                raise tarfile.ReadError("a header without end")
        return data


def _is_tar(block: bytes) -> bool:
    try:
        tarfile.TarInfo.frombuf(block, tarfile.ENCODING, "surrogateescape")
    except tarfile.HeaderError:
        return block == bytes(tarfile.BLOCKSIZE)  # zeros are the end: an empty archive
    return True


def _header_class(stream: _Stream) -> type[tarfile.TarInfo]:
    """Headers that are bounded, and an error where tarfile takes a damaged one for the archive's end."""

    class Header(tarfile.TarInfo):
        @classmethod
        def fromtarfile(cls, tarfile_: tarfile.TarFile) -> "Header":
            outermost = stream.allowed is None
            if outermost:
                stream.allowed = HEADER_BYTES + BLOCK_BYTES  # tarfile reads ahead by up to a block
            try:
                header = super().fromtarfile(tarfile_)
            except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
                raise
            except tarfile.HeaderError as error:
                raise tarfile.ReadError(str(error)) from error
            finally:
                if outermost:
                    stream.allowed = None
            if header.size < 0:
                raise tarfile.ReadError("a negative size")
            return header

    return Header


def zip_members(source: Source) -> Iterator[Member]:
    """The members of a zip file in the order of its directory, the checksum of each verified when it is read.

    Raises:
        Damaged: it breaks off, its bytes make no sense, or a member is encrypted.
    """
    with _sense():
        archive = zipfile.ZipFile(source.file)
    with archive:
        for info in archive.infolist():
            # orig_filename: on Windows, filename has other separators, and both end at a zero byte.
            name, mode = info.orig_filename, info.external_attr >> 16
            kind = "file"
            if name.endswith("/"):
                kind = "folder"
            elif stat.S_ISLNK(mode):
                kind = "symbolic link"
            elif stat.S_IFMT(mode) not in (0, stat.S_IFREG):
                kind = "special file"
            elif info.flag_bits & 1:
                kind = "file that is encrypted"
            yield Member(name, kind, info.file_size, partial(_zip_chunks, archive, info))


def _zip_chunks(archive: zipfile.ZipFile, info: zipfile.ZipInfo, size: int) -> Iterator[bytes]:
    with _sense():
        file = archive.open(info)
    with file:
        while True:
            with _sense():
                data = file.read(size)
            if not data:
                return
            yield data


@contextmanager
def _sense() -> Iterator[None]:
    """What the readers raise as `Damaged`; for reading alone, never around what the caller does.

    Where the bytes make no sense, that may be any error at all. The disk's alone have an errno.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise _broken(str(error) or type(error).__name__) from error


def _broken(why: str) -> Damaged:
    return Damaged(f"is broken off or damaged ({why}); delete it and start again")
