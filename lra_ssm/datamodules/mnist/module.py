"""Sequential and permuted MNIST as a LightningDataModule: 784 pixels, ten digits.

Sources: LeCun, Cortes and Burges, "The MNIST database of handwritten digits" (1998); Le, Jaitly and Hinton, "A simple
way to initialize recurrent networks of rectified linear units" (2015); splits of the public S4 code (state-spaces/s4).
"""

import math
from pathlib import Path
from typing import Any, Literal

from lra_ssm.datamodules.images.published import PublishedImages
from lra_ssm.datamodules.images.transforms import (
    CropFlip,
    PixelSequence,
    bitreversal_permutation,
    random_permutation,
)
from lra_ssm.datamodules.mnist import reader as mnist_files

NUM_PIXELS = 28 * 28


class MNIST(PublishedImages):
    """MNIST. Batches are `batches.Batch` without lengths: 54,000 train, 6,000 val, 10,000 test images.

    Inputs are (B, 784, 1) float32 in [0, 1], not normalized, as in the public S4 code; `mean` and `std` normalize them.

    Args:
        root: data root; None for LRA_SSM_DATA, else ./data.
        source: "original" for the four idx files below the root (`lra-ssm prepare mnist` downloads them);
            "huggingface" for ylecun/mnist, which the same command saves below the root; or a folder with either.
        batch_size: examples per optimizer batch over all devices together.
        eval_batch_size: the same for validation, test and prediction; None for batch_size.
        permutation: of the pixels, the same for all images: "none"; "bitreversal", which the public S4 code calls
            permuted MNIST; or "random", which everybody else does.
        permutation_seed: of "random": numpy's RandomState(seed).permutation(784). The default is the one that other
            works used, by a note in the public S4 code.
        split_seed: of the choice of validation images; 42 is the public S4 code's.
        shuffle_seed: of the order of training examples; None for the run's seed (PL_GLOBAL_SEED, which
            seed_everything sets), else 0.
        num_workers: processes that load ahead. Loading costs little: 0 is enough for most models.
        pin_memory: copy batches to pinned memory; None where there is a CUDA device.
        limit: at most so many images in each split, classes as balanced as they can be, for trying out; None for all.
        mean: taken from pixels in [0, 1]; StableSSM's public code has .1307, and .3081 for std.
        std: what is left is divided by this.

    Raises:
        InputError: settings that cannot be met.
    """

    dataset = "mnist"
    command = "mnist"
    files = mnist_files
    downloads = mnist_files.FILES
    class_names = mnist_files.CLASS_NAMES
    image_size = mnist_files.SIZE
    published_mode = "L"
    d_input: int = 1

    def __init__(
        self,
        root: str | None = None,
        source: str = "original",
        batch_size: int = 50,
        eval_batch_size: int | None = None,
        permutation: Literal["none", "bitreversal", "random"] = "none",
        permutation_seed: int = 92916,
        split_seed: int = 42,
        shuffle_seed: int | None = None,
        num_workers: int = 0,
        pin_memory: bool | None = None,
        limit: int | None = None,
        mean: float = 0.0,
        std: float = 1.0,
    ) -> None:
        super().__init__(
            root, source, batch_size=batch_size, eval_batch_size=eval_batch_size, split_seed=split_seed,
            shuffle_seed=shuffle_seed, num_workers=num_workers, pin_memory=pin_memory, limit=limit,
        )  # fmt: skip
        self.permutation, self.permutation_seed, self.mean, self.std = permutation, permutation_seed, mean, std
        self.require(permutation in ("none", "bitreversal", "random"), "permutation", "none, bitreversal or random")
        self.require(math.isfinite(mean), "mean", "must be a finite number")
        self.require(0 < std < math.inf, "std", "must be greater than 0, and finite")
        self.normalized = (mean, std) != (0, 1)
        self.inputs = "normalized" if self.normalized else "unit"

    def stored_settings(self) -> dict[str, Any]:
        return {"pixels": "gray"}  # the permutation is applied to batches: one folder serves all

    def transform(self, augment: CropFlip | None) -> PixelSequence:
        permutation = {
            "none": lambda: None,
            "bitreversal": lambda: bitreversal_permutation(NUM_PIXELS),
            "random": lambda: random_permutation(NUM_PIXELS, self.permutation_seed),
        }[self.permutation]()
        return PixelSequence((self.mean,), (self.std,), permutation, augment)

    def batch_settings(self) -> dict[str, Any]:
        seed = {"permutation_seed": self.permutation_seed} if self.permutation == "random" else {}
        scaling = {"mean": self.mean, "std": self.std} if self.normalized else {}
        return {"permutation": self.permutation} | seed | scaling

    def _holds(self, folder: Path) -> bool:
        return mnist_files.has_files(folder)
