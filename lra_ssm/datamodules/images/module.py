"""What the data modules of images share: which are chosen, how they are stored, and what models are given of them."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lra_ssm.bars import Bar
from lra_ssm.datamodules.base import PreparedDataModule
from lra_ssm.datamodules.images.files import Labels, Pixels
from lra_ssm.datamodules.images.own_files import Form, own_pixels
from lra_ssm.datamodules.images.splits import Indices, indices_sha256, limited, require_every_class
from lra_ssm.datamodules.images.transforms import CropFlip, PixelSequence
from lra_ssm.datamodules.loading.batches import BatchDataset, ImageDataset
from lra_ssm.datamodules.loading.own_files import OwnExamples
from lra_ssm.datamodules.storage.disk import check_disk_space
from lra_ssm.datamodules.storage.format import AnySplit, ImageSplit
from lra_ssm.datamodules.storage.writer import DatasetWriter


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


@dataclass(kw_only=True, eq=False, repr=False)
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
    augment: Literal["none", "crop_flip"] = field(default="none", init=False)  # a setting of CIFAR-10's

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 <= self.split_seed < 1 << 63, "split_seed", "must be from 0 to 2^63 - 1")

    @abstractmethod
    def transform(self, augment: CropFlip | None) -> PixelSequence:
        """What makes inputs of stored images."""

    @abstractmethod
    def own_forms(self) -> dict[Form, Callable[[Pixels], Pixels]]:
        """What images of a user's own may be, with what makes stored ones of them."""

    def make_dataset(self, split: AnySplit, name: str) -> BatchDataset:
        assert isinstance(split, ImageSplit)
        augmented = self.augment == "crop_flip" and name == "train"
        return ImageDataset(split, self.transform(CropFlip(self._resolved_shuffle_seed()) if augmented else None))

    @property
    def longest(self) -> int:
        return math.prod(self.image_size)

    def own_examples(
        self, paths: Sequence[Path], vocabulary: Sequence[str] | None = None, resize: bool = False
    ) -> OwnExamples:
        return own_pixels(paths, self.own_forms(), self.transform(None), self.longest, resize)

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
