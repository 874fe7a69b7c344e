"""MNIST as sequences of 784 pixels, permuted or not.

    {train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]    the published files
    {train,test}-*.parquet                               the Hub's ylecun/mnist

An idx file holds the magic number 0x0801 (labels) or 0x0803 (images), each dimension, all big-endian 32-bit integers,
and the values, one byte each.

Sources: LeCun, Cortes and Burges, "The MNIST database of handwritten digits" (1998); Le, Jaitly and Hinton, "A simple
way to initialize recurrent networks of rectified linear units" (2015); splits of the public S4 code (state-spaces/s4).
"""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lra_ssm.datamodules.download import Hub, Remote
from lra_ssm.datamodules.images import Labelled, Pixels, PixelSequence, PublishedImages
from lra_ssm.datamodules.settings import setting
from lra_ssm.errors import InputError

MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"
MD5 = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}


class MNIST(PublishedImages):
    """MNIST. Batches are `Batch` without lengths: 54,000, 6,000 and 10,000 images.

    Inputs are (B, 784, 1) float32 in [0, 1], not normalized, as in the public S4 code; `mean` and `std` normalize them.

    Args:
        source: "original" for the four idx files below the root; "huggingface" for the Hub's ylecun/mnist; or a folder
            with the files of either.
        permutation: order of the pixels, the same for all images: "none"; "bitreversal", which the public S4 code calls
            permuted MNIST; or "random", as in other works.
        permutation_seed: seed of "random": numpy's RandomState(seed).permutation(784). The default is the one that
            other works used, by a note in the public S4 code.
        mean: subtracted from pixels in [0, 1]; StableSSM's public code has .1307, and .3081 for std.
        std: the difference is divided by this.
    """

    dataset = "mnist"
    class_names = tuple("0123456789")
    downloads = tuple(Remote(MIRROR + name, f"md5:{md5}") for name, md5 in MD5.items())
    # The revision that many public repositories pin.
    hub = Hub("ylecun/mnist", "77f3279092a1c1579b2250db8eafed0ad422088c", ("mnist/*.parquet",), "mnist")
    columns = ("image", "label")
    mode = "L"
    image_size = published_size = (28, 28)
    places = ("mnist/download", "mnist", "MNIST/raw", "mnist/MNIST/raw")  # `prepare`'s and torchvision's
    markers = (*MD5, *(name.removesuffix(".gz") for name in MD5))
    d_input = 1

    permutation: Literal["none", "bitreversal", "random"] = setting(default="none", affects="batches")
    permutation_seed: int = setting(default=92916, affects="batches")
    mean: float = setting(default=0.0, affects="batches")
    std: float = setting(default=1.0, affects="batches")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.std > 0, "std", "must be greater than 0")
        self.inputs = "unit" if (self.mean, self.std) == (0, 1) else "normalized"

    def transform(self) -> PixelSequence:
        num = math.prod(self.image_size)
        permutation = None
        if self.permutation == "bitreversal":
            permutation = bitreversal_permutation(num)
        elif self.permutation == "random":
            permutation = np.random.RandomState(self.permutation_seed & 0xFFFFFFFF).permutation(num)
        return PixelSequence((self.mean,), (self.std,), permutation)

    def convert(self, images: Pixels) -> Pixels:
        return images

    def read(self, path: Path) -> dict[str, Labelled] | None:
        files = {name: _find(path, name) for name in MD5}
        missing = [name for name, file in files.items() if file is None]
        if len(missing) == len(MD5):
            return None
        if missing:
            raise InputError(f"{path / missing[0]}: is missing; MNIST is the four files {', '.join(MD5)}")
        return {"train": _read_pair(files, "train"), "test": _read_pair(files, "t10k")}


def bitreversal_permutation(num: int) -> npt.NDArray[np.int64]:
    """Return the pixels 0 … num − 1 in the order of their reversed bits (num,): the public S4 code's `permute: True`.

    If num is not a power of 2, the permutation of the next power is used without the numbers from num on.
    Source: state-spaces/s4, src/utils/permutations.py.
    """
    bits = max(num - 1, 0).bit_length()
    numbers = np.arange(1 << bits)
    reversed_ = np.zeros_like(numbers)
    for bit in range(bits):
        reversed_ |= ((numbers >> bit) & 1) << (bits - 1 - bit)
    return reversed_[reversed_ < num]


def _find(folder: Path, name: str) -> Path | None:
    """Return a published file, compressed or not; None if it does not exist."""
    candidates = (folder / variant for variant in (name.removesuffix(".gz"), name))
    return next((file for file in candidates if file.is_file()), None)


def _read_pair(files: dict[str, Any], prefix: str) -> Labelled:
    images = _read_idx(files[f"{prefix}-images-idx3-ubyte.gz"], 3)
    return images[..., None], _read_idx(files[f"{prefix}-labels-idx1-ubyte.gz"], 1)


def _read_idx(path: Path, dimensions: int) -> Pixels:
    """Return the array of an idx file of uint8. Raises InputError if it is damaged."""
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read ({error}); get it again") from error
    header = 4 + 4 * dimensions
    magic, *shape = struct.unpack(f">{1 + dimensions}I", data[:header].ljust(header, b"\0"))
    if magic != 0x0800 + dimensions or len(data) - header != math.prod(shape):
        raise InputError(f"{path}: is not an idx file of {dimensions} dimensions, or was cut off; get it again")
    return np.frombuffer(data, dtype=np.uint8, offset=header).reshape(shape)
