"""One array of prepared data: a .npy file, appended to, memory-mapped, compared with its entry in the manifest.

An entry has the file's name, dtype, shape and bytes, and the sha256 of the values, which come behind the header.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lra_ssm.errors import InputError
from lra_ssm.files import one_reason, sha256

IntArray = npt.NDArray[np.integer[Any]]


class ArrayFile:
    """Appends to a .npy file along the first axis, hashing on the way; its header is written once more at the end.

    Args:
        path: the file.
        dtype: of the values.
        item: shape of one of them.
    """

    def __init__(self, path: Path, dtype: str, item: tuple[int, ...] = ()) -> None:
        self.path, self.dtype, self.item, self.count = path, np.dtype(dtype), item, 0
        self._file = open(path, "wb")
        self._write_header()

    def append(self, values: npt.ArrayLike) -> None:
        """Values (n, *item)."""
        data = np.ascontiguousarray(values, dtype=self.dtype)
        self._file.write(data.data)
        self.count += len(data)

    def close(self) -> dict[str, Any]:
        """Writes through to the disk; returns the entry for the manifest."""
        size = self._file.tell()
        self._file.seek(0)
        self._write_header()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        of_array = {"dtype": self.dtype.str, "shape": [self.count, *self.item]}
        return {"file": self.path.name, **of_array, "bytes": size, "sha256": sha256(self.path)}

    def _write_header(self) -> None:
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.count, *self.item)}
        np.lib.format.write_array_header_1_0(self._file, header)  # which leaves room for the first axis to grow


def open_array(folder: Path, entry: dict[str, Any]) -> IntArray:
    """The array of an entry, memory-mapped, read-only.

    Raises:
        InputError: the file is missing or damaged.
    """
    # The same memory: memmap's own indexing is several times slower.
    return _mapped(folder / entry["file"], entry).view(np.ndarray)


def check_digest(folder: Path, entry: dict[str, Any]) -> None:
    """Reads an array's file. Raises InputError where it is not what was written."""
    path = folder / entry["file"]
    if sha256(path) != entry["sha256"]:
        raise damaged(path, "does not have its recorded sha256")


def check_size(folder: Path, entry: dict[str, Any]) -> None:
    """Raises InputError unless a file is there, of its size where the entry has it."""
    path = folder / entry["file"]
    if not path.is_file():
        raise damaged(path, "is missing")
    if path.stat().st_size != entry.get("bytes", path.stat().st_size):
        raise damaged(path, f"has {path.stat().st_size} bytes instead of {entry['bytes']}")


def check_values(path: Path, what: str, values: IntArray, size: int) -> None:
    """Raises InputError unless all values, which a file gave, are 0 … size − 1.

    A negative value is caught with the large ones: as unsigned numbers they are above them.
    """
    if values.size and (largest := values.view(f"u{values.dtype.itemsize}").max()) >= size:
        wrong = largest.astype(values.dtype)
        raise damaged(path, f"its {what} hold {wrong}; they must be 0 to {size - 1}")


def damaged(path: Path, what: str) -> InputError:
    """The error for a file of a prepared folder, which says what to do."""
    return InputError(
        f"{path}: {what}; delete the folder {path.parent} and start again to have it prepared anew"
        " (`lra-ssm doctor --verify` checks all that is prepared)"
    )


def _mapped(path: Path, entry: dict[str, Any]) -> "np.memmap[Any, Any]":
    try:
        mapped: np.memmap[Any, Any] = np.load(path, mmap_mode="r")
    except Exception as error:  # the disk's, or of Python's parser
        raise damaged(path, f"cannot be read ({one_reason(error)})") from error
    if [mapped.dtype.str, *mapped.shape] != [entry["dtype"], *entry["shape"]]:
        raise damaged(path, "its header is not what was written")
    return mapped
