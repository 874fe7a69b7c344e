"""Documents: read them from plain text, cut them into segments, and hold some of them out."""

import hashlib
import io
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from lra_ssm.errors import InputError

log = logging.getLogger(__name__)

TEXT_SIZE = 1 << 20  # characters: longer documents are cut where that changes no token
SPLITS = ("train", "val", "test")
SEPARATOR = "<|endoftext|>"  # between documents of plain text, as in TinyStories

Documents = Literal["file", "line", "paragraph", "article", "endoftext"]
EmptyDocuments = Literal["error", "skip"]


class Document(NamedTuple):
    """A document, and the place where it begins."""

    text: str
    where: str  # FILE:LINE, or "FILE: row N"
    split: str | None  # None: `ReadOptions.split` decides
    source: str = ""  # a name by which documents are counted


class Segment(NamedTuple):
    """A document, or a part of a long one. End-of-text follows the segments that are `last`."""

    text: str
    source: str
    split: str
    first: bool  # the document begins with it
    last: bool  # the document ends with it


class Input(NamedTuple):
    """A unit of reading: a file, a member of an archive, or several files that continue each other."""

    paths: list[Path]
    read: Callable[[], Iterator[Segment]]

    @property
    def size(self) -> int:
        """The total size of its files in bytes."""
        return sum(path.stat().st_size for path in self.paths)


@dataclass(frozen=True)
class ReadOptions:
    """How to find documents in files, and which documents to hold out where files name no split.

    Args:
        documents: a document of plain text is a file, a line, a paragraph (between blank lines), an article (from one
            of WikiText's first-level headings to the next), or ends with <|endoftext|> as in TinyStories.
        text_field: the field of JSON lines and parquet with the text; "a.b" is field b of field a.
        source_field: the field with the name of the document's source, in the same form; None for none.
        empty_documents: a document without text is an "error", or is passed over ("skip").
        split_seed: decides which documents are held out, from 0 to 2^64 − 1.
        val_fraction, test_fraction: shares of the documents that are held out, by a hash of each document's beginning:
            adding or removing documents moves no other document.
        end_lines: put end-of-text after every line that is not blank, and leave blank lines out.

    Raises:
        InputError: a share is invalid, or nothing is left to train on.
    """

    documents: Documents = "file"
    text_field: str = "text"
    source_field: str | None = None
    empty_documents: EmptyDocuments = "error"
    split_seed: int = 0
    val_fraction: float = 0.0
    test_fraction: float = 0.0
    end_lines: bool = False

    def __post_init__(self) -> None:
        val, test = self.val_fraction, self.test_fraction
        for name, fraction in (("val_fraction", val), ("test_fraction", test)):
            if not 0 <= fraction < 1:
                raise InputError(f"{name} {fraction}: must be at least 0 and below 1")
        if val + test >= 1:
            raise InputError(f"val_fraction {val} and test_fraction {test} leave nothing to train on")

    def split(self, beginning: str) -> str:
        """Return train, val or test for a document by its first segment."""
        salt = self.split_seed.to_bytes(hashlib.blake2b.SALT_SIZE, "little")
        digest = hashlib.blake2b(beginning.encode(), digest_size=8, salt=salt).digest()
        share = int.from_bytes(digest, "little") / 2**64
        if share < self.val_fraction:
            return "val"
        return "test" if share < self.val_fraction + self.test_fraction else "train"


# -- segments of documents ---------------------------------------------------------------------------------------------

# The end of a line with no white space on either side: byte-level tokenizers (GPT-2, NeoX, bpe) give the same
# tokens for the two parts as for the whole.
CUT = re.compile(r"(?<=\S)\n(?=\S)")


def cut(text: str) -> Iterator[str]:
    """Yield a document in parts: at most TEXT_SIZE characters, or up to the first place to cut after them."""
    begin = 0
    while len(text) - begin > TEXT_SIZE and (end := _place_to_cut(text, begin)):
        yield text[begin:end]
        begin = end
    yield text[begin:]


def _place_to_cut(text: str, begin: int) -> int:
    """Return the last place to cut within TEXT_SIZE characters, else the first one after them, else 0."""
    end = text.rfind("\n", begin, begin + TEXT_SIZE)
    while end > begin and not CUT.match(text, end):
        end = text.rfind("\n", begin, end)
    if end <= begin:  # `find` is much faster than the expression's search: a text may be one line of 100 MB
        end = text.find("\n", begin + TEXT_SIZE)
        while end > begin and not CUT.match(text, end):
            end = text.find("\n", end + 1)
    return max(end + 1, 0)


def segments(documents: Iterable[Document], options: ReadOptions) -> Iterator[Segment]:
    """Yield the segments of documents in order.

    Raises:
        InputError: a document is empty where that is an error, or has half of a surrogate pair; names file and line.
    """
    for document in documents:
        if not document.text.strip():
            if options.empty_documents == "error":
                raise InputError(f"{document.where}: an empty document; use empty_documents=skip to pass over it")
            continue
        try:
            document.text.encode()  # JSON can spell out half of a surrogate pair
        except UnicodeEncodeError as error:
            half = f"\\u{ord(error.object[error.start]):04x}"
            raise InputError(f"{document.where}: half of a surrogate pair ({half}) is not a character") from None
        parts = list(cut(document.text))
        split = document.split or options.split(parts[0])
        for number, part in enumerate(parts, start=1):
            segment = Segment(part, document.source, split, number == 1, number == len(parts))
            yield from _split_lines(segment) if options.end_lines else [segment]


def _split_lines(segment: Segment) -> Iterator[Segment]:
    """Yield each line that is not blank as a segment that ends; only the first one begins the document."""
    first = segment.first
    for line in io.StringIO(segment.text):  # ends lines only at "\n", unlike str.splitlines
        if not line.isspace():
            yield segment._replace(text=line, first=first, last=True)
            first = False


# -- plain text --------------------------------------------------------------------------------------------------------

_HEADING = re.compile(r" ?= (?!= )[^\n]{1,1000}(?<! =) =[ \t\r]*\n")


def read_text(file: BinaryIO, name: str, documents: Documents, split: str | None = None) -> Iterator[Document]:
    """Yield the documents of an open file of plain text in UTF-8; `name` is its name in messages.

    Raises:
        InputError: it is not UTF-8; names the line.
    """
    return text_documents(_decode_lines(file, name, documents), name, documents, split)


def text_documents(
    lines: Iterable[str], name: str, documents: Documents, split: str | None = None
) -> Iterator[Document]:
    """Yield the documents of lines of plain text."""
    if documents == "file":
        yield Document("".join(lines), f"{name}:1", split)
        return
    find = {"line": _lines, "paragraph": _paragraphs, "article": _articles, "endoftext": _separated}[documents]
    for line, text in find(enumerate(lines, start=1)):
        if documents == "article" or text.strip():  # other texts are only white space between documents
            yield Document(text, f"{name}:{line}", split)


def _decode_lines(file: BinaryIO, name: str, documents: Documents) -> Iterator[str]:
    """Yield the lines of a file."""
    for number, line in enumerate(file, start=1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{name}:{number}: is not UTF-8 (byte {line[error.start]:#04x})") from None
        if documents != "endoftext" and text.rstrip() == SEPARATOR:
            _warn_of_separators(str(Path(name).parent), documents)
        yield text


@cache  # once for all files of a folder
def _warn_of_separators(folder: str, documents: str) -> None:
    log.warning(
        "%s: lines %s are ordinary text with documents=%s; documents=endoftext ends a document at each of them",
        folder, SEPARATOR, documents,
    )  # fmt: skip


Numbered = Iterable[tuple[int, str]]  # lines, or documents by their first line


def _lines(lines: Numbered) -> Iterator[tuple[int, str]]:
    return ((number, line.rstrip("\r\n")) for number, line in lines)


def _paragraphs(lines: Numbered) -> Iterator[tuple[int, str]]:
    for blank, group in groupby(lines, lambda numbered: _is_blank(numbered[1])):
        if not blank:
            number, first = next(group)
            yield number, "".join([first, *(line for _, line in group)]).rstrip("\r\n")


def _articles(lines: Numbered) -> Iterator[tuple[int, str]]:
    """A first-level heading between blank lines begins an article: " = Title = ", and not " = = Section = = "."""
    article, begin, previous = list[str](), 1, ""
    for (number, line), (_, following) in pairwise(chain(lines, [(0, "")])):
        if number > 2 and _is_blank(previous) and _HEADING.fullmatch(line) and _is_blank(following):
            yield begin, "".join(article)
            article, begin = [], number
        article.append(line)
        previous = line
    if article:
        yield begin, "".join(article)


def _separated(lines: Numbered) -> Iterator[tuple[int, str]]:
    document, begin = list[str](), 1
    for number, line in lines:
        *ended, line = line.split(SEPARATOR)
        for text in ended:
            yield begin, "".join([*document, text]).strip("\r\n")
            document, begin = [], number
        document.append(line)
    yield begin, "".join(document).strip("\r\n")


def _is_blank(line: str) -> bool:
    return line.endswith("\n") and not line.strip(" \t\r\f\v\n")
