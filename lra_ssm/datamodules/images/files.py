"""What every reader of images gives: images with labels, and the files' entry for the manifest."""

import hashlib
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lra_ssm.errors import InputError

Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]


class LabelledImages(NamedTuple):
    """Images (n, height, width, channels) uint8 and their classes (n,) int64."""

    images: Pixels
    labels: Labels


class ImageFiles(NamedTuple):
    """What was read of a user's files.

    `manifest_entry` goes into the manifest: layout, files with their digests, and `lossy` where a file was a JPEG.
    """

    train: LabelledImages
    test: LabelledImages | None
    manifest_entry: dict[str, Any]


def digests(data: bytes, published_md5: str | None) -> dict[str, Any]:
    """What the manifest records of one file: its size, sha256, and whether it is the published one."""
    md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
    known = "published" if md5 == published_md5 else "unknown"
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), "digest": known}


def check_labels(labels: npt.NDArray[Any], num_classes: int, name: str) -> Labels:
    """Labels (n,) as int64.

    Raises:
        InputError: one is no class.
    """
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(wrong):
        raise InputError(f"{name}: label {labels[wrong[0]]} of image {wrong[0]} is not one of 0 to {num_classes - 1}")
    return labels.astype(np.int64)
