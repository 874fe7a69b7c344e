"""Small prepared texts: tokens that were never words, with documents of any length."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lra_ssm.datamodules.language.documents import CorpusReader
from lra_ssm.datamodules.language.module import LanguageDataModule
from lra_ssm.datamodules.language.shards import TokenWriter
from lra_ssm.datamodules.old_storage.format import PreparedDataset, TokenSplit, open_prepared
from lra_ssm.datamodules.old_storage.writer import write_manifest

VOCAB, END = 300, 299
WHOLE = 1 << 30  # tokens of a shard, where a split is one


def documents(lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    """Of these lengths, the end-of-text token included."""
    random = np.random.RandomState(seed)
    return [[*random.randint(0, END, length - 1).tolist(), END] for length in lengths]


def write_split(
    folder: Path, name: str, texts: Sequence[Sequence[int]], *, shard: int = WHOLE, vocab: int = VOCAB
) -> dict[str, Any]:
    """The split's entry; its shards begin after so many tokens, and those are appended in uneven parts."""
    tokens = [token for text in texts for token in text]
    starts = np.cumsum([0, *map(len, texts)])[:-1]
    shards = []
    for number, first in enumerate(range(0, len(tokens), shard)):
        writer, begin, last = TokenWriter(folder, name, number, vocab), first, min(first + shard, len(tokens))
        while begin < last:
            end = min(begin + 1 + begin % 7, last)
            writer.append(tokens[begin:end], starts[(starts >= begin) & (starts < end)] - begin)
            begin = end
        shards += writer.close()["shards"]
    counts = {"documents": len(texts), "tokens": len(tokens), "bytes": 4 * len(tokens)}
    return {**counts, "words": len(tokens), "lines": len(texts), "sources": {"": counts}, "shards": shards}


def finish(folder: Path, splits: Mapping[str, Any], vocab: int = VOCAB, tokenizer: str = "{}") -> None:
    """Writes what lies beside the splits' arrays."""
    (folder / "tokenizer.json").write_text(tokenizer)
    digest = hashlib.sha256(tokenizer.encode()).hexdigest()
    made = {"file": "tokenizer.json", "sha256": digest, "specification": "made-up"}
    ends = {"vocab_size": vocab, "end_of_text": vocab - 1, "tokenizer": made}
    write_manifest(folder, {"dataset": "made-up", **ends, "source": {"kind": "test"}, "splits": dict(splits)})


def write_text(
    folder: Path,
    splits: Mapping[str, Sequence[Sequence[int]]],
    *,
    shard: int = WHOLE,
    vocab: int = VOCAB,
    tokenizer: str = "{}",
) -> PreparedDataset:
    folder.mkdir(parents=True, exist_ok=True)
    written = {name: write_split(folder, name, texts, shard=shard, vocab=vocab) for name, texts in splits.items()}
    finish(folder, written, vocab, tokenizer)
    return open_prepared(folder)


def text_split(folder: Path, texts: Sequence[Sequence[int]], shard: int = WHOLE) -> TokenSplit:
    """A split of these documents, written to a folder."""
    split = write_text(folder, {"train": texts}, shard=shard).split("train")
    assert isinstance(split, TokenSplit)
    return split


@dataclass(kw_only=True, eq=False, repr=False)
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

    def reader(self) -> CorpusReader:
        raise AssertionError("its tokens were never text")

    def source_settings(self) -> dict[str, Any]:
        return {"lengths": tuple(self.lengths), "seed": self.text_seed, "file": self.tokenizer_text}

    def build(self, folder: Path) -> None:
        texts = documents(self.lengths, self.text_seed)
        splits = {"train": texts, "val": texts[:5], "test": texts[:7]}
        write_text(folder, splits, shard=25, tokenizer=self.tokenizer_text)


def flip(path: Path, position: int, bit: int) -> None:
    """Changes one bit, and leaves the time of change as it was."""
    stat, data = path.stat(), bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def changed(manifest: Any, path: tuple[Any, ...], *value: Any) -> Any:
    """A copy with another value at a path, or without what is there."""
    copy = json.loads(json.dumps(manifest))
    if not path:
        return value[0] if value else {}
    inside = copy
    for key in path[:-1]:
        inside = inside[key]
    if value:
        inside[path[-1]] = value[0]
    else:
        del inside[path[-1]]
    return copy
