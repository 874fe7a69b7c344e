"""Prepare a corpus: train or load a tokenizer, tokenize each part, join one array for each split.

Parts (`parts.Parts`) lie next to the prepared folder until all of them exist: a killed preparation continues, and
several machines that share a file system can make different parts. A part is one large file or several small ones.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from lra_ssm.bars import Bar
from lra_ssm.datamodules.language.corpus import SPLITS, Input, Segment
from lra_ssm.datamodules.language.files import in_parts
from lra_ssm.datamodules.language.tokenizer import TextTokenizer
from lra_ssm.datamodules.language.tokenizer_spec import TokenizerSpec, load_tokenizer, train_tokenizer
from lra_ssm.datamodules.parts import Parts
from lra_ssm.datamodules.storage import Array, Growing, file_entry, save_split
from lra_ssm.errors import InputError
from lra_ssm.files import locked, write_json

TOKENIZER_RECORD = "tokenizer-of-parts.json"  # in the folder of parts: {"file", "end_of_text"} of their tokenizer
_BATCH_SIZE = 1 << 20  # characters that are tokenized at a time
_BATCH_TEXTS = 4096


def parse_shard(text: str) -> tuple[int, int]:
    """Return (i, n) from "i/n", as 3/16. Raises InputError if the text is not of this form."""
    matched = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text.strip())
    if not matched or not 1 <= int(matched[1]) <= int(matched[2]):
        raise InputError(f"shard {text!r}: must be i/n with i from 1 to n, as 3/16")
    return int(matched[1]), int(matched[2])


class TextCounts(NamedTuple):
    """How much text a split, or one source in it, holds, so that a loss per token compares across tokenizers."""

    documents: int = 0
    tokens: int = 0
    bytes: int = 0  # of UTF-8
    words: int = 0  # runs of bytes that are not ASCII white space

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Self:
        """Return the counts in an entry of a manifest."""
        return cls(*(entry[name] for name in cls._fields))

    @classmethod
    def of_segment(cls, segment: Segment, tokens: int) -> Self:
        """Return the counts of a segment that has this many tokens."""
        data = segment.text.encode()
        return cls(int(segment.first), tokens, len(data), len(data.split()))


def add_counts(counts: Iterable[TextCounts]) -> TextCounts:
    """Return the sum of counts."""
    return TextCounts(*map(sum, zip(*counts, strict=True)))


class Preparation:
    """The preparation of a corpus.

    Args:
        folder: folder of the parts; created with the first one.
        dataset: name of the dataset, for messages.
        inputs: the corpus, in order.
        spec: specification of the tokenizer.
    """

    def __init__(self, folder: Path, dataset: str, inputs: list[Input], spec: TokenizerSpec) -> None:
        self.folder, self.dataset, self.spec = folder, dataset, spec
        self.inputs = in_parts(inputs)
        self.parts = Parts(folder, len(self.inputs))

    def tokenize(self, shard: tuple[int, int] = (1, 1)) -> None:
        """Write the parts of shard i/n that do not exist yet.

        Raises:
            InputError: a file is not as expected, or the tokenizer does not exist.
        """
        if not (missing := self.parts.missing(shard)):
            return
        tokenizer = self._tokenizer()
        size = sum(each.size for number in missing for each in self.inputs[number])
        with Bar(f"tokenizing {self.dataset}", size, in_bytes=True) as bar:
            for number in missing:
                self.parts.write(number, partial(self._tokenize_part, tokenizer, bar))

    def progress(self) -> str:
        """Return one line about the finished parts."""
        finished = self.parts.count - len(self.parts.missing())
        more = "; --merge puts them together" if finished == self.parts.count else ""
        return f"{self.folder}: {finished} of {self.parts.count} parts are made{more}"

    def finish(self, folder: Path) -> dict[str, Any]:
        """Join all parts into the arrays of each split in an empty folder, the tokenizer next to them.

        Returns:
            What the manifest says about the tokenizer and the splits.

        Raises:
            InputError: a part is missing.
        """
        records, splits = self.parts.records(), dict[str, Any]()
        tokenizer = self._tokenizer()
        for split in SPLITS:
            numbers = [number for number, record in enumerate(records) if split in record["splits"]]
            if not numbers:
                continue
            tokens = self.parts.join(folder / f"{split}_tokens.npy", f"{split}_tokens", numbers)
            # The starts in a part are counted from the part's first token.
            sizes = [len(part) for part in self.parts.mapped(f"{split}_tokens", numbers)]
            begins = np.cumsum([0, *sizes[:-1]])
            starts = np.concatenate([*map(np.add, self.parts.mapped(f"{split}_starts", numbers), begins)])
            sources = defaultdict[str, TextCounts](TextCounts)
            for number in numbers:
                for name, counts in records[number]["splits"][split].items():
                    sources[name] = add_counts((sources[name], TextCounts(*counts)))
            by_source = {name: sources[name]._asdict() for name in sorted(sources)}
            total = add_counts(sources.values())._asdict()
            arrays = save_split(folder, split, {"tokens": tokens, "starts": starts})
            splits[split] = {**total, "sources": by_source, "arrays": arrays}
        return {
            "vocab_size": tokenizer.vocab_size,
            "end_of_text": tokenizer.end_of_text,
            "tokenizer": {**file_entry(tokenizer.save(folder)), "specification": self.spec.text},
            "splits": splits,
        }

    def _tokenizer(self) -> TextTokenizer:
        """Return the tokenizer of all parts, which the first process makes and saves next to them."""
        record_file = self.folder / TOKENIZER_RECORD
        if not record_file.is_file():
            with locked(self.folder / ".lock", "makes the tokenizer"):
                if not record_file.is_file():
                    tokenizer = self._train() if self.spec.is_trained else self.spec.open()
                    tokenizer.save(self.folder)
                    write_json(record_file, {"file": tokenizer.file, "end_of_text": tokenizer.end_of_text})
        record = json.loads(record_file.read_text())
        return load_tokenizer(self.folder / record["file"], record["end_of_text"])

    def _train(self) -> TextTokenizer:
        inputs = [each for part in self.inputs for each in part]
        size = sum(each.size for each in inputs)
        with Bar(f"reading {self.dataset} for its tokenizer", size, in_bytes=True) as bar:
            segments = _read(inputs, bar)
            return train_tokenizer(self.spec, (segment.text for segment in segments if segment.split == "train"))

    def _tokenize_part(
        self, tokenizer: TextTokenizer, bar: Bar, number: int
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return the arrays of a part (tokens and starts of each split) and its counts."""
        writers = dict[str, _SplitWriter]()
        for batch in _batch_segments(_read(self.inputs[number], bar)):
            for split in dict.fromkeys(segment.split for segment in batch):
                if split not in writers:
                    writers[split] = _SplitWriter(self.folder, tokenizer)
                writers[split].append([segment for segment in batch if segment.split == split])
        arrays, records = dict[str, Array](), dict[str, Any]()
        for split, writer in writers.items():
            arrays[f"{split}_tokens"], arrays[f"{split}_starts"] = writer.tokens.array(), np.concatenate(writer.starts)
            records[split] = writer.sources
        return arrays, {"splits": records}


class _SplitWriter:
    """Collects the tokens of one split in a part."""

    def __init__(self, folder: Path, tokenizer: TextTokenizer) -> None:
        self.tokenizer, self.tokens = tokenizer, Growing(folder, tokenizer.dtype)
        self.starts = list[Array]()
        self.sources = defaultdict[str, TextCounts](TextCounts)

    def append(self, segments: list[Segment]) -> None:
        tokens, lengths = self.tokenizer.encode([each.text for each in segments], [each.last for each in segments])
        begins = len(self.tokens) + np.cumsum(lengths) - lengths
        self.starts.append(begins[np.array([each.first for each in segments])])
        self.tokens.append(tokens)
        for each, length in zip(segments, lengths.tolist(), strict=True):
            counts = TextCounts.of_segment(each, length)
            self.sources[each.source] = add_counts((self.sources[each.source], counts))


def _read(inputs: list[Input], bar: Bar) -> Iterator[Segment]:
    """Yield the segments of inputs. The bar advances with their text, and at the end of each input to its size, which
    may be that of compressed text."""
    for each in inputs:
        remaining = each.size
        for segment in each.read():
            yield segment
            step = min(len(segment.text), remaining)
            remaining -= step
            bar.advance(step)
        bar.advance(remaining)


def _batch_segments(segments: Iterator[Segment]) -> Iterator[list[Segment]]:
    """Yield lists of segments that are tokenized together."""
    batch, size = list[Segment](), 0
    for segment in segments:
        batch.append(segment)
        size += len(segment.text)
        if size >= _BATCH_SIZE or len(batch) == _BATCH_TEXTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
