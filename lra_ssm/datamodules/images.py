"""The base of image datasets: splits, and stored images as sequences of pixels.

B batch, H height, W width, C channels, L = H · W pixels in row-major order.
"""

import io
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from lra_ssm.bars import Bar
from lra_ssm.datamodules.base import ArrayData
from lra_ssm.datamodules.batches import Batch, BatchDataset
from lra_ssm.datamodules.download import Hub, Remote, download, parquet_files, read_parquet
from lra_ssm.datamodules.storage import Array, IntArray, Split
from lra_ssm.errors import InputError

Pixels = npt.NDArray[np.uint8]
Labelled = tuple[Pixels, IntArray]  # images (n, H, W, C) and their classes (n,)


class ImageData(ArrayData):
    """Images with a class each, as sequences of pixels in row-major order.

    A dataset defines `image_size`, `transform` and `arrays`: `images` (n, H, W, C) uint8 and `labels` (n,) per split.

    Args:
        split_seed: seed of the random split; 42 is the public S4 code's.
    """

    split_seed: int = 42
    image_size: tuple[int, int] = field(init=False)  # height, width

    @abstractmethod
    def transform(self) -> "PixelSequence":
        """Return the callable that turns stored images into inputs."""

    def make_dataset(self, split: Split, name: str) -> BatchDataset:
        return ImageDataset(split, self.transform())

    @property
    def longest(self) -> int:
        return math.prod(self.image_size)


class PublishedImages(ImageData):
    """CIFAR-10 and MNIST: files with training and test images; a random tenth of the training images validates.

    A dataset defines the class attributes below, `read`, `convert` and `transform`.
    """

    sources = ("original", "huggingface")
    downloads: ClassVar[tuple[Remote, ...]]
    hub: ClassVar[Hub]
    columns: ClassVar[tuple[str, str]]  # of the Hub's dataset: image, label
    mode: ClassVar[Literal["L", "RGB"]]  # of the published images
    published_size: ClassVar[tuple[int, int]]
    places: ClassVar[tuple[str, ...]]  # below the data root: where `fetch` downloads to, and other usual places
    markers: ClassVar[tuple[str, ...]]  # names that show that a folder has the original files
    num_classes = 10

    source: str = "original"
    batch_size: int = 50

    @abstractmethod
    def read(self, path: Path) -> dict[str, Labelled] | None:
        """Read the original files, train and test, in a folder (or an archive); None if it has none of them.

        Raises:
            InputError: a file is missing, damaged or not as published; names it.
        """

    @abstractmethod
    def convert(self, images: Pixels) -> Pixels:
        """Return the images to store for published ones (n, H, W, C)."""

    def arrays(self, folder: Path) -> dict[str, dict[str, Array]]:
        read = self._read()
        images, labels = read["train"]
        num_train = int(len(labels) * 0.9)  # as in the public S4 code
        parts = dict(
            zip(("train", "val"), random_split([num_train, len(labels) - num_train], self.split_seed), strict=True)
        )
        splits = {name: (images[part[: self.limit]], labels[part[: self.limit]]) for name, part in parts.items()}
        splits["test"] = tuple(array[: self.limit] for array in read["test"])  # type: ignore[assignment]
        return {name: {"images": self.convert(i), "labels": j.astype(np.int64)} for name, (i, j) in splits.items()}

    def _read(self) -> dict[str, Labelled]:
        if self.kind == "files":
            path = self.source_path()
            if (splits := self.read(path)) is not None:
                return splits
            if parquet_files(path, "train"):
                return self._read_hub(path)
            raise InputError(f"{path}: holds no files of {type(self).__name__}; see data/README.md for their layout")
        if self.source == "huggingface" and self.hub.is_complete(self.data_root):
            return self._read_hub(self.hub.path(self.data_root))
        for place in self.places if self.source == "original" else ():
            if (splits := self.read(self.data_root / place)) is not None:
                return splits
        raise self.missing(f"files of {type(self).__name__}")

    def _read_hub(self, folder: Path) -> dict[str, Labelled]:
        splits = {}
        for split in ("train", "test"):
            images, labels, (image, label) = list[Pixels](), list[int](), self.columns
            with Bar(f"reading {split}") as bar:
                for path in parquet_files(folder, split):
                    for where, row in read_parquet(path, image, label):
                        images.append(decode_image(row[image]["bytes"], self.mode, self.published_size, where))
                        labels.append(row[label])
                        bar.advance(1)
            splits[split] = np.stack(images), np.array(labels)
        return splits

    def fetch(self) -> None:
        if self.source == "huggingface":
            self.hub.fetch(self.data_root)
        originals = (self.data_root / place / marker for place in self.places[1:] for marker in self.markers)
        if self.source == "original" and not any(file.exists() for file in originals):
            for file in self.downloads:
                download(file, self.data_root, self.places[0])


class ImageDataset(BatchDataset):
    """Images as sequences of pixels, each with a class.

    Args:
        split: `images` (n, height, width, C) uint8 and `labels` (n,) int64.
        transform: turns images into model inputs; it is pickled to worker processes.
    """

    def __init__(self, split: Split, transform: "PixelSequence") -> None:
        self.split, self.transform = split, transform

    def __len__(self) -> int:
        return len(self.split["labels"])

    def batch(self, examples: IntArray, epoch: int) -> Batch:
        inputs = self.transform(self.split["images"][examples])
        return Batch(torch.from_numpy(inputs), None, torch.from_numpy(self.split["labels"][examples]))

    def pixel_values(self, examples: IntArray) -> torch.Tensor | None:
        pixels = self.transform.ordered(self.split["images"][examples])
        return torch.from_numpy(pixels[..., 0].astype(np.int64)) if pixels.shape[-1] == 1 else None


def random_split(sizes: Sequence[int], seed: int) -> list[npt.NDArray[np.int64]]:
    """Return parts of these sizes of 0 … sum(sizes) − 1 in random order, as the public S4 code does.

    It uses torch.utils.data.random_split, which cuts torch.randperm(num) with a generator of that seed into consecutive
    parts. Source: state-spaces/s4, src/dataloaders/base.py and lra.py.
    """
    order = torch.randperm(sum(sizes), generator=torch.Generator().manual_seed(seed)).numpy()
    return np.split(order, np.cumsum(sizes)[:-1])


def decode_image(data: bytes, mode: Literal["L", "RGB"], size: tuple[int, int], name: str) -> Pixels:
    """Return the pixels (height, width, C) of a PNG or JPEG file; errors call it `name`.

    Raises:
        InputError: it is not such a file, is damaged, or has another size.
    """
    height, width = size
    try:
        image = Image.open(io.BytesIO(data), formats=("PNG", "JPEG")).convert(mode)
    except Exception as error:  # the kind depends on Pillow's version
        raise InputError(f"{name}: is not a PNG or JPEG image, or is damaged") from error
    if image.size != (width, height):
        raise InputError(f"{name}: is an image of {image.height} x {image.width} pixels instead of {height} x {width}")
    return np.array(image).reshape(height, width, -1)


class PixelSequence:
    """Turns stored images into inputs; it is pickled to worker processes.

    Args:
        mean: mean of pixels in [0, 1], by channel. A value is (pixel / 255 − mean) / std in float32, as torchvision's
            ToTensor and Normalize compute it. None for tokens: the pixels' integers.
        std: their standard deviation, by channel.
        permutation: (L,); position l has pixel permutation[l]. None for row-major order.
    """

    def __init__(
        self,
        mean: Sequence[float] | None = (0.0,),
        std: Sequence[float] | None = (1.0,),
        permutation: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.permutation, self.is_tokens = permutation, mean is None
        self.mean, self.std = np.array(mean or 0, np.float32), np.array(std or 1, np.float32)

    def __call__(self, images: Pixels) -> npt.NDArray[Any]:
        """Return inputs (B, L, C) float32, or for C = 1 tokens (B, L) int64, of images (B, H, W, C) uint8."""
        pixels = self.ordered(images)
        if self.is_tokens:
            return pixels[..., 0].astype(np.int64)
        B, L, C = pixels.shape
        inputs = pixels.reshape(B, L * C).astype(np.float32)  # NumPy is several times slower along an axis of C
        inputs /= np.float32(255)
        inputs -= np.tile(self.mean, L)
        inputs /= np.tile(self.std, L)
        return inputs.reshape(B, L, C)

    def ordered(self, images: Pixels) -> Pixels:
        """Return the pixels (B, L, C) of images (B, H, W, C) in the order of the sequence."""
        B, H, W, C = images.shape
        pixels = images.reshape(B, H * W, C)
        return pixels if self.permutation is None else pixels[:, self.permutation]
