"""Builds prepared folders of IMDb reviews."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lra_ssm.bars import with_bar
from lra_ssm.datamodules.storage.disk import check_disk_space
from lra_ssm.datamodules.storage.selection import LIMIT_SEED, choose, text_keys, texts_digest
from lra_ssm.datamodules.storage.vocabulary import CharacterCounts, TokenSettings
from lra_ssm.datamodules.storage.writer import DatasetWriter
from lra_ssm.datamodules.text.reader import CLASSES, Reviews
from lra_ssm.errors import InputError

log = logging.getLogger(__name__)

DATASET = "text"
PUBLISHED_COUNTS = {"train": 25_000, "test": 25_000}
# Raise when the same settings would give other data than before.
READER_VERSION = 2

ORDER_SEED = 42  # of the order that every split is written in

_TEXTS_PER_CHUNK = 1000


class HeldOut(NamedTuple):
    """Which training reviews are for validation: a share of each class, as texts and seed decide.

    Where the reviews come from, and in what order, makes no difference; copies of a review are on one side together
    (but for those at the border between the two).
    """

    fraction: float
    seed: int

    def of(self, train: Reviews) -> npt.NDArray[np.int64]:
        """The numbers of these reviews, rising."""
        count = max(round(len(train.texts) * self.fraction), 1)
        return choose(np.array(train.labels), count, text_keys(train.texts, self.seed))


def build(
    folder: Path,
    reviews: Mapping[str, Reviews],
    tokens: TokenSettings,
    held_out: HeldOut | None,
    limit: int | None,
    source: Mapping[str, Any],
) -> None:
    """Encodes reviews and writes them into an empty folder, as splits train, val and test, each in a random order.

    The order is decided by texts and labels alone, wherever they come from: by class, as the sources have them, a few
    batches (limit_val_batches, overfit_batches, fast_dev_run) would hold one class only.

    The vocabulary is made of all training reviews, those held out and those beyond `limit` included, so that it is the
    same with every validation, seed and limit.

    Args:
        folder: where to.
        reviews: by split, train and test.
        tokens: how texts become tokens.
        held_out: for validation; None: the test reviews are.
        limit: as for `Text`.
        source: what the manifest says: settings, kind, and where the reviews came from.

    Raises:
        InputError: too few reviews to hold some out, or the disk has no room.
    """
    counts = {name: len(split.texts) for name, split in reviews.items()}
    if counts != PUBLISHED_COUNTS:
        log.warning("IMDb: %s labelled reviews; the published ones are %s", counts, PUBLISHED_COUNTS)
    train, test = (_mixed(reviews[name]) for name in ("train", "test"))
    splits, record = {"train": train, "val": test, "test": test}, dict[str, Any]()
    if held_out is not None:
        val = held_out.of(train)
        kept = np.setdiff1d(np.arange(len(train.texts)), val)
        splits |= {"train": train.take(kept), "val": train.take(val)}
        record["held_out_sha256"] = texts_digest(splits["val"].texts, splits["val"].labels)
        if len(set(splits["train"].labels)) < len(CLASSES):
            which = f"val_fraction {held_out.fraction}: leaves no training review of one class of {len(train.texts)}"
            raise InputError(f"Text {which}")
    if limit is not None:
        for name, split in splits.items():
            keys = text_keys(split.texts, LIMIT_SEED)
            splits[name] = split.take(choose(np.array(split.labels), limit, keys))

    characters = CharacterCounts()
    for start in range(0, len(train.texts) if tokens.counts_characters else 0, _TEXTS_PER_CHUNK):
        characters.add([text[: tokens.reads] for text in train.texts[start : start + _TEXTS_PER_CHUNK]])
    tokenizer = tokens.tokenizer(characters)
    lengths = [min(len(text), tokenizer.reads) for split in splits.values() for text in split.texts]
    token_bytes = 1 if len(tokenizer.vocabulary) <= 1 << 8 else 2
    # Of "bytes" at least: a character has several of them where it is not ASCII.
    check_disk_space(folder, token_bytes * sum(lengths) + 16 * len(lengths), "preparing Text")
    writer = DatasetWriter(
        folder,
        dataset=DATASET,
        vocabulary=tokenizer.vocabulary,
        num_classes=len(CLASSES),
        max_length=tokens.max_length,
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
    writer.finish({**source, **record})


def _mixed(reviews: Reviews) -> Reviews:
    """By random keys; labels decide between copies of a text."""
    return reviews.take(np.lexsort((np.array(reviews.labels), text_keys(reviews.texts, ORDER_SEED))))
