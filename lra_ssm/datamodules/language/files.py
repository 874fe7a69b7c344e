"""Files of a corpus: found, divided into shards, read by their form.

.txt                         plain text, documents as `Reading` says
.jsonl, .jsonl.gz, .jsonl.zst  a document a line
.parquet                     a document a row
"""

import hashlib
import logging
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lra_ssm.datamodules.fetch.hub import NOTE
from lra_ssm.datamodules.language import plain_text, records
from lra_ssm.datamodules.language.documents import MOST_SHARDS, SHARD_BYTES, Passage, Range, Reading, Shard
from lra_ssm.errors import InputError

log = logging.getLogger(__name__)

COMPRESSED = (".jsonl.gz", ".jsonl.zst")
FORMS = (".txt", ".jsonl", *COMPRESSED, ".parquet")
_SPLIT = re.compile(
    r"(?:(?P<train>train|training)|(?P<val>val|valid|validation|dev)|(?P<test>test|testing|eval|evaluation))"
    r"(?![A-Za-z])"
)
_NOTES = (".md", ".lock", ".download.json", NOTE)  # what lies beside files and is never meant
_SHOWN = 3  # names of files that are passed over


def find_files(folder: Path, forms: tuple[str, ...] = FORMS) -> list[Path]:
    """All files of these forms below a folder, sorted by their paths; hidden files and folders are passed over.

    Raises:
        InputError: there is none, a folder cannot be read, or a link leads nowhere.
    """
    found: list[Path] = []
    others: list[str] = []
    for place, folders, names in os.walk(folder, onerror=_unreadable, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in names:
            path = Path(place, name)
            if name.startswith(".") or name.endswith(_NOTES):
                continue
            if not name.endswith(forms):
                others.append(str(path.relative_to(folder)))
            elif not path.is_file():
                raise InputError(f"{path}: is a link to nothing, or no file")
            else:
                found.append(path)
        if len(Path(place).relative_to(folder).parts) > 32:  # the system follows 40 links or so
            raise InputError(f"{place}: lies too many folders deep; does a link lead back?")
    if not found:
        there = f"; there is {_some(others)}" if others else ""
        raise InputError(f"{folder}: holds no files in {', '.join(forms)}{there}")
    if others:
        log.warning("%s: passing over %s: none of %s", folder, _some(others), ", ".join(forms))
    return sorted(found, key=lambda path: path.relative_to(folder).parts)


def split_name(path: Path, folder: Path) -> str | None:
    """The split, train, val or test, that a file's first folder below `folder`, or its own name, begins with, as
    Hugging Face has it: train/…, validation-00000.parquet, test.txt; None for none."""
    parts = path.relative_to(folder).parts
    for part in (parts[0], parts[-1]):
        if found := _SPLIT.match(part):
            return found.lastgroup
    return None


def _unreadable(error: OSError) -> None:
    raise InputError(f"{error.filename}: cannot be read ({error.strerror})")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(sorted(names)[:_SHOWN]) + more


@dataclass(frozen=True)
class FileCorpus:
    """A corpus of files (a `CorpusReader`).

    Args:
        folder: what their paths are told below; or the one file.
        files: paths with their splits, None where documents' keys decide; in order.
        reading: how documents are taken from them.
        shard_bytes: bytes of files in one shard, about, or what makes MOST_SHARDS of all; compressed files are never
            divided.
    """

    folder: str
    files: tuple[tuple[str, str | None], ...]
    reading: Reading
    shard_bytes: int = SHARD_BYTES

    def shards(self) -> list[Shard]:
        """Large files in shares, small ones of a split together."""
        found: list[Shard] = []
        most = max(self.shard_bytes, sum(_stat(path).st_size for path, _ in self.files) // MOST_SHARDS)
        for path, split in self.files:
            for share, size in self._shares(path, most):
                last = found[-1] if found else None
                if last and last.split == split and last.size + size <= most:
                    found[-1] = Shard(split, (*last.ranges, share), last.size + size)
                else:
                    found.append(Shard(split, (share,), size))
        return found

    def _shares(self, path: str, shard_bytes: int) -> list[tuple[Range, int]]:
        if path.endswith(".parquet"):
            return records.parquet_division(path, shard_bytes, self.reading)
        if path.endswith(COMPRESSED):
            return [(Range(path, 0, None), _stat(path).st_size)]
        with plain_text.mapped(path) as data:
            documents = "line" if path.endswith(".jsonl") else self.reading.documents
            return plain_text.division(path, data, documents, shard_bytes)

    def texts(self, shard: Shard) -> Iterator[Passage]:
        """Raises InputError: bad input; names file and line, or row."""
        for share in shard.ranges:
            if not share.path.endswith(".parquet") and _stat(share.path).st_size < (share.end or 0):
                raise InputError(f"{share.path}: has become shorter while it was read")
            if share.path.endswith(".txt"):
                with plain_text.mapped(share.path) as data:
                    yield from plain_text.texts(data, share, self.reading, shard.split)
            else:
                yield from records.texts(share, self.reading, shard.split)

    def content_settings(self) -> dict[str, Any]:
        """Everything that decides the documents: settings, and what stands for the files.

        Raises:
            InputError: a file is missing.
        """
        splits = sorted({split or "hash" for _, split in self.files})
        files = stamp([path for path, _ in self.files], Path(self.folder))
        return self.reading.settings("hash" in splits) | {"splits": splits} | files


def stamp(files: Iterable[str], folder: Path) -> dict[str, Any]:
    """What stands for the content of a user's files, which takes long to hash: their paths below the folder, sizes and
    times of change, in one digest.

    Raises:
        InputError: one cannot be looked at.
    """
    digest, count, size = hashlib.sha256(), 0, 0
    for path in files:
        stat = _stat(path)
        name = os.fsencode(Path(path).relative_to(folder)) if Path(path) != folder else b""
        digest.update(b"%s\0%d\0%d\0" % (name, stat.st_size, stat.st_mtime_ns))
        count, size = count + 1, size + stat.st_size
    return {"files": count, "bytes": size, "stamp": digest.hexdigest()}


def _stat(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
