"""Pickles of arrays: of every writer they are read, and none runs anything."""

import itertools
import os
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lra_ssm.datamodules.cifar10 import reader as cifar_files
from lra_ssm.datamodules.images.pickles import load_arrays
from lra_ssm.errors import InputError
from tests.datamodules.image_helpers import BATCHES, cifar_batch, pathfinder_rows, pictures, write_files

IMAGES = pictures(12)
ROWS = IMAGES.transpose(0, 3, 1, 2).reshape(12, 3072)
LABELS = [*range(10), 0, 9]


def of_numpy(data: bytes, core: str) -> bytes:
    """The pickle as numpy 1 (core) or 2 (_core) writes it."""

    def short(match: re.Match[bytes]) -> bytes:
        name = b"numpy." + core.encode() + match[1]
        return b"\x8c" + bytes([len(name)]) + name

    data = data[:2] + data[11:] if data[2:3] == b"\x95" else data  # the length of what follows, which is another then
    data = re.sub(rb"\x8c.numpy\._?core(\.[a-z]+)", short, data)
    return re.sub(rb"cnumpy\._?core\.", b"cnumpy." + core.encode() + b".", data)


WRITERS = {
    **{f"Python 3, protocol {p}": (lambda rows, p=p: pickle.dumps({"data": rows, "labels": LABELS}, protocol=p))
       for p in range(6)},
    "Python 2": lambda rows: cifar_batch(rows.reshape(12, 3, 32, 32).transpose(0, 2, 3, 1), LABELS),
}  # fmt: skip


CHOSEN = [("Python 2", "core", "C"), ("Python 3, protocol 2", "core", "F"), ("Python 3, protocol 4", "_core", "C"),
          ("Python 3, protocol 5", "_core", "read-only"), ("Python 3, protocol 5", "core", "F")]  # fmt: skip
EVERY = itertools.product(WRITERS, ("core", "_core"), ("C", "F", "read-only"))
OTHERS = [pytest.param(*case, marks=pytest.mark.slow) for case in EVERY if case not in CHOSEN]


@pytest.mark.parametrize(("writer", "core", "order"), [*CHOSEN, *OTHERS])
def test_batches_of_every_writer(tmp_path: Path, writer: str, core: str, order: str) -> None:
    rows = np.asfortranarray(ROWS) if order == "F" else ROWS.copy()
    rows.flags.writeable = order != "read-only"
    data = of_numpy(WRITERS[writer](rows), core)
    assert b"numpy." + core.encode() in data
    files = cifar_files.read(write_files(tmp_path, dict.fromkeys(BATCHES, data)))
    assert np.array_equal(files.test.images, IMAGES) and files.test.labels.tolist() == LABELS  # type: ignore[union-attr]


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_arrays_of_objects(protocol: int) -> None:
    rows = np.array(pathfinder_rows(3), dtype=object)
    assert load_arrays(pickle.dumps(rows, protocol=protocol), "x").tolist() == rows.tolist()


class Evil:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_that_runs_something_is_refused(tmp_path: Path, protocol: int) -> None:
    trap = tmp_path / "trap"
    for evil in (Evil(trap), {"data": Evil(trap)}, np.array([Evil(trap)], dtype=object)):
        with pytest.raises(InputError, match=r"^x: is no pickle of arrays, or damaged \(it names [a-z]+.system, which"):
            load_arrays(pickle.dumps(evil, protocol=protocol), "x")
    assert not trap.exists()


@pytest.mark.parametrize("name", ["numpy.load", "numpy.core.numeric.fromfile", "builtins.eval", "os.system"])
def test_nothing_else_of_numpy_has_a_place(name: str) -> None:
    module, _, function = name.rpartition(".")
    with pytest.raises(InputError, match=f"it names {name}, which has no place in such a file"):
        load_arrays(f"c{module}\n{function}\n.".encode(), "x")


DAMAGED = [b"", b"nonsense", pickle.dumps({"data": ROWS})[:-100], b"\x80\x02.", b"\x80\x02h\x05.", b"I9x\n.", b"(.",
           b"\x80\x02cnumpy\nndarray\n)R.", b"\x80\x02cnumpy\ndtype\nU\x02zz\x85R."]  # fmt: skip


@pytest.mark.parametrize("data", DAMAGED, ids=lambda data: repr(data[:9]))
def test_damaged_pickles_are_one_line(data: bytes) -> None:
    with pytest.raises(InputError, match="^x: is no pickle of arrays, or damaged") as error:
        load_arrays(data, "x")
    assert str(error.value).isprintable()


@pytest.mark.parametrize("value", [10**30, -1, None, "a", 1.0, 255, [1]])
def test_labels_that_are_none(value: Any, tmp_path: Path) -> None:
    data = pickle.dumps({"data": ROWS, "labels": [0] * 11 + [value]})
    with pytest.raises(InputError, match="data_batch_1: label"):
        cifar_files.read(write_files(tmp_path, dict.fromkeys(BATCHES, data)))
