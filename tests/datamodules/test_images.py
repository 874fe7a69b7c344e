"""CIFAR-10 and MNIST: files, splits, and the pixels that models are given."""

import gzip
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as PILImage

from lra_ssm.cli.batch_picture import draw_batch
from lra_ssm.datamodules import MNIST, SCIFAR, Image
from lra_ssm.datamodules.cifar10 import RGB_MEAN, RGB_STD, lra_luma, luma, mean_pooled
from lra_ssm.datamodules.images import random_split
from lra_ssm.datamodules.mnist import bitreversal_permutation
from lra_ssm.errors import InputError
from tests.datamodules.image_helpers import (
    cifar_batch,
    cifar_batches,
    idx,
    mnist_files,
    pictures,
    prepared,
    real_data,
    write_files,
    write_image_parquet,
    write_tar,
)  # fmt: skip

IMAGES = pictures(240)  # 200 for training, 40 for test; labels count up
DIGITS = pictures(60, size=28, channels=1)[..., 0]
LABELS = np.arange(60) % 10


# -- pixels and splits -------------------------------------------------------------------------------------------------


def test_the_random_split_and_bit_reversal_are_the_public_codes() -> None:
    import torch.utils.data

    train, val = random_split([45_000, 5_000], 42)
    assert train[:4].tolist() == [37542, 44491, 216, 43688]  # if torch changes its randperm, splits change
    generator = torch.Generator().manual_seed(42)
    parts = torch.utils.data.random_split(range(50_000), [45_000, 5_000], generator=generator)  # type: ignore
    assert [part.indices for part in parts] == [train.tolist(), val.tolist()]
    assert bitreversal_permutation(8).tolist() == [0, 4, 2, 6, 1, 5, 3, 7]
    assert bitreversal_permutation(6).tolist() == [0, 4, 2, 1, 5, 3]
    assert bitreversal_permutation(784)[:8].tolist() == [0, 512, 256, 768, 128, 640, 384, 64]
    assert sorted(bitreversal_permutation(784).tolist()) == list(range(784))


def test_gray_is_pillows_or_tensorflows() -> None:
    images = np.concatenate([pictures(20), np.zeros((1, 32, 32, 3), np.uint8), np.full((1, 32, 32, 3), 255, np.uint8)])
    expected = [np.asarray(PILImage.fromarray(image).convert("L")) for image in images]
    assert np.array_equal(luma(images)[..., 0], expected)
    colors = np.array([[255, 255, 255], [0, 0, 0], [255, 0, 0], [0, 255, 0], [0, 0, 255], [10, 20, 30]], dtype=np.uint8)
    assert lra_luma(colors)[:, 0].tolist() == [255, 0, 76, 149, 29, 18]
    assert np.abs(lra_luma(images).astype(int) - luma(images)).max() == 1  # only rounding
    image = np.array([[[[0], [1]], [[1], [0]]], [[[255], [255]], [[255], [254]]]], dtype=np.uint8)
    assert mean_pooled(image, 2).ravel().tolist() == [1, 255]  # .5 goes up


# -- CIFAR-10 ----------------------------------------------------------------------------------------------------------


def check_cifar(root: Path, **settings: Any) -> None:
    data = prepared(SCIFAR(root=str(root), **settings))
    train, val = random_split([180, 20], 42)
    for name, numbers in (("train", train), ("val", val), ("test", np.arange(200, 240))):
        split = data.prepared.split(name)
        assert np.array_equal(split["images"], IMAGES[numbers]) and split["labels"].tolist() == (numbers % 10).tolist()


@pytest.mark.parametrize("writer", ["python2", "python3"])
def test_torontos_batches_and_archive(tmp_path: Path, writer: str) -> None:
    batches = cifar_batches(IMAGES, 40, writer)
    for place in ("cifar10/cifar-10-batches-py", "cifar-10-batches-py", "cifar10/download"):
        folder = write_files(tmp_path / place.replace("/", "-") / place, batches | {"readme.html": b"x"})
        check_cifar(tmp_path / place.replace("/", "-"))
        check_cifar(tmp_path, source=str(folder))
    members = {f"cifar-10-batches-py/{name}": data for name, data in reversed(batches.items())}  # in any order
    for place in ("cifar10", "cifar", "."):
        (tmp_path / f"root-{place}" / place).mkdir(parents=True)
        path = write_tar(tmp_path / f"root-{place}" / place / "cifar-10-python.tar.gz", members)
        check_cifar(tmp_path / f"root-{place}")
    check_cifar(tmp_path, source=str(path))
    check_cifar(tmp_path, source=str(path.parent))


def test_the_hubs_files(tmp_path: Path) -> None:
    write_image_parquet(tmp_path / "mine" / "plain_text", "img", IMAGES, np.arange(240) % 10, 200)
    check_cifar(tmp_path, source=str(tmp_path / "mine"))
    with pytest.raises(InputError, match="`lra-ssm prepare scifar --source=huggingface --root=.*` downloads them"):
        SCIFAR(root=str(tmp_path), source="huggingface").prepare_data()
    folder = SCIFAR.hub.path(tmp_path)
    folder.parent.mkdir(exist_ok=True)
    (tmp_path / "mine").rename(folder)
    check_cifar(tmp_path, source="huggingface")
    next(folder.rglob("test-*")).unlink()
    with pytest.raises(InputError, match="has no parquet files of test"):
        Image(root=str(tmp_path), source="huggingface").prepare_data()
    write_image_parquet(tmp_path / "digits", "image", DIGITS[..., None], LABELS, 50)
    digits = prepared(MNIST(root=str(tmp_path), source=str(tmp_path / "digits")))
    assert np.array_equal(digits.prepared.split("test")["images"][..., 0], DIGITS[50:])
    write_image_parquet(tmp_path / "small", "image", DIGITS[:, :20, :20, None], LABELS, 50)
    with pytest.raises(InputError, match="small/train-.*: row 0: is an image of 20 x 20 pixels instead of 28 x 28"):
        MNIST(root=str(tmp_path), source=str(tmp_path / "small")).prepare_data()


def test_image_and_scifar(tmp_path: Path) -> None:
    write_files(tmp_path / "cifar-10-batches-py", cifar_batches(IMAGES, 40))
    test = IMAGES[200:]

    def inputs(cls: type, **settings: Any) -> Any:
        data = prepared(cls(root=str(tmp_path), eval_batch_size=40, **settings))
        (batch,) = data.test_dataloader()
        assert data.longest == batch.inputs.shape[1] and batch.labels.tolist() == [i % 10 for i in range(200, 240)]
        return batch.inputs

    # torchvision's ToTensor and Normalize, in float32, row by row
    gray = (luma(test).reshape(40, 1024, 1) / np.float32(255) - np.float32(122.6 / 255)) / np.float32(61 / 255)
    assert np.array_equal(inputs(Image), gray)
    assert torch.equal(inputs(SCIFAR, grayscale=True), inputs(Image))
    assert inputs(Image, inputs="integers").tolist() == lra_luma(test).reshape(40, 1024).tolist()
    colors = (test.reshape(40, 1024, 3) / np.float32(255) - np.float32(RGB_MEAN)) / np.float32(RGB_STD)
    assert np.array_equal(inputs(SCIFAR), colors)
    own = inputs(SCIFAR, std=(0.2023, 0.1994, 0.2010)) * torch.tensor([0.2023, 0.1994, 0.2010])
    assert torch.allclose(own, inputs(SCIFAR) * torch.tensor(RGB_STD), atol=1e-6)
    assert inputs(SCIFAR, resolution=16).shape == (40, 256, 3)


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch evil",)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data_batch_2", None, "data_batch_2 is missing; CIFAR-10 is"),
        ("data_batch_2", b"", "data_batch_2: is not a batch of CIFAR-10"),
        ("data_batch_2", cifar_batch(IMAGES[:4], [0, 1, 2, 3])[:-50], "data_batch_2: is not a batch of CIFAR-10"),
        ("data_batch_2", pickle.dumps([1]), "data_batch_2: is not a batch of CIFAR-10"),
        ("data_batch_2", cifar_batch(IMAGES[:4], [0, 1, 2]), "data_batch_2: is not a batch of CIFAR-10"),
        ("data_batch_1", pickle.dumps(Evil()), "it names posix.system, which does not belong in such a file"),
        ("test_batch", cifar_batch(IMAGES[:4], [0, 1, 2, 10]), "SCIFAR: split test, example 3: label 10 is not one"),
    ],
    ids=["missing", "empty", "cut", "list", "labels", "code", "class"],
)
def test_damaged_batches(tmp_path: Path, name: str, content: bytes | None, message: str, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    files = cifar_batches(IMAGES, 40)
    files = {n: d for n, d in files.items() if n != name} | ({} if content is None else {name: content})
    write_files(tmp_path / "mine", files)
    with pytest.raises(InputError, match=message) as error:
        SCIFAR(root=str(tmp_path / "root"), source=str(tmp_path / "mine")).prepare_data()
    assert "\n" not in str(error.value) and [path.name for path in tmp_path.iterdir()] == ["mine"]


# -- MNIST -------------------------------------------------------------------------------------------------------------

NAME = "train-images-idx3-ubyte.gz"


@pytest.mark.parametrize("packed", [True, False])
def test_idx_files(tmp_path: Path, packed: bool) -> None:
    for number, place in enumerate(("mnist/download", "mnist", "MNIST/raw")):
        root = tmp_path / str(number)
        write_files(root / place, mnist_files(DIGITS, LABELS, 50, packed))
        for source in ("original", str(root / place)):
            data = prepared(MNIST(root=str(root), source=source))
            test = data.prepared.split("test")
            assert np.array_equal(test["images"][..., 0], DIGITS[50:]) and test["labels"].tolist() == list(LABELS[50:])
            assert data.provenance()["examples"] == {"train": 45, "val": 5, "test": 10}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (NAME, gzip.compress(idx(DIGITS[:50], 0x801)), "is not an idx file of 3 dimensions, or was cut off"),
        (NAME, gzip.compress(idx(DIGITS[:50])[:-1]), "is not an idx file of 3 dimensions, or was cut off"),
        (NAME, gzip.compress(idx(DIGITS[:49])), "holds 50 labels for 49 images"),
        (NAME, gzip.compress(idx(DIGITS[:50, :27])), r"holds images of \(27, 28\) pixels"),
        (NAME, gzip.compress(idx(DIGITS[:50]))[:-9], "cannot be read"),
        (NAME, None, "train-images-idx3-ubyte.gz: is missing; MNIST is the four files"),
        ("t10k-labels-idx1-ubyte.gz", gzip.compress(idx(np.full(10, 10))), "split test, example 0: label 10"),
    ],
    # Names of their own: pytest's would hold the time that gzip notes, and differ between workers.
    ids=["magic", "values", "labels", "size", "broken-off", "missing", "class"],
)
def test_damaged_idx_files_are_one_line(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    files = {n: d for n, d in mnist_files(DIGITS, LABELS, 50).items() if n != name}
    write_files(tmp_path / "mine", files | ({} if content is None else {name: content}))
    with pytest.raises(InputError, match=message) as error:
        MNIST(root=str(tmp_path / "root"), source=str(tmp_path / "mine")).prepare_data()
    assert "\n" not in str(error.value) and not (tmp_path / "root").exists()


def test_mnist_permuted_scaled_and_drawn(tmp_path: Path) -> None:
    write_files(tmp_path / "mnist", mnist_files(DIGITS, LABELS, 50))
    plain = prepared(MNIST(root=str(tmp_path)))
    pixels = torch.from_numpy(DIGITS[50:].reshape(10, 784, 1)).float() / 255
    assert torch.equal(next(iter(plain.test_dataloader())).inputs, pixels)
    for settings, permutation in (
        ({"permutation": "bitreversal"}, bitreversal_permutation(784)),
        ({"permutation": "random"}, np.random.RandomState(92916).permutation(784)),
        ({"permutation": "random", "permutation_seed": 3}, np.random.RandomState(3).permutation(784)),
    ):
        permuted = prepared(MNIST(root=str(tmp_path), **settings))  # type: ignore[arg-type]
        assert permuted.prepared_folder == plain.prepared_folder
        assert torch.equal(next(iter(permuted.test_dataloader())).inputs, pixels[:, permutation])
    assert plain.manifest()["batches"] == {"permutation": "none", "mean": 0.0, "std": 1.0}
    scaled = prepared(MNIST(root=str(tmp_path), mean=0.1307, std=0.3081))
    assert scaled.inputs == "normalized" and plain.inputs == "unit"
    torch.testing.assert_close(next(iter(scaled.test_dataloader())).inputs, (pixels - 0.1307) / 0.3081)
    draw_batch(permuted, tmp_path / "batch.png")
    assert (tmp_path / "batch.png").read_bytes().startswith(b"\x89PNG")


def test_a_fit_never_downloads_and_names_the_command(tmp_path: Path) -> None:
    for cls in (Image, SCIFAR, MNIST):
        name = cls.__name__
        missing = f"no files of {name} below it; `lra-ssm prepare {name.lower()} --source=original --root="
        with pytest.raises(InputError, match=missing):
            cls(root=str(tmp_path)).prepare_data()
        with pytest.raises(InputError, match=f"holds no files of {name}"):
            cls(root=str(tmp_path), source=str(tmp_path)).prepare_data()
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_real_mnist(tmp_path: Path) -> None:
    data = prepared(MNIST(root=str(tmp_path), source=str(real_data("mnist"))))
    splits = data.manifest()["splits"]
    assert [split["examples"] for split in splits.values()] == [54_000, 6_000, 10_000]
    total = np.add(splits["train"]["class_counts"], splits["val"]["class_counts"])
    assert total.tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    pixels = np.concatenate([data.prepared.split(name)["images"] for name in ("train", "val")]) / 255
    assert abs(pixels.mean() - 0.1307) < 5e-5 and abs(pixels.std() - 0.3081) < 5e-5
