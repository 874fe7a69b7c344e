"""Reads CIFAR-10 (Krizhevsky, 2009) in the layouts in which it is published or common:

    cifar-10-python.tar.gz, or cifar-10-batches-py/{data_batch_1…5,test_batch}           pickles
    cifar-10-binary.tar.gz, or cifar-10-batches-bin/{data_batch_1…5,test_batch}.bin      1 + 3072 bytes per image
    {train,test}/<class>/NAME.{png,jpg}                                                  folder or archive
    the Hub's parquet files, or a folder that `datasets` saved (uoft-cs/cifar10)

The first two have the published order, which decides the public S4 code's split; class folders have that of the sorted
names.
"""

import hashlib
import re
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lra_ssm.bars import Bar
from lra_ssm.datamodules.fetch import hub
from lra_ssm.datamodules.fetch.archives import iterate
from lra_ssm.datamodules.fetch.download import RemoteFile
from lra_ssm.datamodules.fetch.sources import content
from lra_ssm.datamodules.images import huggingface
from lra_ssm.datamodules.images.files import (
    ImageFiles,
    LabelledImages,
    Pixels,
    check_labels,
    decode_image,
    digests,
)
from lra_ssm.datamodules.images.pickles import load_arrays
from lra_ssm.errors import InputError

CLASS_NAMES = tuple("airplane automobile bird cat deer dog frog horse ship truck".split())
SIZE = (32, 32)
PUBLISHED_COUNTS = {"train": 50_000, "test": 10_000}
HUB = hub.HubDataset(
    "uoft-cs/cifar10",
    "0b2714987fa478483af9968de7c934580d0bb9a2",  # as many public repositories pin it
    ("plain_text/*.parquet",),
    "cifar10/download",
)
ARCHIVE_MD5 = "c58f30108f718f92721af3b95e74349a"
ARCHIVE = RemoteFile(
    urls=("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
    name="cifar-10-python.tar.gz",
    digest=f"md5:{ARCHIVE_MD5}",
    size=170_498_071,
)
FOLDERS = ("cifar-10-batches-py", "cifar-10-batches-bin")
ARCHIVES = ("cifar-10-python.tar.gz", "cifar-10-binary.tar.gz")
# Below the data root: where `prepare` downloads to, torchvision's and the public S4 code's places.
USUAL_PLACES = tuple(
    folder + name for name in (*ARCHIVES, *FOLDERS) for folder in ("cifar10/download/", "cifar10/", "cifar/", "")
)
# As published with the archive's reader in torchvision.
BATCH_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
_BATCH = re.compile(r"(?:.*/)?(data_batch_[1-5]|test_batch)(\.bin)?")
_PICTURE = re.compile(r"(?:.*/)?(train|test)/([^/]+)/([^/]+\.(?i:png|jpe?g))")


def is_published(path: Path) -> bool:
    """Whether a path is the archive, or a folder with all batches."""
    python, binary = (all((path / f"{name}{end}").is_file() for name in BATCH_MD5) for end in ("", ".bin"))
    return path.is_file() or python or binary


def locate(path: Path) -> Path:
    """The archive, or the folder that directly holds the files, of an existing path that a user gives.

    Raises:
        InputError: nothing is there of a layout that is known.
    """
    for candidate in (path, *(path / name for name in (*FOLDERS, *ARCHIVES))):
        batches = any((candidate / f"data_batch_1{end}").is_file() for end in ("", ".bin"))
        images = (candidate / "train" / CLASS_NAMES[0]).is_dir()
        if candidate.is_file() or batches or images or hub.is_hub_dataset(candidate):
            return candidate
    raise InputError(
        f"{path}: holds no CIFAR-10 that is known; expected {' or '.join((*FOLDERS, *ARCHIVES))},"
        " {train,test}/<class>/NAME.png or .jpg, the Hub's parquet files, or what `datasets` saved of them"
    )


def watched_files(path: Path) -> list[Path]:
    """Files and folders whose sizes and times tell whether the content of a located path may have changed.

    Of class folders these are the folders: 60,000 files would take long to look at on a network disk. So an image
    overwritten in its place is not noticed.
    """
    if path.is_file():
        return [path]
    if hub.is_hub_dataset(path):
        return hub.watched_files(path)
    batches = [entry for entry in path.iterdir() if _BATCH.fullmatch(entry.name) and entry.is_file()]
    folders = [path / "train", path / "test", *path.glob("train/*"), *path.glob("test/*")]
    return batches + [entry for entry in folders if entry.is_dir()]


def read(path: Path) -> ImageFiles:
    """Reads what `locate` found.

    Returns:
        Images (n, 32, 32, 3) uint8, labels 0 … 9 in the order of CLASS_NAMES.

    Raises:
        InputError: a file is missing, damaged, refused or not as published; names it.
    """
    if hub.is_hub_dataset(path):
        return huggingface.read(path, "RGB", SIZE, CLASS_NAMES)
    batches, pictures, entries, layout = dict[str, LabelledImages](), list[_Picture](), dict[str, Any](), ""
    with closing(_members(path)) as members:  # its bar must be gone before an error is shown
        for name, data in members:
            shown = f"{path}: {name}" if path.is_file() else str(path / name)
            if match := _BATCH.fullmatch(name):
                batch, binary = match.groups()
                if batch in batches:
                    raise InputError(f"{shown}: the batch comes twice")
                batches[batch] = (_read_binary if binary else _read_pickle)(data, shown)
                entries[batch] = digests(data, None if binary else BATCH_MD5[batch])
                layout = "binary" if binary else "python"
            else:
                pictures.append(_read_picture(name, data, shown))
    if batches:
        files = _in_published_order(batches, {"layout": layout, "files": entries}, path)
    else:
        files = _in_order_of_names(pictures, path)
    if path.is_file():
        files.manifest_entry["archive"] = {"name": path.name, **digests(path.read_bytes(), ARCHIVE_MD5)}
    return files


def _members(path: Path) -> Generator[tuple[str, bytes], None, None]:
    """Paths within the dataset and contents of the files that matter, in any order."""

    def wanted(name: str) -> bool:
        return (_BATCH.fullmatch(name) or _PICTURE.fullmatch(name)) is not None

    if path.is_file():
        yield from iterate(path, wanted)
        return
    # Not path.rglob: links to folders are followed.
    found = [*path.glob("*"), *path.glob("train/*/*"), *path.glob("test/*/*")]
    names = [name for name in (entry.relative_to(path).as_posix() for entry in sorted(found)) if wanted(name)]
    with Bar(f"reading the images of {path.name}", len(names)) as bar:
        for name in names:
            yield name, content(path / name)
            bar.advance(1)


def _read_pickle(data: bytes, name: str) -> LabelledImages:
    """A dict with data (n, 3072) uint8, planes of red, green and blue, and labels."""
    batch = load_arrays(data, name)
    if not isinstance(batch, dict):
        raise InputError(f"{name}: holds a {type(batch).__name__} instead of a dict with data and labels")
    pixels, labels = (batch.get(key.encode(), batch.get(key)) for key in ("data", "labels"))
    if not (isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.shape[1:] == (3 * 32 * 32,)):
        raise InputError(f"{name}: data is not an array (n, 3072) of uint8")
    if not (isinstance(labels, list) and len(labels) == len(pixels) and all(isinstance(i, int) for i in labels)):
        raise InputError(f"{name}: labels is not a list of {len(pixels)} integers, one for each row of data")
    return _labelled(pixels, np.array(labels), name)


def _read_binary(data: bytes, name: str) -> LabelledImages:
    """For each image its label, one byte, and planes of red, green and blue."""
    if not data or len(data) % 3073:
        raise InputError(f"{name}: has {len(data)} bytes, which is no multiple of 3073, an image and its label")
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, 3073)
    return _labelled(rows[:, 1:], rows[:, 0], name)


def _labelled(planes: np.ndarray, labels: np.ndarray, name: str) -> LabelledImages:
    """Images of rows (n, 3072) of color planes."""
    images = np.ascontiguousarray(planes.reshape(-1, 3, *SIZE).transpose(0, 2, 3, 1))
    return LabelledImages(images, check_labels(labels, len(CLASS_NAMES), name))


def _in_published_order(batches: dict[str, LabelledImages], entry: dict[str, Any], where: Path) -> ImageFiles:
    """Raises InputError: a batch is missing."""
    if missing := [batch for batch in BATCH_MD5 if batch not in batches]:
        raise InputError(f"{where}: {missing[0]} is missing ({len(missing)} of {len(BATCH_MD5)} batches are)")
    *train, test = (batches[batch] for batch in BATCH_MD5)
    return ImageFiles(LabelledImages(*map(np.concatenate, zip(*train, strict=True))), test, entry)


class _Picture(NamedTuple):
    """A file in a class folder; sorted by what comes before its pixels.

    `datasets` reads such folders, too (imagefolder), but needs a minute to find 60,000 files, and unpacks archives
    into its cache.
    """

    split: str
    label: int
    file: list[tuple[int, int | str]]
    name: str
    pixels: Pixels
    lossy: bool
    sha256: bytes


def _read_picture(name: str, data: bytes, shown: str) -> _Picture:
    match = _PICTURE.fullmatch(name)
    assert match is not None
    split, label, file = match.groups()
    if label not in CLASS_NAMES:
        raise InputError(f"{shown}: {label!r} is no class of this dataset; there are {', '.join(CLASS_NAMES)}")
    pixels, lossy = decode_image(data, "RGB", SIZE, shown)
    key = split, CLASS_NAMES.index(label), natural(file), name
    return _Picture(*key, pixels, lossy, hashlib.sha256(data).digest())


def _in_order_of_names(pictures: list[_Picture], where: Path) -> ImageFiles:
    """Raises InputError: there are none for training."""
    pictures = sorted(pictures, key=lambda picture: picture[:4])
    parts = {}
    for split in ("train", "test"):
        if chosen := [picture for picture in pictures if picture.split == split]:
            labels = np.array([picture.label for picture in chosen], dtype=np.int64)
            parts[split] = LabelledImages(np.stack([picture.pixels for picture in chosen]), labels)
    if "train" not in parts:
        raise InputError(f"{where}: holds neither CIFAR-10's batches nor train/<class>/NAME.png or .jpg")
    digest = hashlib.sha256(b"".join(picture.sha256 for picture in pictures)).hexdigest()
    files = {"images": {"count": len(pictures), "sha256_of_sha256s": digest, "digest": "unknown"}}
    lossy = {"lossy": True} if any(picture.lossy for picture in pictures) else {}
    return ImageFiles(parts["train"], parts.get("test"), {"layout": "class-folders", "files": files} | lossy)


def natural(name: str) -> list[tuple[int, int | str]]:
    """A key that sorts names with numbers in them by the numbers: img2 before img10."""
    parts = re.split("([0-9]{1,18})", name)  # text and numbers in turn; int() refuses thousands of digits
    return [(0, int(part)) if index % 2 else (1, part) for index, part in enumerate(parts) if part]
