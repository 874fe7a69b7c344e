"""From a corpus to prepared tokens: a plan of shards, a tokenizer, each shard's tokens, one folder.

Shards lie in a folder of their own until all are there, so a killed preparation goes on where it was, and several
machines that share a file system can make the shards of one corpus, in any order.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lra_ssm.bars import Bar
from lra_ssm.datamodules.language.choosing import TokenizerChoice, load_tokenizer, train_tokenizer
from lra_ssm.datamodules.language.documents import SPLITS, CorpusReader, Shard
from lra_ssm.datamodules.language.shards import TextCounts, is_there, read_shard, shard_folder, split_entry, write_shard
from lra_ssm.datamodules.language.tokenizers import TextTokenizer
from lra_ssm.datamodules.old_storage.arrays import check_digest
from lra_ssm.datamodules.old_storage.disk import check_disk_space
from lra_ssm.datamodules.old_storage.writer import token_dtype
from lra_ssm.datamodules.processes import ordered_map
from lra_ssm.errors import InputError
from lra_ssm.files import locked, sha256, write_json
from lra_ssm.machine import available_cores

PLAN = "plan.json"
_WORTH_PROCESSES = 4 << 20  # bytes of files: others are read while processes start
_SAMPLE_BYTES = 1 << 20  # of text, to see how many tokens a byte becomes


class Turn(NamedTuple):
    """Which shards are made here, where several machines work: every turns-th, from the number-th on."""

    number: int
    turns: int

    @staticmethod
    def parse(text: str) -> "Turn":
        """Of `3/16`. Raises InputError."""
        matched = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text.strip())
        if not matched or not 1 <= int(matched[1]) <= int(matched[2]):
            raise InputError(f"shard {text!r}: must be i/n with i from 1 to n, as 3/16")
        return Turn(int(matched[1]), int(matched[2]))


ALL = Turn(1, 1)


class BadCorpus(InputError):
    """The corpus cannot be read as it is: what was made of it will not serve."""


@dataclass(frozen=True)
class Preparation:
    """A corpus on its way to tokens.

    Args:
        folder: of the shards, which is created.
        dataset: its name, as messages and the manifest have it.
        reader: reads the corpus.
        choice: of the tokenizer.
        processes: that tokenise at a time here; None for one on each core, or where there is little text for this one.
    """

    folder: Path
    dataset: str
    reader: CorpusReader
    choice: TokenizerChoice
    processes: int | None = None

    def tokenise(self, turn: Turn = ALL) -> None:
        """Makes the shards of a turn that are not there yet.

        Raises:
            BadCorpus: a file cannot be read.
            InputError: the corpus or the tokenizer has changed since, the disk has no room, or a process was killed.
        """
        shards = self.reader.shards()
        self.folder.mkdir(parents=True, exist_ok=True)
        tokenizer = self._begin(shards)
        mine = [(n, shard) for n, shard in enumerate(shards) if n % turn.turns == turn.number - 1]
        left = [(n, shard) for n, shard in mine if not is_there(self.folder, n)]
        if not left:
            return
        total, size = sum(shard.size for _, shard in mine), sum(shard.size for _, shard in left)
        self._check_room(left[0][1], size, tokenizer)
        processes = min(len(left), self.processes or (available_cores() if size > _WORTH_PROCESSES else 1))
        left.sort(key=lambda entry: -entry[1].size)  # the largest first: so all end at about the same time
        write = partial(write_shard, self.folder, self.reader, tokenizer)
        bar = Bar(f"tokenising {self.dataset}", total, in_bytes=True, done=total - size)
        with closing(ordered_map(write, left, processes)) as done, bar:
            try:
                for read in done:
                    bar.advance(read)
            except InputError as error:
                if isinstance(error.__cause__, BrokenProcessPool):  # what is done is kept
                    raise
                raise BadCorpus(str(error)) from error

    def progress(self) -> tuple[int, int]:
        """How many shards there are, and how many there must be."""
        count = len(self.reader.shards())
        return sum(is_there(self.folder, n) for n in range(count)), count

    def finish(self, folder: Path) -> dict[str, Any]:
        """Puts all shards, in their order, and the tokenizer into an empty folder; no shard is copied.

        Returns:
            The manifest, but for where the corpus came from: its `source` counts the empty documents alone.

        Raises:
            BadCorpus: a split has no documents.
            InputError: a shard is missing or damaged.
        """
        shards = self.reader.shards()
        tokenizer = self._begun(shards)
        if tokenizer is None:
            raise InputError(f"{self.folder}: nothing is tokenised yet; --shard=1/n to --shard=n/n come before --merge")
        missing = [n for n in range(len(shards)) if not is_there(self.folder, n)]
        if missing:
            raise InputError(
                f"{self.folder}: {len(missing)} of {len(shards)} shards are missing, the first is {missing[0]:06d}:"
                " --shard=i/n makes those whose number mod n is i - 1; run those again, then --merge"
            )
        made = [read_shard(self.folder, number) for number in range(len(shards))]
        splits = {}
        for split in SPLITS:
            if entries := [one["splits"][split] for one in made if split in one["splits"]]:
                counts = [{name: TextCounts.of(part) for name, part in e["sources"].items()} for e in entries]
                splits[split] = split_entry(counts, [arrays for entry in entries for arrays in entry["shards"]])
        self._require_splits(shards, splits)
        for number, one in enumerate(made):
            shard = shard_folder(self.folder, number)
            for array in [array for entry in one["splits"].values() for array in entry["shards"][0].values()]:
                check_digest(shard, array)  # it may have been written by another machine, and weeks ago
                _link(shard / array["file"], folder / array["file"])
        tokenizer.save(folder)
        return {
            "dataset": self.dataset,
            "vocab_size": tokenizer.vocab_size,
            "end_of_text": tokenizer.end_of_text,
            "tokenizer": {"file": tokenizer.file, "sha256": tokenizer.digest, "specification": self.choice.text},
            "source": {"empty_documents_skipped": sum(one["empty"] for one in made)},
            "splits": splits,
        }

    # -- the plan ----------------------------------------------------------------------------------------------------

    def _begin(self, shards: Sequence[Shard]) -> TextTokenizer:
        """The tokenizer of all shards: made, with the plan, by the first process that comes."""
        if (tokenizer := self._begun(shards)) is not None:
            return tokenizer
        with locked(self.folder / ".lock", "makes the tokenizer"):
            if (tokenizer := self._begun(shards)) is not None:
                return tokenizer
            if self.choice.is_trained:
                size = sum(shard.size for shard in shards if shard.split in (None, "train"))
                tokenizer = train_tokenizer(self.choice, self._training_texts(shards, size), size)
            else:
                tokenizer = self.choice.open()
            tokenizer.save(self.folder)
            made = {"file": tokenizer.file, "sha256": tokenizer.digest, "end_of_text": tokenizer.end_of_text}
            write_json(self.folder / PLAN, {"shards": len(shards), "corpus": _digest(shards), "tokenizer": made})
        return tokenizer

    def _begun(self, shards: Sequence[Shard]) -> TextTokenizer | None:
        """The tokenizer of the shards that there are; None where no process has begun."""
        try:
            plan = json.loads((self.folder / PLAN).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise InputError(f"{self.folder / PLAN}: cannot be read; delete the folder {self.folder}") from error
        made = plan["tokenizer"]
        if plan["corpus"] != _digest(shards):
            raise InputError(f"{self.folder}: the corpus has changed since; delete the folder to begin anew")
        file = self.folder / made["file"]
        if not file.is_file() or sha256(file) != made["sha256"]:
            raise InputError(f"{file}: is not what the shards beside it were made with; delete {self.folder}")
        if not self.choice.is_trained:
            now = self.choice.open()
            if (now.digest, now.end_of_text) != (made["sha256"], made["end_of_text"]):
                raise InputError(
                    f"tokenizer {self.choice.text}: has changed since the first shard of {self.dataset} was made; bring"
                    f" the old one back, or delete {self.folder} to begin anew"
                )
        return load_tokenizer(file, made["end_of_text"])

    def _training_texts(self, shards: Sequence[Shard], size: int) -> Iterator[str]:
        """Of shards that hold so many bytes of training documents."""
        with Bar(f"reading {self.dataset} for its tokenizer", size, in_bytes=True) as bar:
            for shard in shards:
                if shard.split in (None, "train"):
                    yield from (text.text for text in self.reader.texts(shard) if text.split == "train")
                    bar.advance(shard.size)

    def _check_room(self, shard: Shard, size: int, tokenizer: TextTokenizer) -> None:
        """For so many bytes of files, by what a shard's first texts became."""
        text, read = list[str](), 0
        for found in self.reader.texts(shard):
            text.append(found.text)
            read += len(found.text.encode())
            if read >= _SAMPLE_BYTES:
                break
        tokens = len(tokenizer.encode(text, [True] * len(text)).tokens)
        item = np.dtype(token_dtype(tokenizer.vocab_size)).itemsize
        check_disk_space(self.folder, size * tokens * item // max(read, 1), f"tokenising {self.dataset}")

    def _require_splits(self, shards: Sequence[Shard], splits: dict[str, Any]) -> None:
        """Raises BadCorpus where a split that the corpus should have got no document."""
        reading = self.reader.reading
        due = {shard.split for shard in shards}
        if None in due:
            fractions = {"train": 1.0, "val": reading.val_fraction, "test": reading.test_fraction}
            due |= {split for split, fraction in fractions.items() if fraction}
        if missing := [split for split in SPLITS if split in due - splits.keys()]:
            found = ", ".join(f"{entry['documents']:,} for {name}" for name, entry in splits.items())
            raise BadCorpus(
                f"{self.dataset}: no document for {missing[0]} ({found or 'none at all'}): hold out more (val_fraction,"
                " test_fraction), make smaller documents (documents=line), or give files (train*, val*, test*)"
            )


def _link(file: Path, target: Path) -> None:
    """The same file by another name, or where the disk has no such thing a copy."""
    try:
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)


def _digest(shards: Sequence[Shard]) -> str:
    plain = [(split, [share[:3] for share in ranges], size) for split, ranges, size in shards]
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()
