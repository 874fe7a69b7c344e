"""LRA Image as a LightningDataModule: gray CIFAR-10 as 1024 pixels, ten classes.

Sources: Krizhevsky, "Learning multiple layers of features from tiny images" (2009); Tay et al., "Long Range Arena"
(2021); splits and normalization of the public S4 code (state-spaces/s4).
"""

from dataclasses import dataclass
from typing import Any, Literal

from lra_ssm.datamodules.cifar10.module import Cifar10
from lra_ssm.datamodules.images.transforms import IMAGE_MEAN, IMAGE_STD, CropFlip, PixelSequence


@dataclass(kw_only=True, eq=False, repr=False)
class Image(Cifar10):
    """LRA Image. Batches are `batches.Batch` without lengths: 45,000, 5,000 and 10,000 images.

    Inputs are (B, 1024, 1) float32, normalized with mean 122.6 / 255 and std 61 / 255 (`d_input` 1), or for inputs
    "integers" (B, 1024) int64 tokens (`vocab_size` 256). Validation images are a random tenth of the training images.

    Takes what every `PublishedImages` takes, and its own:

    Args:
        source: "original" for the published files below the root (cifar-10-python.tar.gz, cifar-10-batches-py, or the
            binary version); "huggingface" for the Hub's uoft-cs/cifar10; or an archive or folder: these files, or
            `{train,test}/<class>/NAME.{png,jpg}`. Without test images a sixth of the others becomes the test set, and
            the manifest says published_test false.
        inputs: "normalized", as in the public S4 code; "integers" 0 to 255 of TensorFlow's gray, as in LRA's own.
            Results of the two do not belong into one table.
        augment: "crop_flip": random crops out of a black border of 4 pixels, and mirroring, in training alone, by the
            seed of shuffling, the epoch and the image's number.

    Raises:
        InputError: settings that cannot be met.
    """

    command = "image"

    inputs: Literal["normalized", "integers"] = "normalized"
    augment: Literal["none", "crop_flip"] = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.inputs in ("normalized", "integers"), "inputs", "must be normalized or integers")
        self.stored = "gray" if self.inputs == "normalized" else "gray-lra"
        self.d_input = 1 if self.inputs == "normalized" else None
        self.vocab_size = 256 if self.inputs == "integers" else None

    def stored_settings(self) -> dict[str, Any]:
        return super().stored_settings() | ({"vocab_size": 256} if self.inputs == "integers" else {})

    def transform(self, augment: CropFlip | None) -> PixelSequence:
        if self.inputs == "integers":
            return PixelSequence(None, None, augment=augment)
        return PixelSequence(IMAGE_MEAN, IMAGE_STD, augment=augment)
