import pickle

import numpy as np
import pytest
from PIL import Image as PILImage

from lra_ssm.datamodules.images.splits import indices_sha256, ordered_split, part_sizes, random_split
from lra_ssm.datamodules.images.transforms import (
    IMAGE_MEAN,
    IMAGE_STD,
    SCIFAR_MEAN,
    SCIFAR_STD,
    CropFlip,
    PixelSequence,
    bitreversal_permutation,
    lra_luma,
    luma,
    random_permutation,
)
from lra_ssm.errors import InputError
from tests.datamodules.image_helpers import pictures

EXAMPLES = np.arange(4)


# -- splits ------------------------------------------------------------------------------------------------------------


def test_random_split_is_the_public_codes() -> None:
    """What torch.utils.data.random_split gives for seed 42; if torch changes its randperm, splits change."""
    train, val = random_split([45_000, 5_000])
    assert train[:4].tolist() == [37542, 44491, 216, 43688] and len(train) == 45_000 and len(val) == 5_000
    assert sorted(np.concatenate([train, val]).tolist()) == list(range(50_000))
    train, val, test = random_split(part_sizes(200_000, 0.1, 0.1))
    assert [len(train), len(val), len(test)] == [160_000, 20_000, 20_000]
    import torch

    generator = torch.Generator().manual_seed(42)
    parts = torch.utils.data.random_split(range(200_000), [160_000, 20_000, 20_000], generator=generator)  # type: ignore
    assert [part.indices for part in parts] == [train.tolist(), val.tolist(), test.tolist()]
    assert indices_sha256(random_split([90, 10], seed=1)[0]) != indices_sha256(random_split([90, 10])[0])


def test_fractions_round_down_but_the_first_takes_the_rest() -> None:
    assert part_sizes(109, 0.1, 0.1) == [89, 10, 10]
    assert [part.tolist() for part in ordered_split([10, 1, 1])] == [list(range(10)), [10], [11]]
    for split in (random_split, ordered_split):
        with pytest.raises(InputError, match="each needs at least 1"):
            split([10, 0])


# -- gray --------------------------------------------------------------------------------------------------------------


def test_luma_is_pils() -> None:
    images = np.concatenate([pictures(20), np.zeros((1, 32, 32, 3), np.uint8), np.full((1, 32, 32, 3), 255, np.uint8)])
    expected = [np.asarray(PILImage.fromarray(image).convert("L")) for image in images]
    assert np.array_equal(luma(images)[..., 0], expected)


def test_lra_luma() -> None:
    colors = np.array([[255, 255, 255], [0, 0, 0], [255, 0, 0], [0, 255, 0], [0, 0, 255], [10, 20, 30]], dtype=np.uint8)
    exact = (colors @ np.array([0.2989, 0.5870, 0.1140]) / 255 * 255.5).astype(int)
    assert lra_luma(colors)[:, 0].tolist() == exact.tolist() == [255, 0, 76, 149, 29, 18]
    assert np.abs(lra_luma(pictures(50)).astype(int) - luma(pictures(50))).max() == 1  # rounding alone


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mean", "std"), [(IMAGE_MEAN, IMAGE_STD), (SCIFAR_MEAN, SCIFAR_STD), ((0.0,), (1.0,)), ((0.5,), (0.5,))]
)
def test_values_are_torchvisions(mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    """ToTensor and Normalize, in float32, row by row."""
    images = pictures(4, channels=len(mean))
    images[0, 0, 0], images[0, 0, 1] = 0, 255
    inputs = PixelSequence(mean, std)(images, EXAMPLES, 0)
    expected = (images.astype(np.float32) / np.float32(255) - np.float32(mean)) / np.float32(std)
    assert inputs.dtype == np.float32 and np.array_equal(inputs, expected.reshape(4, 1024, len(mean)))


def test_integers_are_tokens() -> None:
    images = pictures(4, channels=1)
    tokens = PixelSequence(None, None)(images, EXAMPLES, 0)
    assert tokens.dtype == np.int64 and tokens.tolist() == images.reshape(4, 1024).tolist()


# -- permutations ------------------------------------------------------------------------------------------------------


def test_permutations() -> None:
    assert bitreversal_permutation(8).tolist() == [0, 4, 2, 6, 1, 5, 3, 7]
    assert bitreversal_permutation(6).tolist() == [0, 4, 2, 1, 5, 3]
    assert bitreversal_permutation(784)[:8].tolist() == [0, 512, 256, 768, 128, 640, 384, 64]
    for permutation in (bitreversal_permutation(784), random_permutation(784, 92916)):
        assert sorted(permutation.tolist()) == list(range(784))
        image = pictures(1, size=28, channels=1)
        inputs = PixelSequence(permutation=permutation)(image, EXAMPLES[:1], 0)
        assert inputs[0, 5, 0] == image.reshape(-1)[permutation[5]] / np.float32(255)
    assert random_permutation(784, 92916)[:4].tolist() == np.random.RandomState(92916).permutation(784)[:4].tolist()
    assert random_permutation(784, 1).tolist() != random_permutation(784, 2).tolist()


# -- augmentation ------------------------------------------------------------------------------------------------------


def test_crops_and_flips() -> None:
    images = np.full((2000, 8, 8, 1), 9, dtype=np.uint8)
    images[:, :, 0] = 1  # the left edge
    seen = CropFlip(seed=5, padding=2)(images, np.arange(2000), 0)
    assert seen.shape == images.shape and seen.flags.c_contiguous
    tops = (seen[:, :4].max(axis=(2, 3)) == 0).sum(axis=1) - (seen[:, 4:].max(axis=(2, 3)) == 0).sum(axis=1)
    assert np.abs(np.bincount(tops + 2, minlength=5) - 400).max() < 100  # 5 sigma
    right = np.argmax(seen[:, 4, :, 0] == 1, axis=1) > 3
    visible = (seen[:, 4, :, 0] == 1).any(axis=1)
    assert abs(right[visible].mean() - 0.5) < 0.07
    same = CropFlip(seed=5, padding=2)(images[[7, 3]], np.array([7, 3]), 0)
    assert np.array_equal(same, seen[[7, 3]])
    assert not np.array_equal(CropFlip(seed=5, padding=2)(images, np.arange(2000), 1), seen)


def test_a_crop_is_a_part_of_the_image_with_a_black_border() -> None:
    image = pictures(1)
    padded = np.pad(image[0], ((4, 4), (4, 4), (0, 0)))
    shifts = {}
    for epoch in range(60):
        crop = CropFlip(seed=0)(image, np.array([0]), epoch)[0]
        found = [
            (top, left, flip)
            for top in range(9)
            for left in range(9)
            for flip in (False, True)
            if np.array_equal(crop[:, ::-1] if flip else crop, padded[top : top + 32, left : left + 32])
        ]
        assert len(found) == 1
        shifts[epoch] = found[0]
    assert len(set(shifts.values())) > 40


def test_transforms_can_be_pickled() -> None:
    transform = PixelSequence(SCIFAR_MEAN, SCIFAR_STD, bitreversal_permutation(1024), CropFlip(1))
    again = pickle.loads(pickle.dumps(transform))
    assert np.array_equal(again(pictures(4), EXAMPLES, 2), transform(pictures(4), EXAMPLES, 2))
