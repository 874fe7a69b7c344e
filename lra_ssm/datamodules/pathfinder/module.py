"""Pathfinder and Path-X: does a contour join the two discs?

Images are drawn by `generator.py`, or read in the layout of LRA's archive:

    <folder>/metadata/<number>.npy               columns: folder, file, number, label, …
    <folder>/imgs/<number>/sample_<number>.png   8-bit gray, square

The metadata files are plain text, one image per line, in spite of their name. Images are in the order of the metadata
files' numbers and of their lines.

Sources: Linsley et al., "Learning long-range spatial dependencies with horizontal gated recurrent units" (2018); Tay et
al., "Long Range Arena" (2021); splits and scaling of the public S4 and S5 codes.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset

from lra_ssm.bars import Bar, with_bar
from lra_ssm.datamodules.download import LRAFolder
from lra_ssm.datamodules.images import ImageData, Pixels, PixelSequence, decode_image, random_split
from lra_ssm.datamodules.parts import Parts
from lra_ssm.datamodules.pathfinder.generator import GENERATOR_VERSION, draw_block
from lra_ssm.datamodules.pathfinder.settings import DIFFICULTIES, settings_for
from lra_ssm.datamodules.settings import setting
from lra_ssm.datamodules.storage import Array, IntArray, write_array
from lra_ssm.errors import InputError

PUBLISHED_COUNT = 200_000
CHUNK = 1000  # images that are copied at a time
MIN_IMAGES = 10  # with fewer, a split would be empty
# inputs -> mean and standard deviation of pixels in [0, 1]
SCALINGS: dict[str, Any] = {"unit": ((0.0,), (1.0,)), "symmetric": ((0.5,), (0.5,)), "integers": (None, None)}
LABELS = {"0": 0, "0.0": 0, "1": 1, "1.0": 1}  # in the metadata

Labels = npt.NDArray[np.int64]
Load = Callable[[IntArray], Pixels]  # numbers of images (n,) to the images (n, H, W, 1)


class Pathfinder(ImageData):
    """Pathfinder; Path-X is resolution 128. Batches are `Batch` without lengths, L = resolution² pixels.

    Inputs are (B, L, 1) float32 (`d_input` 1), or for "integers" (B, L) int64 tokens (`vocab_size` 256). Of 200,000
    images 160,000 are for training, 20,000 for validation and 20,000 for test; all have one of two classes.

    Args:
        source: "generated"; "lra" for LRA's images below the root, which `lra-ssm prepare` can download; or a folder
            with `metadata` and `imgs`, or with `pathfinder<resolution>/<difficulty>/` above them.
        resolution: side of the images in pixels.
        difficulty: curv_baseline is easy, curv_contour_length_9 intermediate; LRA reports curv_contour_length_14.
        num_images: number of generated images over all splits; with `limit`, fewer are drawn.
        generator_seed: seed of the generated images.
        inputs: "unit": pixels in [0, 1], as in the S4 code; "symmetric": in [−1, 1], as in S5's; "integers": 0 to 255,
            as in LRA's code.
        split: 80, 10 and 10 % of all images, "random", as in the public S4 code, or in "file_order", as in LRA's.
    """

    dataset = "pathfinder"
    sources = ("generated", "lra")
    content_version = GENERATOR_VERSION
    block_size: ClassVar[int] = 1000  # images that are drawn as one part; another size gives other images
    num_classes = 2
    class_names = ("different contours", "same contour")

    source: str = "generated"
    resolution: Literal[32, 64, 128, 256] = 32
    difficulty: Literal["curv_baseline", "curv_contour_length_9", "curv_contour_length_14"] = "curv_contour_length_14"
    num_images: int = PUBLISHED_COUNT
    generator_seed: int = 0
    batch_size: int = 64
    inputs: Literal["unit", "symmetric", "integers"] = setting(default="unit", affects="batches")
    split: Literal["random", "file_order"] = "random"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.num_images >= MIN_IMAGES, "num_images", f"must be at least {MIN_IMAGES}, for three splits")
        self.image_size = (self.resolution, self.resolution)
        self.d_input = None if self.inputs == "integers" else 1
        self.vocab_size = 256 if self.inputs == "integers" else None

    def transform(self) -> PixelSequence:
        return PixelSequence(*SCALINGS[self.inputs])

    def arrays(self, folder: Path) -> dict[str, dict[str, Array]]:
        labels, load = self._draw() if self.source == "generated" else self._read()
        held_out = len(labels) // 10
        sizes = [len(labels) - 2 * held_out, held_out, held_out]
        order = np.split(np.arange(len(labels)), np.cumsum(sizes)[:-1])
        chosen = random_split(sizes, self.split_seed) if self.split == "random" else order
        splits: dict[str, dict[str, Array]] = {}
        for name, numbers in zip(("train", "val", "test"), chosen, strict=True):
            numbers = numbers[: self.limit]
            shape = (len(numbers), *self.image_size, 1)
            splits[name] = {
                "images": _write_images(folder / f"{name}_images.npy", numbers, load, shape),
                "labels": labels[numbers],
            }
        return splits

    # -- generated -------------------------------------------------------------------------------------------------

    @property
    def num_drawn(self) -> int:
        """The number of images that are generated: four fifths of them are for training."""
        return self.num_images if self.limit is None else min(self.num_images, max(MIN_IMAGES, -(-self.limit * 5 // 4)))

    def _draw(self) -> tuple[Labels, Load]:
        count, block_size = self.num_drawn, self.block_size
        parts = Parts(self.parts_folder, -(-count // block_size))
        missing = {number: min(block_size, count - number * block_size) for number in parts.missing()}
        existing = count - sum(missing.values())
        draw = partial(draw_block, parts, settings_for(self.resolution, self.difficulty), self.generator_seed)
        workers = min(available_cores(), len(missing))
        drawn = DataLoader(
            _Blocks(draw, [*missing.items()]),
            batch_size=None,
            num_workers=workers if workers > 1 else 0,
            generator=torch.Generator(),  # a separate one: DataLoader draws a seed for its workers
        )
        with Bar(f"drawing {count:,} Pathfinder images", count, done=existing) as bar:
            for size in drawn:
                bar.advance(size)
        blocks = parts.mapped("images")

        def load(numbers: IntArray) -> Pixels:
            return np.stack([blocks[number // block_size][number % block_size] for number in numbers])[..., None]

        return np.concatenate(parts.mapped("labels")), load

    # -- LRA's files -----------------------------------------------------------------------------------------------

    def files(self) -> list[Path]:
        """Return files whose sizes and times show whether the images changed; the images themselves are too many."""
        folder = self._folder()
        return [*metadata_files(folder), *sorted(path for path in (folder / "imgs").iterdir() if path.is_dir())]

    def fetch(self) -> None:
        if self.source == "lra":
            self._published.fetch(self.data_root)

    def _read(self) -> tuple[Labels, Load]:
        folder = self._folder()
        paths, labels = read_listing(folder)
        return labels, lambda numbers: read_images([paths[number] for number in numbers], self.resolution)

    @property
    def _published(self) -> LRAFolder:
        folder = f"pathfinder{self.resolution}/{self.difficulty}"
        others = (f"pathfinder/{folder}", self.difficulty)  # as in the public S4 code; in a user's folder
        return LRAFolder(folder, ("metadata", "imgs"), others)

    def _folder(self) -> Path:
        root = self.source_path() if self.kind == "files" else self.data_root
        if root.name in DIFFICULTIES and root.name != self.difficulty:
            raise InputError(f"{root}: is named after another difficulty than {self.difficulty}; set it to {root.name}")
        if (folder := self._published.find(root)) is None:
            command = f"pathfinder --resolution={self.resolution} --difficulty={self.difficulty}"
            what = f"Pathfinder images (metadata/ and imgs/) in it, or in {self._published.folder}"
            how = "downloads LRA's archive (more than 7 GB); source generated needs no files"
            raise self.missing(what, command, how)
        return folder


def available_cores() -> int:
    """Return the number of cores that this process may run on; on a cluster, fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Blocks(Dataset[int]):
    """Blocks, given by number and size, for worker processes: reading one draws it and gives its size."""

    def __init__(self, draw: Callable[[tuple[int, int]], int], blocks: list[tuple[int, int]]) -> None:
        self.draw, self.blocks = draw, blocks

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> int:
        return self.draw(self.blocks[index])


def _write_images(path: Path, numbers: IntArray, load: Load, shape: tuple[int, ...]) -> Array:
    """Write images as a .npy file, some at a time; return it, mapped."""
    chunks = np.split(numbers, range(CHUNK, len(numbers), CHUNK))
    images = (load(chunk) for chunk in with_bar(chunks, f"writing {len(numbers):,} images", len(chunks)))
    return write_array(path, np.uint8, shape, images)


# -- LRA's files -------------------------------------------------------------------------------------------------------


def metadata_files(folder: Path) -> list[Path]:
    """Return the metadata files in numeric order. Raises InputError if the folder has no such file."""
    files = [*folder.glob("metadata/[0-9]*.npy")]
    if not files:
        raise InputError(f"{folder / 'metadata'}: has no Pathfinder metadata files (0.npy, 1.npy, …)")
    return sorted(files, key=lambda path: int(path.stem))


def read_listing(folder: Path) -> tuple[list[Path], Labels]:
    """Return the paths of the images in order, and their labels (n,).

    Images that are empty files, of which LRA's archive has some, are left out.

    Raises:
        InputError: metadata is not as published; names file and line.
        OSError: an image is missing.
    """
    paths, labels = list[Path](), list[int]()
    for file in metadata_files(folder):
        try:
            rows = [line.split() for line in file.read_text("utf-8").splitlines()]
        except UnicodeDecodeError as error:
            raise InputError(f"{file}: is not text; LRA's metadata has a line for each image") from error
        for number, row in enumerate(rows, 1):
            if len(row) < 4 or row[3] not in LABELS:
                what = " ".join(row)[:100]
                raise InputError(f"{file}:{number}: {what!r} is not folder, file, number and label (0 or 1)")
            path = folder / row[0] / row[1]
            if path.stat().st_size:
                paths.append(path)
                labels.append(LABELS[row[3]])
    return paths, np.array(labels, dtype=np.int64)


def read_images(paths: Sequence[Path], resolution: int) -> Pixels:
    """Decode images: (n, resolution, resolution, 1) uint8. Raises InputError if one is damaged or of another size."""
    size = resolution, resolution
    return np.stack([decode_image(path.read_bytes(), "L", size, str(path)) for path in paths])
