"""Reads AAN pairs in the layout that the Long Range Arena published them in, a chunk at a time.

Three files new_aan_pairs.{train,eval,test}.tsv without a header. A line has five columns, separated by tabs: label
(`0.0` or `1.0`: whether a citation links the papers), both papers' ids, both papers' texts. Quotes mean nothing: LRA's
reader has use_quote_delim=False (lra_benchmarks/matching/input_pipeline.py); readers that take them for a csv's merge
lines.

Source: Radev et al., "The ACL Anthology Network corpus" (2013), as in Tay et al., "Long Range Arena" (2021). Needs
neither torch nor lightning.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lra_ssm.datamodules.fetch.lra_release import ReleasedFiles
from lra_ssm.datamodules.fetch.sources import LineFile

log = logging.getLogger(__name__)

NAMES = {"train": "new_aan_pairs.train.tsv", "val": "new_aan_pairs.eval.tsv", "test": "new_aan_pairs.test.tsv"}
FILES = ReleasedFiles("Retrieval", "tsv_data", NAMES, ("aan", "retrieval"))
# The first from the S4 code's configuration, the others from memory.
PUBLISHED_COUNTS = {"train": 147_086, "val": 18_090, "test": 17_437}
COLUMNS = ("label", "id1", "id2", "text1", "text2")

_LABELS = {b"0": 0, b"0.0": 0, b"1": 1, b"1.0": 1}
_CHARACTERS_PER_CHUNK = 1 << 20
_LONG_RUN = 100  # pairs of one class at a file's beginning that are no chance


class Pairs(NamedTuple):
    """Consecutive pairs of a file: labels (n,), texts (2 n,), cut: pair i has texts 2i and 2i + 1."""

    labels: list[int]
    texts: list[str]


@dataclass
class PairsFile:
    """One file, which may be read several times; `manifest_entry` describes it after the first.

    Args:
        path: the file.
        reads: characters beyond which texts are cut.
    """

    path: Path
    reads: int
    manifest_entry: dict[str, Any] = field(default_factory=dict, init=False)

    def chunks(
        self, advance: Callable[[int], object] = lambda size: None, chosen: npt.NDArray[np.int64] | None = None
    ) -> Iterator[Pairs]:
        """Yields the file's pairs in order, every line checked.

        Args:
            advance: told the bytes that are read (for a progress bar).
            chosen: only the pairs with these numbers, rising from 0 on; None for all.

        Raises:
            InputError: `FILE:LINE: what is wrong`, at the first line that is not as published.
        """
        file = LineFile(self.path, advance)
        wanted = None if chosen is None else set(chosen.tolist())
        labels, texts, characters = list[int](), list[str](), 0
        counts, run = [0, 0], 0  # pairs by class; length of the run of one class that the file begins with
        line = b""
        for line in file:
            label, pair = self._parse(line, file)
            counts[label] += 1
            if counts[label] == file.number:
                run = file.number
            if wanted is None or file.number - 1 in wanted:
                labels.append(label)
                texts += pair
                characters += sum(map(len, pair))
            if characters >= _CHARACTERS_PER_CHUNK:
                yield Pairs(labels, texts)
                labels, texts, characters = [], [], 0
        if labels:
            yield Pairs(labels, texts)
        if not file.number:
            raise file.wrong("the file is empty; it holds no pairs")
        if not self.manifest_entry:
            self._warn(line, file.number, run)
        self.manifest_entry = file.entry(pairs=file.number, class_counts=counts)

    def _warn(self, last: bytes, number: int, run: int) -> None:
        """Of what is no error: a last line without an end, and a long run of one class."""
        if not last.endswith(b"\n"):
            log.warning("%s:%d: no line end after the last line; a file that was cut off ends so", self.path, number)
        if _LONG_RUN <= run < number:
            log.warning("%s: its first %d pairs are of one class, and so are the first batches", self.path, run)

    def _parse(self, line: bytes, file: LineFile) -> tuple[int, list[str]]:
        columns = line.removesuffix(b"\n").removesuffix(b"\r").split(b"\t")
        if len(columns) != len(COLUMNS):
            cut = "" if line.endswith(b"\n") else "; the file seems to be cut off here"
            what = f"{len(columns)} columns instead of {len(COLUMNS)} ({', '.join(COLUMNS)}, separated by tabs)"
            raise file.wrong(what + cut)
        label, _, _, *texts = columns
        if label not in _LABELS:
            shown = repr(label[:60].decode("utf-8", errors="replace"))
            raise file.wrong(f"the label is {shown} instead of 0 or 1 (the files have no header)")
        decoded = []
        for name, text in zip(COLUMNS[3:], texts, strict=True):
            try:
                decoded.append(text.decode()[: self.reads])
            except UnicodeDecodeError as error:
                raise file.wrong(f"{name} is not UTF-8 (byte {text[error.start]:#04x} at {error.start})") from None
        return _LABELS[label], decoded
