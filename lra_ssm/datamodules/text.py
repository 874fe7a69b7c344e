"""LRA's Text: IMDb reviews, negative (0) or positive (1), character by character.

    aclImdb/{train,test}/{pos,neg}/<id>_<rating>.txt    Stanford's archive or its folder, one review per file
    {train,test}-*.parquet                              the Hub's stanfordnlp/imdb

Sources: Maas et al., "Learning Word Vectors for Sentiment Analysis" (2011); Tay et al., "Long Range Arena" (2021); the
default inputs are those of the S4 code (state-spaces/s4, src/dataloaders/lra.py).
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lra_ssm.bars import with_bar
from lra_ssm.datamodules.characters import CharacterData
from lra_ssm.datamodules.download import Hub, parquet_files, read_parquet
from lra_ssm.datamodules.imdb import (
    CLASSES,
    REVIEWS,
    Reviews,
    check_classes,
    fetch_reviews,
    find_reviews,
    read_published,
)

# The revision that several public repositories pin.
HUB = Hub(
    "stanfordnlp/imdb",
    "e6281661ce1c48d982bc483cf8a173c1bbeb5d31",
    ("plain_text/train-*.parquet", "plain_text/test-*.parquet"),
    "text",
)
ORDER_SEED = 42  # of the order in which every split is written


class Text(CharacterData):
    """IMDb reviews. Batches are `Batch`: inputs (B, L), lengths (B,) and labels (B,), all int64.

    Splits are stored in a random order that depends only on texts and labels, because the sources are sorted by class.
    A review that is edited in place in a folder is not noticed.

    Args:
        source: "original" for Stanford's archive or its folder aclImdb below the root; "huggingface" for the Hub's
            stanfordnlp/imdb; or the path of an archive, or of a folder with either.
        inputs: "characters" and `<eos>`, as in the S4 code; "bytes", as in the original LRA code: another task, whose
            numbers do not belong in the same table.
        max_length: a longer review is cut to it, `<eos>` included. 4096 is the S4 code's; the base configuration of
            the original LRA code has 1000.
        min_freq: rarer characters are `<unk>` (only for "characters"; 15 as in the S4 code). They are counted in all
            training reviews, held out or not, each cut to max_length − 1: 131 and 3 special tokens. (The S4 code has
            135, by a rule that we do not know.)
        validation: "held_out" for a part of the training reviews; "test" for the test reviews, as in both public
            codes: a model that is selected by it is selected on the test set.
        val_fraction: share of the training reviews that is held out, half of each class.
        split_seed: decides, together with the reviews' texts, which ones are held out.
    """

    dataset = "text"
    sources = ("original", "huggingface")
    num_classes = len(CLASSES)
    class_names = ("negative", "positive")

    source: str = "original"
    batch_size: int = 16
    max_length: int = 4096
    min_freq: int = 15
    validation: Literal["held_out", "test"] = "held_out"
    val_fraction: float = 0.1
    split_seed: int = 42

    def examples(self) -> Iterator[tuple[str, Any, int]]:
        reviews = {split: _shuffle(published) for split, published in read_reviews(self._find_source()).items()}
        encoder = self.encoder(text for text, _ in reviews["train"])
        splits = {"train": reviews["train"], "val": reviews["test"], "test": reviews["test"]}
        if self.validation == "held_out":
            held_out = self._held_out(reviews["train"])
            splits["val"] = [review for review, held in zip(reviews["train"], held_out, strict=True) if held]
            splits["train"] = [review for review, held in zip(reviews["train"], held_out, strict=True) if not held]
        for name, split in splits.items():
            for text, label in with_bar(split, f"encoding {name}", len(split)):
                yield name, encoder.encode(text), label

    def _held_out(self, train: Reviews) -> npt.NDArray[np.bool_]:
        """Return which training reviews are for validation: those of each class with the smallest keys.

        The origin and order of the reviews make no difference. Copies of a review are on one side (except at the
        border between the two).
        """
        labels, keys = np.array([label for _, label in train]), text_keys([text for text, _ in train], self.split_seed)
        held_out = np.zeros(len(train), dtype=bool)
        for label in range(len(CLASSES)):
            members = np.flatnonzero(labels == label)
            count = max(round(len(members) * self.val_fraction), 1)
            held_out[members[np.argsort(keys[members], kind="stable")[:count]]] = True
        return held_out

    def files(self) -> list[Path]:
        path = self._find_source()
        folders = [path / split / label for split in ("train", "test") for label in CLASSES]
        return folders if all(map(Path.is_dir, folders)) else super().files()

    def fetch(self) -> None:
        if self.source == "original":
            fetch_reviews(self.data_root)
        if self.source == "huggingface":
            HUB.fetch(self.data_root)

    def _find_source(self) -> Path:
        """Return the archive, the folder aclImdb, or a folder with parquet files."""
        if self.kind == "files":
            path = self.source_path()
            return path / "aclImdb" if (path / "aclImdb").is_dir() else path
        if self.source == "original":
            if (reviews := find_reviews(self.data_root)) is None:
                raise self.missing(REVIEWS)
            return reviews
        if not HUB.is_complete(self.data_root):
            raise self.missing(f"copy of the Hub's {HUB.repository}")
        return HUB.path(self.data_root)


def read_reviews(path: Path) -> dict[str, Reviews]:
    """Return the labelled reviews by split (train, test): sorted by class and file name, or in the order of the Hub's
    parquet files.

    Raises:
        InputError: a class has no reviews, or a text is not UTF-8; names the file.
    """
    if not (path.is_dir() and parquet_files(path, "train")):
        return read_published(path)
    reviews = dict[str, Reviews]()
    for split in ("train", "test"):
        rows = (row for file in parquet_files(path, split) for _, row in read_parquet(file, "text", "label"))
        reviews[split] = [(row["text"], row["label"]) for row in rows]
    check_classes(reviews, path)
    return reviews


def text_keys(texts: list[str], seed: int) -> npt.NDArray[np.uint64]:
    """Return random keys that depend only on the texts and the seed."""
    salt = seed.to_bytes(hashlib.blake2b.SALT_SIZE, "little")
    digests = [hashlib.blake2b(text.encode(), digest_size=8, salt=salt).digest() for text in texts]
    return np.frombuffer(b"".join(digests), dtype="<u8")


def _shuffle(reviews: Reviews) -> Reviews:
    """Sort reviews by random keys; labels decide between copies of a text."""
    keys = text_keys([text for text, _ in reviews], ORDER_SEED)
    return [reviews[number] for number in np.lexsort((np.array([label for _, label in reviews]), keys))]
