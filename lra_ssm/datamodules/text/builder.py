"""Builds prepared folders of IMDb reviews."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lra_ssm.bars import with_bar
from lra_ssm.datamodules.storage.disk import check_disk_space
from lra_ssm.datamodules.storage.selection import LIMIT_SEED, choose, text_keys, texts_digest
from lra_ssm.datamodules.storage.vocabulary import CharacterCounts, Tokenizer, TokenSettings
from lra_ssm.datamodules.storage.writer import DatasetWriter
from lra_ssm.datamodules.text.reader import Reviews
from lra_ssm.errors import InputError

log = logging.getLogger(__name__)

DATASET = "text"
NUM_CLASSES = 2
PUBLISHED_COUNTS = {"train": 25_000, "test": 25_000}
# Raise when the same settings would give other data than before.
READER_VERSION = 2

ORDER_SEED = 42  # of the order that every split is written in

_TEXTS_PER_CHUNK = 1000


@dataclass(frozen=True)
class TextSettings:
    """What decides the prepared data besides the reviews; meanings as for `Text`."""

    tokens: TokenSettings
    validation: str
    val_fraction: float
    split_seed: int
    limit: int | None

    def content_settings(self) -> dict[str, Any]:
        """The settings that matter: fraction and seed for held_out alone."""
        matter = {"validation": self.validation, **self.tokens.content_settings()}
        if self.validation == "held_out":
            matter |= {"val_fraction": self.val_fraction, "split_seed": self.split_seed}
        return matter | ({} if self.limit is None else {"limit": self.limit, "limit_seed": LIMIT_SEED})


def build(folder: Path, reviews: Mapping[str, Reviews], settings: TextSettings, source: Mapping[str, Any]) -> None:
    """Encodes reviews and writes them into an empty folder, as splits train, val and test, each in a random order.

    The order is decided by texts and labels alone, wherever they come from: by class, as the sources have them, a few
    batches (limit_val_batches, overfit_batches, fast_dev_run) would hold one class only.

    The vocabulary is made of all training reviews, those held out and those beyond `limit` included, so that it is the
    same with every validation, seed and limit.

    Args:
        folder: where to.
        reviews: by split, train and test.
        settings: how.
        source: what the manifest says besides the settings: kind, and where the reviews came from.

    Raises:
        InputError: too few reviews to hold some out, or the disk has no room.
    """
    train, test = (_mixed(reviews[name]) for name in ("train", "test"))
    counts = {name: len(split.texts) for name, split in reviews.items()}
    if counts != PUBLISHED_COUNTS:
        log.warning("IMDb: %s labelled reviews; the published ones are %s", counts, PUBLISHED_COUNTS)
    tokenizer = make_tokenizer(settings.tokens, train.texts)
    splits, record = _splits(train, test, settings)
    _check_room(folder, tokenizer, splits.values())
    writer = DatasetWriter(
        folder,
        dataset=DATASET,
        vocabulary=tokenizer.vocabulary,
        num_classes=NUM_CLASSES,
        max_length=settings.tokens.max_length,
    )
    for name, split in splits.items():
        target = writer.split(name)
        starts = range(0, len(split.texts), _TEXTS_PER_CHUNK)
        for start in with_bar(starts, f"encoding {name}", len(starts)):
            end = start + _TEXTS_PER_CHUNK
            target.extend(*tokenizer.encode(split.texts[start:end]), split.labels[start:end])
    record |= {
        "order_seed": ORDER_SEED,
        "counts": counts,
        "published_counts": counts == PUBLISHED_COUNTS,
        "content_sha256": {name: texts_digest(split.texts, split.labels) for name, split in reviews.items()},
    }
    writer.finish({**source, **settings.content_settings(), **record})


def _splits(train: Reviews, test: Reviews, settings: TextSettings) -> tuple[dict[str, Reviews], dict[str, Any]]:
    """The three splits, and what the manifest says of those held out."""
    val, record, kept = test, dict[str, Any](), train
    if settings.validation == "held_out":
        held_out = hold_out(train, settings.val_fraction, settings.split_seed)
        val = _take(train, held_out)
        record = {"held_out_sha256": texts_digest(val.texts, val.labels)}
        kept = _take(train, np.setdiff1d(np.arange(len(train.texts)), held_out))
    if len(set(kept.labels)) < NUM_CLASSES:
        raise InputError(
            f"Text val_fraction {settings.val_fraction}: leaves no training review of one class of {len(train.texts)}"
        )
    splits = {"train": kept, "val": val, "test": test}
    if settings.limit is not None:
        splits = {name: _limited(split, settings.limit) for name, split in splits.items()}
    return splits, record


def make_tokenizer(settings: TokenSettings, texts: list[str]) -> Tokenizer:
    """Characters are counted in the training texts, cut as they are encoded."""
    counts = CharacterCounts()
    for start in range(0, len(texts) if settings.counts_characters else 0, _TEXTS_PER_CHUNK):
        counts.add([text[: settings.reads] for text in texts[start : start + _TEXTS_PER_CHUNK]])
    return settings.tokenizer(counts)


def hold_out(train: Reviews, fraction: float, seed: int) -> npt.NDArray[np.int64]:
    """The numbers of the reviews that are held out, rising: as many of each class, as texts and seed decide.

    Where the reviews come from, and in what order, makes no difference; copies of a review are on one side together
    (but for those at the border between the two).
    """
    return choose(np.array(train.labels), max(round(len(train.texts) * fraction), 1), text_keys(train.texts, seed))


def _mixed(reviews: Reviews) -> Reviews:
    """By random keys; labels decide between copies of a text."""
    return _take(reviews, np.lexsort((np.array(reviews.labels), text_keys(reviews.texts, ORDER_SEED))))


def _limited(split: Reviews, limit: int) -> Reviews:
    return _take(split, choose(np.array(split.labels), limit, text_keys(split.texts, LIMIT_SEED)))


def _check_room(folder: Path, tokenizer: Tokenizer, splits: Iterable[Reviews]) -> None:
    """Of "bytes" at least: a character has several of them where it is not ASCII."""
    bytes_per_token = 1 if len(tokenizer.vocabulary) <= 1 << 8 else 2
    texts = [text for split in splits for text in split.texts]
    tokens = sum(min(len(text), tokenizer.reads) for text in texts)
    check_disk_space(folder, bytes_per_token * tokens + 16 * len(texts), "preparing Text")


def _take(reviews: Reviews, numbers: npt.NDArray[np.int64]) -> Reviews:
    return Reviews([reviews.texts[i] for i in numbers], [reviews.labels[i] for i in numbers])
