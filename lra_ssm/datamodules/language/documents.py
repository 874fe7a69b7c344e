"""Documents as a corpus gives them: in shards, long ones in several texts, some held out.

A corpus gives `shards`, each to be read by any process at any time, and the `texts` of a shard, in order. Those of all
shards, one behind the other, are the corpus, whatever the shards' size.
"""

import hashlib
import mmap
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from lra_ssm.errors import InputError

TEXT_BYTES = 1 << 20  # of UTF-8: longer documents are cut where that changes no token
MOST_TEXT_BYTES = 64 << 20  # of a part of a document that cannot be cut
SHARD_BYTES = 64 << 20  # of files in one shard, about
MOST_SHARDS = 128  # of a corpus, about: of more files shards are larger, for each has open files while a fit goes on

Documents = Literal["file", "line", "paragraph", "article"]
EmptyDocuments = Literal["error", "skip"]
Buffer = bytes | mmap.mmap
SPLITS = ("train", "val", "test")


class Range(NamedTuple):
    """A share of one file: bytes, of parquet row groups; 0 and None for the whole."""

    path: str
    begin: int
    end: int | None


class Shard(NamedTuple):
    """A share of the work, `size` bytes. `split` None: each document's key decides (`HeldOut`)."""

    split: str | None
    ranges: tuple[Range, ...]
    size: int


class Passage(NamedTuple):
    """A document, or a part of a long one.

    `text` is "" for an empty document that was skipped, to be counted (`first` and `last` are true), and never else.
    `source` is "" where there is one source. `first`, `last`: the document begins, ends with it; where end-of-text
    follows every line of a document, each is `last`. `key`: 64 bits that decide the document's split, the same for all
    its texts; 0 where the shard names the split.
    """

    text: str
    source: str
    first: bool
    last: bool
    key: int


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

    def empty(self, where: str, source: str) -> Passage:
        """What stands for an empty document.

        Raises:
            InputError: there must be none.
        """
        if self.empty_documents == "error":
            raise InputError(f"{where}: an empty document; empty_documents=skip passes over such")
        return Passage("", source, True, True, 0)

    def key(self, beginning: bytes) -> int:
        """The key of a document (`Passage.key`), by its first text."""
        salt = self.seed.to_bytes(hashlib.blake2b.SALT_SIZE, "little")
        return int.from_bytes(hashlib.blake2b(beginning, digest_size=8, salt=salt).digest(), "little")


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
    """A frozen dataclass that pickles: processes get it with a shard."""

    @property
    def held_out(self) -> HeldOut:
        """The shares of documents in shards without split."""

    def shards(self) -> list[Shard]:
        """The whole corpus, in an order that the files alone decide.

        Raises:
            InputError: files are missing, or cannot be read.
        """

    def texts(self, shard: Shard) -> Iterator[Passage]:
        """The documents of a shard.

        Raises:
            InputError: bad input; names file and line (or row).
        """

    def content_settings(self) -> dict[str, Any]:
        """Everything that decides the documents and their splits."""


# Whitespace in UTF-8 as Unicode has it, with the separators that Python counts among it.
_SPACE = rb"[\s\x1c-\x1f]|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80"
_BLANK = re.compile(rb"(?:%s)*" % _SPACE)
_NO_SPACE_BEFORE = b"".join(rb"(?<!%s)" % space for space in _SPACE.split(b"|"))
# A line's end with no whitespace before and behind it: tokenizers of bytes (GPT-2, NeoX, ours) give the same tokens for
# the two parts as for the whole. The last byte of the character before is not the line's first.
CUT = re.compile(rb"(?<=[^\n])%s\n(?!%s)(?=.)" % (_NO_SPACE_BEFORE, _SPACE), re.DOTALL)


def cut(data: Buffer, begin: int, end: int, where: Callable[[int], str]) -> Iterator[tuple[int, int]]:
    """A document data[begin:end] in parts: at most TEXT_BYTES where there is a place to cut, else up to the next one.

    Args:
        data: UTF-8.
        begin, end: of the document.
        where: names a byte of the data, for messages.

    Yields:
        Where parts begin and end.

    Raises:
        InputError: nowhere to cut within MOST_TEXT_BYTES.
    """
    while end - begin > TEXT_BYTES:
        place = _last_place(data, begin, begin + TEXT_BYTES)
        if not place:
            found = CUT.search(data, begin + TEXT_BYTES - 1, end)
            place = found.end() if found else end
        if place - begin > MOST_TEXT_BYTES:
            raise InputError(
                f"{where(begin)}: {MOST_TEXT_BYTES:,} bytes of a document without a line that ends and begins without"
                ' whitespace, where to cut it; documents="line", "paragraph" or "article" make several of one file'
            )
        yield begin, place
        begin = place
    if begin < end:
        yield begin, end


def _last_place(data: Buffer, begin: int, most: int) -> int:
    """The last place to cut behind `begin` and not behind `most`; 0: none."""
    line_end = data.rfind(b"\n", begin, most)
    while line_end > begin:
        if CUT.match(data, line_end):
            return line_end + 1
        line_end = data.rfind(b"\n", begin, line_end)
    return 0


def is_blank(data: Buffer, begin: int, end: int) -> bool:
    """Whether data[begin:end] is whitespace alone, or nothing."""
    return _BLANK.fullmatch(data, begin, end) is not None


def texts_of(
    data: Buffer, begin: int, end: int, reading: Reading, keyed: bool, where: Callable[[int], str], source: str = ""
) -> Iterator[Passage]:
    """The texts of a document data[begin:end]; `keyed`: with a key.

    Raises:
        InputError: it is empty and must not be, cannot be cut, or is not UTF-8.
    """
    if is_blank(data, begin, end):
        yield reading.empty(where(begin), source)
        return
    key = 0
    for here, there in cut(data, begin, end, where):
        part = data[here:there]
        if keyed and here == begin:
            key = reading.key(part)
        yield Passage(decoded(part, here, where), source, here == begin, there == end, key)


def everywhere(place: Callable[[], str]) -> Callable[[int], str]:
    """What names a byte of a document that has one place for all."""
    return lambda _: place()


def decoded(part: bytes, begin: int, where: Callable[[int], str]) -> str:
    """The text of bytes that begin at a place. Raises InputError: they are not UTF-8."""
    try:
        return part.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{where(begin + error.start)}: is not UTF-8 (byte {part[error.start]:#04x})") from None
