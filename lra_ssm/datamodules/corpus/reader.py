"""Finds the files of any corpus and its splits; IMDb's reviews among them.

A folder's files are taken recursively, by their form (`language.files`). Their first folder or their own name may name
a split as Hugging Face has it (train/…, validation-00000.parquet, test.txt); otherwise a hash of each document decides.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from lra_ssm.datamodules.fetch import imdb
from lra_ssm.datamodules.language import plain_text
from lra_ssm.datamodules.language.documents import CorpusReader, Passage, Range, Reading, Shard, placed, texts_of
from lra_ssm.datamodules.language.files import FORMS, FileCorpus, find_files, split_name, stamp
from lra_ssm.errors import InputError

Splits = Literal["auto", "hash", "tail"]
Files = list[tuple[Path, str | None]]  # with their splits, None where each document's key decides


def find_at(path: Path, splits: Splits, reading: Reading) -> CorpusReader:
    """The corpus at a path of the user's: a folder, a single file, or IMDb's reviews as Stanford packs them.

    Args:
        path: an existing folder or file.
        splits: as for `Corpus`.
        reading: how documents are taken from files; IMDb's are files.

    Raises:
        InputError: no files in a form that is read, the names of splits are not clear, or "tail" of several files.
    """
    if splits == "tail":
        return _head_and_tail(path, reading)
    if path.is_file():
        if re.fullmatch(r"aclImdb.*\.tar\.gz", path.name):
            return reviews(path, splits, reading)
        if not path.name.endswith((*FORMS,)):
            raise InputError(f"{path}: is in none of the forms {', '.join(FORMS)}")
        return _corpus(path, [(path, None)], reading)
    for folder in (path, path / "aclImdb"):
        if imdb.is_layout(folder):
            return reviews(folder, splits, reading)
    return _with_splits(path, [(name, split_name(name, path)) for name in find_files(path)], splits, reading)


def reviews(path: Path, splits: Splits, reading: Reading) -> CorpusReader:
    """IMDb's labelled reviews, each a document: an aclImdb folder or the archive; both give the same documents.

    Raises:
        InputError: the folder holds no reviews, or "tail", which is of one text.
    """
    if splits == "tail":
        raise InputError("Corpus splits='tail': is of one text, of which the end is held out; IMDb's reviews are many")
    reading = replace(reading, documents="file")
    if path.is_file():
        named = splits == "auto"
        return ReviewArchive(str(path), named, replace(reading, test_fraction=0.0) if named else reading)
    files: Files = []
    for split in imdb.SPLITS:
        for label in imdb.CLASSES:
            files += [(name, split) for name in find_files(path / split / label, (".txt",))]
    return _with_splits(path, files, splits, reading)


def _corpus(folder: Path, files: Files, reading: Reading) -> FileCorpus:
    """Raises InputError: keys are to decide of one document, of which none can be held out."""
    keyed = [name for name, split in files if split is None]
    holds_out = reading.val_fraction or reading.test_fraction
    if len(keyed) == 1 and keyed[0].suffix == ".txt" and reading.documents == "file" and holds_out:
        raise InputError(
            f"{keyed[0]}: is one document, of which none can be held out: make several of it (documents=paragraph, or"
            " line), hold out its end (splits=tail), or give files of their own (train*, val*, test*)"
        )
    return FileCorpus(str(folder), tuple((str(name), split) for name, split in files), reading)


def _with_splits(folder: Path, files: Files, splits: Splits, reading: Reading) -> FileCorpus:
    """A corpus whose files name splits, or do not, or whose names are not heeded ("hash")."""
    named = {split for _, split in files}
    if splits == "hash" or named == {None}:
        return _corpus(folder, [(name, None) for name, _ in files], reading)
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
    return _corpus(folder, files, replace(reading, test_fraction=0.0))


def _head_and_tail(path: Path, reading: Reading) -> CorpusReader:
    """Raises InputError: there is not one .txt file."""
    names = [path] if path.is_file() else find_files(path)
    if len(names) != 1 or names[0].suffix != ".txt":
        found = names[0].name if len(names) == 1 else f"{len(names)} files"
        raise InputError(f"{path}: splits=tail holds out the end of one text, a .txt file; here is {found}")
    return HeadAndTail(str(names[0]), ((str(names[0]), None),), reading)


class HeadAndTail(FileCorpus):
    """One text: its beginning for training, what follows for validation, its end for testing.

    Cut where the shares of its bytes end, or behind the character there: nanoGPT's way, for ASCII to the byte. A
    document that is cut is one in either part.
    """

    def shards(self) -> list[Shard]:
        val, test = self.reading.val_fraction, self.reading.test_fraction
        ends = {"train": 1 - val - test, "val": 1 - test if val else 0.0, "test": 1.0 if test else 0.0}
        found, begin = list[Shard](), 0
        with plain_text.mapped(self.folder) as data:
            for split, share in ends.items():
                if not share:
                    continue
                end = int(share * len(data))
                while end < len(data) and data[end] & 0xC0 == 0x80:  # within a character
                    end += 1
                part, documents = (begin, end), self.reading.documents
                shares = plain_text.division(self.folder, data, documents, self.shard_bytes, part)
                found += [Shard(split, (piece,), size) for piece, size in shares]
                begin = end
        return found

    def content_settings(self) -> dict[str, Any]:
        settings = super().content_settings()
        del settings["seed"]  # nobody asks for keys
        return settings | {"splits": ["tail"]}


@dataclass(frozen=True)
class ReviewArchive:
    """IMDb's reviews in Stanford's archive (a `CorpusReader`), each split sorted by class and name.

    Args:
        path: the archive.
        named: take its splits; else documents of both are held out.
        reading: how documents are taken.
    """

    path: str
    named: bool
    reading: Reading

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
            (member.label, member.name): (f"{self.path}: {member.path}", data)
            for member, data in imdb.members(Path(self.path), progress=False)
            if member.split == split
        }
        if not found:
            raise InputError(f"{self.path}: no reviews in {split}; expected {imdb.LAYOUT}")
        place = self.path
        with placed(lambda _: place):
            for key in sorted(found):
                place, data = found[key]
                yield from texts_of(data, 0, len(data), self.reading, shard.split)

    def content_settings(self) -> dict[str, Any]:
        """Everything that decides the documents."""
        named = {"splits": ["hash", "test"] if self.named else ["hash"]}
        return self.reading.settings(by_key=True) | named | stamp([self.path], Path(self.path))
