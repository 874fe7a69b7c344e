"""Stored uint8 images as the sequences of pixels that models are given, and augmentation.

B batch, H height, W width, C channels, L = H · W pixels in row-major order.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lra_ssm.datamodules.old_images.files import Pixels

# Means and standard deviations of pixels in [0, 1], as the public S4 code has them (src/dataloaders/basic.py).
IMAGE_MEAN, IMAGE_STD = (122.6 / 255,), (61.0 / 255,)
SCIFAR_MEAN, SCIFAR_STD = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)


# -- once, at preparation ----------------------------------------------------------------------------------------------


def luma(images: Pixels) -> Pixels:
    """RGB (…, 3) uint8 to gray (…, 1) uint8 with the rounding of PIL's convert("L"): ITU-R 601-2 in 16-bit integers."""
    red, green, blue = (images[..., channel].astype(np.uint32) for channel in range(3))
    gray = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16
    return gray.astype(np.uint8)[..., None]


def lra_luma(images: Pixels) -> Pixels:
    """RGB (…, 3) uint8 to gray (…, 1) uint8 as tf.image.rgb_to_grayscale makes LRA's Image tokens of uint8 images.

    Pixels become float32 x / 255, are weighted by .2989, .5870, .1140, and truncated after · 255.5. Sources: LRA's
    lra_benchmarks/image/input_pipeline.py and the text of TensorFlow's image_ops_impl.py. Not run beside TensorFlow:
    the order in which it sums may decide a value's last bit, and so, rarely, a pixel by 1.
    """
    weights = np.array([0.2989, 0.5870, 0.1140], dtype=np.float32)
    scaled = images.astype(np.float32) * np.float32(1 / 255)
    gray = scaled[..., 0] * weights[0] + scaled[..., 1] * weights[1] + scaled[..., 2] * weights[2]
    return (gray * np.float32(255.5)).astype(np.uint8)[..., None]


def mean_pooled(images: Pixels, size: int) -> Pixels:
    """(n, H, W, C) uint8 to (n, H / size, W / size, C): the mean of every size × size pixels, rounded, .5 up."""
    if size == 1:
        return images
    n, H, W, C = images.shape
    sums = images.reshape(n, H // size, size, W // size, size, C).sum((2, 4), dtype=np.uint32)
    return ((2 * sums + size * size) // (2 * size * size)).astype(np.uint8)


# -- permutations ------------------------------------------------------------------------------------------------------


def bitreversal_permutation(num: int) -> npt.NDArray[np.int64]:
    """The pixels 0 … num − 1 in the order of their bits read backwards (num,): the public S4 code's `permute: True`.

    Where num is no power of 2, the permutation of the next one is taken and what is not below num left out.
    Source: state-spaces/s4, src/utils/permutations.py.
    """
    bits = max(num - 1, 0).bit_length()
    numbers = np.arange(1 << bits)
    reversed_ = np.zeros_like(numbers)
    for bit in range(bits):
        reversed_ |= ((numbers >> bit) & 1) << (bits - 1 - bit)
    return reversed_[reversed_ < num]


def random_permutation(num: int, seed: int) -> npt.NDArray[np.int64]:
    """The pixels 0 … num − 1 in a random order (num,), the same everywhere (NEP 19)."""
    return np.random.RandomState(seed & 0xFFFFFFFF).permutation(num)


# -- the transform -----------------------------------------------------------------------------------------------------


class PixelSequence:
    """The transform of an image dataset (`batches.Transform`); it is pickled to worker processes.

    Args:
        mean: of pixels in [0, 1], by channel. A value is (pixel / 255 − mean) / std in float32, as torchvision's
            ToTensor and Normalize compute it, looked up in a table. None for tokens: the pixels' integers.
        std: the same.
        permutation: (L,); position l is given pixel permutation[l]. None for row-major order.
    """

    def __init__(
        self,
        mean: Sequence[float] | None = (0.0,),
        std: Sequence[float] | None = (1.0,),
        permutation: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.permutation = permutation
        self.tables: npt.NDArray[np.float32] | None = None
        if mean is not None and std is not None:
            scaled = np.arange(256, dtype=np.float32) / np.float32(255)
            means, stds = (np.array(values, dtype=np.float32)[:, None] for values in (mean, std))
            self.tables = (scaled - means) / stds  # (C, 256)

    def __call__(self, images: Pixels) -> npt.NDArray[Any]:
        """Images (B, H, W, C) uint8 to inputs (B, L, C) float32, or tokens (B, L) int64 of images with C = 1."""
        B, H, W, C = images.shape
        pixels = images.reshape(B, H * W, C)
        if self.permutation is not None:
            pixels = pixels[:, self.permutation]
        if self.tables is None:
            assert C == 1
            return pixels[..., 0].astype(np.int64)
        if C == 1:
            return np.take(self.tables[0], pixels)
        inputs = np.empty(pixels.shape, dtype=np.float32)
        for channel, table in enumerate(self.tables):
            inputs[..., channel] = np.take(table, pixels[..., channel])
        return inputs

    def value_range(self) -> tuple[float, float]:
        """The smallest and the largest value that an input can have."""
        if self.tables is None:
            return 0.0, 255.0
        return float(self.tables.min()), float(self.tables.max())
