"""Builds prepared folders of the image datasets that come with a test set: CIFAR-10 and MNIST. Needs no lightning."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lra_ssm.datamodules.images.files import ImageFiles, LabelledImages, Pixels
from lra_ssm.datamodules.images.splits import Indices, indices_sha256, limited, random_split, require_every_class
from lra_ssm.datamodules.storage.disk import check_disk_space
from lra_ssm.datamodules.storage.writer import DatasetWriter, ImageSplitWriter

log = logging.getLogger(__name__)

VAL_FRACTION = 0.1  # of the training images, as in the public S4 code
CHUNK = 1000
# Raise when the same files and settings would give other prepared data than before.
READER_VERSION = 1


def split_indices(num_train: int, has_test: bool, seed: int) -> dict[str, Indices]:
    """Which training images are for training and which for validation; of which they are the test set if none is there.

    Raises:
        InputError: too few images.
    """
    if has_test:
        kept = int(num_train * (1 - VAL_FRACTION))
        train, val = random_split(num_train, [kept, num_train - kept], seed)
        return {"train": train, "val": val}
    # 45,000 to 5,000 to 10,000, as with all images.
    return dict(zip(("train", "val", "test"), random_split(num_train, [3 / 4, 1 / 12, 1 / 6], seed), strict=True))


def build_images(
    folder: Path,
    files: ImageFiles,
    *,
    where: Path,
    dataset: str,
    class_names: tuple[str, ...],
    published_counts: Mapping[str, int],
    split_seed: int,
    limit: int | None,
    source: dict[str, Any],
    convert: Callable[[Pixels], Pixels] = lambda images: images,
) -> None:
    """Writes train, val and test into an empty folder.

    Args:
        folder: where to.
        files: what was read.
        where: of what, for messages.
        dataset: its name, for manifest and messages.
        class_names: by class.
        published_counts: how many images the published train and test files hold.
        split_seed: of the choice of validation images.
        limit: at most so many images in a split, classes as balanced as they can be; None for all.
        source: goes into the manifest before the files' entry.
        convert: images (n, H, W, C) to what is stored, (n, H, W, C') uint8.

    Raises:
        InputError: too few images, none for training of some class, or no room on the disk.
    """
    counts = {"train": len(files.train.labels), "test": 0 if files.test is None else len(files.test.labels)}
    if counts != published_counts and limit is None:
        log.warning("%s files hold %s images; the published ones hold %s", dataset, counts, dict(published_counts))
    if files.test is None:
        log.warning("%s: the files hold no test images, so a part of the training images stands in for them", dataset)
    indices = split_indices(counts["train"], files.test is not None, split_seed)
    # Of all that are for training, before the limit: a limit below the number of classes has to leave some out.
    require_every_class(files.train.labels[indices["train"]], class_names, where)
    parts = {name: (files.train, chosen) for name, chosen in indices.items()}
    if files.test is not None:
        parts["test"] = files.test, np.arange(counts["test"])
    shape = convert(files.train.images[:1]).shape[1:]
    total = sum(len(chosen) if limit is None else min(len(chosen), limit) for _, chosen in parts.values())
    check_disk_space(folder, total * int(np.prod(shape)), f"preparing {dataset}")
    writer = DatasetWriter(folder, dataset=dataset, num_classes=len(class_names))
    for name, (part, indices_) in parts.items():
        chosen = indices_[limited(part.labels[indices_], limit)]
        split = writer.images(name, shape)
        extend_in_chunks(split, part, chosen, convert)
    writer.finish(
        source
        | {
            "class_names": list(class_names),
            "limit": limit,
            "published_counts": counts == published_counts,
            # False: a score on "test" is no published number.
            "published_test": files.test is not None,
            "split": {"seed": split_seed, "sha256": {name: indices_sha256(i) for name, i in indices.items()}},
            **files.manifest_entry,
        }
    )


def extend_in_chunks(
    split: ImageSplitWriter, part: LabelledImages, chosen: Indices, convert: Callable[[Pixels], Pixels]
) -> None:
    """Writes the chosen images in their order, converting a few at a time."""
    for start in range(0, len(chosen), CHUNK):
        chunk = chosen[start : start + CHUNK]
        split.extend(np.ascontiguousarray(convert(part.images[chunk])), part.labels[chunk])
