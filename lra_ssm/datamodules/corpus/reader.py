"""Finds the files of any corpus and its splits; IMDb's reviews among them.

A folder's files are taken recursively, by their form (`language.files`). Their first folder or their own name may name
a split as Hugging Face has it (train/…, validation-00000.parquet, test.txt); otherwise a hash of each document decides.
"""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from lra_ssm.datamodules.fetch import imdb
from lra_ssm.datamodules.language.documents import (
    CorpusReader,
    HeldOut,
    Passage,
    Range,
    Reading,
    Shard,
    everywhere,
    texts_of,
)
from lra_ssm.datamodules.language.files import FORMS, FileCorpus, find_files, split_name, stamp
from lra_ssm.errors import InputError

Splits = Literal["auto", "hash"]


def find_at(path: Path, splits: Splits, reading: Reading, held_out: HeldOut) -> CorpusReader:
    """The corpus at a path of the user's: a folder, a single file, or IMDb's reviews as Stanford packs them.

    Args:
        path: an existing folder or file.
        splits: "auto" takes splits that folders or files name; without one for validation, documents of train are held
            out for it. "hash" takes no notice of names: documents are held out of all.
        reading: how documents are taken from files; IMDb's are files.
        held_out: which documents are.

    Raises:
        InputError: no files in a form that is read, or the names of splits are not clear.
    """
    if path.is_file():
        if re.fullmatch(r"aclImdb.*\.tar\.gz", path.name):
            return reviews(path, splits, reading, held_out)
        if not path.name.endswith((*FORMS,)):
            raise InputError(f"{path}: is in none of the forms {', '.join(FORMS)}")
        return _corpus(path, [(path, None)], reading, held_out)
    for folder in (path, path / "aclImdb"):
        if imdb.is_layout(folder):
            return reviews(folder, splits, reading, held_out)
    names = find_files(path)
    if splits == "hash":
        return _corpus(path, [(name, None) for name in names], reading, held_out)
    return _with_splits(path, [(name, split_name(name, path)) for name in names], reading, held_out)


def reviews(path: Path, splits: Splits, reading: Reading, held_out: HeldOut) -> CorpusReader:
    """IMDb's labelled reviews, each a document: an aclImdb folder or the archive; both give the same documents.

    Raises:
        InputError: the folder holds no reviews.
    """
    reading = replace(reading, documents="file")
    if path.is_file():
        named = splits == "auto"
        return ReviewArchive(str(path), named, reading, replace(held_out, test_fraction=0.0) if named else held_out)
    files: list[tuple[Path, str | None]] = []
    for split in imdb.SPLITS:
        for label in imdb.CLASSES:
            folder = path / split / label
            files += [(name, split) for name in find_files(folder, (".txt",))]
    if splits == "hash":
        return _corpus(path, [(name, None) for name, _ in files], reading, held_out)
    return _with_splits(path, files, reading, held_out)


def _corpus(folder: Path, files: list[tuple[Path, str | None]], reading: Reading, held_out: HeldOut) -> FileCorpus:
    """A corpus of files with their splits, None where each document's key decides.

    Raises:
        InputError: keys are to decide of one document, of which none can be held out.
    """
    keyed = [name for name, split in files if split is None]
    if len(keyed) == 1 and keyed[0].suffix == ".txt" and reading.documents == "file" and held_out != HeldOut():
        raise InputError(
            f"{keyed[0]}: is one document, of which none can be held out: make several of it (documents=paragraph, or"
            " line), or give files of their own (train*, val*, test*)"
        )
    return FileCorpus(str(folder), tuple((str(name), split) for name, split in files), reading, held_out)


def _with_splits(folder: Path, files: list[tuple[Path, str | None]], reading: Reading, held_out: HeldOut) -> FileCorpus:
    """A corpus whose files name splits, or do not."""
    named = {split for _, split in files}
    if named == {None}:
        return _corpus(folder, files, reading, held_out)
    advice = 'splits="hash" takes no notice of names'
    if None in named:
        example = next(name for name, split in files if split is None)
        other = next(name for name, split in files if split is not None)
        raise InputError(f"{example}: names no split (train, val or test), though {other.name} does; {advice}")
    if "train" not in named:
        there = " and ".join(sorted(filter(None, named)))
        raise InputError(f"{folder}: its files name the splits {there} but none is train; {advice}")
    if "val" not in named:  # held out of train, and nothing else is
        files = [(name, None if split == "train" else split) for name, split in files]
    return _corpus(folder, files, reading, replace(held_out, test_fraction=0.0))


@dataclass(frozen=True)
class ReviewArchive:
    """IMDb's reviews in Stanford's archive (a `CorpusReader`), each split sorted by class and name.

    Args:
        path: the archive.
        named: take its splits; else documents of both are held out.
        reading: how documents are taken.
        held_out: which documents are held out.
    """

    path: str
    named: bool
    reading: Reading
    held_out: HeldOut

    def shards(self) -> list[Shard]:
        """Its two splits; each takes a pass through the archive."""
        size = Path(self.path).stat().st_size
        return [
            Shard("test" if self.named and split == "test" else None, (Range(split, 0, None),), size)
            for split in imdb.SPLITS
        ]

    def texts(self, shard: Shard) -> Iterator[Passage]:
        """Raises InputError: a damaged archive, a review that is not UTF-8, or empty."""
        split = shard.ranges[0].path
        found = {
            (member.label, member.name): (member.path, data)
            for member, data in imdb.members(Path(self.path), progress=False)
            if member.split == split
        }
        if not found:
            raise InputError(f"{self.path}: no reviews in {split}; expected {imdb.LAYOUT}")
        for key in sorted(found):
            path, data = found[key]
            where = everywhere(partial("{}: {}".format, self.path, path))
            yield from texts_of(data, 0, len(data), self.reading, shard.split is None, where)

    def content_settings(self) -> dict[str, Any]:
        """Everything that decides the documents."""
        named = {"splits": ["hash", "test"] if self.named else ["hash"]}
        return asdict(self.reading) | named | asdict(self.held_out) | stamp([self.path], Path(self.path))
