"""Reads MNIST (LeCun, Cortes and Burges) as published: four idx files, compressed or not.

    {train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]

An idx file is the magic number 0x0801 (labels) or 0x0803 (images), each dimension, all big-endian 32-bit integers, and
the values, one byte each. Also a folder that Hugging Face `datasets` saved (ylecun/mnist). Needs neither torch nor
lightning.
"""

import gzip
import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from lra_ssm.datamodules.fetch.download import RemoteFile
from lra_ssm.datamodules.images import huggingface
from lra_ssm.datamodules.images.files import ImageFiles, LabelledImages, check_labels, digests
from lra_ssm.errors import InputError

CLASS_NAMES = tuple("0123456789")
SIZE = (28, 28)
PUBLISHED_COUNTS = {"train": 60_000, "test": 10_000}
HUGGINGFACE_NAME = "ylecun/mnist"
HUGGINGFACE_REVISION = "77f3279092a1c1579b2250db8eafed0ad422088c"  # as several public repositories pin it
HUGGINGFACE_BYTES = 20_000_000  # of its images, compressed
MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"
MD5 = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
FILES = tuple(RemoteFile(urls=(MIRROR + name,), name=name, digest=f"md5:{md5}") for name, md5 in MD5.items())
# Below the data root: where `prepare` downloads to, and torchvision's places.
USUAL_PLACES = ("mnist/download", "mnist", "MNIST/raw", "mnist/MNIST/raw")
MAX_BYTES = 1 << 30  # what one file may unpack to: twenty times the largest published one


def find_files(folder: Path) -> dict[str, Path] | None:
    """The four files of a folder by their published names, compressed or not; None if it has none of them.

    Raises:
        InputError: some are there and others not.
    """
    found = _found(folder)
    missing = [name for name in MD5 if name not in found]
    if found and missing:
        raise InputError(f"{folder / missing[0]}: is missing; MNIST is the four files {', '.join(MD5)}, packed or not")
    return found or None


def has_files(folder: Path) -> bool:
    """Whether a folder has all four files: fewer are what a killed download leaves, and the next one completes."""
    return len(_found(folder)) == len(MD5)


def _found(folder: Path) -> dict[str, Path]:
    found = {}
    for name in MD5:
        plain = name.removesuffix(".gz")
        for variant in (name, plain, plain.replace("-idx", ".idx")):  # the last is how some unpackers name them
            if (folder / variant).is_file():
                found[name] = folder / variant
                break
    return found


def locate(path: Path) -> Path:
    """The folder that directly holds the files, of a path that a user gives.

    Raises:
        InputError: nothing is there, not MNIST, or not all of it.
    """
    if not path.is_dir():
        raise InputError(f"MNIST source {path}: is neither original, huggingface nor an existing folder")
    candidates = (path, path / "raw", path / "MNIST" / "raw")
    for candidate in candidates:
        if has_files(candidate) or huggingface.is_saved(candidate):
            return candidate
    for candidate in candidates:
        find_files(candidate)  # says which are missing where some are there
    raise InputError(f"{path}: holds neither MNIST's files {', '.join(MD5)}, nor a saved Hugging Face dataset")


def watched_files(path: Path) -> list[Path]:
    """Files whose sizes and times tell whether the content of a located folder may have changed."""
    return list(_found(path).values()) if has_files(path) else huggingface.watched_files(path)


def read(path: Path) -> ImageFiles:
    """Reads what `locate` found.

    Returns:
        Images (n, 28, 28, 1) uint8, labels 0 … 9.

    Raises:
        InputError: a file is damaged or not as published; names it.
    """
    if not has_files(path) and huggingface.is_saved(path):
        return huggingface.read(path, "L", SIZE, CLASS_NAMES)
    found = find_files(path)
    if found is None:
        raise InputError(f"{path}: holds none of MNIST's files {', '.join(MD5)}")
    entries: dict[str, Any] = {}
    parts = []
    for prefix in ("train", "t10k"):
        names = f"{prefix}-images-idx3-ubyte.gz", f"{prefix}-labels-idx1-ubyte.gz"
        images, labels = (_read_idx(found[name], name, 3 - 2 * i, entries) for i, name in enumerate(names))
        if images.shape[1:] != SIZE:
            raise InputError(f"{found[names[0]]}: holds images of {images.shape[1:]} pixels instead of {SIZE}")
        if len(images) != len(labels):
            raise InputError(f"{found[names[1]]}: holds {len(labels)} labels for {len(images)} images")
        checked = check_labels(labels, len(CLASS_NAMES), str(found[names[1]]))
        parts.append(LabelledImages(images[..., None], checked))
    return ImageFiles(parts[0], parts[1], {"layout": "idx", "files": entries})


def _read_idx(path: Path, name: str, dimensions: int, entries: dict[str, Any]) -> np.ndarray:
    """The array of an idx file of uint8; leaves its digests in `entries`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    entries[path.name] = digests(data, MD5[name])
    if data[:2] == b"\x1f\x8b":
        data = _unpacked(data, path)
    header = 4 + 4 * dimensions
    if len(data) < header:
        raise InputError(f"{path}: has {len(data)} bytes, fewer than an idx file's header")
    magic, *shape = struct.unpack(f">{1 + dimensions}I", data[:header])
    if magic != 0x0800 + dimensions:
        what = "images" if dimensions == 3 else "labels"
        raise InputError(f"{path}: begins with {magic:#06x} instead of {0x0800 + dimensions:#06x}, the mark of {what}")
    count = int(np.prod(shape, dtype=object))
    if count != len(data) - header or not count:
        raise InputError(f"{path}: holds {len(data) - header} bytes of values instead of {count} for its shape {shape}")
    return np.frombuffer(data, dtype=np.uint8, offset=header).reshape(shape)


def _unpacked(data: bytes, path: Path) -> bytes:
    try:
        with gzip.open(io.BytesIO(data)) as file:
            unpacked = file.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: is broken off or damaged ({error}); delete it and get it again") from error
    if len(unpacked) > MAX_BYTES:
        raise InputError(f"{path}: unpacks to more than {MAX_BYTES:,} bytes; refused")
    return unpacked
