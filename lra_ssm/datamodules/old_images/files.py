"""What every reader of images gives: PNG and JPEG files as arrays, labels that are classes, digests."""

import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from lra_ssm.errors import InputError

Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
Mode = Literal["L", "RGB"]  # as PIL calls gray and colors


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


class Decoded(NamedTuple):
    """Pixels (height, width, channels) uint8; whether the file is a JPEG, which loses some."""

    pixels: Pixels
    lossy: bool


@contextmanager
def opened_image(data: bytes, name: str) -> Iterator[Image.Image]:
    """A PNG or JPEG file; its header is read, and its pixels where they are used. `name` is what errors call it.

    Raises:
        InputError: it is neither, or damaged.
    """
    try:
        yield Image.open(io.BytesIO(data), formats=("PNG", "JPEG"))
    except InputError:
        raise
    except Exception as error:  # of many kinds, with PIL's versions
        raise InputError(f"{name}: is neither a PNG nor a JPEG image, or is damaged") from error


def decode_image(data: bytes, mode: Mode, size: tuple[int, int], name: str) -> Decoded:
    """Decodes a PNG or JPEG file.

    Args:
        data: the file.
        mode: what it is converted to if it is something else, as PIL does it.
        size: height and width that it must have.
        name: what errors call it.

    Raises:
        InputError: it is neither PNG nor JPEG, is damaged, or has another size.
    """
    height, width = size
    with opened_image(data, name) as image:
        if image.size != (width, height):
            found = f"{image.height} x {image.width}"
            raise InputError(f"{name}: is an image of {found} pixels instead of {height} x {width}")
        pixels = np.frombuffer(image.convert(mode).tobytes(), np.uint8)
        return Decoded(pixels.reshape(height, width, -1), image.format == "JPEG")


def digests(data: bytes, published_md5: str | None) -> dict[str, Any]:
    """What the manifest records of one file."""
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
