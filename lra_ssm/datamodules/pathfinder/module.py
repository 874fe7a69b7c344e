"""Pathfinder, Path-X as a LightningDataModule: does a contour join the discs?

Sources: Linsley et al., "Learning long-range spatial dependencies with horizontal gated recurrent units" (2018); Tay et
al., "Long Range Arena" (2021); splits and scaling of the public S4 and S5 codes.
"""

import hashlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from lra_ssm.datamodules.fetch.download_note import read_note
from lra_ssm.datamodules.fetch.lra_release import fetch_lra_release
from lra_ssm.datamodules.fetch.sources import named_source
from lra_ssm.datamodules.old_base import file_stats
from lra_ssm.datamodules.old_images.files import Pixels
from lra_ssm.datamodules.old_images.module import ImageDataModule, SplitImages
from lra_ssm.datamodules.old_images.splits import Indices, ordered_split, part_sizes, random_split
from lra_ssm.datamodules.old_images.transforms import PixelSequence
from lra_ssm.datamodules.old_storage.disk import check_disk_space, say_cost
from lra_ssm.datamodules.pathfinder.archive import (
    BLOCK_SIZE,
    generator_of,
    generator_settings,
    missing_blocks,
    seconds_an_image,
    write_archive,
)
from lra_ssm.datamodules.pathfinder.reader import (
    find_folder,
    find_lra,
    places,
    read_images,
    read_listing,
    watched_files,
)
from lra_ssm.datamodules.pathfinder.settings import DIFFICULTIES, SIZES, settings_for
from lra_ssm.errors import InputError
from lra_ssm.machine import available_cores

log = logging.getLogger(__name__)

PUBLISHED_COUNT = 200_000
# Raise when the same files and settings would give other prepared data than before.
READER_VERSION = 1
# inputs -> mean and standard deviation of pixels in [0, 1]
SCALINGS: dict[str, Any] = {"unit": ((0.0,), (1.0,)), "symmetric": ((0.5,), (0.5,)), "integers": (None, None)}


class Pathfinder(ImageDataModule):
    """Pathfinder; Path-X is resolution 128. Batches are `batches.Batch` without lengths, L = resolution² pixels.

    Inputs are (B, L, 1) float32 (`d_input` 1), or for "integers" (B, L) int64 tokens (`vocab_size` 256). Of 200,000
    images 160,000 are for training, 20,000 for validation, 20,000 for test; all have two classes.

    Takes what every `ImageDataModule` takes, and its own:

    Args:
        source: "generated"; "lra" for LRA's images below the root (layouts: data/README.md); or a folder with
            `metadata` and `imgs`, or with `pathfinder<resolution>/<difficulty>/` above them.
        resolution: side of the images in pixels.
        difficulty: curv_baseline is easy, curv_contour_length_9 intermediate; LRA reports curv_contour_length_14.
        num_images: how many are generated, over all splits. They are written in the layout of LRA's archive below
            `<root>/pathfinder/`, and may be deleted once they are prepared.
        generator_seed: of the generated images.
        inputs: "unit": pixels in [0, 1], as in the S4 code; "symmetric": in [−1, 1], as in S5's; "integers": 0 to 255,
            as in LRA's own.
        split: 80, 10 and 10 % of the whole set, "random", as in the public S4 code, or in "file_order", as in LRA's.

    Raises:
        InputError: settings that cannot be met.
    """

    dataset = "pathfinder"
    sources = ("generated", "lra")
    num_classes = 2
    class_names = ("different contours", "same contour")

    source: str = "generated"
    resolution: Literal[32, 64, 128, 256] = 32
    difficulty: Literal["curv_baseline", "curv_contour_length_9", "curv_contour_length_14"] = "curv_contour_length_14"
    num_images: int = 200_000
    generator_seed: int = 0
    batch_size: int = 64
    inputs: Literal["unit", "symmetric", "integers"] = "unit"
    split: Literal["random", "file_order"] = "random"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in (("resolution", SIZES), ("difficulty", DIFFICULTIES), ("inputs", SCALINGS)):
            self.require(getattr(self, name) in known, name, f"must be one of {', '.join(map(str, known))}")
        self.require(self.split in ("random", "file_order"), "split", "must be random or file_order")
        self.require(self.num_images >= 10, "num_images", "must be at least 10, so that no split is empty")
        # Generated no larger than it has to be: four fifths of the images are for training.
        if self.limit is not None:
            self.num_images = min(self.num_images, max(10, -(-self.limit * 5 // 4)))
        self.image_size = (self.resolution, self.resolution)
        self.d_input = None if self.inputs == "integers" else 1
        self.vocab_size = 256 if self.inputs == "integers" else None

    def transform(self) -> PixelSequence:
        return PixelSequence(*SCALINGS[self.inputs])

    def content_settings(self) -> dict[str, Any]:
        split = {"split": self.split} | ({"split_seed": self.split_seed} if self.split == "random" else {})
        common = {"reader": READER_VERSION, "resolution": self.resolution, **split, "limit": self.limit}
        if self.source == "generated":
            return common | {"generator": self._generator()}
        files = {"files": file_stats(watched_files(self._folder()))} if self.kind == "files" else {}
        return common | {"difficulty": self.difficulty, **files}

    def build(self, folder: Path) -> None:
        source: dict[str, Any] = {"kind": self.kind}
        source |= {"resolution": self.resolution, "difficulty": self.difficulty}
        if self.source == "generated":
            drawn = settings_for(self.resolution, self.difficulty), self.generator_seed, self.num_images
            self._check_room(folder, seconds_an_image(*drawn[:2]) if self.num_images >= BLOCK_SIZE else 0.0)
            images = write_archive(self.archive_folder, *drawn, difficulty=self.difficulty)
            source |= {"seed": self.generator_seed, "generator": self._generator()}
        else:
            images = self._folder()
            archive, generator = read_note(images), generator_of(images)
            source |= ({"archive": archive} if archive else {}) | ({"generator": generator} if generator else {})
        listing = read_listing(images, generated=self.source == "generated")
        listed = listing.manifest_entry["listed_images"]
        if listed != PUBLISHED_COUNT and generator_of(images) is None:
            log.warning("%s lists %s images; the published ones are %s", images, f"{listed:,}", f"{PUBLISHED_COUNT:,}")

        def load(numbers: Indices) -> Iterator[Pixels]:
            return read_images(images, (listing.paths[number] for number in numbers), self.resolution)

        sizes = part_sizes(len(listing.labels), 0.1, 0.1)
        parts = random_split(sizes, self.split_seed) if self.split == "random" else ordered_split(sizes)
        names = ("train", "val", "test")
        splits = {name: SplitImages(part, listing.labels, load) for name, part in zip(names, parts, strict=True)}
        source |= {"published_counts": listed == PUBLISHED_COUNT, "split": {"kind": self.split}}
        if self.split == "file_order":
            source["split"]["seed"] = None
        self.write_splits(folder, images, 1, splits, source | {"files": listing.manifest_entry})

    def fetch(self) -> None:
        """Downloads LRA's release and unpacks this resolution's images."""
        if self.source == "lra" and self._find() is None:
            fetch_lra_release(self.data_root, f"pathfinder{self.resolution}/{self.difficulty}")

    @property
    def archive_folder(self) -> Path:
        """Where generated images are written, in the layout of LRA's archive."""
        digest = hashlib.sha256(json.dumps(self._generator(), sort_keys=True).encode()).hexdigest()
        return self.data_root / self.dataset / f"images-seed{self.generator_seed}-{self.num_images}-{digest[:12]}"

    def _check_room(self, folder: Path, seconds: float = 0.0) -> None:
        """For the images, a block of the disk each at least, and for what is prepared of them; says what it takes.

        seconds: to draw an image on one core; 0 says nothing."""
        area, num = self.resolution**2, self.num_images
        missing = sum(missing_blocks(self.archive_folder, self.resolution, self.difficulty, num).values())
        pictures = missing * max(4096, area // 5)
        prepared = num if self.limit is None else min(num, 3 * self.limit)
        needed = pictures + prepared * (area + 8)
        check_disk_space(folder, needed, f"generating {num:,} Pathfinder images")
        what = f"drawing {missing:,} Pathfinder images of {self.resolution} × {self.resolution}"
        say_cost(what, missing * seconds / available_cores(), needed)

    def _generator(self) -> dict[str, Any]:
        return generator_settings(settings_for(self.resolution, self.difficulty), self.generator_seed, self.num_images)

    def _find(self) -> Path | None:
        if self.source == "lra":
            return find_lra(self.data_root, self.resolution, self.difficulty)
        path = named_source("Pathfinder", self.source, "generated, lra", folder=True)
        return find_folder(path, self.resolution, self.difficulty)

    def _folder(self) -> Path:
        if (folder := self._find()) is not None:
            return folder
        where = ", ".join(places(self.resolution, self.difficulty))
        if self.source != "lra":
            raise InputError(
                f"{self.source}: holds no Pathfinder images; expected metadata/ and imgs/ here or in {where} below it"
            )
        options = {"source": "lra", "resolution": self.resolution, "difficulty": self.difficulty}
        given = " ".join(f"--{name}={value}" for name, value in {**options, "root": self.data_root}.items())
        raise InputError(
            f"{self.data_root}: holds none of LRA's images in {where}; `lra-ssm prepare pathfinder {given}` downloads"
            " LRA's release, and source generated needs none"
        )
