"""Reads MNIST (LeCun, Cortes and Burges) as published: four idx files, compressed or not.

    {train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]

An idx file is the magic number 0x0801 (labels) or 0x0803 (images), each dimension, all big-endian 32-bit integers, and
the values, one byte each. Also the Hub's parquet files, or a folder that `datasets` saved (ylecun/mnist). Needs neither
torch nor lightning.
"""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from lra_ssm.datamodules.fetch import hub
from lra_ssm.datamodules.fetch.download import RemoteFile
from lra_ssm.datamodules.fetch.sources import content
from lra_ssm.datamodules.images import huggingface
from lra_ssm.datamodules.images.files import ImageFiles, LabelledImages, check_labels, digests
from lra_ssm.errors import InputError

CLASS_NAMES = tuple("0123456789")
SIZE = (28, 28)
PUBLISHED_COUNTS = {"train": 60_000, "test": 10_000}
HUB = hub.HubDataset(
    "ylecun/mnist",
    "77f3279092a1c1579b2250db8eafed0ad422088c",  # as many public repositories pin it
    ("mnist/*.parquet",),
    "mnist/download",
)
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


def is_published(folder: Path) -> bool:
    """Whether a folder has all four files: fewer are what a killed download leaves."""
    return len(_found(folder)) == len(MD5)


def _found(folder: Path) -> dict[str, Path]:
    """The files that are there by their published names, compressed or not."""
    found = {}
    for name in MD5:
        plain = name.removesuffix(".gz")
        for variant in (plain.replace("-idx", ".idx"), plain, name):  # the first is how some unpackers name them
            if (folder / variant).is_file():
                found[name] = folder / variant
    return found


def locate(path: Path) -> Path:
    """The folder that directly holds the files, of a path that a user gives.

    Raises:
        InputError: it is not MNIST, or not all of it.
    """
    candidates = (path, path / "raw", path / "MNIST" / "raw")
    for candidate in candidates:
        if is_published(candidate) or hub.is_hub_dataset(candidate):
            return candidate
    for candidate in candidates:
        missing = [name for name in MD5 if name not in _found(candidate)]
        if len(missing) < len(MD5):
            raise InputError(f"{candidate / missing[0]}: is missing; MNIST is the four files {', '.join(MD5)}")
    raise InputError(
        f"{path}: holds neither MNIST's files {', '.join(MD5)}, nor the Hub's parquet or what `datasets` saved"
    )


def watched_files(path: Path) -> list[Path]:
    """Files that tell by sizes and times whether the content may have changed."""
    return list(_found(path).values()) if is_published(path) else hub.watched_files(path)


def read(path: Path) -> ImageFiles:
    """Reads what `locate` found.

    Returns:
        Images (n, 28, 28, 1) uint8, labels 0 … 9.

    Raises:
        InputError: a file is damaged or not as published; names it.
    """
    if not is_published(path):
        return huggingface.read(path, "L", SIZE, CLASS_NAMES)
    found, entries, parts = _found(path), dict[str, Any](), []
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
    data = content(path)
    entries[path.name] = digests(data, MD5[name])
    try:
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: is broken off or damaged ({error}); delete it and get it again") from error
    header, mark = 4 + 4 * dimensions, 0x0800 + dimensions
    if len(data) < header:
        raise InputError(f"{path}: has {len(data)} bytes, fewer than an idx file's header")
    magic, *shape = struct.unpack(f">{1 + dimensions}I", data[:header])
    if magic != mark:
        what = "images" if dimensions == 3 else "labels"
        raise InputError(f"{path}: begins with {magic:#06x} instead of {mark:#06x}, the mark of {what}")
    count = math.prod(shape)
    if count != len(data) - header:
        raise InputError(f"{path}: holds {len(data) - header} bytes of values instead of {count} for its shape {shape}")
    return np.frombuffer(data, dtype=np.uint8, offset=header).reshape(shape)
