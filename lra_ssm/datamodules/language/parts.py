"""One piece of a corpus as a part: a folder of its own with the piece's tokens by split, whole or not there at all.

    <parts>/plan.json                             which pieces there are, made with which tokenizer
    <parts>/<number>/part.json                    counts by split and source
    <parts>/<number>/<split>_{tokens,starts}_00000.npy   as `format` has them; a part may begin within a document

A part depends on its piece and the tokenizer alone, so whichever process makes it, in whatever order, it is the same.
Needs no torch.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lra_ssm.datamodules.language.documents import CorpusReader, Piece, Segment
from lra_ssm.datamodules.language.format import TokenWriter
from lra_ssm.datamodules.language.tokenizers import TextTokenizer
from lra_ssm.errors import InputError
from lra_ssm.files import new_folder, write_json

PART = "part.json"

_BATCH_BYTES = 1 << 20  # of text that is tokenised at a time
_BATCH_SEGMENTS = 4096
_IS_BLANK = np.zeros(256, dtype=bool)
_IS_BLANK[[*range(9, 14), *range(28, 33)]] = True  # ASCII's part of what str.split takes for blanks


@dataclass
class Tally:
    """What a split, or one source in it, holds. Words are runs of bytes that are no ASCII blanks."""

    documents: int = 0
    tokens: int = 0
    bytes: int = 0
    words: int = 0
    lines: int = 0

    def add(self, other: "Tally") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def count(segment: Segment, tokens: int) -> Tally:
    """One segment, which became so many tokens."""
    data = segment.text.encode()
    blank = _IS_BLANK[np.frombuffer(data, dtype=np.uint8)]
    words = int(np.count_nonzero(blank[:-1] & ~blank[1:])) + (len(blank) > 0 and not blank[0])
    lines = data.count(b"\n") + (segment.last and not data.endswith(b"\n"))
    return Tally(int(segment.first), tokens, len(data), words, lines)


def write_part(parts: Path, number: int, piece: Piece, reader: CorpusReader, tokenizer: TextTokenizer) -> int:
    """Makes the part of a piece, unless it is there; returns how many tokens were made.

    Args:
        parts: the folder of all parts.
        number: of the piece.
        piece: what to read.
        reader: how.
        tokenizer: what makes tokens of it.

    Raises:
        InputError: as the reader; nothing is left behind.
    """
    target = part_folder(parts, number)
    if (target / PART).is_file():
        return 0
    try:
        with new_folder(target) as temporary:  # a killed process's is removed with the folder of all parts
            return _fill(temporary, piece, reader, tokenizer)
    except OSError:
        if not (target / PART).is_file():  # else another process has just made the same
            raise
        return 0


def part_folder(parts: Path, number: int) -> Path:
    """Where the part of a piece is, or will be."""
    return parts / f"{number:06d}"


def read_part(parts: Path, number: int) -> dict[str, Any]:
    """What part.json says: `splits`, `sources` by split and name, and how many documents were `empty`.

    Raises:
        InputError: it is damaged.
    """
    file = part_folder(parts, number) / PART
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {key: found[key] for key in ("splits", "sources", "empty")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged_part(file) from error


def damaged_part(file: Path) -> InputError:
    """The error for a file of a part, which says what to do."""
    return InputError(
        f"{file}: is not what was written; delete the folder {file.parent} and tokenise again: it alone is made anew"
    )


def _fill(folder: Path, piece: Piece, reader: CorpusReader, tokenizer: TextTokenizer) -> int:
    writers: dict[str, TokenWriter] = {}
    totals: dict[str, Tally] = {}
    sources: dict[str, dict[str, Tally]] = {}
    empty = 0
    for found in _batches(reader.segments(piece)):
        batch = [segment for segment in found if segment.text]
        empty += len(found) - len(batch)
        if not batch:
            continue
        tokens, lengths = tokenizer.encode([s.text for s in batch], [s.last for s in batch])
        splits = [piece.split or reader.split_of(s.key) for s in batch]
        firsts = np.array([s.first for s in batch])
        for split in sorted(set(splits)):
            if split not in writers:
                writers[split] = TokenWriter(folder, split, tokenizer.vocab_size, within=True)
                totals[split], sources[split] = Tally(), {}
            chosen = np.array([s == split for s in splits])
            own, own_lengths = (
                (tokens, lengths) if chosen.all() else (tokens[np.repeat(chosen, lengths)], lengths[chosen])
            )
            writers[split].append(own, (np.cumsum(own_lengths) - own_lengths)[firsts[chosen]])
        for segment, split, length in zip(batch, splits, lengths.tolist(), strict=True):
            tally = count(segment, length)
            totals[split].add(tally)
            sources[split].setdefault(segment.source, Tally()).add(tally)
    write_json(
        folder / PART,
        {
            "splits": {name: {**writer.close(), **vars(totals[name])} for name, writer in writers.items()},
            "sources": {name: {s: vars(tally) for s, tally in by.items()} for name, by in sources.items()},
            "empty": empty,
        },
    )
    return sum(writer.num_tokens for writer in writers.values())


def _batches(segments: Iterable[Segment]) -> Iterator[list[Segment]]:
    """Segments, as many at a time as are tokenised together."""
    batch: list[Segment] = []
    size = 0
    for segment in segments:
        batch.append(segment)
        size += len(segment.text)
        if size >= _BATCH_BYTES or len(batch) == _BATCH_SEGMENTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
