"""Small texts of random tokens with documents of any length, and documents put together from their segments."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lra_ssm.datamodules.language.corpus import Document, Input, Segment
from lra_ssm.datamodules.language.module import LanguageDataModule
from lra_ssm.datamodules.storage import file_entry, save_split, write_manifest

END = 299  # the last token


def documents(lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    """Documents of these lengths, the end-of-text token included."""
    random = np.random.RandomState(seed)
    return [[*random.randint(0, END, length - 1).tolist(), END] for length in lengths]


def stream(texts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The arrays of a split with these documents."""
    tokens = np.array([token for text in texts for token in text], np.uint16)
    return {"tokens": tokens, "starts": np.cumsum([0, *map(len, texts)])[:-1]}


class MadeUp(LanguageDataModule):
    """Text of documents of given lengths, which the seed decides; val and test have the first few of them."""

    dataset = "made-up"
    sources = ("made-up",)

    source: str = "made-up"
    tokenizer: str = "bytes"
    length: int = 8
    batch_size: int = 4
    shuffle_seed: int | None = 7
    pin_memory: bool | None = False
    lengths: tuple[int, ...] = (5, 1, 1, 40, 3, 17, 2, 30, 1, 1)
    text_seed: int = 0
    tokenizer_text: str = "{}"

    def corpus(self) -> list[Input]:
        raise AssertionError("its tokens were never text")

    def build(self, folder: Path) -> None:
        entries: dict[str, Any] = {}
        for name, number in (("train", None), ("val", 5), ("test", 7)):
            texts = documents(self.lengths, self.text_seed)[:number]
            size = sum(map(len, texts))
            counts = {"documents": len(texts), "tokens": size, "bytes": 4 * size, "words": size}
            entries[name] = {**counts, "sources": {"": counts}, "arrays": save_split(folder, name, stream(texts))}
        (folder / "tokenizer.json").write_text(self.tokenizer_text)
        made = {**file_entry(folder / "tokenizer.json"), "specification": "made-up"}
        ends = {"vocab_size": END + 1, "end_of_text": END, "tokenizer": made, "source": {"kind": "test"}}
        write_manifest(folder, {"dataset": "made-up", **ends, "splits": entries})


def joined(segments: Iterable[Segment]) -> list[Document]:
    """Return all documents without their places: segments joined, and checked to be first, …, last of one document."""
    found, parts = list[Document](), list[Segment]()
    for segment in segments:
        assert segment.text and segment.first == (not parts)
        parts.append(segment)
        if segment.last:
            assert len({(part.split, part.source) for part in parts}) == 1
            found.append(Document("".join(part.text for part in parts), "", segment.split, segment.source))
            parts = []
    assert not parts
    return found


def read(inputs: list[Input]) -> list[Document]:
    """Return all documents of a corpus."""
    return joined(segment for each in inputs for segment in each.read())


def by_split(inputs: list[Input]) -> dict[str, list[str]]:
    """Return the documents of each split."""
    found: dict[Any, list[str]] = {}
    for document in read(inputs):
        found.setdefault(document.split, []).append(document.text)
    return found
