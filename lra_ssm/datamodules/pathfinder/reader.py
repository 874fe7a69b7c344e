"""Reads Pathfinder in the layout of LRA's archive, which is the public generator's too.

    <folder>/metadata/<number>.npy               columns: folder, file, number, label, …
    <folder>/imgs/<number>/sample_<number>.png   8-bit gray, square

In LRA's archive the metadata files are plain text, one image a line, in spite of their name; the public generator
writes real .npy files. The images' order is that of the metadata files' numbers and their lines. Needs neither torch
nor lightning.
"""

import hashlib
import io
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from lra_ssm.datamodules.fetch.sources import content
from lra_ssm.datamodules.old_images.files import decode_image
from lra_ssm.datamodules.pathfinder.archive import generator_of
from lra_ssm.datamodules.pathfinder.settings import DIFFICULTIES
from lra_ssm.errors import InputError
from lra_ssm.files import one_reason

CHUNK = 250  # images decoded at a time
READERS, WINDOW = 8, 1000  # threads, and files that they read ahead
MISSING = -1  # size of a file that is not there
NPY = b"\x93NUMPY"

T = TypeVar("T")
R = TypeVar("R")


class Listing(NamedTuple):
    """The images of a folder in order, the empty ones left out.

    `manifest_entry` is for the manifest: how many metadata files of which formats, their sha256, and the empty images.
    """

    paths: list[str]
    labels: npt.NDArray[np.int64]
    manifest_entry: dict[str, Any]


def places(resolution: int, difficulty: str) -> tuple[str, ...]:
    """Where below a data root LRA's images are, by the habits of LRA's archive, S5 and the public S4 code."""
    task = f"pathfinder{resolution}/{difficulty}"
    return tuple(above + task for above in ("lra_release/lra_release/", "lra_release/", "pathfinder/", ""))


def find_folder(path: Path, resolution: int, difficulty: str) -> Path | None:
    """The folder with `metadata` and `imgs`: the path itself or below it; None if there is none.

    Raises:
        InputError: the path itself has them, and is named after another difficulty.
    """
    if has_images(path) and path.name in DIFFICULTIES and path.name != difficulty:
        raise InputError(f"{path}: is named after another difficulty than {difficulty}; give difficulty {path.name}")
    candidates = (path / place for place in ("", difficulty, *places(resolution, difficulty)))
    return next((folder for folder in candidates if has_images(folder)), None)


def find_lra(root: Path, resolution: int, difficulty: str) -> Path | None:
    """LRA's images in one of `places` below a data root, not our generator's."""
    candidates = (root / place for place in places(resolution, difficulty))
    return next((path for path in candidates if has_images(path) and generator_of(path) is None), None)


def has_images(folder: Path) -> bool:
    """Whether a folder has `metadata` and `imgs`."""
    return (folder / "metadata").is_dir() and (folder / "imgs").is_dir()


def watched_files(folder: Path) -> list[Path]:
    """Files and folders that tell by sizes and times whether the content may have changed."""
    return [*metadata_files(folder), *sorted(entry for entry in (folder / "imgs").iterdir() if entry.is_dir())]


def metadata_files(folder: Path) -> list[Path]:
    """Sorted by number.

    Raises:
        InputError: there are none, or one has no number.
    """
    files = [path for path in (folder / "metadata").glob("*.npy") if not path.name.startswith(".")]
    for path in files:
        if not path.stem.isdecimal():
            raise InputError(f"{path}: is no Pathfinder metadata file; they are named 0.npy, 1.npy, …")
    if not files:
        raise InputError(f"{folder / 'metadata'}: holds no Pathfinder metadata (0.npy, 1.npy, …)")
    return sorted(files, key=lambda path: int(path.stem))


def read_listing(folder: Path, *, generated: bool = False) -> Listing:
    """Reads all metadata, and finds out which images are empty.

    Args:
        folder: with `metadata` and `imgs`.
        generated: whether they are our own: LRA's archive holds empty images, the generator writes none.

    Raises:
        InputError: metadata is not as published, an image is missing, or a generated one is empty; names it.
    """
    files = metadata_files(folder)
    rows, formats, digest = [], set[str](), hashlib.sha256()
    for file in files:
        data = content(file)
        digest.update(data)
        formats.add("npy" if data.startswith(NPY) else "text")
        found = _npy_rows(data, file) if data.startswith(NPY) else _text_rows(data, file)
        rows += [_entry(row, f"{file} line {number}") for number, row in enumerate(found, 1)]
    paths = [path for path, _ in rows]
    labels = np.array([label for _, label in rows], dtype=np.int64)
    if len(set(paths)) != len(paths):
        raise InputError(f"{folder / 'metadata'}: lists an image twice")
    if not paths:
        raise InputError(f"{folder / 'metadata'}: lists no images")
    kept, empty = _kept(folder, paths, generated)
    # No digests of these files are published.
    known = {} if generated else {"folder": str(folder), "digest": "unknown"}
    entry = {
        "metadata_files": len(files),
        "metadata_format": "+".join(sorted(formats)),
        "metadata_sha256": digest.hexdigest(),
        "listed_images": len(paths),
        "empty_images": empty,
        **known,
    }
    return Listing([paths[index] for index in kept], labels[kept], entry)


def _kept(folder: Path, paths: list[str], generated: bool) -> tuple[npt.NDArray[np.int64], list[str]]:
    """The places of images that are not empty; the paths of those that are."""
    sizes = np.array([*_concurrently(partial(_size, folder), paths)])
    empty = [paths[index] for index in np.flatnonzero(sizes == 0)]
    missing = [paths[index] for index in np.flatnonzero(sizes == MISSING)]
    if lost := missing or (empty if generated else []):
        what = "is listed in the metadata but missing" if missing else "is an empty file"
        block = folder / "metadata" / f"{PurePosixPath(lost[0]).parent.name}.npy"
        remedy = f"; delete {block} and its images are drawn again" if generated else ""
        raise InputError(f"{folder / lost[0]}: {what}{remedy}")
    return np.flatnonzero(sizes), empty


def read_images(folder: Path, paths: Iterable[str], resolution: int) -> Iterator[npt.NDArray[np.uint8]]:
    """Decodes images of `folder` in the order of `paths`: arrays (n, resolution, resolution, 1), few images at a time.

    Raises:
        InputError: an image cannot be read, is damaged or of another size.
    """
    files = [folder / path for path in paths]
    read = zip(files, _concurrently(content, files), strict=True)
    while some := list(islice(read, CHUNK)):
        # Not in the threads: PIL keeps Python's lock while it decodes small images.
        size = (resolution, resolution)
        yield np.stack([decode_image(data, "L", size, str(file)).pixels for file, data in some])


# -- metadata ----------------------------------------------------------------------------------------------------------


def _text_rows(data: bytes, file: Path) -> Iterator[list[str]]:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: is neither text nor a .npy file") from error
    return (line.split() for line in text.splitlines())


def _npy_rows(data: bytes, file: Path) -> list[list[str]]:
    """Rows of an array (n, columns) of strings."""
    try:
        array = np.load(io.BytesIO(data))
        if array.ndim != 2 or array.dtype.kind not in "US":
            raise ValueError(f"it holds {array.dtype} {array.shape}, not (images, columns) of strings")
        return array.astype(str).tolist()
    except Exception as error:  # of Python's parser too, where the header is damaged
        raise InputError(f"{file}: is no .npy file of strings ({one_reason(error)})") from error


def _entry(row: list[str], where: str) -> tuple[str, int]:
    """Path of the image below the folder, and label."""
    if len(row) < 4 or row[3] not in ("0", "1", "0.0", "1.0"):
        raise InputError(f"{where}: {' '.join(row)[:100]!r} is not folder, file, number, label (0 or 1)")
    path = PurePosixPath(row[0], row[1])
    if path.is_absolute() or ".." in path.parts or not str(path).isprintable():
        raise InputError(f"{where}: {str(path)!r} is not a path below the folder")
    return str(path), int(row[3][0])


# -- images ------------------------------------------------------------------------------------------------------------


def _size(folder: Path, path: str) -> int:
    try:
        return os.stat(folder / path).st_size
    except (FileNotFoundError, NotADirectoryError):
        return MISSING
    except OSError as error:
        raise InputError(f"{folder / path}: cannot be read ({error.strerror})") from error


def _concurrently(function: Callable[[T], R], inputs: Iterable[T]) -> Iterator[R]:
    """Results in order, WINDOW at a time in memory. Threads that wait for the disk: network disks answer late."""
    remaining = iter(inputs)
    with ThreadPoolExecutor(READERS) as pool:
        while some := list(islice(remaining, WINDOW)):
            yield from pool.map(function, some)
