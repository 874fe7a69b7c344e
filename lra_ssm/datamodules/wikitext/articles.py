"""WikiText's splits as articles, of plain files, the zip archive or the Hub's parquet."""

import io
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lra_ssm.datamodules.language import plain_text
from lra_ssm.datamodules.language.documents import SHARD_BYTES, Buffer, HeldOut, Passage, Range, Reading, Shard
from lra_ssm.datamodules.language.files import stamp
from lra_ssm.errors import InputError
from lra_ssm.files import one_reason

Files = tuple[tuple[str, tuple[str, ...]], ...]  # of each split, in order; of an archive its members
BLANK = " \n"  # what the Hub's files have as an empty row


@dataclass(frozen=True)
class Articles:
    """A `CorpusReader`.

    Args:
        source: the folder that the files' paths are told below, or the archive.
        files: of each split; the Hub's rows are lines, and an article may go on in the next file.
        reading: how documents are taken.
        ended_lines: whether end-of-text follows every line that is not blank; the others are left out then.
        held_out: none: all documents are of a published split.
        shard_bytes: of text in one shard, about.
    """

    source: str
    files: Files
    reading: Reading
    ended_lines: bool = False
    held_out: HeldOut = HeldOut()
    shard_bytes: int = SHARD_BYTES

    def shards(self) -> list[Shard]:
        """Raises InputError: a file cannot be read."""
        found = []
        for split, paths in self.files:
            with self._data(paths) as data:
                divided = plain_text.division(data, "article", self.shard_bytes)
            found += [Shard(split, (Range(paths[0], begin, end),), end - begin) for begin, end in divided]
        return found

    def texts(self, shard: Shard) -> Iterator[Passage]:
        """Raises InputError: a damaged file, not UTF-8, or an article without text."""
        paths = dict(self.files)[shard.split or ""]
        with self._data(paths) as data:
            found = plain_text.texts(data, shard.ranges[0], self.reading, False)
            yield from _ended_lines(found) if self.ended_lines else found

    def content_settings(self) -> dict[str, Any]:
        """Everything that decides the documents."""
        settings = asdict(self.reading)
        packed = self._is_archive()
        files = [self.source] if packed else [path for _, paths in self.files for path in paths]
        if packed or not files[0].endswith(".parquet"):
            del settings["seed"]  # nobody asks for keys
            settings["splits"] = sorted(split for split, _ in self.files)
        lines = {"documents": "line"} if self.ended_lines else {}
        return settings | stamp(files, Path(self.source)) | lines

    def _is_archive(self) -> bool:
        return Path(self.source).is_file()

    @contextmanager
    def _data(self, paths: tuple[str, ...]) -> Iterator[Buffer]:
        """The text of a split; what is packed is read whole, half a gigabyte at most."""
        if self._is_archive():
            yield _unpacked(self.source, paths[0])
        elif paths[0].endswith(".parquet"):
            text = io.BytesIO()
            text.writelines((line or BLANK).encode() for path in paths for line in _lines(path))
            yield text.getvalue()
        else:
            with plain_text.mapped(paths[0]) as data:
                yield data


def _unpacked(archive: str, member: str) -> bytes:
    try:
        with zipfile.ZipFile(archive) as opened:
            return opened.read(member)
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise InputError(f"{archive}: {member} is broken off or damaged ({one_reason(error)})") from error


def _lines(path: str) -> list[str]:
    """Rows as the lines of the published files."""
    import pyarrow.parquet  # comes with `datasets`

    try:
        return list(pyarrow.parquet.read_table(path, columns=["text"])["text"].to_pylist())
    except Exception as error:  # of a damaged file pyarrow raises whatever it does
        raise InputError(f"{path}: has no column text, or is broken off or damaged ({one_reason(error)})") from error


def _ended_lines(texts: Iterator[Passage]) -> Iterator[Passage]:
    """Each line by itself, ended; the article begins with its first one that is not blank."""
    begins = False
    for text in texts:
        begins |= text.first
        if not text.text:
            yield text
        for line in io.StringIO(text.text):  # ended by "\n" alone, as str.splitlines' are not
            if not line.isspace():
                yield text._replace(text=line, first=begins, last=True)
                begins = False
