"""From a corpus to prepared tokens: a plan of pieces, a tokenizer, a part for each piece, one prepared folder of all.

Everything lies in a folder of parts until it is merged, so whoever is killed goes on where he was, and several machines
that share a file system can make the parts of one corpus, in any order. Needs no torch.
"""

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lra_ssm.datamodules.language.choosing import TokenizerChoice, load_tokenizer, train_tokenizer
from lra_ssm.datamodules.language.documents import SPLITS, CorpusReader, Piece
from lra_ssm.datamodules.language.format import TokenWriter, finish
from lra_ssm.datamodules.language.parts import PART, Tally, damaged_part, part_folder, read_part, write_part
from lra_ssm.datamodules.language.tokenizers import TextTokenizer
from lra_ssm.datamodules.processes import ordered_map
from lra_ssm.datamodules.storage.bars import TokenBar
from lra_ssm.datamodules.storage.disk import check_disk_space
from lra_ssm.datamodules.storage.format import sha256
from lra_ssm.datamodules.storage.locking import locked
from lra_ssm.datamodules.storage.writer import token_dtype
from lra_ssm.errors import InputError
from lra_ssm.files import write_json
from lra_ssm.machine import available_cores

log = logging.getLogger(__name__)

PLAN = "plan.json"
_WORTH_PROCESSES = 4 << 20  # bytes of files: others are read while processes start
_SAMPLE_BYTES = 1 << 20  # of text, to see how many tokens a byte becomes


class Share(NamedTuple):
    """One of several processes, often on several machines, that make the parts of one corpus: number 1 … shares."""

    number: int
    shares: int

    @staticmethod
    def parse(text: str) -> "Share":
        """Of `3/16`. Raises InputError."""
        matched = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text.strip())
        if not matched or not 1 <= int(matched[1]) <= int(matched[2]):
            raise InputError(f"shard {text!r}: must be i/n with i from 1 to n, as 3/16")
        return Share(int(matched[1]), int(matched[2]))


WHOLE = Share(1, 1)


class BadCorpus(InputError):
    """The corpus cannot be read as it is: what was made of it will not serve when it is mended."""


@dataclass(frozen=True)
class Preparation:
    """A corpus on its way to tokens.

    Args:
        parts: the folder of parts, which is created.
        dataset: its name, as messages and the manifest have it.
        reader: reads the corpus.
        choice: of the tokenizer.
        end_of_text: of a tokenizer.json: the token that ends texts; None where it is known.
        processes: that tokenise at a time here; None for one on each core, and for this one alone where there is little
            text. Does not change the result.
    """

    parts: Path
    dataset: str
    reader: CorpusReader
    choice: TokenizerChoice
    end_of_text: str | None = None
    processes: int | None = None

    def tokenise(self, share: Share = WHOLE) -> None:
        """Makes the parts of a share that are not there yet.

        Raises:
            BadCorpus: a file cannot be read.
            InputError: the corpus or the tokenizer is another than when the first part was made, or the disk has no
                room; or a process was killed.
        """
        pieces = self.reader.pieces()
        self.parts.mkdir(parents=True, exist_ok=True)
        tokenizer = self._begin(pieces)
        mine = [(n, piece) for n, piece in enumerate(pieces) if n % share.shares == share.number - 1]
        left = [(n, piece) for n, piece in mine if not (part_folder(self.parts, n) / PART).is_file()]
        if not left:
            return
        total, size = sum(piece.size for _, piece in mine), sum(piece.size for _, piece in left)
        self._check_room(left, size, tokenizer, merged=share.shares == 1)
        processes = self.processes or (available_cores() if size > _WORTH_PROCESSES else 1)
        left.sort(key=lambda entry: -entry[1].size)  # the largest first: so all end at about the same time
        write = partial(_write, self.parts, self.reader, tokenizer)
        tokenising = f"tokenising {self.dataset}"
        with closing(ordered_map(write, left, processes)) as done, TokenBar(tokenising, total, total - size) as bar:
            try:
                for read, tokens in done:
                    bar.advance(read, tokens)
            except InputError as error:
                raise BadCorpus(str(error)) from error
            except ChildProcessError as error:
                raise InputError(f"{error} (--processes); what is done stays done") from error

    def progress(self) -> tuple[int, int]:
        """How many parts there are, and how many there must be."""
        count = len(self.reader.pieces())
        return sum((part_folder(self.parts, n) / PART).is_file() for n in range(count)), count

    def merge(self, folder: Path, source: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Puts all parts together, in the order of their pieces, into an empty folder.

        Args:
            folder: where to.
            source: what the manifest says of where the corpus came from, given the entries of its splits.

        Raises:
            InputError: a part is missing or damaged, a split has no documents, or the disk has no room.
        """
        pieces = self.reader.pieces()
        tokenizer = self._begun(pieces)
        if tokenizer is None:
            raise InputError(f"{self.parts}: nothing is tokenised yet; --shard=1/n to --shard=n/n come before --merge")
        self._require_all(len(pieces))
        parts = [read_part(self.parts, number) for number in range(len(pieces))]
        totals = {split: [part["splits"].get(split) for part in parts] for split in SPLITS}
        tokens = sum(entry["tokens"] for entries in totals.values() for entry in entries if entry)
        check_disk_space(
            folder, tokens * np.dtype(token_dtype(tokenizer.vocab_size)).itemsize, f"merging {self.dataset}"
        )
        splits: dict[str, Any] = {}
        with TokenBar(f"merging {self.dataset}", tokens) as bar:
            for split in SPLITS:
                if any(totals[split]):
                    splits[split] = self._merged(folder, split, parts, tokenizer.vocab_size, bar)
        self._require_splits(pieces, splits)
        tokenizer.save(folder)
        empty = sum(part["empty"] for part in parts)
        finish(
            folder,
            dataset=self.dataset,
            vocab_size=tokenizer.vocab_size,
            end_of_text=tokenizer.end_of_text,
            tokenizer={"file": tokenizer.file, "sha256": tokenizer.digest, "specification": self.choice.text},
            source={**source(splits), "empty_documents_skipped": empty},
            splits=splits,
        )

    def _merged(
        self, folder: Path, split: str, parts: Sequence[dict[str, Any]], vocab_size: int, bar: TokenBar
    ) -> dict[str, Any]:
        """Writes a split; returns its entry for the manifest."""
        writer = TokenWriter(folder, split, vocab_size)
        total, sources = Tally(), dict[str, Tally]()
        for number, part in enumerate(parts):
            if (entry := part["splits"].get(split)) is None:
                continue
            total.add(Tally(**{name: entry[name] for name in vars(total)}))
            for name, tally in part["sources"][split].items():
                sources.setdefault(name, Tally()).add(Tally(**tally))
            base = 0
            for shard in entry["shards"]:
                tokens, starts = (self._array(number, shard[key]) for key in ("tokens", "starts"))
                writer.append(tokens, starts - base)
                base += len(tokens)
                bar.advance(len(tokens), len(tokens))
        return {**writer.close(), **vars(total), "sources": {name: vars(sources[name]) for name in sorted(sources)}}

    def _array(self, number: int, entry: dict[str, Any]) -> Any:
        """An array of a part, compared with its digest."""
        path = part_folder(self.parts, number) / entry["file"]
        try:
            array = np.fromfile(path, dtype=entry["dtype"])
            whole = hashlib.sha256(array.data).hexdigest() == entry["sha256"]
        except OSError:
            whole = False
        if not whole:
            raise damaged_part(path)
        return array

    # -- the plan ----------------------------------------------------------------------------------------------------

    def _begin(self, pieces: Sequence[Piece]) -> TextTokenizer:
        """The tokenizer of all parts: made, with the plan, by the first process that comes."""
        if (tokenizer := self._begun(pieces)) is not None:
            return tokenizer
        with locked(self.parts / ".lock", "makes the tokenizer"):
            if (tokenizer := self._begun(pieces)) is not None:
                return tokenizer
            if self.choice.is_trained:
                size = sum(piece.size for piece in pieces if piece.split in (None, "train"))
                tokenizer = train_tokenizer(self.choice, self._training_texts(pieces), size)
            else:
                tokenizer = self.choice.open(self.end_of_text)
            tokenizer.save(self.parts)
            made = {"file": tokenizer.file, "sha256": tokenizer.digest, "end_of_text": tokenizer.end_of_text}
            write_json(self.parts / PLAN, {"pieces": len(pieces), "corpus": _digest(pieces), "tokenizer": made})
        return tokenizer

    def _begun(self, pieces: Sequence[Piece]) -> TextTokenizer | None:
        """The tokenizer of the parts that there are; None where no process has begun."""
        try:
            plan = json.loads((self.parts / PLAN).read_text(encoding="utf-8"))
            corpus, made = plan["corpus"], plan["tokenizer"]
            file, digest, end_of_text = self.parts / made["file"], made["sha256"], made["end_of_text"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{self.parts / PLAN}: cannot be read; delete the folder {self.parts}") from error
        if corpus != _digest(pieces):
            raise InputError(
                f"{self.parts}: the corpus has changed since the first part was made; delete this folder to begin anew"
            )
        if not file.is_file() or sha256(file) != digest:
            raise InputError(
                f"{file}: is not the tokenizer that the parts beside it were made with; delete {self.parts}"
            )
        tokenizer = load_tokenizer(file, end_of_text)
        if not self.choice.is_trained:
            now = self.choice.open(self.end_of_text)
            if (now.digest, now.end_of_text) != (digest, end_of_text):
                raise InputError(
                    f"tokenizer {self.choice.text}: has changed since the first part of {self.dataset} was made"
                    f" ({tokenizer.vocab_size:,} tokens then, {now.vocab_size:,} now); bring the old one back, or"
                    f" delete {self.parts} to begin anew"
                )
        return tokenizer

    def _training_texts(self, pieces: Sequence[Piece]) -> Iterator[str]:
        total = sum(piece.size for piece in pieces)
        with TokenBar(f"reading {self.dataset} for its tokenizer", total) as bar:
            for piece in pieces:
                read = 0
                if piece.split in (None, "train"):
                    for segment in self.reader.segments(piece):
                        if (piece.split or self.reader.split_of(segment.key)) == "train":
                            yield segment.text
                        bar.advance(segment.read - read, 0)
                        read = segment.read
                bar.advance(piece.size - read, 0)

    def _check_room(
        self, left: Sequence[tuple[int, Piece]], size: int, tokenizer: TextTokenizer, *, merged: bool
    ) -> None:
        """Of so many bytes of files, by what the first texts of the first piece became; twice where they are merged."""
        text, read = [], 0
        for segment in self.reader.segments(left[0][1]):
            text.append(segment.text)
            read = segment.read
            if sum(map(len, text)) >= _SAMPLE_BYTES:
                break
        tokens = len(tokenizer.encode(text, [True] * len(text)).tokens)
        item = np.dtype(token_dtype(tokenizer.vocab_size)).itemsize
        needed = size * tokens * item / max(read, 1)
        check_disk_space(self.parts, int(needed * (2 if merged else 1)), f"tokenising {self.dataset}")

    def _require_all(self, count: int) -> None:
        missing = [n for n in range(count) if not (part_folder(self.parts, n) / PART).is_file()]
        if missing:
            shown = ", ".join(f"{n:06d}" for n in missing[:3]) + (", …" if len(missing) > 3 else "")
            raise InputError(
                f"{self.parts}: {len(missing)} of {count} parts are missing ({shown}): of n shards, number p mod n + 1"
                " makes part p; run those again, then --merge"
            )

    def _require_splits(self, pieces: Sequence[Piece], splits: dict[str, Any]) -> None:
        """Raises InputError where a split that the corpus should have got no document."""
        held_out = self.reader.held_out
        shares = {"train": 1.0, "val": held_out.val_fraction, "test": held_out.test_fraction}
        by_key = any(piece.split is None for piece in pieces)
        for split in SPLITS:
            due = any(piece.split == split for piece in pieces) or (by_key and shares[split] > 0)
            if due and split not in splits:
                found = ", ".join(f"{entry['documents']:,} for {name}" for name, entry in splits.items())
                raise InputError(
                    f"{self.dataset}: no document for {split} ({found or 'none at all'}): hold out a larger share"
                    " (val_fraction, test_fraction), make smaller documents (documents=paragraph, or line), or give"
                    " files of their own (train*, val*, test*)"
                )


def _write(parts: Path, reader: CorpusReader, tokenizer: TextTokenizer, numbered: tuple[int, Piece]) -> tuple[int, int]:
    """Makes the part of a piece, given with its number; returns its bytes of files and how many tokens they became."""
    number, piece = numbered
    return piece.size, write_part(parts, number, piece, reader, tokenizer)


def _digest(pieces: Sequence[Piece]) -> str:
    return hashlib.sha256(json.dumps(pieces).encode()).hexdigest()
