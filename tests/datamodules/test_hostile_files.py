"""Damaged and hostile files of every format: each is read, or gives one line, whatever is in it."""

import gzip
import io
import json
import random
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lra_ssm.datamodules.cifar10 import reader as cifar_files
from lra_ssm.datamodules.fetch.archives import extract
from lra_ssm.datamodules.fetch.sources import LineFile
from lra_ssm.datamodules.listops.reader import read as read_listops
from lra_ssm.datamodules.mnist import reader as mnist_files
from lra_ssm.datamodules.pathfinder.archive import generator_of
from lra_ssm.datamodules.pathfinder.reader import read_listing
from lra_ssm.datamodules.retrieval.reader import PairsFile
from lra_ssm.datamodules.text import reader as text_files
from lra_ssm.errors import InputError
from tests.datamodules.helpers import LINES, damaged
from tests.datamodules.image_helpers import (
    encoded,
    idx,
    pathfinder_rows,
    pictures,
    write_files,
)
from tests.datamodules.image_helpers import (
    mnist_files as written_mnist,
)
from tests.datamodules.test_archives import FILES, everything, good, read, save, zipped


def reads_or_refuses(function: Callable[[], Any], start: str = "") -> None:
    try:
        function()
    except InputError as error:
        assert str(error).startswith(start) and str(error).isprintable(), error


# -- archives ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tar", "gz", "bz2", "xz", "zip"])
def test_random_damage_to_archives(tmp_path: Path, kind: str) -> None:
    small = {name: data[:300] for name, data in FILES.items()}
    data = zipped(small) if kind == "zip" else good(kind)
    for seed in range(25):
        archive = save(tmp_path, damaged(data, random.Random(seed)))
        reads_or_refuses(lambda: read(archive), f"{archive}: ")  # noqa: B023
        target = tmp_path / f"target{seed}"
        reads_or_refuses(lambda: extract(archive, target, everything), str(tmp_path))  # noqa: B023
        assert sorted({path.name for path in tmp_path.iterdir()} - {"archive", target.name}) == sorted(
            f"target{i}" for i in range(seed) if (tmp_path / f"target{i}").exists()
        )


# -- Pathfinder --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "form"), [("a\0b", "npy"), ("..", "text"), ("/", "npy"), ("x" * 300, "text")])
def test_paths_in_metadata(tmp_path: Path, path: str, form: str) -> None:
    for column in (0, 1):
        row = ["imgs/0", "sample_0.png", "0", "1"]
        row[column] = path
        data = " ".join(row).encode()
        if form == "npy":
            file = io.BytesIO()
            np.save(file, np.array([row]))
            data = file.getvalue()
        write_files(tmp_path, {"metadata/0.npy": data, "imgs/x": b""})
        with pytest.raises(InputError, match=re.escape(str(tmp_path))) as error:
            read_listing(tmp_path)
        assert str(error.value).isprintable()


# -- the others --------------------------------------------------------------------------------------------------------


def pairs_lines() -> bytes:
    return b"".join(b"%d.0\tA%d\tB%d\tone text %d\tother text\n" % (i % 2, i, i, i) for i in range(4))


def imdb_archive() -> bytes:
    names = [
        f"aclImdb/{split}/{name}/{i}_7.txt" for split in ("train", "test") for name in ("neg", "pos") for i in (0, 1)
    ]
    return zipped({name: b"a fine film" for name in names})


def one_image_set(folder: Path, data: bytes) -> Any:
    return cifar_files.read(write_files(folder, {"train/cat/1.png": data}))


def mnist(folder: Path, data: bytes) -> Any:
    rest = written_mnist(pictures(4, size=28, channels=1)[..., 0], np.arange(4), 2, packed=False)
    return mnist_files.read(write_files(folder, rest | {"train-images-idx3-ubyte": data}))


def packed_mnist(folder: Path, data: bytes) -> Any:
    rest = written_mnist(pictures(4, size=28, channels=1)[..., 0], np.arange(4), 2)
    return mnist_files.read(write_files(folder, rest | {"train-images-idx3-ubyte.gz": data}))


def binary(folder: Path, data: bytes) -> Any:
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    return cifar_files.read(write_files(folder, dict.fromkeys(names, bytes(3073)) | {names[2]: data}))


def metadata_of_strings() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array(pathfinder_rows(4)))
    return file.getvalue()


def listing(folder: Path, data: bytes) -> Any:
    images = {f"imgs/0/sample_{i}.png": b"x" for i in range(4)}
    return read_listing(write_files(folder, images | {"metadata/0.npy": data}))


FORMATS: dict[str, tuple[Callable[[], bytes], Callable[[Path, bytes], Any]]] = {
    "ListOps": (
        lambda: ("\n".join(["Source\tTarget", *LINES["train"]]) + "\n").encode(),
        lambda folder, data: [*read_listops(LineFile(save(folder, data)), 100)],
    ),
    "AAN pairs": (pairs_lines, lambda folder, data: [*PairsFile(save(folder, data), 100).chunks()]),
    "IMDb": (imdb_archive, lambda folder, data: text_files.read(text_files.find_at(save(folder, data)))),
    "PNG": (lambda: encoded(pictures(1)[0]), one_image_set),
    "JPEG": (lambda: encoded(pictures(1)[0], "JPEG"), one_image_set),
    "idx": (lambda: idx(pictures(2, size=28, channels=1)[..., 0]), mnist),
    "idx.gz": (lambda: gzip.compress(idx(pictures(2, size=28, channels=1)[..., 0])), packed_mnist),
    "CIFAR's binary": (lambda: bytes(3073), binary),
    "Pathfinder's metadata": (lambda: b"".join(b"imgs/0 sample_%d.png %d 1 1.0\n" % (i, i) for i in range(4)), listing),
    "metadata of strings": (metadata_of_strings, listing),
    "generator.json": (lambda: json.dumps({"seed": 1, "num_images": 10}).encode(),
                       lambda folder, data: generator_of(write_files(folder, {"generator.json": data}))),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_random_damage(tmp_path: Path, name: str) -> None:
    honest, function = FORMATS[name]
    data = honest()
    function(tmp_path, data)
    for seed in range(25):
        reads_or_refuses(lambda: function(tmp_path, damaged(data, random.Random(seed))), str(tmp_path))  # noqa: B023


def test_damaged_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    wrong = pyarrow.StringArray.from_buffers(
        2, pyarrow.py_buffer(struct.pack("<3i", 0, 1, 2)), pyarrow.py_buffer(b"\xff\xfe")
    )
    for split in ("train", "test"):
        parquet.write_table(pyarrow.table({"text": wrong, "label": [0, 1]}), tmp_path / f"{split}.parquet")
    with pytest.raises(InputError, match=re.escape(str(tmp_path))) as error:
        text_files.read(text_files.find_at(tmp_path))
    assert str(error.value).isprintable()
