"""Builds prepared folders of Pathfinder from a folder in the layout of LRA's archive."""

import logging
from pathlib import Path
from typing import Any, Literal

from lra_ssm.bars import Bar
from lra_ssm.datamodules.images.splits import (
    Indices,
    indices_sha256,
    limited,
    ordered_split,
    part_sizes,
    random_split,
    require_every_class,
)
from lra_ssm.datamodules.pathfinder.archive import generator_of
from lra_ssm.datamodules.pathfinder.reader import Listing, read_images, read_listing
from lra_ssm.datamodules.storage.disk import check_disk_space
from lra_ssm.datamodules.storage.writer import DatasetWriter

log = logging.getLogger(__name__)

DATASET = "pathfinder"
CLASS_NAMES = ("different contours", "same contour")
PUBLISHED_COUNT = 200_000
# Raise when the same files and settings would give other prepared data than before.
READER_VERSION = 1


def build_from_folder(
    folder: Path,
    images: Path,
    *,
    resolution: int,
    split: Literal["random", "file_order"],
    split_seed: int,
    limit: int | None,
    source: dict[str, Any],
    generated: bool = False,
) -> None:
    """Decodes the images of a folder, once, into an empty prepared folder.

    Args:
        folder: where to.
        images: the folder with `metadata` and `imgs`.
        resolution: side of the images.
        split: "random", of all images; "file_order": consecutive parts.
        split_seed: of the random one.
        limit: at most so many images in a split, classes as balanced as they can be; None for all.
        source: goes into the manifest before what is recorded here.
        generated: as for `read_listing`.

    Raises:
        InputError: metadata or an image is missing, damaged or of another size, one of the classes has no image for
            training, or the disk has no room.
    """
    listing = read_listing(images, generated=generated)
    num, listed = len(listing.labels), listing.manifest_entry["listed_images"]
    if listed != PUBLISHED_COUNT and generator_of(images) is None:
        log.warning("%s lists %s images; the published ones are %s", images, f"{listed:,}", f"{PUBLISHED_COUNT:,}")
    sizes = part_sizes(num, 0.1, 0.1)
    parts = random_split(sizes, split_seed) if split == "random" else ordered_split(sizes)
    indices = dict(zip(("train", "val", "test"), parts, strict=True))
    require_every_class(listing.labels[indices["train"]], CLASS_NAMES, images)
    chosen = {name: part[limited(listing.labels[part], limit)] for name, part in indices.items()}
    writer = DatasetWriter(folder, dataset=DATASET, num_classes=len(CLASS_NAMES))
    _write(writer, folder, images, listing, chosen, resolution)
    record = {
        "class_names": list(CLASS_NAMES),
        "limit": limit,
        "published_counts": listed == PUBLISHED_COUNT,
        "split": {
            "kind": split,
            "seed": split_seed if split == "random" else None,
            "sha256": {name: indices_sha256(part) for name, part in indices.items()},
        },
        "files": listing.manifest_entry,
    }
    writer.finish(source | record)


def _write(
    writer: DatasetWriter, folder: Path, images: Path, listing: Listing, chosen: dict[str, Indices], resolution: int
) -> None:
    """The chosen images of each split, decoded a few at a time."""
    total = sum(map(len, chosen.values()))
    check_disk_space(folder, total * (resolution**2 + 8), f"preparing {total:,} images of {images}")
    with Bar(f"reading {total:,} Pathfinder images", total) as bar:
        for name, part in chosen.items():
            to = writer.images(name, (resolution, resolution, 1))
            position = 0
            for pixels in read_images(images, (listing.paths[index] for index in part), resolution):
                to.extend(pixels, listing.labels[part[position : position + len(pixels)]])
                position += len(pixels)
                bar.advance(len(pixels))
