"""Small prepared texts: tokens that were never words, with documents of any length."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lra_ssm.datamodules.language.documents import CorpusReader
from lra_ssm.datamodules.language.format import TokenWriter, finish
from lra_ssm.datamodules.language.module import Evaluation, LanguageDataModule, Order
from lra_ssm.datamodules.storage.format import PreparedDataset, TokenSplit, open_prepared

VOCAB, END = 300, 299


def documents(lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    """Of these lengths, the end-of-text token included."""
    random = np.random.RandomState(seed)
    return [[*random.randint(0, END, length - 1).tolist(), END] for length in lengths]


def write_split(
    folder: Path, name: str, texts: Sequence[Sequence[int]], *, shard_bytes: int = 1 << 30, vocab: int = VOCAB
) -> dict[str, Any]:
    """The split's entry; its tokens are appended in uneven parts, with no regard to documents."""
    tokens = [token for text in texts for token in text]
    starts = np.cumsum([0, *map(len, texts)])[:-1]
    writer, begin = TokenWriter(folder, name, vocab, shard_bytes), 0
    while begin < len(tokens):
        end = begin + 1 + begin % 7
        writer.append(tokens[begin:end], starts[(starts >= begin) & (starts < end)] - begin)
        begin = end
    entry = writer.close()
    counts = {"documents": entry["documents"], "tokens": entry["tokens"], "bytes": 4 * len(tokens)}
    return {**entry, "bytes": 4 * len(tokens), "words": len(tokens), "lines": len(texts), "sources": {"": counts}}


def write_tokenizer(folder: Path, text: str = "{}") -> dict[str, Any]:
    (folder / "tokenizer.json").write_text(text)
    return {"file": "tokenizer.json", "sha256": hashlib.sha256(text.encode()).hexdigest(), "specification": "made-up"}


def write_text(
    folder: Path,
    splits: Mapping[str, Sequence[Sequence[int]]],
    *,
    shard_bytes: int = 1 << 30,
    vocab: int = VOCAB,
    tokenizer: str = "{}",
) -> PreparedDataset:
    folder.mkdir(parents=True, exist_ok=True)
    finish(
        folder,
        dataset="made-up",
        vocab_size=vocab,
        end_of_text=vocab - 1,
        tokenizer=write_tokenizer(folder, tokenizer),
        source={"kind": "test"},
        splits={
            name: write_split(folder, name, texts, shard_bytes=shard_bytes, vocab=vocab)
            for name, texts in splits.items()
        },
    )
    return open_prepared(folder)


def text_split(folder: Path, texts: Sequence[Sequence[int]], shard_bytes: int = 1 << 30) -> TokenSplit:
    """A split of these documents, written to a folder."""
    split = write_text(folder, {"train": texts}, shard_bytes=shard_bytes).split("train")
    assert isinstance(split, TokenSplit)
    return split


class MadeUp(LanguageDataModule):
    """Text of documents of given lengths, which the seed decides; val and test have the first few of them."""

    dataset = "made-up"
    sources = ("made-up",)

    def __init__(
        self,
        lengths: tuple[int, ...] = (5, 1, 1, 40, 3, 17, 2, 30, 1, 1),
        root: str | None = None,
        text_seed: int = 0,
        tokenizer_text: str = "{}",
        length: int = 8,
        batch_size: int = 4,
        eval_batch_size: int | None = None,
        order: Order = "shuffled",
        isolate: bool = True,
        evaluation: Evaluation = "windows",
        eval_stride: int | None = None,
        shuffle_seed: int | None = 7,
        num_workers: int = 0,
    ) -> None:
        super().__init__(
            root=root, source="made-up", tokenizer="bytes", length=length, batch_size=batch_size,
            eval_batch_size=eval_batch_size, order=order, isolate=isolate, evaluation=evaluation,
            eval_stride=eval_stride, shuffle_seed=shuffle_seed, num_workers=num_workers, pin_memory=False,
        )  # fmt: skip
        self.lengths, self.text_seed, self.tokenizer_text = tuple(lengths), text_seed, tokenizer_text

    def reader(self) -> CorpusReader:
        raise AssertionError("its tokens were never text")

    def source_settings(self) -> dict[str, Any]:
        return {"lengths": self.lengths, "seed": self.text_seed, "file": self.tokenizer_text}

    def build(self, folder: Path) -> None:
        texts = documents(self.lengths, self.text_seed)
        splits = {"train": texts, "val": texts[:5], "test": texts[:7]}
        write_text(folder, splits, shard_bytes=50, tokenizer=self.tokenizer_text)
