"""What the data modules of images share: which are chosen, how they are stored, and what models are given of them."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from lra_ssm.bars import Bar
from lra_ssm.datamodules.batches import Batch, BatchDataset
from lra_ssm.datamodules.old_base import PreparedDataModule
from lra_ssm.datamodules.old_images.files import Labels, Pixels
from lra_ssm.datamodules.old_images.splits import Indices, indices_sha256, limited, require_every_class
from lra_ssm.datamodules.old_images.transforms import PixelSequence
from lra_ssm.datamodules.old_storage.disk import check_disk_space
from lra_ssm.datamodules.old_storage.format import AnySplit, ImageSplit
from lra_ssm.datamodules.old_storage.writer import DatasetWriter


class SplitImages(NamedTuple):
    """The images of a split.

    Attributes:
        numbers: which they are (n,), in their order.
        labels: of all images (N,), by number.
        load: gives the stored images of some numbers (m, H, W, C) uint8, in order, a few at a time.
    """

    numbers: Indices
    labels: Labels
    load: Callable[[Indices], Iterable[Pixels]]


class ImageDataModule(PreparedDataModule):
    """Images of a class each, as sequences of pixels in row-major order.

    A dataset gives `class_names`, `image_size`, `transform` and `own_forms`, and `build` by `write_splits`.

    Args:
        split_seed: of the random split; 42 is the public S4 code's.
        limit: at most so many images in each split, classes as balanced as they can be; None for all.
    """

    split_seed: int = 42
    limit: int | None = None
    image_size: tuple[int, int] = field(init=False)  # height, width

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 <= self.split_seed < 1 << 63, "split_seed", "must be from 0 to 2^63 - 1")

    @abstractmethod
    def transform(self) -> PixelSequence:
        """What makes inputs of stored images."""

    def open_old_split(self, name: str, split: AnySplit) -> BatchDataset:
        assert isinstance(split, ImageSplit)
        return OldImageDataset(split, self.transform())

    @property
    def longest(self) -> int:
        return math.prod(self.image_size)

    def write_splits(
        self, folder: Path, where: Path, channels: int, splits: Mapping[str, SplitImages], source: dict[str, Any]
    ) -> None:
        """Writes images into an empty prepared folder, as far as `limit` goes.

        Args:
            folder: where to.
            where: the images are from, for messages.
            channels: of stored images.
            splits: by name.
            source: for the manifest; its "split" takes the digests of the splits' numbers.

        Raises:
            InputError: one of the classes has no image for training, the disk has no room, or as `load`.
        """
        # Before the limit: one below the number of classes has to leave some out.
        names, train = self.class_names or (), splits["train"]
        require_every_class(train.labels[train.numbers], names, where)
        chosen = {name: part.numbers[limited(part.labels[part.numbers], self.limit)] for name, part in splits.items()}
        total = sum(map(len, chosen.values()))
        needed = total * (self.longest * channels + 8)
        check_disk_space(folder, needed, f"preparing {total:,} images of {where}")
        writer = DatasetWriter(folder, dataset=self.dataset, num_classes=self.num_classes)
        with Bar(f"preparing {total:,} images of {where.name}", total) as bar:
            for name, numbers in chosen.items():
                to, done = writer.images(name, (*self.image_size, channels)), 0
                for pixels in splits[name].load(numbers):
                    to.extend(pixels, splits[name].labels[numbers[done : done + len(pixels)]])
                    done += len(pixels)
                    bar.advance(len(pixels))
        digests = {name: indices_sha256(part.numbers) for name, part in splits.items()}
        split = {"seed": self.split_seed, **source["split"], "sha256": digests}
        writer.finish({**source, "class_names": list(names), "limit": self.limit, "split": split})


class OldImageDataset(BatchDataset):
    def __init__(self, split: ImageSplit, transform: PixelSequence) -> None:
        self.split, self.transform = split, transform

    def __len__(self) -> int:
        return len(self.split)

    def batch(self, examples: np.ndarray, epoch: int) -> Batch:
        inputs = self.transform(self.split.images[examples])
        return Batch(torch.from_numpy(inputs), None, torch.from_numpy(self.split.labels[examples]))
