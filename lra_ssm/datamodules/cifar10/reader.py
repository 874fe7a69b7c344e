"""Reads CIFAR-10 (Krizhevsky, 2009) in the layouts in which it is published or common:

    cifar-10-python.tar.gz, or cifar-10-batches-py/{data_batch_1…5,test_batch}           pickles
    cifar-10-binary.tar.gz, or cifar-10-batches-bin/{data_batch_1…5,test_batch}.bin      1 + 3072 bytes per image
    {train,test}/<class>/NAME.{png,jpg}                                                  folder or archive
    train/ID.png + trainLabels.csv                                                       Kaggle's; no test images
    a folder that Hugging Face `datasets` saved (uoft-cs/cifar10)

The first two, and Kaggle's list, have the published order, which decides the public S4 code's split; the others have an
order of their own, class folders that of the sorted names. Needs neither torch nor lightning.
"""

import hashlib
import re
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from lra_ssm.datamodules.cifar10.single_files import LABEL_FILE, SingleFiles, layout_of
from lra_ssm.datamodules.fetch.archives import iterate
from lra_ssm.datamodules.fetch.download import RemoteFile
from lra_ssm.datamodules.images import huggingface
from lra_ssm.datamodules.images.files import ImageFiles, LabelledImages, check_labels, digests
from lra_ssm.datamodules.images.restricted_pickle import load_restricted
from lra_ssm.datamodules.storage.bars import image_bar
from lra_ssm.errors import InputError

CLASS_NAMES = tuple("airplane automobile bird cat deer dog frog horse ship truck".split())
SIZE = (32, 32)
PUBLISHED_COUNTS = {"train": 50_000, "test": 10_000}
HUGGINGFACE_NAME = "uoft-cs/cifar10"
HUGGINGFACE_REVISION = "0b2714987fa478483af9968de7c934580d0bb9a2"  # as many public repositories pin it
HUGGINGFACE_BYTES = 150_000_000  # of its images, compressed
ARCHIVE = RemoteFile(
    urls=("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
    name="cifar-10-python.tar.gz",
    digest="md5:c58f30108f718f92721af3b95e74349a",
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


def locate(path: Path) -> Path:
    """The archive, or the folder that directly holds the files, of a path that a user gives.

    Raises:
        InputError: nothing is there, or nothing of a layout that is known.
    """
    if path.is_file():
        return path
    if not path.is_dir():
        raise InputError(f"CIFAR-10 source {path}: is neither original, huggingface nor an existing file or folder")
    for candidate in (path, *(path / name for name in (*FOLDERS, *ARCHIVES))):
        if candidate.is_file() or (candidate.is_dir() and _is_cifar(candidate)):
            return candidate
    raise InputError(
        f"{path}: holds no CIFAR-10 that is known; expected {' or '.join((*FOLDERS, *ARCHIVES))},"
        f" train/<class>/NAME.png or .jpg, train/ID.png with {LABEL_FILE}, or a saved Hugging Face dataset"
    )


def _is_cifar(folder: Path) -> bool:
    batches = any((folder / f"data_batch_1{suffix}").is_file() for suffix in ("", ".bin"))
    single = (folder / "train" / CLASS_NAMES[0]).is_dir() or (folder / LABEL_FILE).is_file()
    return batches or single or huggingface.is_saved(folder)


def watched_files(path: Path) -> list[Path]:
    """Files and folders whose sizes and times tell whether the content of a located path may have changed.

    Of folders of single images these are the folders: 60,000 files would take long to look at on a network disk. So an
    image overwritten in its place is not noticed.
    """
    if path.is_file():
        return [path]
    if huggingface.is_saved(path):
        return huggingface.watched_files(path)
    files = [entry for entry in sorted(path.iterdir()) if entry.is_file() and _wanted(entry.name)]
    folders = [path / split for split in ("train", "test") if (path / split).is_dir()]
    return [*files, *folders, *(sub for folder in folders for sub in sorted(folder.iterdir()) if sub.is_dir())]


def read(path: Path) -> ImageFiles:
    """Reads what `locate` found.

    Returns:
        Images (n, 32, 32, 3) uint8, labels 0 … 9 in the order of CLASS_NAMES.

    Raises:
        InputError: a file is missing, damaged, refused or not as published; names it.
    """
    if path.is_dir() and huggingface.is_saved(path):
        return huggingface.read(path, "RGB", SIZE, CLASS_NAMES)
    batches, single = _Batches(path), None
    with closing(_members(path)) as members:  # its bar must be gone before an error is shown
        for name, data in members:
            if layout := layout_of(name):
                single = single or SingleFiles(layout, CLASS_NAMES, SIZE, path)
                if single.layout != layout:
                    raise InputError(
                        f"{path}: {name}: does not belong to the layout of the files before it, {single.layout}"
                    )
                single.add(name, data)
            else:
                batches.add(name, data)
    if batches.parts:
        files = batches.finish()
    elif single is not None:
        files = single.finish()
    else:
        raise InputError(f"{path}: holds neither CIFAR-10's batches nor train/<class>/NAME.png or .jpg")
    if path.is_file():
        with open(path, "rb") as file:
            md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
            file.seek(0)
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        known = "published" if f"md5:{md5}" == ARCHIVE.digest else "unknown"
        files.manifest_entry["archive"] = {
            "name": path.name,
            "bytes": path.stat().st_size,
            "sha256": sha256,
            "digest": known,
        }
    return files


def _wanted(name: str) -> bool:
    return layout_of(name) is not None or _batch_name(name) is not None


def _batch_name(name: str) -> str | None:
    match = re.fullmatch(r"(?:.*/)?(data_batch_[1-5]|test_batch)(?:\.bin)?", name)
    return match[1] if match else None


def _members(path: Path) -> Generator[tuple[str, bytes], None, None]:
    """Paths within the dataset and contents of the files that matter, in any order."""
    if path.is_file():
        yield from iterate(path, _wanted)
        return
    # Not path.rglob: links to folders are followed, and nothing deeper than the layouts go is looked at.
    patterns = ("*", "train/*", "train/*/*", "test/*/*")
    found = [
        (entry.relative_to(path).as_posix(), entry) for pattern in patterns for entry in sorted(path.glob(pattern))
    ]
    wanted = [(name, file_path) for name, file_path in found if _wanted(name) and file_path.is_file()]
    with image_bar(f"reading the images of {path.name}", len(wanted)) as advance:
        for name, file_path in wanted:
            try:
                yield name, file_path.read_bytes()
            except OSError as error:
                raise InputError(f"{file_path}: cannot be read ({error.strerror})") from error
            advance(1)


class _Batches:
    """Collects CIFAR-10's own batch files, pickles or binary."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self.parts: dict[str, LabelledImages] = {}
        self.files: dict[str, Any] = {}
        self.layouts: set[str] = set()

    def add(self, name: str, data: bytes) -> None:
        batch, binary = _batch_name(name), name.endswith(".bin")
        assert batch is not None
        if batch in self.parts:
            raise InputError(f"{self.where}: {name}: the batch comes twice")
        shown = f"{self.where}: {name}" if self.where.is_file() else str(self.where / name)
        self.parts[batch] = (_read_binary if binary else _read_pickle)(data, shown)
        self.files[batch] = digests(data, None if binary else BATCH_MD5[batch])
        self.layouts.add("binary" if binary else "python")

    def finish(self) -> ImageFiles:
        missing = [batch for batch in BATCH_MD5 if batch not in self.parts]
        if missing:
            raise InputError(f"{self.where}: {missing[0]} is missing ({len(missing)} of {len(BATCH_MD5)} batches are)")
        parts = [self.parts[batch] for batch in sorted(self.parts) if batch != "test_batch"]
        train = LabelledImages(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
        files = {batch: self.files[batch] for batch in BATCH_MD5}
        return ImageFiles(train, self.parts["test_batch"], {"layout": "+".join(sorted(self.layouts)), "files": files})


def _read_pickle(data: bytes, name: str) -> LabelledImages:
    """A dict with data (n, 3072) uint8, planes of red, green and blue, and labels."""
    batch = load_restricted(data, name)
    if not isinstance(batch, dict):
        raise InputError(f"{name}: holds a {type(batch).__name__} instead of a dict with data and labels")
    pixels, labels = (batch.get(key.encode(), batch.get(key)) for key in ("data", "labels"))
    if not (isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.shape[1:] == (3 * 32 * 32,)):
        raise InputError(f"{name}: data is not an array (n, 3072) of uint8")
    if not (isinstance(labels, list) and len(labels) == len(pixels) and all(isinstance(i, int) for i in labels)):
        raise InputError(f"{name}: labels is not a list of {len(pixels)} integers, one for each row of data")
    return LabelledImages(_planes(pixels), check_labels(np.array(labels, dtype=np.int64), len(CLASS_NAMES), name))


def _read_binary(data: bytes, name: str) -> LabelledImages:
    """For each image its label, one byte, and planes of red, green and blue."""
    if not data or len(data) % 3073:
        raise InputError(f"{name}: has {len(data)} bytes, which is no multiple of 3073, an image and its label")
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, 3073)
    return LabelledImages(_planes(rows[:, 1:]), check_labels(rows[:, 0], len(CLASS_NAMES), name))


def _planes(pixels: np.ndarray) -> np.ndarray:
    """Rows (n, 3072) of color planes to images (n, 32, 32, 3)."""
    return np.ascontiguousarray(pixels.reshape(-1, 3, *SIZE).transpose(0, 2, 3, 1))
