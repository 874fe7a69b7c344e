"""Files of a corpus: found, divided into pieces of work, read by their form.

.txt                         plain text, documents as `Reading` says
.jsonl, .jsonl.gz, .jsonl.zst  a document a line
.parquet                     a document a row
"""

import hashlib
import logging
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lra_ssm.datamodules.language import jsonl, parquet, plain_text
from lra_ssm.datamodules.language.documents import PIECE_BYTES, HeldOut, Piece, Range, Reading, Segment
from lra_ssm.datamodules.language.hub import NOTE
from lra_ssm.datamodules.language.opening import size_of, unreadable
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
        if len(Path(place).relative_to(folder).parts) > 64:
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


def divided(
    files: Iterable[tuple[str, str | None]], reading: Reading, piece_bytes: int = PIECE_BYTES
) -> Iterator[Piece]:
    """Files as pieces of work of about piece_bytes: large ones in shares, small ones of a split together.

    Args:
        files: paths (or members of zip archives) with their splits, in order.
        reading: how documents are taken from them.
        piece_bytes: bytes of files in one piece, about; compressed files are never divided.

    Raises:
        InputError: a file cannot be read, or is damaged.
    """
    split: str | None = None
    ranges: list[Range] = []
    size = 0
    for path, its_split in files:
        for share, share_size in _shares(path, reading, piece_bytes):
            if ranges and (its_split != split or size + share_size > piece_bytes):
                yield Piece(split, tuple(ranges), size)
                ranges, size = [], 0
            split = its_split
            ranges.append(share)
            size += share_size
    if ranges:
        yield Piece(split, tuple(ranges), size)


def _shares(path: str, reading: Reading, piece_bytes: int) -> list[tuple[Range, int]]:
    if path.endswith(".parquet"):
        return parquet.division(path, reading, piece_bytes)
    size = size_of(path)
    if path.endswith(COMPRESSED):
        return [(Range(path, 0, None), size)]
    documents = "line" if path.endswith(".jsonl") else reading.documents
    shares = plain_text.division(path, size, documents, piece_bytes)
    return [(share, (size if share.end is None else share.end) - share.begin) for share in shares]


def segments(piece: Piece, reading: Reading) -> Iterator[Segment]:
    """The documents of a piece.

    Raises:
        InputError: bad input; names file and line, or row.
    """
    done, keyed = 0, piece.split is None
    for share in piece.ranges:
        if share.path.endswith(".parquet"):
            read = parquet.segments(share, reading, keyed, done)
        elif share.path.endswith((".jsonl", *COMPRESSED)):
            read = jsonl.segments(share, reading, keyed, done)
        else:
            read = plain_text.segments(share, reading, keyed, done)
        last = done
        for segment in read:
            last = segment.read
            yield segment
        done = last


@dataclass(frozen=True)
class FileCorpus:
    """A corpus of files (a `CorpusReader`).

    Args:
        folder: what their paths are told below; or the one file.
        files: paths (or members of zip archives) with their splits, None where documents' keys decide; in order.
        reading: how documents are taken from them.
        held_out: which keys are held out.
        piece_bytes: bytes of files in one piece, about.
    """

    folder: str
    files: tuple[tuple[str, str | None], ...]
    reading: Reading
    held_out: HeldOut = HeldOut()
    piece_bytes: int = PIECE_BYTES

    def pieces(self) -> list[Piece]:
        """Raises InputError: a file cannot be read, or is damaged."""
        return list(divided(self.files, self.reading, self.piece_bytes))

    def segments(self, piece: Piece) -> Iterator[Segment]:
        """Raises InputError: bad input; names file and line, or row."""
        return segments(piece, self.reading)

    def split_of(self, key: int) -> str:
        """The split of a document in a piece without split."""
        return self.held_out.split(key)

    def content_settings(self) -> dict[str, Any]:
        """Everything that decides the documents: settings, and what stands for the files.

        Raises:
            InputError: a file is missing.
        """
        paths = dict.fromkeys(Path(path.partition(".zip::")[0] + ".zip" * (".zip::" in path)) for path, _ in self.files)
        settings = asdict(self.reading) | {"splits": sorted({split or "hash" for _, split in self.files})}
        if all(split for _, split in self.files):
            del settings["seed"]  # nobody asks for keys
        else:
            settings |= asdict(self.held_out)
        return settings | stamp(paths, Path(self.folder))


def stamp(files: Iterable[Path], folder: Path) -> dict[str, Any]:
    """What stands for the content of a user's files, which takes long to hash: their paths below the folder, sizes and
    times of change, in one digest.

    Raises:
        InputError: one cannot be looked at.
    """
    digest, count, size = hashlib.sha256(), 0, 0
    for path in files:
        try:
            stat = path.stat()
        except OSError as error:
            raise InputError(f"{path}: {unreadable(path, error)}") from error
        name = os.fsencode(path.relative_to(folder)) if path != folder else b""
        digest.update(b"%s\0%d\0%d\0" % (name, stat.st_size, stat.st_mtime_ns))
        count, size = count + 1, size + stat.st_size
    return {"files": count, "bytes": size, "stamp": digest.hexdigest()}
