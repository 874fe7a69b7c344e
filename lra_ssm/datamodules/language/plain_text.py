"""Plain text in documents: files, lines, paragraphs, articles. Files are mapped."""

import mmap
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from lra_ssm.datamodules.language.documents import (
    CUT,
    Buffer,
    Documents,
    Passage,
    Range,
    Reading,
    is_blank,
    placed,
    texts_of,
)
from lra_ssm.errors import InputError

BOM = b"\xef\xbb\xbf"  # which some editors begin a file with; no part of its text


class _Boundary(NamedTuple):
    """What lies between two documents. `kept`: as a part of the first."""

    pattern: re.Pattern[bytes]
    kept: bool


# Quantifiers are bounded so that a boundary never reaches further than _REACH.
_BLANK = rb"[ \t\r\f\v]{0,200}\n"
# One of WikiText's first-level headings, " = Title = " alone between blank lines; " = = Section = = " is of the second.
_HEADING = rb" ?= (?!= )[^\n]{1,1000}(?<! =) =[ \t\r]{0,200}\n%s" % _BLANK
BOUNDARIES: dict[Documents, _Boundary] = {
    "line": _Boundary(re.compile(rb"\n"), False),
    "paragraph": _Boundary(re.compile(rb"\n(?:%s)+" % _BLANK), False),
    "article": _Boundary(re.compile(rb"\n%s(?=%s)" % (_BLANK, _HEADING)), True),
    "file": _Boundary(CUT, True),
}
_REACH = 4096
_BLANK_LINES = re.compile(rb"(?:%s)*" % _BLANK)
_BLOCK = 1 << 24


@contextmanager
def mapped(path: str) -> Iterator[Buffer]:
    """The bytes of a file. Raises InputError: it cannot be read."""
    try:
        with open(path, "rb") as file:
            if file.seek(0, 2) == 0:
                yield b""  # which cannot be mapped
                return
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                yield data
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error


def division(
    path: str, data: Buffer, documents: Documents, shard_bytes: int, part: tuple[int, int] | None = None
) -> list[tuple[Range, int]]:
    """A file in shares of about shard_bytes, with their sizes, each from a document's beginning (of a file that is one
    document, from a place to cut) to another's: the first at or behind each multiple of shard_bytes.

    part: bytes from the first to behind the last that are read as if they were all of the file; None for all.
    """
    first, end = part or (0, len(data))
    whole = (max(first, _start(data)), end) if documents == "file" else None
    begins, target = [first], (first // shard_bytes + 1) * shard_bytes
    while target < end:
        boundaries = BOUNDARIES[documents].pattern.finditer(data, max(target - _REACH, first), end)
        begin = next((found.end() for found in boundaries if found.end() >= target), end)
        if begin == end:
            break
        begins.append(begin)
        target = (begin // shard_bytes + 1) * shard_bytes
    ends = [*begins[1:], end]
    return [(Range(path, begin, end, whole), end - begin) for begin, end in zip(begins, ends, strict=True)]


def texts(data: Buffer, share: Range, reading: Reading, split: str | None) -> Iterator[Passage]:
    """The documents of a share of a file, with its bytes; split: theirs, None where each one's beginning decides.

    Raises:
        InputError: not UTF-8, an empty document, or one that cannot be cut; names file and line.
    """
    begin, end = max(share.begin, _start(data)), len(data) if share.end is None else share.end
    with placed(partial(_place, share.path, data)):
        if reading.documents == "file":
            yield from texts_of(data, begin, end, reading, split, whole=share.whole)
            return
        kept = BOUNDARIES[reading.documents].kept
        for here, there in places(data, begin, end, reading.documents):
            if kept or not is_blank(data, here, there):  # else a blank line between others, no document
                yield from texts_of(data, here, there, reading, split)


def places(data: Buffer, begin: int, end: int, documents: Documents) -> Iterator[tuple[int, int]]:
    """Where the documents of data[begin:end] begin and end, blank ones too."""
    boundary = BOUNDARIES[documents]
    if documents == "paragraph" and (blank := _BLANK_LINES.match(data, begin, end)):
        begin = blank.end()
    for found in boundary.pattern.finditer(data, begin, end):
        yield begin, found.end() if boundary.kept else _stripped(data, begin, found.start())
        begin = found.end()
    if begin < end:
        yield begin, end if boundary.kept else _stripped(data, begin, end)


def _stripped(data: Buffer, begin: int, end: int) -> int:
    """The end without the ends of lines before it."""
    while end > begin and data[end - 1] in b"\r\n":
        end -= 1
    return end


def _start(data: Buffer) -> int:
    """Where the text of a file begins."""
    return len(BOM) if data[: len(BOM)] == BOM else 0


def _place(path: str, data: Buffer, offset: int) -> str:
    """What names a byte of a file: FILE:LINE."""
    lines = sum(data[begin : min(begin + _BLOCK, offset)].count(b"\n") for begin in range(0, offset, _BLOCK))
    return f"{path}:{lines + 1}"
