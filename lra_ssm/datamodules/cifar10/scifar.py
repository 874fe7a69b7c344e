"""Sequential CIFAR-10 as a LightningDataModule: 1024 colored pixels, ten classes.

Sources: Krizhevsky, "Learning multiple layers of features from tiny images" (2009); splits and normalization of the
public S4 code (state-spaces/s4).
"""

import math
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


class SCIFAR(Cifar10):
    """Sequential CIFAR-10. Batches are `batches.Batch` without lengths: 45,000 train, 5,000 val, 10,000 test images.

    Inputs are (B, 1024, 3) float32, normalized with mean (.4914, .4822, .4465) and std (.247, .243, .261), or for
    `grayscale` (B, 1024, 1) as `Image` has them; `d_input` is 3 or 1.

    Args:
        root: data root; None for LRA_SSM_DATA, else ./data.
        source: "original", "huggingface", or an archive or folder, as for `Image`.
        batch_size: examples per optimizer batch over all devices together.
        eval_batch_size: the same for validation, test and prediction; None for batch_size.
        grayscale: one channel, as in LRA Image.
        resolution: 32, or 16 or 8 for trying out: pixels are means over 2 × 2 or 4 × 4, sequences that much shorter.
        augment: "crop_flip": random crops and mirroring in training alone, as for `Image`.
        split_seed: of the choice of validation images; 42 is the public S4 code's.
        shuffle_seed: of the order of training examples, and of augmentation; None for the run's seed (PL_GLOBAL_SEED,
            which seed_everything sets), else 0.
        num_workers: processes that load ahead. Loading costs little: 0 is enough for most models.
        pin_memory: copy batches to pinned memory; None where there is a CUDA device.
        limit: at most so many images in each split, classes as balanced as they can be, for trying out; None for all.
        std: of each channel, in place of the one above; StableSSM's public code has (.2023, .1994, .2010).

    Raises:
        InputError: settings that cannot be met.
    """

    command = "scifar"
    inputs = "normalized"

    def __init__(
        self,
        root: str | None = None,
        source: str = "original",
        batch_size: int = 50,
        eval_batch_size: int | None = None,
        grayscale: bool = False,
        resolution: Literal[32, 16, 8] = 32,
        augment: Literal["none", "crop_flip"] = "none",
        split_seed: int = 42,
        shuffle_seed: int | None = None,
        num_workers: int = 0,
        pin_memory: bool | None = None,
        limit: int | None = None,
        std: tuple[float, ...] | None = None,
    ) -> None:
        super().__init__(
            root, source, batch_size=batch_size, eval_batch_size=eval_batch_size, split_seed=split_seed,
            shuffle_seed=shuffle_seed, num_workers=num_workers, pin_memory=pin_memory, limit=limit, augment=augment,
        )  # fmt: skip
        self.grayscale, self.resolution = grayscale, resolution
        self.require(resolution in (32, 16, 8), "resolution", "must be 32, 16 or 8")
        self.image_size = (resolution, resolution)
        self.stored = "gray" if grayscale else "rgb"
        self.d_input = 1 if grayscale else 3
        self.std = None if std is None else tuple(map(float, std))
        each = f"must be {self.d_input} finite number{'s' * (not grayscale)} greater than 0, one for each channel"
        good = self.std is None or (len(self.std) == self.d_input and all(0 < value < math.inf for value in self.std))
        self.require(good, "std", each)

    def transform(self, augment: CropFlip | None) -> PixelSequence:
        mean, std = (IMAGE_MEAN, IMAGE_STD) if self.grayscale else (SCIFAR_MEAN, SCIFAR_STD)
        return PixelSequence(mean, self.std or std, augment=augment)

    def batch_settings(self) -> dict[str, Any]:
        return super().batch_settings() | ({} if self.std is None else {"std": list(self.std)})
