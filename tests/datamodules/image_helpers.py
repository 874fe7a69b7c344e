"""Small CIFAR-10, MNIST and Pathfinder files in their published layouts, and where the real ones are."""

import gzip
import io
import os
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

BATCHES = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]


def real_data(name: str) -> Path:
    """A file or folder of the real data; skips where it is not there."""
    folder = os.environ.get("LRA_SSM_TEST_DATA")
    if not folder or not (Path(folder) / name).exists():
        pytest.skip(f"LRA_SSM_TEST_DATA does not name a folder with {name}")
    return Path(folder) / name


def prepared(datamodule: Any) -> Any:
    datamodule.prepare_data()
    datamodule.setup()
    return datamodule


def pictures(count: int, seed: int = 0, size: int = 32, channels: int = 3) -> np.ndarray:
    return np.random.RandomState(seed).randint(0, 256, (count, size, size, channels)).astype(np.uint8)


def encoded(image: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).save(file, "PNG")
    return file.getvalue()


class Python2Pickler(pickle._Pickler):  # type: ignore[name-defined, misc]
    """Writes str and bytes as Python 2 wrote its str, which the published files are made of."""

    dispatch = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_string(self, value: str | bytes) -> None:
        data = value.encode("latin1") if isinstance(value, str) else value
        self.write(b"T" + struct.pack("<i", len(data)) + data)
        self.memoize(value)

    dispatch[str] = dispatch[bytes] = save_string


def cifar_batch(images: np.ndarray, labels: list[int], writer: str = "python2") -> bytes:
    """A batch file. writer: python2, old numpy; python3, this numpy."""
    rows = images.transpose(0, 3, 1, 2).reshape(len(images), 3072)
    file = io.BytesIO()
    values = {"batch_label": "batch", "labels": labels, "data": rows, "filenames": ["a.png"] * len(rows)}
    if writer == "python3":
        return pickle.dumps(values, protocol=2)
    Python2Pickler(file, protocol=2).dump(values)
    return file.getvalue().replace(b"numpy._core.", b"numpy.core.")


def cifar_batches(images: np.ndarray, per_batch: int, writer: str = "python2") -> dict[str, bytes]:
    """Six batches of images in order, labels counting up."""
    parts = np.split(images, range(per_batch, len(images), per_batch))
    return {
        name: cifar_batch(part, [(start * per_batch + i) % 10 for i in range(len(part))], writer)
        for start, (name, part) in enumerate(zip(BATCHES, parts, strict=True))
    }


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def write_image_parquet(folder: Path, column: str, images: np.ndarray, labels: Any, num_train: int) -> None:
    """The Hub's two files, with PNG images in a column."""
    import pyarrow
    import pyarrow.parquet

    folder.mkdir(parents=True)
    for split, part in (("train", slice(num_train)), ("test", slice(num_train, None))):
        entries = [{"bytes": encoded(image), "path": None} for image in images[part]]
        table = pyarrow.table({column: entries, "label": [int(label) for label in labels[part]]})
        pyarrow.parquet.write_table(table, folder / f"{split}-00000-of-00001.parquet")


def idx(array: np.ndarray, magic: int | None = None) -> bytes:
    header = struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim if magic is None else magic, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def mnist_files(images: np.ndarray, labels: np.ndarray, num_train: int, packed: bool = True) -> dict[str, bytes]:
    parts = {"train": slice(None, num_train), "t10k": slice(num_train, None)}
    files = {}
    for name, part in parts.items():
        for key, array in (("images-idx3", images[part]), ("labels-idx1", labels[part])):
            data = idx(array)
            files[f"{name}-{key}-ubyte" + (".gz" if packed else "")] = gzip.compress(data) if packed else data
    return files


def write_pathfinder(folder: Path, images: np.ndarray, per_file: int = 10) -> Path:
    """Write images (n, size, size, 1) and their metadata."""
    for number, start in enumerate(range(0, len(images), per_file)):
        part = images[start : start + per_file]
        rows = [f"imgs/{number} sample_{i}.png {i} {(i + number) % 2} 1.0 14 4 2 0.5 1 1\n" for i in range(len(part))]
        files = {f"imgs/{number}/sample_{i}.png": encoded(image) for i, image in enumerate(part)}
        write_files(folder, {f"metadata/{number}.npy": "".join(rows).encode(), **files})
    return folder
