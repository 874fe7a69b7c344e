"""Reads AAN pairs in the layout that the Long Range Arena published them in, a chunk at a time.

Three files new_aan_pairs.{train,eval,test}.tsv without a header. A line has five columns, separated by tabs: label
(`0.0` or `1.0`: whether a citation links the papers), both papers' ids, both papers' texts. Quotes mean nothing: LRA's
reader has use_quote_delim=False (lra_benchmarks/matching/input_pipeline.py); readers that take them for a csv's merge
lines.

Source: Radev et al., "The ACL Anthology Network corpus" (2013), as in Tay et al., "Long Range Arena" (2021). Needs
neither torch nor lightning.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lra_ssm.datamodules.fetch.sources import opened
from lra_ssm.errors import InputError

log = logging.getLogger(__name__)

FILES = {"train": "new_aan_pairs.train.tsv", "val": "new_aan_pairs.eval.tsv", "test": "new_aan_pairs.test.tsv"}
# The first from the S4 code's configuration, the others from memory.
PUBLISHED_COUNTS = {"train": 147_086, "val": 18_090, "test": 17_437}
# As the archive unpacks, as it should have unpacked, as users move it, and the folder itself.
LAYOUTS = ("lra_release/lra_release/tsv_data", "lra_release/tsv_data", "tsv_data", "aan", "retrieval", "")
COLUMNS = ("label", "id1", "id2", "text1", "text2")

_CHARACTERS_PER_CHUNK = 1 << 20
_LINES_PER_CHUNK = 1 << 14
_LONG_RUN = 100  # pairs of one class at a file's beginning that are no chance
_LONGEST_LINE = 1 << 26  # bytes; a file without line ends must not fill the memory


@dataclass(frozen=True)
class Pairs:
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
            advance: told the number of bytes read since the last time (for a progress bar).
            chosen: only the pairs with these numbers, rising from 0 on; None for all.

        Raises:
            InputError: `FILE:LINE: what is wrong`, at the first line that is not as published.
        """
        wanted = None if chosen is None else set(chosen.tolist())
        digest = None if self.manifest_entry else hashlib.sha256()
        labels: list[int] = []
        texts: list[str] = []
        number = pending = characters = size = 0
        counts, run = [0, 0], 0  # pairs by class; length of the run of one class that the file begins with
        line = b""
        with opened(self.path) as file:
            for number, line in enumerate(iter(partial(file.readline, _LONGEST_LINE), b""), start=1):
                if digest is not None:
                    digest.update(line)
                pending += len(line)
                label, text1, text2 = self._parse(line, number)
                counts[label] += 1
                run = number if counts[label] == number else run
                if wanted is None or number - 1 in wanted:
                    labels.append(label)
                    texts += text1, text2
                    characters += len(text1) + len(text2)
                if characters >= _CHARACTERS_PER_CHUNK or len(labels) == _LINES_PER_CHUNK:
                    yield Pairs(labels, texts)
                    labels, texts, characters = [], [], 0
                if pending >= _CHARACTERS_PER_CHUNK:
                    advance(pending)
                    size, pending = size + pending, 0
        if labels:
            yield Pairs(labels, texts)
        advance(pending)
        if not number:
            raise self._wrong(1, "the file is empty; it holds no pairs")
        if digest is not None:
            if not line.endswith(b"\n"):
                log.warning(
                    "%s:%d: no line end after the last line; a file that was cut off ends so", self.path, number
                )
            if run >= _LONG_RUN and run < number:
                log.warning("%s: its first %d pairs are of one class, and so are the first batches", self.path, run)
            self.manifest_entry = {
                "file": str(self.path),
                "bytes": size + pending,
                "pairs": number,
                "class_counts": counts,
                "sha256": digest.hexdigest(),
                # No digests are published for these files, so there is nothing to compare with.
                "digest": "unknown",
            }

    def _parse(self, line: bytes, number: int) -> tuple[int, str, str]:
        if len(line) == _LONGEST_LINE:
            raise self._wrong(number, f"the line has more than {_LONGEST_LINE:,} bytes; is this a file of AAN pairs?")
        columns = line.removesuffix(b"\n").removesuffix(b"\r").split(b"\t")
        if len(columns) != len(COLUMNS):
            cut = "" if line.endswith(b"\n") else "; the file seems to be cut off here"
            what = f"{len(columns)} columns instead of {len(COLUMNS)} ({', '.join(COLUMNS)}, separated by tabs)"
            raise self._wrong(number, what + cut)
        label = _LABELS.get(columns[0])
        if label is None:
            label = self._odd_label(columns[0], number)
        return label, self._text(columns, 3, number), self._text(columns, 4, number)

    def _odd_label(self, data: bytes, number: int) -> int:
        try:
            value = float(data)
        except ValueError:
            value = -1.0
        if value not in (0, 1):
            shown = repr(data[:60].decode("utf-8", errors="replace"))
            raise self._wrong(number, f"the label is {shown} instead of 0 or 1 (the files have no header)")
        return int(value)

    def _text(self, columns: list[bytes], index: int, number: int) -> str:
        try:
            return columns[index].decode()[: self.reads]
        except UnicodeDecodeError as error:
            what = f"byte {error.object[error.start]:#04x} at {error.start}"
            raise self._wrong(number, f"{COLUMNS[index]} is not UTF-8 ({what})") from None

    def _wrong(self, number: int, what: str) -> InputError:
        return InputError(f"{self.path}:{number}: {what}")


_LABELS = {b"0": 0, b"0.0": 0, b"1": 1, b"1.0": 1}
