"""Prepared data on disk: a folder of .npy files with a manifest, prepared once, atomically and under a lock.

    <root>/<dataset>/<name>/manifest.json            settings, source, vocabulary; per split its arrays and counts
    <root>/<dataset>/<name>/<split>_<array>.npy      one file per array of a split

The dataset decides which arrays a split has: see `SequenceDataset` (sequences.py) and `ImageDataset` (images.py).
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import numpy.typing as npt

from lra_ssm.errors import InputError
from lra_ssm.files import UNFINISHED, locked, naming_file, new_folder, sha256, write_json

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.integer[Any]]

ENVIRONMENT_VARIABLE = "LRA_SSM_DATA"
MANIFEST = "manifest.json"
FORMAT = 5  # part of the hash in a prepared folder's name: data of another format is prepared again
LOCK = ".lock"
_MAX_DEPTH = 32  # folders; the system follows about 40 links


# -- the data root -----------------------------------------------------------------------------------------------------


def resolve_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Return the data root as an absolute path: `root`, else LRA_SSM_DATA, else ./data. Creates nothing."""
    path = os.fspath(root or os.environ.get(ENVIRONMENT_VARIABLE) or "data")
    return Path(os.path.abspath(os.path.expanduser(path)))


def ensure_root(root: Path) -> None:
    """Create the data root if only it is missing.

    Raises:
        InputError: its parent is missing, it is a file, or it cannot be written.
    """
    hint = f"its parent folder must exist, or choose another with --data.root or {ENVIRONMENT_VARIABLE}"
    try:
        root.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"data root {root}: cannot be created ({error.strerror}); {hint}") from error
    if not os.access(root, os.W_OK | os.X_OK):
        raise InputError(f"data root {root}: cannot be written; choose another with --data.root")


# -- writing -----------------------------------------------------------------------------------------------------------


def prepare(root: Path, dataset: str, name: str, build: Callable[[Path], None]) -> Path:
    """Return <root>/<dataset>/<name>, calling `build` at most once over all processes to fill it.

    `build` fills an empty folder next to the target, which is renamed when it is complete: a process killed at any
    moment leaves no target, and the next preparation removes what it left. Other processes wait for the lock of the
    dataset's folder and then find the target. Nothing is locked or written where the target exists, so prepared data
    can be served from a read-only root.

    Args:
        root: the data root; created if only it is missing.
        dataset: the dataset's folder below it.
        name: the prepared folder below that.
        build: fills an empty folder, and writes the manifest last.

    Raises:
        InputError: the root cannot be used, or `build` raised it; nothing new is left behind.
        OSError: the disk is full or read-only; names the folder.
    """
    folder = root / dataset
    target = folder / name
    if (target / MANIFEST).is_file():
        return target
    created = not root.exists()
    ensure_root(root)
    with locked(folder / LOCK, "prepares this dataset", keep=True):
        for leftover in folder.glob(f"{UNFINISHED}*"):
            leftover.unlink() if leftover.is_file() else shutil.rmtree(leftover, ignore_errors=True)
        if target.exists():
            return target
        try:
            with naming_file(target), new_folder(target) as temporary:
                build(temporary)
        except BaseException:
            if [entry.name for entry in folder.iterdir()] == [LOCK]:
                (folder / LOCK).unlink()
                with suppress(OSError):  # not empty: another process has just put its lock there
                    folder.rmdir()
                    if created:
                        root.rmdir()
            raise
    return target


def write_array(path: Path, dtype: npt.DTypeLike, shape: tuple[int, ...], blocks: Iterable[Array]) -> Array:
    """Write blocks, which concatenated have this shape, as a .npy file; return it, mapped.

    Not written through a memory map: on a full disk that would kill the process instead of raising an error.
    """
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
        for block in blocks:
            file.write(np.ascontiguousarray(block, dtype).data)
    return np.load(path, mmap_mode="r")


class Growing:
    """An array that grows, in a temporary file in a folder, where memory may not hold it.

    Args:
        folder: folder of the file, which has no name and disappears with the process.
        dtype: of the array.
        row: the shape of one row.
    """

    def __init__(self, folder: Path, dtype: npt.DTypeLike, row: tuple[int, ...] = ()) -> None:
        self._file, self._dtype, self._row, self._size = TemporaryFile(dir=folder), np.dtype(dtype), row, 0

    def __len__(self) -> int:
        return self._size

    def append(self, rows: Array) -> None:
        """Append rows (n, *row)."""
        self._file.write(np.ascontiguousarray(rows, self._dtype).data)
        self._size += len(rows)

    def array(self) -> Array:
        """Return all rows, mapped from the file, which is closed: nothing can be appended any more."""
        with self._file:
            self._file.flush()
            if not self._size:  # an empty file cannot be mapped
                return np.empty((0, *self._row), self._dtype)
            return np.memmap(self._file, self._dtype, "r", shape=(self._size, *self._row))


def save_split(folder: Path, name: str, arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Write the arrays of a split as <name>_<array>.npy and return their entries for the manifest.

    An array that is already mapped from that file (`write_array`) is not written again.
    """
    entries = {}
    for key, array in arrays.items():
        path = folder / f"{name}_{key}.npy"
        if not (isinstance(array, np.memmap) and array.filename is not None and Path(array.filename) == path):
            np.save(path, array)
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        entries[key] = {"dtype": array.dtype.str, "shape": list(array.shape), **file_entry(path)}
    return entries


def count_examples(arrays: Mapping[str, Array], per_example: int, num_classes: int | None, name: str) -> dict[str, Any]:
    """Return what the manifest counts in a split of sequences or images: examples, lengths, examples by class.

    Raises:
        InputError: a label is not a class; names the split, as `name`, and the example.
    """
    counts: dict[str, Any] = {}
    if "offsets" in arrays:
        lengths = np.diff(arrays["offsets"])
        counts["examples"] = len(lengths) // per_example
        counts["length"] = {"min": int(lengths.min()), "mean": round(lengths.mean(), 2), "max": int(lengths.max())}
    if "images" in arrays:
        area = arrays["images"].shape[1] * arrays["images"].shape[2]
        counts["examples"] = len(arrays["images"])
        counts["length"] = {"min": area, "mean": float(area), "max": area}
    if "labels" in arrays and num_classes is not None:
        labels = arrays["labels"]
        for number in np.flatnonzero((labels < 0) | (labels >= num_classes))[:1]:
            what = f"label {labels[number]} is not one of 0 to {num_classes - 1}"
            raise InputError(f"{name}, example {number}: {what}")
        counts["class_counts"] = np.bincount(labels, minlength=num_classes).tolist()
    return counts


def file_entry(path: Path) -> dict[str, Any]:
    """Return what the manifest records of a file: name, size in bytes, sha256."""
    return {"file": path.name, "bytes": path.stat().st_size, "sha256": sha256(path)}


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest of a prepared folder, which is the last step of a preparation."""
    write_json(folder / MANIFEST, {"format": FORMAT, **manifest})


# -- reading -----------------------------------------------------------------------------------------------------------


class Split(dict[str, Array]):
    """The arrays of one split by name, memory-mapped read-only; worker processes map the files themselves.

    Attributes:
        folder: the prepared folder.
        entry: what the manifest records of the split.
    """

    def __init__(self, folder: Path, entry: dict[str, Any]) -> None:
        # A plain array over the same memory: indexing a memmap is several times slower.
        super().__init__(
            (key, np.load(folder / array["file"], mmap_mode="r").view(np.ndarray))
            for key, array in entry["arrays"].items()
        )
        self.folder, self.entry = folder, entry

    def __reduce__(self) -> tuple[Any, ...]:
        return Split, (self.folder, self.entry)


@dataclass(frozen=True)
class Prepared:
    """A prepared folder and its manifest."""

    folder: Path
    manifest: dict[str, Any]

    def split(self, name: str) -> Split:
        """Map the arrays of a split. Raises InputError if there is no such split."""
        splits = self.manifest["splits"]
        if name not in splits:
            raise InputError(f"{self.folder}: has no split {name}; it has {', '.join(splits)}")
        return Split(self.folder, splits[name])


def token_dtype(vocab_size: int) -> str:
    """Return the smallest unsigned dtype that holds every token id of a vocabulary."""
    return "uint8" if vocab_size <= 1 << 8 else "uint16" if vocab_size <= 1 << 16 else "uint32"


def load(folder: Path) -> Prepared:
    """Open a prepared folder after checking that every file is there with its recorded size.

    Raises:
        InputError: it is not prepared or damaged; names the file and what to do.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: is not prepared; call prepare_data (or `lra-ssm prepare`) first")
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise damaged_file_error(path, f"cannot be read ({error})") from error
    if manifest.get("format") != FORMAT:
        raise damaged_file_error(path, "is not of this version")
    for entry in _file_entries(manifest):
        file = folder / entry["file"]
        if not file.is_file():
            raise damaged_file_error(file, "is missing")
        if file.stat().st_size != entry["bytes"]:
            raise damaged_file_error(file, f"has {file.stat().st_size} bytes instead of {entry['bytes']}")
    return Prepared(folder, manifest)


def verify(prepared: Prepared) -> None:
    """Read every file of a prepared folder and compare its sha256. Raises InputError for the first that differs."""
    for entry in _file_entries(prepared.manifest):
        if sha256(prepared.folder / entry["file"]) != entry["sha256"]:
            raise damaged_file_error(prepared.folder / entry["file"], "does not have its recorded sha256")


def _file_entries(part: Any) -> Iterator[dict[str, Any]]:
    """Yield every entry of a file in a manifest."""
    if isinstance(part, dict):
        if {"file", "sha256"} <= part.keys():
            yield part
        part = list(part.values())
    if isinstance(part, list):
        for value in part:
            yield from _file_entries(value)


def damaged_file_error(path: Path, what: str) -> InputError:
    """Return the error for a file of a prepared folder; it says what to do."""
    return InputError(
        f"{path}: {what}; delete the folder {path.parent} and start again to prepare it again"
        " (`lra-ssm doctor --verify` checks all prepared data)"
    )


def num_examples(split: Mapping[str, Any]) -> int:
    """Return the number of examples, or documents of text, in a split's entry of the manifest."""
    return int(split["documents"] if "documents" in split else split["examples"])


# -- a user's files ----------------------------------------------------------------------------------------------------


def visible_files(folder: Path) -> list[Path]:
    """Return the files below a folder, sorted by their paths, except those that are hidden or in hidden folders.

    Raises:
        InputError: a link leads back to a folder above it.
        OSError: a folder cannot be read.
    """
    files = list[Path]()
    for folder_path, folders, names in os.walk(folder, onerror=_raise, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [Path(folder_path, name) for name in names if not name.startswith(".")]
        if len(Path(folder_path).relative_to(folder).parts) > _MAX_DEPTH:
            raise InputError(f"{folder_path}: is too many folders deep; does a link lead back to a folder above it?")
    return sorted(files)


def _raise(error: OSError) -> None:
    raise error


def fingerprint(paths: list[Path]) -> str:
    """Return a digest of the names, sizes and modification times of files; nothing is read."""
    stats = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    return hashlib.sha256(json.dumps(stats).encode()).hexdigest()[:12]


def read_lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield ("FILE:LINE", the line without its end) of a text file, with a progress bar.

    Raises:
        InputError: the file has no lines.
        OSError: it cannot be read.
    """
    from lra_ssm.bars import Bar  # loads tqdm, which commands that only list data do not need

    number = 0
    with open(path, "rb") as file, Bar(f"reading {path.name}", path.stat().st_size, in_bytes=True) as bar:
        for number, line in enumerate(file, start=1):
            bar.advance(len(line))
            yield f"{path}:{number}", line.removesuffix(b"\n").removesuffix(b"\r")
    if not number:
        raise InputError(f"{path}: is empty")
