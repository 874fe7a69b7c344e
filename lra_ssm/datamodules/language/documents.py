"""Documents as a corpus gives them: in shards, long ones in several texts, some held out.

A corpus gives `shards`, each to be read by any process at any time, and the `texts` of a shard, in order. Those of all
shards, one behind the other, are the corpus, whatever the shards' size.
"""

import hashlib
import mmap
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
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
    """A share of one file: bytes, of parquet row groups; 0 and None for the whole. `whole`: the bytes from which to
    which a text goes that is shared out as one document; None where the share is all of it."""

    path: str
    begin: int
    end: int | None
    whole: tuple[int, int] | None = None


class Shard(NamedTuple):
    """A share of the work, `size` bytes. `split` None: each document's key decides (`Reading.split`)."""

    split: str | None
    ranges: tuple[Range, ...]
    size: int


class Passage(NamedTuple):
    """A document, or a part of a long one.

    `text` is "" for an empty document that was skipped, to be counted (`first` and `last` are true), and never else.
    `source` is "" where there is one source. `split` is the document's, the same for all its texts. `first`, `last`:
    the document begins, ends with it; where end-of-text follows every line of a document, each is `last`.
    """

    text: str
    source: str
    split: str
    first: bool
    last: bool


@dataclass(frozen=True)
class Reading:
    """How documents are taken from files, and which are held out where files name no splits: a share of the documents'
    keys, so that other documents that come or go move none across.

    Args:
        documents: what a document of plain text is: a file, a line, a paragraph (between blank lines), or an article
            (from one of WikiText's first-level headings to the next).
        text_field: of jsonl and parquet, the text; "a.b" is b of a.
        source_field: the same, the name of the document's source; None for none.
        empty_documents: a document without characters, or of whitespace alone, is an error or is skipped.
        seed: of the documents' keys, from 0 to 2^64 - 1.
        val_fraction, test_fraction: shares that are held out.

    Raises:
        InputError: no share is left for training.
    """

    documents: Documents = "file"
    text_field: str = "text"
    source_field: str | None = None
    empty_documents: EmptyDocuments = "error"
    seed: int = 0
    val_fraction: float = 0.0
    test_fraction: float = 0.0

    def __post_init__(self) -> None:
        val, test = self.val_fraction, self.test_fraction
        for name, fraction in (("val_fraction", val), ("test_fraction", test)):
            if not 0 <= fraction < 1:
                raise InputError(f"{name} {fraction}: must be at least 0 and below 1")
        if val + test >= 1:
            raise InputError(f"val_fraction {val} and test_fraction {test} leave nothing to train on")

    def split(self, beginning: bytes) -> str:
        """The split, train, val or test, of a document by its first text."""
        salt = self.seed.to_bytes(hashlib.blake2b.SALT_SIZE, "little")
        key = int.from_bytes(hashlib.blake2b(beginning, digest_size=8, salt=salt).digest(), "little")
        share = key / 2**64
        if share < self.val_fraction:
            return "val"
        return "test" if share < self.val_fraction + self.test_fraction else "train"

    def settings(self, by_key: bool) -> dict[str, Any]:
        """What of it decides the documents and, `by_key`, their splits."""
        ignored = () if by_key else ("seed", "val_fraction", "test_fraction")
        return {name: value for name, value in asdict(self).items() if name not in ignored}


class CorpusReader(Protocol):
    """A frozen dataclass that pickles: processes get it with a shard."""

    @property
    def reading(self) -> Reading: ...

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


class BadText(Exception):
    """What is wrong with a document, at a byte of what it is read from: see `placed`."""

    def __init__(self, what: str, offset: int = 0) -> None:
        super().__init__(what)
        self.offset = offset


@contextmanager
def placed(where: Callable[[int], str]) -> Iterator[None]:
    """Makes a BadText of the block an InputError; `where` names the file and the line of a byte."""
    try:
        yield
    except BadText as error:
        raise InputError(f"{where(error.offset)}: {error}") from None


# Whitespace in UTF-8 as Unicode has it, with the separators that Python counts among it.
_SPACE = rb"[\s\x1c-\x1f]|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80"
_BLANK = re.compile(rb"(?:%s)*" % _SPACE)
_NO_SPACE_BEFORE = b"".join(rb"(?<!%s)" % space for space in _SPACE.split(b"|"))
# A line's end with no whitespace before and behind it: tokenizers of bytes (GPT-2, NeoX, ours) give the same tokens for
# the two parts as for the whole. The last byte of the character before is not the line's first.
CUT = re.compile(rb"(?<=[^\n])%s\n(?!%s)(?=.)" % (_NO_SPACE_BEFORE, _SPACE), re.DOTALL)


def cut(data: Buffer, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Where the parts of a document data[begin:end] (UTF-8) begin and end: at most TEXT_BYTES where there is a place to
    cut, else up to the next one. Raises BadText: nowhere to cut within MOST_TEXT_BYTES."""
    while end - begin > TEXT_BYTES:
        place = _last_place(data, begin, begin + TEXT_BYTES)
        if not place:
            found = CUT.search(data, begin + TEXT_BYTES - 1, end)
            place = found.end() if found else end
        if place - begin > MOST_TEXT_BYTES:
            raise BadText(
                f"{MOST_TEXT_BYTES:,} bytes of a document without a line that ends and begins without whitespace, where"
                ' to cut it; documents="line", "paragraph" or "article" make several of one file',
                begin,
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
    data: Buffer,
    begin: int,
    end: int,
    reading: Reading,
    split: str | None,
    source: str = "",
    whole: tuple[int, int] | None = None,
) -> Iterator[Passage]:
    """The texts of a document data[begin:end], or of this share of the document data[slice(*whole)].

    split: its own; None: its first text decides.

    Raises:
        BadText: it is empty and must not be, cannot be cut, or is not UTF-8.
    """
    start, stop = whole or (begin, end)
    if is_blank(data, start, stop):
        if reading.empty_documents == "error":
            raise BadText("an empty document; empty_documents=skip passes over such", start)
        yield Passage("", source, "", True, True)
        return
    if split is None:
        split = reading.split(data[slice(*next(cut(data, start, stop)))])
    for here, there in cut(data, begin, end):
        try:
            text = data[here:there].decode()
        except UnicodeDecodeError as error:
            what = f"is not UTF-8 (byte {error.object[error.start]:#04x})"
            raise BadText(what, here + error.start) from None
        yield Passage(text, source, split, here == start, there == stop)
