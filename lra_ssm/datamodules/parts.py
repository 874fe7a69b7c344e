"""Numbered parts of a long preparation: each is written once, those that exist are skipped, then they are joined.

    <root>/<dataset>/.parts-<name>/000017/<array>.npy, part.json

Parts lie next to the prepared folder that they become, so that a killed preparation continues and several machines that
share a file system can make different parts. A part must depend only on its number and the settings.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lra_ssm.datamodules.storage import Array, write_array
from lra_ssm.errors import InputError
from lra_ssm.files import new_folder, write_json

RECORD = "part.json"


@dataclass(frozen=True)
class Parts:
    """The parts of a preparation; it is pickled to worker processes.

    Args:
        folder: folder of all parts; created with the first one.
        count: parts are 0 … count − 1.
    """

    folder: Path
    count: int

    def missing(self, shard: tuple[int, int] = (1, 1)) -> list[int]:
        """Return the parts that do not exist yet: of shard i/n those whose number modulo n is i − 1."""
        index, shards = shard
        return [n for n in range(index - 1, self.count, shards) if not (self._part_folder(n) / RECORD).is_file()]

    def write(self, number: int, make: Callable[[int], tuple[dict[str, Array], dict[str, Any]]]) -> None:
        """Write a part, atomically, unless it exists: `make(number)` returns its arrays and its record."""
        if (self._part_folder(number) / RECORD).is_file():
            return
        arrays, record = make(number)
        self.folder.mkdir(parents=True, exist_ok=True)
        with new_folder(self._part_folder(number)) as folder:
            for name, array in arrays.items():
                np.save(folder / f"{name}.npy", array)
            write_json(folder / RECORD, record)

    def records(self) -> list[dict[str, Any]]:
        """Return the records of all parts. Raises InputError, naming the first, if a part is missing."""
        if missing := self.missing():
            raise InputError(
                f"{self.folder}: {len(missing)} of {self.count} parts are missing, the first is {missing[0]}"
            )
        return [json.loads((self._part_folder(n) / RECORD).read_text()) for n in range(self.count)]

    def mapped(self, name: str, numbers: Sequence[int] | None = None) -> list[Array]:
        """Return an array of every part, or of some in this order, memory-mapped."""
        selected = range(self.count) if numbers is None else numbers
        return [np.load(self._part_folder(n) / f"{name}.npy", mmap_mode="r").view(np.ndarray) for n in selected]

    def join(self, path: Path, name: str, numbers: Sequence[int] | None = None) -> Array:
        """Concatenate an array of the parts, or of some in this order, into a new .npy file; return it, mapped."""
        arrays = self.mapped(name, numbers)
        shape = (sum(map(len, arrays)), *arrays[0].shape[1:])
        return write_array(path, arrays[0].dtype, shape, arrays)

    def _part_folder(self, number: int) -> Path:
        return self.folder / f"{number:06d}"
