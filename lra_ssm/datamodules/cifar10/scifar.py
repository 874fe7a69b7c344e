"""Sequential CIFAR-10 as a LightningDataModule: 1024 colored pixels, ten classes.

Sources: Krizhevsky, "Learning multiple layers of features from tiny images" (2009); the public S4 code's splits.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

from lra_ssm.datamodules.cifar10.module import Cifar10
from lra_ssm.datamodules.images.transforms import (
    IMAGE_MEAN,
    IMAGE_STD,
    SCIFAR_MEAN,
    SCIFAR_STD,
    CropFlip,
    PixelSequence,
)


@dataclass(kw_only=True, eq=False, repr=False)
class SCIFAR(Cifar10):
    """Sequential CIFAR-10. Batches are `batches.Batch` without lengths: 45,000, 5,000 and 10,000 images.

    Inputs are (B, 1024, 3) float32, normalized with mean (.4914, .4822, .4465) and std (.247, .243, .261), or for
    `grayscale` (B, 1024, 1) as `Image` has them; `d_input` is 3 or 1.

    Takes what every `PublishedImages` takes, and its own:

    Args:
        source: "original", "huggingface", or an archive or folder, as for `Image`.
        grayscale: one channel, as in LRA Image.
        resolution: 32, or 16 or 8 for trying out: pixels are means over 2 × 2 or 4 × 4, sequences that much shorter.
        augment: "crop_flip": random crops and mirroring in training alone, as for `Image`.
        std: of each channel, in place of the one above; StableSSM's public code has (.2023, .1994, .2010).

    Raises:
        InputError: settings that cannot be met.
    """

    command = "scifar"
    inputs = "normalized"

    grayscale: bool = False
    resolution: Literal[32, 16, 8] = 32
    augment: Literal["none", "crop_flip"] = "none"
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.resolution in (32, 16, 8), "resolution", "must be 32, 16 or 8")
        self.image_size = (self.resolution, self.resolution)
        self.stored = "gray" if self.grayscale else "rgb"
        self.d_input = 1 if self.grayscale else 3
        self.std = None if self.std is None else tuple(map(float, self.std))
        each = f"must be {self.d_input} finite number{'s' * (not self.grayscale)} greater than 0, one for each channel"
        good = self.std is None or (len(self.std) == self.d_input and all(0 < value < math.inf for value in self.std))
        self.require(good, "std", each)

    def transform(self, augment: CropFlip | None) -> PixelSequence:
        mean, std = (IMAGE_MEAN, IMAGE_STD) if self.grayscale else (SCIFAR_MEAN, SCIFAR_STD)
        return PixelSequence(mean, self.std or std, augment=augment)

    def batch_settings(self) -> dict[str, Any]:
        return super().batch_settings() | ({} if self.std is None else {"std": list(self.std)})
