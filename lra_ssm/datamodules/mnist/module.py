"""Sequential and permuted MNIST as a LightningDataModule: 784 pixels, ten digits.

Sources: LeCun, Cortes and Burges, "The MNIST database of handwritten digits" (1998); Le, Jaitly and Hinton, "A simple
way to initialize recurrent networks of rectified linear units" (2015); splits of the public S4 code (state-spaces/s4).
"""

from typing import Any, Literal

from lra_ssm.datamodules.images.published import PublishedImages
from lra_ssm.datamodules.images.transforms import CropFlip, PixelSequence, bitreversal_permutation, random_permutation
from lra_ssm.datamodules.mnist import reader as mnist_files

NUM_PIXELS = 28 * 28


class MNIST(PublishedImages):
    """MNIST. Batches are `batches.Batch` without lengths: 54,000 train, 6,000 val, 10,000 test images.

    Inputs are (B, 784, 1) float32 in [0, 1], not normalized, as in the public S4 code.

    Args:
        root: data root; None for LRA_SSM_DATA, else ./data.
        source: "original" for the four idx files below the root (`lra-ssm prepare mnist` downloads them);
            "huggingface" for the Hub's ylecun/mnist (likewise); or a folder with the files of either.
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
    inputs = "unit"

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
    ) -> None:
        super().__init__(
            root, source, batch_size=batch_size, eval_batch_size=eval_batch_size, split_seed=split_seed,
            shuffle_seed=shuffle_seed, num_workers=num_workers, pin_memory=pin_memory, limit=limit,
        )  # fmt: skip
        self.permutation, self.permutation_seed = permutation, permutation_seed
        self.require(permutation in ("none", "bitreversal", "random"), "permutation", "none, bitreversal or random")

    def stored_settings(self) -> dict[str, Any]:
        return {"pixels": "gray"}  # the permutation is applied to batches: one folder serves all

    def transform(self, augment: CropFlip | None) -> PixelSequence:
        permutation = None
        if self.permutation == "bitreversal":
            permutation = bitreversal_permutation(NUM_PIXELS)
        elif self.permutation == "random":
            permutation = random_permutation(NUM_PIXELS, self.permutation_seed)
        return PixelSequence(permutation=permutation, augment=augment)

    def batch_settings(self) -> dict[str, Any]:
        seed = {"permutation_seed": self.permutation_seed} if self.permutation == "random" else {}
        return {"permutation": self.permutation} | seed
