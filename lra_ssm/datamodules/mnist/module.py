"""Sequential and permuted MNIST as a LightningDataModule: 784 pixels, ten digits.

Sources: LeCun, Cortes and Burges, "The MNIST database of handwritten digits" (1998); Le, Jaitly and Hinton, "A simple
way to initialize recurrent networks of rectified linear units" (2015); splits of the public S4 code (state-spaces/s4).
"""

import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, Literal

from lra_ssm.datamodules.images.published import PublishedImages
from lra_ssm.datamodules.images.transforms import CropFlip, PixelSequence, bitreversal_permutation, random_permutation
from lra_ssm.datamodules.mnist import reader as mnist_files

NUM_PIXELS = 28 * 28


@dataclass(kw_only=True, eq=False, repr=False)
class MNIST(PublishedImages):
    """MNIST. Batches are `batches.Batch` without lengths: 54,000, 6,000 and 10,000 images.

    Inputs are (B, 784, 1) float32 in [0, 1], not normalized, as in the public S4 code; `mean` and `std` normalize them.

    Takes what every `PublishedImages` takes, and its own:

    Args:
        source: "original" for the four idx files below the root (`lra-ssm prepare mnist` downloads them);
            "huggingface" for the Hub's ylecun/mnist (likewise); or a folder with the files of either.
        permutation: of the pixels, the same for all images: "none"; "bitreversal", which the public S4 code calls
            permuted MNIST; or "random", which everybody else does.
        permutation_seed: of "random": numpy's RandomState(seed).permutation(784). The default is the one that other
            works used, by a note in the public S4 code.
        mean: taken from pixels in [0, 1]; StableSSM's public code has .1307, and .3081 for std.
        std: what is left is divided by this.

    Raises:
        InputError: settings that cannot be met.
    """

    dataset = "mnist"
    command = "mnist"
    files: ClassVar[ModuleType] = mnist_files
    downloads = mnist_files.FILES
    class_names = mnist_files.CLASS_NAMES
    image_size = mnist_files.SIZE
    published_mode = "L"
    d_input = 1

    permutation: Literal["none", "bitreversal", "random"] = "none"
    permutation_seed: int = 92916
    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        known = ("none", "bitreversal", "random")
        self.require(self.permutation in known, "permutation", "none, bitreversal or random")
        self.require(math.isfinite(self.mean), "mean", "must be a finite number")
        self.require(0 < self.std < math.inf, "std", "must be greater than 0, and finite")
        self.normalized = (self.mean, self.std) != (0, 1)
        self.inputs = "normalized" if self.normalized else "unit"

    def stored_settings(self) -> dict[str, Any]:
        return {"pixels": "gray"}  # the permutation is applied to batches: one folder serves all

    def transform(self, augment: CropFlip | None) -> PixelSequence:
        permutation = None
        if self.permutation == "bitreversal":
            permutation = bitreversal_permutation(NUM_PIXELS)
        elif self.permutation == "random":
            permutation = random_permutation(NUM_PIXELS, self.permutation_seed)
        return PixelSequence((self.mean,), (self.std,), permutation, augment)

    def batch_settings(self) -> dict[str, Any]:
        seed = {"permutation_seed": self.permutation_seed} if self.permutation == "random" else {}
        scaling = {"mean": self.mean, "std": self.std} if self.normalized else {}
        return {"permutation": self.permutation} | seed | scaling
