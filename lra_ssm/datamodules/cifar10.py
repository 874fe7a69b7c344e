"""CIFAR-10 as sequences of 1024 pixels: LRA's Image (gray) and sequential CIFAR-10 (colors).

    cifar-10-python.tar.gz, or cifar-10-batches-py/{data_batch_1…5,test_batch}    Toronto's pickles
    {train,test}-*.parquet                                                        the Hub's uoft-cs/cifar10

The order of the published files decides the public S4 code's split.

Sources: Krizhevsky, "Learning multiple layers of features from tiny images" (2009); Tay et al., "Long Range Arena"
(2021); splits and normalization of the public S4 code (state-spaces/s4).
"""

import io
import pickle
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np

from lra_ssm.datamodules.download import Hub, Remote, read_archive
from lra_ssm.datamodules.images import Labelled, Pixels, PixelSequence, PublishedImages
from lra_ssm.datamodules.settings import setting
from lra_ssm.errors import InputError, describe_error

CLASS_NAMES = tuple("airplane automobile bird cat deer dog frog horse ship truck".split())
ARCHIVE = Remote("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", "md5:c58f30108f718f92721af3b95e74349a")
FOLDER = "cifar-10-batches-py"
BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
# Means and standard deviations of pixels in [0, 1], as the public S4 code has them (src/dataloaders/basic.py).
GRAY_MEAN, GRAY_STD = (122.6 / 255,), (61.0 / 255,)
RGB_MEAN, RGB_STD = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)


class Cifar10(PublishedImages):
    """The files and splits of CIFAR-10; `Image` and `SCIFAR` decide how pixels become inputs."""

    dataset = "cifar10"
    class_names = CLASS_NAMES
    downloads = (ARCHIVE,)
    # The revision that many public repositories pin.
    hub = Hub("uoft-cs/cifar10", "0b2714987fa478483af9968de7c934580d0bb9a2", ("plain_text/*.parquet",), "cifar10")
    columns = ("img", "label")
    mode = "RGB"
    published_size = (32, 32)
    # The folder that `prepare` downloads to, torchvision's, the public S4 code's.
    places = ("cifar10/download", "cifar10", "cifar", "")
    markers = (ARCHIVE.name, FOLDER)

    def read(self, path: Path) -> dict[str, Labelled] | None:
        for folder in (path / FOLDER, path):
            if files := [folder / name for name in BATCHES if (folder / name).is_file()]:
                return _join_batches(((str(file), file.read_bytes()) for file in files), folder)
        archive = path if path.is_file() else path / ARCHIVE.name
        if not archive.is_file():
            return None
        members = read_archive(archive, lambda name: PurePosixPath(name).name in BATCHES)
        return _join_batches(((f"{archive}: {name}", data) for name, data in members), archive)


class Image(Cifar10):
    """LRA Image: gray CIFAR-10. Batches are `Batch` without lengths: 45,000, 5,000 and 10,000 images.

    Inputs are (B, 1024, 1) float32, normalized with mean 122.6 / 255 and std 61 / 255 (`d_input` 1), or for inputs
    "integers" (B, 1024) int64 tokens (`vocab_size` 256). Validation images are a random tenth of the training images.

    Args:
        source: "original" for Toronto's files below the root (cifar-10-python.tar.gz or cifar-10-batches-py);
            "huggingface" for the Hub's uoft-cs/cifar10; or the path of an archive or folder with either.
        inputs: "normalized", as in the public S4 code; "integers" 0 to 255 of TensorFlow's gray, as in LRA's own code.
            Results of the two do not belong in one table.
    """

    image_size = (32, 32)

    inputs: Literal["normalized", "integers"] = "normalized"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.d_input = 1 if self.inputs == "normalized" else None
        self.vocab_size = 256 if self.inputs == "integers" else None

    def convert(self, images: Pixels) -> Pixels:
        return luma(images) if self.inputs == "normalized" else lra_luma(images)

    def transform(self) -> PixelSequence:
        return PixelSequence(None, None) if self.inputs == "integers" else PixelSequence(GRAY_MEAN, GRAY_STD)


class SCIFAR(Cifar10):
    """Sequential CIFAR-10. Batches are `Batch` without lengths: 45,000, 5,000 and 10,000 images.

    Inputs are (B, 1024, 3) float32, normalized with mean (.4914, .4822, .4465) and std (.247, .243, .261), or for
    `grayscale` (B, 1024, 1) as `Image` has them; `d_input` is 3 or 1.

    Args:
        source: "original", "huggingface", or an archive or folder, as for `Image`.
        grayscale: one channel, as in LRA Image.
        resolution: 32, or 16 or 8 for trials: pixels are means over 2 × 2 or 4 × 4, in shorter sequences.
        std: std of each channel, instead of the one above; StableSSM's public code has (.2023, .1994, .2010).
    """

    inputs = "normalized"

    grayscale: bool = False
    resolution: Literal[32, 16, 8] = 32
    std: tuple[float, ...] | None = setting(default=None, affects="batches")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.image_size = (self.resolution, self.resolution)
        self.d_input = 1 if self.grayscale else 3
        self.std = None if self.std is None else tuple(map(float, self.std))
        valid = self.std is None or len(self.std) == self.d_input and min(self.std) > 0
        self.require(valid, "std", f"must be a number greater than 0 for each channel, {self.d_input}")

    def convert(self, images: Pixels) -> Pixels:
        return mean_pooled(luma(images) if self.grayscale else images, 32 // self.resolution)

    def transform(self) -> PixelSequence:
        mean, std = (GRAY_MEAN, GRAY_STD) if self.grayscale else (RGB_MEAN, RGB_STD)
        return PixelSequence(mean, self.std or std)


# -- Toronto's pickles -------------------------------------------------------------------------------------------------

# What the pickle of an array names, in numpy 1 and 2; "encode" is how Python 3 writes bytes into old protocols.
_PICKLE_NAMES = {"numpy": ("ndarray", "dtype"), "_codecs": ("encode",)}
_PICKLE_NAMES |= {f"numpy.{core}.multiarray": ("_reconstruct",) for core in ("core", "_core")}


class _ArrayUnpickler(pickle.Unpickler):
    """Loads pickles of numpy arrays, in the protocols up to 4, and refuses all else."""

    def find_class(self, module: str, name: str) -> Any:
        if name not in _PICKLE_NAMES.get(module, ()):
            raise pickle.UnpicklingError(f"it names {module}.{name}, which does not belong in such a file")
        return super().find_class(module, name)


def _read_batch(data: bytes, name: str) -> Labelled:
    """Return images and labels of a pickled dict: `data` (n, 3072) uint8, planes of red, green and blue, and `labels`.

    Raises:
        InputError: the data is damaged or is not such a dict; the message begins with `name`.
    """
    try:
        batch = _ArrayUnpickler(io.BytesIO(data), encoding="bytes").load()
        planes, labels = (np.asarray(batch.get(key.encode(), batch.get(key))) for key in ("data", "labels"))
        if planes.dtype != np.uint8 or planes.shape != (len(labels), 3 * 32 * 32) or labels.dtype.kind != "i":
            raise ValueError(f"data {planes.dtype} {planes.shape}, labels {labels.dtype} {labels.shape}")
    except Exception as error:  # damaged pickles raise errors of many kinds
        raise InputError(f"{name}: is not a batch of CIFAR-10 ({describe_error(error)})") from error
    return np.ascontiguousarray(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), labels


def _join_batches(files: Iterable[tuple[str, bytes]], where: Path) -> dict[str, Labelled]:
    """Return train and test from (path, content) of the six batches. Raises InputError if one is missing or damaged."""
    batches = {PurePosixPath(path).name: _read_batch(data, path) for path, data in files}
    if missing := [batch for batch in BATCHES if batch not in batches]:
        raise InputError(f"{where}: {missing[0]} is missing; CIFAR-10 is {', '.join(BATCHES)}")
    images, labels = (np.concatenate(parts) for parts in zip(*(batches[name] for name in BATCHES[:5]), strict=True))
    return {"train": (images, labels), "test": batches["test_batch"]}


# -- stored pixels -----------------------------------------------------------------------------------------------------


def luma(images: Pixels) -> Pixels:
    """Return gray (…, 1) of RGB (…, 3), rounded as Pillow's convert("L") does: ITU-R 601-2 in 16-bit integers."""
    red, green, blue = (images[..., channel].astype(np.uint32) for channel in range(3))
    gray = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16
    return gray.astype(np.uint8)[..., None]


def lra_luma(images: Pixels) -> Pixels:
    """Return gray (…, 1) of RGB (…, 3) as tf.image.rgb_to_grayscale makes LRA's Image tokens of uint8 images.

    Pixels become float32 x / 255, are weighted by .2989, .5870, .1140, and truncated after · 255.5. Sources: LRA's
    lra_benchmarks/image/input_pipeline.py and the text of TensorFlow's image_ops_impl.py. Not compared with TensorFlow
    itself: its order of summation may change a value's last bit and so, rarely, a pixel by 1.
    """
    weights = np.array([0.2989, 0.5870, 0.1140], dtype=np.float32)
    scaled = images.astype(np.float32) * np.float32(1 / 255)
    gray = scaled[..., 0] * weights[0] + scaled[..., 1] * weights[1] + scaled[..., 2] * weights[2]
    return (gray * np.float32(255.5)).astype(np.uint8)[..., None]


def mean_pooled(images: Pixels, size: int) -> Pixels:
    """Return (n, H / size, W / size, C): the mean of every size × size pixels of (n, H, W, C), rounded, .5 up."""
    if size == 1:
        return images
    n, H, W, C = images.shape
    sums = images.reshape(n, H // size, size, W // size, size, C).sum((2, 4), dtype=np.uint32)
    return ((2 * sums + size * size) // (2 * size * size)).astype(np.uint8)
