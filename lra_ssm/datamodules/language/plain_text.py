"""Plain text in documents: files, lines, paragraphs, articles; a share of a file by itself.

Nothing is remembered of a file but some megabytes, however long its documents are.
"""

import re
from collections.abc import Callable, Iterator
from typing import IO, NamedTuple

from lra_ssm.datamodules.language.documents import (
    BLOCK_BYTES,
    CUT,
    SEGMENT_BYTES,
    Documents,
    Range,
    Reading,
    Segment,
    cut,
    key_of,
    segments_of,
)
from lra_ssm.datamodules.language.opening import BOM, lines_before, not_utf8, opened
from lra_ssm.errors import InputError


class _Boundary(NamedTuple):
    """What lies between two documents: the second begins where it ends. `kept`: as a part of the first."""

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
_WINDOW = 1 << 16
_BLANK_LINES = re.compile(rb"(?:%s)*" % _BLANK)


def division(path: str, size: int, documents: Documents, piece_bytes: int) -> list[Range]:
    """A file in shares of about piece_bytes, each from a document's beginning (of a file that is one document, from a
    place to cut) to another's: the first at or behind each multiple of piece_bytes.

    Args:
        path: the file, or the member of a zip archive.
        size: its bytes.
        documents: what a document is.
        piece_bytes: how many bytes a share should have.

    Raises:
        InputError: it cannot be read.
    """
    begins = [0]
    if size > piece_bytes:
        with opened(path) as file:
            target = piece_bytes
            while target < size:
                begin = _first_boundary(file, target, documents)
                if begin is None or begin >= size:
                    break
                begins.append(begin)
                target = (begin // piece_bytes + 1) * piece_bytes
    ends = [*begins[1:], None]
    return [Range(path, begin, end) for begin, end in zip(begins, ends, strict=True)]


def _first_boundary(file: IO[bytes], position: int, documents: Documents) -> int | None:
    """Where the first document at or behind a position begins."""
    pattern = BOUNDARIES[documents].pattern
    begin = max(position - _REACH, 0)
    file.seek(begin)
    window = b""
    while data := file.read(_WINDOW):
        window += data
        searched = 0
        while found := pattern.search(window, searched):
            # Close to the window's end, what comes may change what is found.
            if found.end() + _REACH > len(window) and len(data) == _WINDOW:
                break
            if begin + found.end() >= position:
                return begin + found.end()
            searched = max(found.end() - 1, found.start() + 1)
        keep = max(len(window) - 2 * _REACH, 0)
        begin, window = begin + keep, window[keep:]
    return None


def segments(share: Range, reading: Reading, keyed: bool, done: int) -> Iterator[Segment]:
    """The documents of a share of a file; `keyed`: with keys; `done`: bytes of the piece behind us.

    Raises:
        InputError: not UTF-8, an empty document, or one that cannot be cut; names file and line.
    """
    seed = reading.seed if keyed else None
    try:
        with opened(share.path) as file:
            if reading.documents == "file":
                yield from _one(file, share, reading, seed, done)
            else:

                def where(offset: int) -> str:
                    return f"{share.path}:{lines_before(share.path, share.begin + offset) + 1}"

                yield from Scan(_blocks(file, share), where, reading, seed, done).segments()
    except UnicodeDecodeError:
        not_utf8(share.path)


def _blocks(file: IO[bytes], share: Range) -> Iterator[bytes]:
    """The bytes of a share, without a byte order mark at the file's beginning.

    Raises:
        InputError: the file is shorter than it was.
    """
    position = share.begin
    file.seek(position)
    while share.end is None or position < share.end:
        data = file.read(BLOCK_BYTES if share.end is None else min(BLOCK_BYTES, share.end - position))
        if not data:
            if share.end is None:
                return
            raise InputError(f"{share.path}: has become shorter while it was read")
        yield data.removeprefix(BOM) if position == 0 else data
        position += len(data)


def _one(file: IO[bytes], share: Range, reading: Reading, seed: int | None, done: int) -> Iterator[Segment]:
    """The share of a file that is one document."""
    path, key, first, read = share.path, 0, share.begin == 0, 0
    if seed is not None and not (first and share.end is None):  # the share has not all of the first segment
        beginning, _ = next(cut(_blocks(file, Range(path, 0, None)), lambda offset: path))
        key = key_of(beginning, seed)

    def where(offset: int) -> str:
        return f"{path}:{lines_before(path, share.begin + offset) + 1}"

    for part, last in cut(_blocks(file, share), where):
        text = part.decode()
        read += len(part)
        if first:
            if not text or text.isspace():
                yield reading.empty(path, "", done + read)
                return
            if seed is not None and share.end is None:
                key = key_of(part, seed)
        yield Segment(text, "", first, last and share.end is None, key, done + read)
        first = False


class Scan:
    """The documents of a share of a file that has many.

    Args:
        blocks: the share's bytes.
        where: names the place of one of them, for messages.
        reading: how documents are taken.
        seed: of their keys; None: they need none.
        done: bytes of the piece behind us.
    """

    def __init__(
        self, blocks: Iterator[bytes], where: Callable[[int], str], reading: Reading, seed: int | None, done: int
    ) -> None:
        self.blocks, self.where, self.reading, self.seed, self.done = blocks, where, reading, seed, done
        self.boundary = BOUNDARIES[reading.documents]
        self.data = b""  # from a document's beginning
        self.read = 0  # bytes of the share up to the end of `data`

    def segments(self) -> Iterator[Segment]:
        """Raises InputError: an empty document, or one that cannot be cut; UnicodeDecodeError: not UTF-8."""
        ended = False
        while not ended:
            ended = not self._more()
            if self.reading.documents == "paragraph":
                self.data = self.data[_BLANK_LINES.match(self.data).end() :]  # type: ignore[union-attr]
            *documents, rest = self._split()
            if ended and rest:
                documents, rest = [*documents, rest], b""
            kept, seed, read = self.boundary.kept, self.seed, self.done + self.read - len(rest)
            for data in documents:  # millions of short ones: each call counts
                if not kept:
                    data = data.rstrip(b"\r\n")
                text = data.decode()
                if text and len(data) <= SEGMENT_BYTES and not text.isspace():
                    yield Segment(text, "", True, True, 0 if seed is None else key_of(data, seed), read)
                elif len(data) > SEGMENT_BYTES:
                    yield from segments_of(data, text, "", seed, read, lambda: self.where(0))
                elif kept:  # else a blank line between others, no document
                    yield self.reading.empty(self.where(0), "", read)
            self.data = rest
            if len(rest) >= BLOCK_BYTES:
                yield from self._long()

    def _more(self) -> bool:
        block = next(self.blocks, b"")
        self.data += block
        self.read += len(block)
        return bool(block)

    def _split(self) -> list[bytes]:
        """The documents in `data`; the last may go on behind it."""
        if self.reading.documents == "line":
            return self.data.split(b"\n")
        parts, begin = [], 0
        for found in self.boundary.pattern.finditer(self.data):
            parts.append(self.data[begin : found.end() if self.boundary.kept else found.start()])
            begin = found.end()
        return [*parts, self.data[begin:]]

    def _long(self) -> Iterator[Segment]:
        """A document that goes on behind `data`; leaves what comes behind it there."""
        begin = self.read - len(self.data)
        first, key = True, 0
        for part, last in cut(self._until_boundary(), lambda offset: self.where(begin + offset)):
            if first and self.seed is not None:
                key = key_of(part, self.seed)
            yield Segment(part.decode(), "", first, last, key, self.done + self.read - len(self.data))
            first = False

    def _until_boundary(self) -> Iterator[bytes]:
        """The document that `data` begins with, in blocks."""
        more = True
        while more and not (found := self.boundary.pattern.search(self.data)):
            yield self.data[: -2 * _REACH]
            self.data = self.data[-2 * _REACH :]
            more = self._more()
        end = len(self.data)
        start, behind = (found.start(), found.end()) if found else (end, end)
        last, self.data = self.data[: behind if self.boundary.kept else start], self.data[behind:]
        yield last if self.boundary.kept else last.rstrip(b"\r\n")
