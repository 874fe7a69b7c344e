"""Pickles of arrays that can do nothing else."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lra_ssm.datamodules.cifar10 import reader as cifar_files
from lra_ssm.datamodules.images.restricted_pickle import load_restricted
from lra_ssm.errors import InputError
from tests.datamodules.test_cifar import batches


class Evil:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.target}",)


def test_a_pickle_that_runs_something_is_refused(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    for number, evil in enumerate((Evil(trap), {"data": Evil(trap)}, np.array([Evil(trap)], dtype=object))):
        folder = batches(tmp_path / str(number), data_batch_2=pickle.dumps(evil, protocol=2))
        with pytest.raises(InputError, match=r"data_batch_2: refused .*system") as error:
            cifar_files.read(folder)
        assert "\n" not in str(error.value) and not trap.exists()
    folder = batches(
        tmp_path / "codec", data_batch_2=b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R."
    )
    with pytest.raises(InputError, match="rot13"):
        cifar_files.read(folder)


NUMPY = b"cnumpy.core.multiarray\n_reconstruct\n"


@pytest.mark.parametrize("named", [b"c_codecs\nencode\n", NUMPY, b"cnumpy\ndtype\n"])
@pytest.mark.parametrize(
    "state", ['(None, {"__defaults__": ("rot13",)})', '{"__defaults__": ("rot13",)}', '{"__doc__": "x"}', "None", "()"]
)
def test_a_pickle_changes_nothing_for_the_next(named: bytes, state: str) -> None:
    before = load_restricted(pickle.dumps({"data": np.arange(3, dtype=np.uint8), "text": b"a\xff"}, protocol=2), "x")
    value = pickle.dumps(eval(state), protocol=2).removeprefix(b"\x80\x02").removesuffix(b".")
    with pytest.raises(InputError, match="x: refused as a pickle of arrays .it (changes what it names|has a)"):
        load_restricted(b"\x80\x02" + named + value + b"b.", "x")
    after = load_restricted(pickle.dumps({"data": np.arange(3, dtype=np.uint8), "text": b"a\xff"}, protocol=2), "x")
    assert after["data"].tolist() == before["data"].tolist() == [0, 1, 2] and after["text"] == b"a\xff"


@pytest.mark.parametrize("put", [b"r" + (1 << 24).to_bytes(4, "little"), b"p16777216\n", b"q\xff"])
def test_a_pickle_takes_no_memory_that_it_does_not_fill(put: bytes) -> None:
    with pytest.raises(InputError, match="x: refused as a pickle of arrays .it numbers a value [0-9]+, in"):
        load_restricted(b"\x80\x02N" + put + b".", "x")
