"""WikiText's lines: as rows of parquet files, which the Hub has, back in articles; and articles in ended lines."""

import io
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lra_ssm.datamodules.language import parquet
from lra_ssm.datamodules.language.documents import PIECE_BYTES, CorpusReader, HeldOut, Piece, Range, Reading, Segment
from lra_ssm.datamodules.language.files import stamp
from lra_ssm.datamodules.language.plain_text import BOUNDARIES, Scan

BLANK = " \n"  # what the Hub's files have as an empty row


@dataclass(frozen=True)
class RowCorpus:
    """Articles of splits whose lines are rows (a `CorpusReader`); an article may go on in the next file.

    Ranges count rows of a file, not its row groups.

    Args:
        folder: what the files' paths are told below.
        files: of each split, in order.
        reading: how documents are taken.
        held_out: none: all documents are of a published split.
        piece_bytes: of text in one piece, about.
    """

    folder: str
    files: tuple[tuple[str, tuple[str, ...]], ...]
    reading: Reading
    held_out: HeldOut = HeldOut()
    piece_bytes: int = PIECE_BYTES

    def pieces(self) -> list[Piece]:
        """Raises InputError: a file cannot be read."""
        return [piece for split, paths in self.files for piece in self._pieces(split, paths)]

    def _pieces(self, split: str, paths: tuple[str, ...]) -> Iterator[Piece]:
        begin, size = (0, 0), 0  # of the piece: file and row; bytes
        before = deque([""], maxlen=3)  # rows
        place = (0, 0)  # of the last of them
        for index, path in enumerate(paths):
            row = 0
            for texts in _lines(path, self.reading):
                for text in texts:
                    if size >= self.piece_bytes and _begins_article([*before, text]):
                        heading = len(before[-1].encode())
                        yield Piece(split, _between(paths, begin, place), size - heading)
                        begin, size = place, heading
                    before.append(text)
                    place = (index, row)
                    size += len(text.encode())
                    row += 1
        yield Piece(split, _between(paths, begin, None), size)

    def segments(self, piece: Piece) -> Iterator[Segment]:
        """Raises InputError: a damaged file."""
        path = piece.ranges[0].path
        blocks = (
            "".join(texts).encode()
            for share in piece.ranges
            for texts in _lines(share.path, self.reading, share.begin, share.end)
        )
        return Scan(blocks, lambda _: path, self.reading, None, 0).segments()

    def split_of(self, key: int) -> str:
        """Every piece has a split."""
        return self.held_out.split(key)

    def content_settings(self) -> dict[str, Any]:
        """Everything that decides the documents."""
        paths = [Path(path) for _, paths in self.files for path in paths]
        return asdict(self.reading) | stamp(paths, Path(self.folder))


@dataclass(frozen=True)
class EndedLines:
    """Articles (a `CorpusReader`) in which end-of-text follows every line, and blank lines are left out.

    Args:
        articles: reads them; segments end where lines do.
    """

    articles: CorpusReader

    @property
    def held_out(self) -> HeldOut:
        return self.articles.held_out

    def pieces(self) -> list[Piece]:
        return self.articles.pieces()

    def segments(self, piece: Piece) -> Iterator[Segment]:
        begins = False  # the article's first line is not given yet
        for segment in self.articles.segments(piece):
            begins |= segment.first
            if not segment.text:
                yield segment
            for line in io.StringIO(segment.text):  # ended by "\n" alone, as str.splitlines' are not
                if not line.isspace():
                    yield segment._replace(text=line, first=begins, last=True)
                    begins = False

    def split_of(self, key: int) -> str:
        return self.articles.split_of(key)

    def content_settings(self) -> dict[str, Any]:
        return self.articles.content_settings() | {"documents": "line"}


def _lines(path: str, reading: Reading, begin: int = 0, end: int | None = None) -> Iterator[list[str]]:
    """Rows as the lines of the published files."""
    for texts in parquet.texts(path, reading, begin, end):
        yield [text or BLANK for text in texts]


def _begins_article(lines: list[str]) -> bool:
    """Whether the last line but one begins an article, by the rule for plain text: a heading between blank lines."""
    before = "".join(lines[:-2]).encode()
    found = BOUNDARIES["article"].pattern.search(before + "".join(lines[-2:]).encode())
    return found is not None and found.end() == len(before)


def _between(paths: tuple[str, ...], begin: tuple[int, int], end: tuple[int, int] | None) -> tuple[Range, ...]:
    """The shares of files from one place, a file and a row, to another (None: the end)."""
    last, stop = (len(paths) - 1, None) if end is None else end
    return tuple(
        Range(paths[file], begin[1] if file == begin[0] else 0, stop if file == last else None)
        for file in range(begin[0], last + 1)
        if stop != 0 or file != last
    )
