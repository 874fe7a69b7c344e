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
from lra_ssm.datamodules.language import plain_text
from lra_ssm.datamodules.language.documents import (
    SHARD_BYTES,
    Buffer,
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

Splits = Literal["auto", "hash", "tail"]


def find_at(path: Path, splits: Splits, reading: Reading, held_out: HeldOut) -> CorpusReader:
    """The corpus at a path of the user's: a folder, a single file, or IMDb's reviews as Stanford packs them.

    Args:
        path: an existing folder or file.
        splits: "auto" takes splits that folders or files name; without one for validation, documents of train are held
            out for it. "hash" takes no notice of names: documents are held out of all. "tail": the end of one text is.
        reading: how documents are taken from files; IMDb's are files.
        held_out: which documents are.

    Raises:
        InputError: no files in a form that is read, the names of splits are not clear, or "tail" of several files.
    """
    if splits == "tail":
        return _head_and_tail(path, reading, held_out)
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
        InputError: the folder holds no reviews, or "tail", which is of one text.
    """
    if splits == "tail":
        raise InputError("Corpus splits='tail': is of one text, of which the end is held out; IMDb's reviews are many")
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
            " line), hold out its end (splits=tail), or give files of their own (train*, val*, test*)"
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


def _head_and_tail(path: Path, reading: Reading, held_out: HeldOut) -> CorpusReader:
    """Raises InputError: there is not one .txt file."""
    names = [path] if path.is_file() else find_files(path)
    if len(names) != 1 or names[0].suffix != ".txt":
        found = names[0].name if len(names) == 1 else f"{len(names)} files"
        raise InputError(f"{path}: splits=tail holds out the end of one text, a .txt file; here is {found}")
    return HeadAndTail(str(names[0]), reading, held_out)


@dataclass(frozen=True)
class HeadAndTail:
    """One text (a `CorpusReader`): its beginning for training, what follows for validation, its end for testing.

    Cut where the shares of its bytes end, or behind the character there: nanoGPT's way, for ASCII to the byte.

    Args:
        path: of the text.
        reading: how documents are taken from each part; a document that is cut is one in either.
        held_out: how much of it the parts are; without a share for testing validation is the end.
        shard_bytes: bytes of the text in one shard, about.
    """

    path: str
    reading: Reading
    held_out: HeldOut
    shard_bytes: int = SHARD_BYTES

    def shards(self) -> list[Shard]:
        found = []
        with plain_text.mapped(self.path) as data:
            for split, part in self._parts(data).items():
                shares = plain_text.division(data, self.reading.documents, self.shard_bytes, part)
                found += [Shard(split, (Range(self.path, begin, end),), end - begin) for begin, end in shares]
        return found

    def texts(self, shard: Shard) -> Iterator[Passage]:
        """Raises InputError: not UTF-8, an empty document, or a part that has none."""
        assert shard.split is not None
        with plain_text.mapped(self.path) as data:
            yield from plain_text.texts(data, shard.ranges[0], self.reading, False, self._parts(data)[shard.split])

    def content_settings(self) -> dict[str, Any]:
        """Everything that decides the documents."""
        settings = asdict(self.reading) | {"splits": ["tail"]}
        del settings["seed"]  # nobody asks for keys
        return settings | asdict(self.held_out) | stamp([self.path], Path(self.path))

    def _parts(self, data: Buffer) -> dict[str, tuple[int, int]]:
        """Of each split its bytes."""
        held_out = self.held_out
        shares = {
            "train": 1 - held_out.val_fraction - held_out.test_fraction,
            "val": 1 - held_out.test_fraction if held_out.val_fraction else 0.0,
            "test": 1.0 if held_out.test_fraction else 0.0,
        }
        found, begin = {}, 0
        for split, share in shares.items():
            if share:
                end = int(share * len(data))
                while end < len(data) and data[end] & 0xC0 == 0x80:  # within a character
                    end += 1
                found[split], begin = (begin, end), end
        return found


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
