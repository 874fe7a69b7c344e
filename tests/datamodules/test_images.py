"""CIFAR-10 and MNIST: splits, and the pixels that models are given."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as PILImage

from lra_ssm.datamodules import MNIST, SCIFAR, Image
from lra_ssm.datamodules.cifar10 import RGB_MEAN, RGB_STD, lra_luma, luma, mean_pooled
from lra_ssm.datamodules.images import random_split
from lra_ssm.datamodules.mnist import bitreversal_permutation
from tests.datamodules.helpers import prepared, real_data
from tests.small_data import pictures, write_cifar10, write_mnist


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


def test_splits_are_a_random_tenth_and_the_test_files(tmp_path: Path) -> None:
    for cls, write, images, num_train in (
        (SCIFAR, write_cifar10, pictures(120), 100),
        (MNIST, write_mnist, pictures(60, 1, 28, 1), 40),
    ):
        data = prepared(cls(root=str(tmp_path), source=str(write(tmp_path / cls.__name__))))  # type: ignore[operator]
        train, val = random_split([num_train * 9 // 10, num_train // 10], 42)
        for name, numbers in (("train", train), ("val", val), ("test", np.arange(num_train, len(images)))):
            split = data.prepared.split(name)
            assert np.array_equal(split["images"], images[numbers])
            assert split["labels"].tolist() == (numbers % 10).tolist()


def test_image_and_scifar(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "cifar", 240)
    test = pictures(240)[200:]

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


def test_mnist_permuted_scaled_and_drawn(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"root": str(tmp_path), "source": str(write_mnist(tmp_path / "files"))}
    plain = prepared(MNIST(**settings))
    pixels = torch.from_numpy(pictures(60, 1, 28, 1)[40:].reshape(20, 784, 1)).float() / 255
    assert torch.equal(next(iter(plain.test_dataloader())).inputs, pixels)
    for how, permutation in (
        ({"permutation": "bitreversal"}, bitreversal_permutation(784)),
        ({"permutation": "random"}, np.random.RandomState(92916).permutation(784)),
        ({"permutation": "random", "permutation_seed": 3}, np.random.RandomState(3).permutation(784)),
    ):
        permuted = prepared(MNIST(**settings, **how))
        assert permuted.prepared_folder == plain.prepared_folder
        assert torch.equal(next(iter(permuted.test_dataloader())).inputs, pixels[:, permutation])
    batches = {"permutation": "none", "permutation_seed": 92916, "mean": 0.0, "std": 1.0}
    assert plain.manifest()["batches"] == batches
    scaled = prepared(MNIST(**settings, mean=0.1307, std=0.3081))
    assert scaled.inputs == "normalized" and plain.inputs == "unit"
    torch.testing.assert_close(next(iter(scaled.test_dataloader())).inputs, (pixels - 0.1307) / 0.3081)


@pytest.mark.slow
def test_real_mnist(tmp_path: Path) -> None:
    data = prepared(MNIST(root=str(tmp_path), source=str(real_data("mnist"))))
    splits = data.manifest()["splits"]
    assert [split["examples"] for split in splits.values()] == [54_000, 6_000, 10_000]
    total = np.add(splits["train"]["class_counts"], splits["val"]["class_counts"])
    assert total.tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    pixels = np.concatenate([data.prepared.split(name)["images"] for name in ("train", "val")]) / 255
    assert abs(pixels.mean() - 0.1307) < 5e-5 and abs(pixels.std() - 0.3081) < 5e-5
