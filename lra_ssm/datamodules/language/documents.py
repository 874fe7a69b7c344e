"""Documents as a corpus' reader gives them: pieces of work, long documents in segments, the held-out share.

A reader gives `pieces`, each to be read by any process at any time, and the `segments` of a piece, in order. Segments
of pieces one after the other are the corpus, whatever the pieces' size. Needs neither torch nor lightning.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from lra_ssm.errors import InputError

SEGMENT_BYTES = 1 << 20  # of UTF-8: longer documents are cut where that changes no token
MAX_SEGMENT_BYTES = 64 << 20  # of a part of a document that cannot be cut
PIECE_BYTES = 64 << 20  # of files in one piece, about
BLOCK_BYTES = 4 << 20  # read at a time

Documents = Literal["file", "line", "paragraph", "article"]
EmptyDocuments = Literal["error", "skip"]
SPLITS = ("train", "val", "test")


class Range(NamedTuple):
    """A share of one file.

    `begin` and `end` are bytes of plain files (between documents or, where a file is a document, at places to cut); row
    groups of parquet; 0 and None, the whole file, of others. `end` None: to the file's end.
    """

    path: str
    begin: int
    end: int | None


class Piece(NamedTuple):
    """A share of the work. `split` None: each document's key decides (`HeldOut`). `size` in bytes, for progress."""

    split: str | None
    ranges: tuple[Range, ...]
    size: int


class Segment(NamedTuple):
    """A document, or a part of a long one.

    `text` is "" for an empty document that was skipped, to be counted (`first` and `last` are true), and never else.
    `source` is "" where there is one source. `first`, `last`: the document begins, ends with it; where end-of-text
    follows every line of a document, each is `last`. `key`: 64 bits that decide the document's split, the same for all
    its segments; 0 where the piece names the split. `read`: bytes of the piece's files behind us, for progress.
    """

    text: str
    source: str
    first: bool
    last: bool
    key: int
    read: int


@dataclass(frozen=True)
class Reading:
    """How documents are taken from files.

    Args:
        documents: what a document of plain text is: a file, a line, a paragraph (between blank lines), or an article
            (from one of WikiText's first-level headings to the next).
        text_field: of jsonl and parquet, the text; "a.b" is b of a.
        source_field: the same, the name of the document's source; None for none.
        empty_documents: a document without characters, or of whitespace alone, is an error or is skipped.
        seed: of the documents' keys, from 0 to 2^64 - 1.
    """

    documents: Documents = "file"
    text_field: str = "text"
    source_field: str | None = None
    empty_documents: EmptyDocuments = "error"
    seed: int = 0

    def empty(self, where: str, source: str, read: int) -> Segment:
        """What stands for an empty document.

        Raises:
            InputError: there must be none.
        """
        if self.empty_documents == "error":
            raise InputError(f"{where}: an empty document; empty_documents=skip passes over such")
        return Segment("", source, True, True, 0, read)


@dataclass(frozen=True)
class HeldOut:
    """Which documents are held out, where a corpus has no splits: a share of the keys, so that other documents that
    come or go move none across.

    Raises:
        InputError: no share is left for training.
    """

    val_fraction: float = 0.0
    test_fraction: float = 0.0

    def __post_init__(self) -> None:
        for name, fraction in (("val_fraction", self.val_fraction), ("test_fraction", self.test_fraction)):
            if not 0 <= fraction < 1:
                raise InputError(f"{name} {fraction}: must be at least 0 and below 1")
        if self.val_fraction + self.test_fraction >= 1:
            raise InputError(
                f"val_fraction {self.val_fraction} and test_fraction {self.test_fraction} leave nothing to train on"
            )

    def split(self, key: int) -> str:
        """The split, train, val or test, of a document by its key."""
        share = key / 2**64
        if share < self.val_fraction:
            return "val"
        return "test" if share < self.val_fraction + self.test_fraction else "train"


class CorpusReader(Protocol):
    """A frozen dataclass that pickles: processes get it with a piece."""

    @property
    def held_out(self) -> HeldOut:
        """The shares of documents in pieces without split."""

    def pieces(self) -> list[Piece]:
        """The whole corpus, in an order that the files alone decide.

        Raises:
            InputError: files are missing, or cannot be read.
        """

    def segments(self, piece: Piece) -> Iterator[Segment]:
        """The documents of a piece.

        Raises:
            InputError: bad input; names file and line (or row).
        """

    def split_of(self, key: int) -> str:
        """The split of a document in a piece without split."""

    def content_settings(self) -> dict[str, Any]:
        """Everything that decides what the documents and their splits are, as plain values."""


# Whitespace in UTF-8 as Unicode has it, with the separators that Python counts among it.
_SPACE = rb"[\s\x1c-\x1f]|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80"
_NO_SPACE_BEFORE = b"".join(rb"(?<!%s)" % space for space in _SPACE.split(b"|"))
# A line's end with no whitespace before and behind it: tokenizers of bytes (GPT-2, NeoX, ours) give the same tokens for
# the two parts as for the whole. The last byte of the character before is not the line's first.
CUT = re.compile(rb"(?<=[^\n])%s\n(?!%s)(?=.)" % (_NO_SPACE_BEFORE, _SPACE), re.DOTALL)
_LONGEST_CHARACTER = 4  # bytes


def cut(blocks: Iterable[bytes], where: Callable[[int], str]) -> Iterator[tuple[bytes, bool]]:
    """A document in segments: at most SEGMENT_BYTES where there is a place to cut, else up to the next such place.

    Args:
        blocks: its bytes, UTF-8, in blocks of any size.
        where: names a byte of the document, for messages.

    Yields:
        The segments, and whether it is the last.

    Raises:
        InputError: nowhere to cut within MAX_SEGMENT_BYTES.
    """
    coming, buffer, begin = iter(blocks), b"", 0  # begin: of the buffer, within the document
    ended, searched = False, SEGMENT_BYTES
    while True:
        while not ended and len(buffer) <= max(SEGMENT_BYTES, searched) + _LONGEST_CHARACTER:
            block = next(coming, None)
            ended = block is None
            buffer += block or b""
        if ended and len(buffer) <= SEGMENT_BYTES:
            yield buffer, True
            return
        # A place is known to be one when the character behind it is there as a whole.
        known = len(buffer) if ended else len(buffer) - _LONGEST_CHARACTER
        place = _last_place(buffer, SEGMENT_BYTES) if searched == SEGMENT_BYTES else 0
        if not place and (found := CUT.search(buffer, searched - 1)):
            place = found.end() if found.end() <= known else 0
        if 0 < place <= MAX_SEGMENT_BYTES:
            yield buffer[:place], False
            buffer, begin, searched = buffer[place:], begin + place, SEGMENT_BYTES
        elif known > MAX_SEGMENT_BYTES:
            raise InputError(
                f"{where(begin)}: a document longer than memory should hold: {MAX_SEGMENT_BYTES:,} bytes without a line"
                ' that ends and begins without whitespace, where it could be cut; documents="line", "paragraph" or'
                ' "article" make several of one file'
            )
        elif ended:
            yield buffer, True
            return
        else:
            searched = known


def _last_place(buffer: bytes, most: int) -> int:
    """The last place to cut that leaves at most so many bytes before it; 0: none."""
    line_end = buffer.rfind(b"\n", 0, most)
    while line_end > 0:
        if CUT.match(buffer, line_end):
            return line_end + 1
        line_end = buffer.rfind(b"\n", 0, line_end)
    return 0


def key_of(first_segment: bytes, seed: int) -> int:
    """A document's key (`Segment.key`)."""
    salt = seed.to_bytes(hashlib.blake2b.SALT_SIZE, "little")
    return int.from_bytes(hashlib.blake2b(first_segment, digest_size=8, salt=salt).digest(), "little")


def segments_of(
    data: bytes, text: str, source: str, seed: int | None, read: int, where: Callable[[], str]
) -> Iterator[Segment]:
    """The segments of a document that is in memory.

    Args:
        data: its text in UTF-8.
        text: the same.
        source: its source's name.
        seed: of its key; None: it needs none.
        read: bytes of the piece behind it.
        where: names it, for messages.

    Raises:
        InputError: as `cut`.
    """
    if len(data) <= SEGMENT_BYTES:
        yield Segment(text, source, True, True, 0 if seed is None else key_of(data, seed), read)
        return
    first, key = True, 0
    blocks = (data[begin : begin + BLOCK_BYTES] for begin in range(0, len(data), BLOCK_BYTES))
    for part, last in cut(blocks, lambda _: where()):
        if first and seed is not None:
            key = key_of(part, seed)
        yield Segment(part.decode(), source, first, last, key, read)
        first = False
