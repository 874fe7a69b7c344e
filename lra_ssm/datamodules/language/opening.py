"""A user's files opened, members of zip archives among them, and places in them found again for messages."""

import codecs
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NoReturn

from lra_ssm.datamodules.language.documents import BLOCK_BYTES, MAX_SEGMENT_BYTES
from lra_ssm.errors import InputError

BOM = b"\xef\xbb\xbf"  # which some editors begin a file with; no part of its text
_MEMBER = re.compile(r"(.+\.zip)::(.+)", re.DOTALL)


@contextmanager
def opened(path: str) -> Iterator[IO[bytes]]:
    """A file, or a member of a zip archive as "<archive>.zip::<member>", open for reading.

    Seeking forward in a member unpacks what lies between, backward all from its beginning.

    Raises:
        InputError: it cannot be opened; inside, what reading raises (the disk, a damaged archive) is one too.
    """
    try:
        if matched := _MEMBER.fullmatch(path):
            with zipfile.ZipFile(matched[1]) as archive, archive.open(matched[2]) as file:
                yield file
        else:
            with open(path, "rb") as file:
                yield file
    except OSError as error:
        raise InputError(f"{path}: {unreadable(path, error)}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError, RuntimeError) as error:
        raise InputError(f"{path}: is broken off or damaged ({error})") from error


def unreadable(path: str | Path, error: OSError) -> str:
    """Why a file cannot be read, in words."""
    if isinstance(error, FileNotFoundError) and Path(path).is_symlink():
        return "is a link to nothing"
    return f"cannot be read ({error.strerror or error})"


def size_of(path: str) -> int:
    """Bytes of a file, or of a member of a zip archive once it is unpacked.

    Raises:
        InputError: it cannot be looked at.
    """
    try:
        if matched := _MEMBER.fullmatch(path):
            with zipfile.ZipFile(matched[1]) as archive:
                return archive.getinfo(matched[2]).file_size
        return Path(path).stat().st_size
    except OSError as error:
        raise InputError(f"{path}: {unreadable(path, error)}") from error
    except (zipfile.BadZipFile, KeyError) as error:
        raise InputError(f"{path}: is broken off or damaged ({error})") from error


def lines_before(path: str, offset: int) -> int:
    """How many lines of a file end before a byte; for messages, for it reads the file up to there."""
    count = 0
    with opened(path) as file:
        while offset > 0 and (data := file.read(min(BLOCK_BYTES, offset))):
            count += data.count(b"\n")
            offset -= len(data)
    return count


def not_utf8(path: str) -> NoReturn:
    """Finds the first byte of a file that is not UTF-8.

    Raises:
        InputError: names it.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    line, line_begin, position = 1, 0, 0
    with opened(path) as file:
        while True:
            data = file.read(BLOCK_BYTES)
            try:
                decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                at = position + len(data) - len(error.object) + error.start
                # The byte may be the last block's, whose lines are counted then.
                behind = data[: max(at - position, 0)]
                line += behind.count(b"\n")
                line_begin = position + behind.rfind(b"\n") + 1 if b"\n" in behind else line_begin
                wrong = error.object[error.start]
                raise InputError(
                    f"{path}:{line}: is not UTF-8 (byte {wrong:#04x}, the line's number {at - line_begin + 1})"
                ) from None
            if not data:
                raise InputError(f"{path}: has changed while it was read")
            line += data.count(b"\n")
            line_begin = position + data.rfind(b"\n") + 1 if b"\n" in data else line_begin
            position += len(data)


def lines(read: Callable[[int], bytes], too_long: Callable[[int], str]) -> Iterator[list[bytes]]:
    """The lines of a stream, without their ends, some megabytes of them at a time.

    Args:
        read: gives at most so many further bytes, none at the end.
        too_long: names a line by its number in the stream (from 0), for the message.

    Raises:
        InputError: a line is longer than MAX_SEGMENT_BYTES.
    """
    parts: list[bytes] = []  # of a line whose end is still to come
    count = size = 0
    while data := read(BLOCK_BYTES):
        *whole, rest = data.split(b"\n")
        if whole:
            whole[0] = b"".join([*parts, whole[0]])
            yield whole
            count += len(whole)
            parts, size = [], 0
        parts.append(rest)
        size += len(rest)
        if size > MAX_SEGMENT_BYTES:
            raise InputError(
                f"{too_long(count)}: a line longer than memory should hold (more than {MAX_SEGMENT_BYTES:,} bytes)"
            )
    if size:
        yield [b"".join(parts)]
