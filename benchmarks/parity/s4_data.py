"""The tokens and labels of state-spaces/s4's data loaders next to ours, for Text and for ListOps in LRA's layout.

    python benchmarks/parity/s4_data.py s4 --imdb=data/text/aclImdb --reviews=500 --listops=expressions.tsv

Its classes `IMDB` and `ListOps` (src/dataloaders/lra.py) read, tokenize and number the same files as our data modules.
Both results are translated back to tokens by name and compared as collections of (tokens, label): our splits have
another order, and their ids are numbered by frequency. Two packages are replaced: torchtext, which no current
PyTorch can load, by its rule for vocabularies below; and for Text `datasets.load_dataset("imdb")`, which downloads, by
the same reviews read from Stanford's folder. ListOps goes through the real `datasets`.

--imdb: Stanford's folder, of which the first reviews of each class and split are compared. --listops: a file of
expressions, with a value, a tab and an expression per line, such as nyu-mll/spinn's test_d20s.tsv; without it
only generated expressions are compared. Writes s4-data.csv.
"""

import argparse
import csv
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from compare import RESULTS
from lra_ssm.datamodules import ListOps, Text
from s4 import ABSENT, import_public

SPLITS = ("train", "val", "test")
Example = tuple[tuple[str, ...], int]  # tokens by name, label


class Agreement(NamedTuple):
    """examples: how many theirs and ours are; common: how many of them are in both; tokens: of theirs."""

    theirs: int
    ours: int
    common: int
    tokens: int


def agreement(theirs: Iterable[Example], ours: Iterable[Example]) -> Agreement:
    """Compares two collections whatever their order; an example that occurs twice counts twice."""
    left, right = Counter(theirs), Counter(ours)
    tokens = sum(len(example[0]) * count for example, count in left.items())
    return Agreement(left.total(), right.total(), (left & right).total(), tokens)


class Vocabulary:
    """torchtext.vocab.build_vocab_from_iterator: the specials, then tokens by frequency, equal ones by name."""

    def __init__(self, texts: Iterable[Sequence[str]], min_freq: int = 1, specials: Sequence[str] = ()) -> None:
        counts = Counter(token for text in texts for token in text)
        by_frequency = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
        self.names = [*specials, *(token for token, count in by_frequency if count >= min_freq)]
        self.ids = {token: number for number, token in enumerate(self.names)}
        self.default = -1

    def set_default_index(self, number: int) -> None:
        self.default = number

    def __getitem__(self, token: str) -> int:
        return self.ids[token]

    def __len__(self) -> int:
        return len(self.names)

    def __call__(self, tokens: Sequence[str]) -> list[int]:
        return [self.ids.get(token, self.default) for token in tokens]


def our_examples(data: Any, names: Sequence[str], split: str) -> Iterator[Example]:
    """Yield the examples of a prepared data module; split is "train", "val" or "test"."""
    data.setup("test" if split == "test" else "fit")
    for inputs, lengths, labels in getattr(data, f"{split}_dataloader")():
        for row, length, label in zip(inputs.tolist(), lengths.tolist(), labels.tolist(), strict=True):
            yield tuple(names[number] for number in row[:length]), label


def their_examples(dataset: Any, names: Sequence[str], label: str) -> Iterator[Example]:
    for example in dataset:
        yield tuple(names[number] for number in example["input_ids"].tolist()), int(example[label])


def read_reviews(folder: Path, count: int) -> Iterator[tuple[str, int, Path]]:
    """Yield (text, label, file) of the first reviews of each class in a split's folder, by file name."""
    for label, name in enumerate(("neg", "pos")):
        for file in sorted((folder / name).glob("*.txt"))[:count]:
            yield file.read_text(encoding="utf-8"), label, file


def compare_text(
    public: ModuleType, imdb: Path, count: int, folder: Path
) -> Iterator[tuple[str, str, int, int, Agreement]]:
    """Yield (task, split, their vocabulary size, ours, agreement) for each split of Text."""
    from datasets import Dataset, DatasetDict

    reviews = {split: list(read_reviews(imdb / split, count)) for split in ("train", "test")}
    for split, examples in reviews.items():
        for _, label, file in examples:
            target = folder / "aclImdb" / split / ("neg", "pos")[label] / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
    rows = {split: [{"text": text, "label": label} for text, label, _ in each] for split, each in reviews.items()}
    datasets = DatasetDict({split: Dataset.from_list(each) for split, each in rows.items()})
    public.__dict__["load_dataset"] = lambda *_, **__: datasets
    loader = public.IMDB("imdb", data_dir=folder / "theirs", n_workers=1)
    loader.setup()
    ours = Text(root=str(folder / "ours"), source=str(folder / "aclImdb"), validation="test")
    ours.prepare_data()
    names = ours.manifest()["vocabulary"]
    for split, dataset in (("train", loader.dataset_train), ("test", loader.dataset_test)):
        pair = their_examples(dataset, loader.vocab.names, "label"), our_examples(ours, names, split)
        yield "text", split, len(loader.vocab), len(names), agreement(*pair)


def compare_listops(
    public: ModuleType, expressions: Mapping[str, list[tuple[str, str]]], folder: Path, task: str
) -> Iterator[tuple[str, str, int, int, Agreement]]:
    """Yield the same for each split of ListOps, whose (expression, value) pairs are written in LRA's layout."""
    import datasets

    public.__dict__["load_dataset"] = datasets.load_dataset
    folder.mkdir()
    for split, lines in expressions.items():
        text = "".join(f"{expression}\t{value}\n" for expression, value in lines)
        (folder / f"basic_{split}.tsv").write_text(f"Source\tTarget\n{text}")
    loader = public.ListOps("listops", data_dir=folder, n_workers=1)
    loader.cache_dir = None
    loader.setup()
    ours = ListOps(root=str(folder / "ours"), source=str(folder))
    ours.prepare_data()
    names = ["]" if name == "X" else name for name in loader.vocab.names]  # as LRA's tokenizer renames it
    for split in SPLITS:
        theirs = their_examples(getattr(loader, f"dataset_{split}"), names, "Target")
        pair = theirs, our_examples(ours, ListOps.vocabulary, split)
        yield task, split, len(loader.vocab), len(ListOps.vocabulary), agreement(*pair)


def generated(folder: Path, train: int = 2000, others: int = 300) -> dict[str, list[tuple[str, str]]]:
    """Return expressions from our generator as LRA writes them, with parentheses around every operand."""
    data = ListOps(root=str(folder), length_bounds=(5, 200), num_train=train, num_val=others, num_test=others)
    data.prepare_data()
    return {
        split: [
            (" ".join(t if t[0] == "[" or t == "]" else f"( {t} )" for t in tokens[:-1]), str(label))
            for tokens, label in our_examples(data, ListOps.vocabulary, split)
        ]
        for split in SPLITS
    }


def of_file(file: Path) -> dict[str, list[tuple[str, str]]]:
    """Read lines of value, tab and expression; eight tenths are for training, a tenth each for validation and test."""
    lines = [line.split("\t") for line in file.read_text().splitlines()]
    pairs = [(expression, value) for value, expression in lines]
    low, high = len(pairs) * 8 // 10, len(pairs) * 9 // 10
    return {"train": pairs[:low], "val": pairs[low:high], "test": pairs[high:]}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--imdb", type=Path, help="Stanford's folder aclImdb")
    parser.add_argument("--reviews", type=int, default=500, help="of each class and split")
    parser.add_argument("--listops", type=Path, help="lines of a value, a tab and an expression")
    parser.add_argument("--out", type=Path, default=RESULTS / "s4-data.csv")
    given = parser.parse_args(arguments)
    assert "torchtext" in ABSENT
    os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"
    import_public(given.checkout)
    from src.dataloaders import lra as public  # type: ignore[import-not-found]

    sys.modules["torchtext"].__dict__["vocab"] = type("vocab", (), {"build_vocab_from_iterator": Vocabulary})
    with tempfile.TemporaryDirectory() as name, given.out.open("w", newline="") as stream:
        folder = Path(name)
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["data", "split", "vocabulary theirs", "vocabulary ours", "examples theirs", "examples ours",
                         "equal", "tokens"])  # fmt: skip
        rows = list(compare_listops(public, generated(folder), folder / "generated", "listops, generated"))
        if given.listops:
            rows += compare_listops(public, of_file(given.listops), folder / "given", f"listops, {given.listops.name}")
        if given.imdb:
            rows += compare_text(public, given.imdb, given.reviews, folder / "text")
        for task, split, theirs, ours, counts in rows:
            writer.writerow([task, split, theirs, ours, *counts])
            print(task, split, f"vocabulary {theirs} and {ours}", counts)


if __name__ == "__main__":
    main()
