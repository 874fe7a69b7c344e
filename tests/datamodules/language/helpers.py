"""Small prepared texts: tokens that were never words, with documents of any length."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lra_ssm.datamodules.language.corpus import Input
from lra_ssm.datamodules.language.module import LanguageDataModule
from lra_ssm.datamodules.storage import Prepared, Split, file_entry, load, save_split, write_manifest

VOCAB, END = 300, 299


def documents(lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    """Documents of these lengths, the end-of-text token included."""
    random = np.random.RandomState(seed)
    return [[*random.randint(0, END, length - 1).tolist(), END] for length in lengths]


def write_text(
    folder: Path, splits: Mapping[str, Sequence[Sequence[int]]], vocab: int = VOCAB, tokenizer: str = "{}"
) -> Prepared:
    folder.mkdir(parents=True, exist_ok=True)
    entries: dict[str, Any] = {}
    for name, texts in splits.items():
        tokens = np.array([token for text in texts for token in text], np.uint16)
        starts = np.cumsum([0, *map(len, texts)])[:-1]
        counts = {"documents": len(texts), "tokens": len(tokens), "bytes": 4 * len(tokens)}
        counts |= {"words": len(tokens), "lines": len(texts)}
        arrays = save_split(folder, name, {"tokens": tokens, "starts": starts})
        entries[name] = {**counts, "sources": {"": counts}, "arrays": arrays}
    (folder / "tokenizer.json").write_text(tokenizer)
    made = {**file_entry(folder / "tokenizer.json"), "specification": "made-up"}
    ends = {"vocab_size": vocab, "end_of_text": vocab - 1, "tokenizer": made}
    write_manifest(folder, {"dataset": "made-up", **ends, "source": {"kind": "test"}, "splits": entries})
    return load(folder)


def text_split(folder: Path, texts: Sequence[Sequence[int]]) -> Split:
    """A split of these documents, written to a folder."""
    return write_text(folder, {"train": texts}).split("train")


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
        texts = documents(self.lengths, self.text_seed)
        write_text(folder, {"train": texts, "val": texts[:5], "test": texts[:7]}, tokenizer=self.tokenizer_text)
