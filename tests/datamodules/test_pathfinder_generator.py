"""Pathfinder images: a label is what their drawing says."""

import hashlib
import itertools
import math
from functools import cache

import numpy as np
import pytest

from lra_ssm.datamodules.pathfinder.generator import GENERATOR_VERSION, PathfinderBlock, generate_block
from lra_ssm.datamodules.pathfinder.settings import DIFFICULTIES, SETTINGS, SIZES, PathfinderSettings, settings_for

# Two contours of 14 paddles seldom fit into 64 pixels, so there are few of those.
COUNTS = {32: 60, 64: 8, 128: 16, 256: 8}
# Of the first eight images of seed 0, easy level.
DIGESTS = {32: "311996399a74b96f", 64: "536436bca099ff91", 128: "96744acaae4fc608", 256: "dd209ea215a17815"}


@cache
def block_of(size: int) -> PathfinderBlock:
    """Drawn once for all tests."""
    return generate_block(SETTINGS[size], 3, 1, COUNTS[size])


# These two are first: with other settings the contours that the tests below draw may take minutes.


def test_settings_are_lras():
    assert [SETTINGS[size].num_distractor_snakes for size in SIZES] == [5, 5, 8, 7]
    assert [SETTINGS[size].paddle_margins for size in SIZES] == [(1,), (1,), (2, 3), (3,)]
    for size in SIZES:
        for difficulty, length in DIFFICULTIES.items():
            settings = settings_for(size, difficulty)
            assert settings.contour_length == length and settings.distractor_length == length // 3


def test_the_images_of_a_seed_stay_what_they_were():
    """On any machine and numpy. Where they change on purpose, GENERATOR_VERSION must change with them."""
    assert GENERATOR_VERSION == 1
    digests = {}
    for size in SIZES:
        drawn = generate_block(settings_for(size, "curv_baseline"), 0, 0, 8)
        digests[size] = hashlib.sha256(drawn.images.tobytes() + drawn.labels.tobytes()).hexdigest()[:16]
    assert digests == DIGESTS
    easy = settings_for(32, "curv_baseline")
    blocks = [
        generate_block(easy, seed, block, 12).images.tobytes() for seed, block in ((5, 2), (5, 3), (6, 2), (-5, 2))
    ]
    assert len({*blocks}) == 4 and generate_block(easy, 5, 2, 12).images.tobytes() == blocks[0]


# -- an image is answered without its label, from the heap of drawn paddles --------------------------------------------

Paddle = tuple[tuple[float, float], tuple[float, float]]


def all_paddles(block: PathfinderBlock, image: int) -> np.ndarray:
    """Every paddle of an image (n, 2, 2), in no order that tells what belongs together."""
    parts = [array[image].reshape(-1, 2, 2) for array in (block.contours, block.distractors)]
    paddles = np.concatenate(parts)
    paddles = paddles[~np.isnan(paddles).any(axis=(1, 2))]
    return paddles[np.lexsort(paddles.reshape(-1, 4).T)]


def turn_between(one: float, other: float) -> float:
    return abs((one - other + math.pi) % (2 * math.pi) - math.pi)


def solve_record(settings: PathfinderSettings, block: PathfinderBlock, image: int) -> int:
    """1 if a contour's number of paddles leads from one disc to the other exactly by the rule of growth, else 0.

    Knows the rule, the discs and the heap of paddles; neither which snake a paddle is of, nor its place in it.
    """
    margin, length, scale = int(block.margins[image]), settings.paddle_length, settings.antialias_scale

    def moved(point: tuple[float, float], angle: float, distance: float) -> tuple[int, int]:
        return (
            math.ceil(point[0] + distance * math.sin(angle) - 1e-6),
            math.ceil(point[1] + distance * math.cos(angle) - 1e-6),
        )

    def grow(pivot: tuple[int, int], angle: float, left: list[Paddle], grown: int, goal: tuple[float, float]) -> bool:
        """Whether some of `left` continue a snake of `grown` paddles up to `goal`."""
        pivot = moved(pivot, angle, length + 2 * margin)
        for paddle in left:
            near, far = paddle
            dy, dx = far[0] - pivot[0], far[1] - pivot[1]
            # Ends lie on pixels of a circle around the pivot; coordinates are rounded down.
            if abs(math.hypot(dy + 0.5, dx + 0.5) - length - margin) > 0.75:
                continue
            turned = math.atan2(dy, dx)
            back = moved((0, 0), turned + math.pi, length * scale)  # drawn in fine pixels, from its far end
            if turn_between(turned, angle) * settings.continuity >= math.pi / 2:
                continue
            if near != (far[0] + back[0] / scale, far[1] + back[1] / scale):
                continue
            if grown + 1 == settings.contour_length:
                if far == goal:
                    return True
            elif grow(pivot, turned, [other for other in left if other is not paddle], grown + 1, goal):
                return True
        return False

    heap: list[Paddle] = [tuple(map(tuple, paddle)) for paddle in all_paddles(block, image).tolist()]
    discs = [tuple(map(float, disc)) for disc in block.markers[image].tolist()]
    for origin, goal in (discs, discs[::-1]):
        for paddle in heap:
            if paddle[0] != origin:
                continue
            left = [other for other in heap if other is not paddle]
            # A first paddle has a whole number of degrees; all that draw it are tried, for they give other pivots.
            for angle in map(math.radians, range(-180, 180)):
                end = origin[0] + length * math.sin(angle), origin[1] + length * math.cos(angle)
                if max(abs(end[0] - paddle[1][0]), abs(end[1] - paddle[1][1])) <= 0.5:
                    pivot = moved(moved(origin, angle, length), angle, -(length + margin))
                    if grow(pivot, angle, left, 1, goal):
                        return 1
    return 0


@pytest.mark.parametrize("size", SIZES)
def test_paddles_lead_from_disc_to_disc_where_the_label_says_so(size):
    block = block_of(size)
    assert [solve_record(SETTINGS[size], block, image) for image in range(COUNTS[size])] == block.labels.tolist()


def distances(points: np.ndarray, paddles: np.ndarray) -> np.ndarray:
    """From points (p, 2) to paddles (n, 2, 2): (p, n)."""
    along = paddles[:, 1] - paddles[:, 0]
    offset = points[:, None] - paddles[:, 0]
    share = np.clip((offset * along).sum(-1) / (along**2).sum(-1), 0, 1)
    return np.linalg.norm(offset - share[..., None] * along, axis=-1)


@pytest.mark.parametrize("size", SIZES)
def test_pixels_show_the_record_and_nothing_else(size):
    block, settings = block_of(size), SETTINGS[size]
    y, x = np.mgrid[:size, :size]
    pixels = np.stack([y, x], axis=-1).reshape(-1, 2)
    for image in range({32: 20, 64: 8, 128: 4, 256: 2}[size]):
        picture, paddles = block.images[image].astype(int), all_paddles(block, image)
        assert picture.max() == 255 and picture.min() == 0
        middles = np.rint(paddles.mean(axis=1)).astype(int)
        around = [picture[my - 1 : my + 2, mx - 1 : mx + 2].max() for my, mx in middles]
        assert min(around) > 60
        to_paddle = distances(pixels, paddles).min(axis=1).reshape(size, size)
        to_disc = np.linalg.norm(pixels[:, None] - block.markers[image], axis=-1).min(axis=1).reshape(size, size)
        explained = (to_paddle <= settings.paddle_thickness / 2 + 1.5) | (to_disc <= settings.marker_radius + 1.5)
        assert picture[~explained].max() < 60


@pytest.mark.parametrize("size", SIZES)
def test_snakes_obey_the_rules(size):
    record, settings = block_of(size), SETTINGS[size]
    assert record.contours.shape == (COUNTS[size], 2, 14, 2, 2) and not np.isnan(record.contours).any()
    assert set(record.margins.tolist()) == set(settings.paddle_margins)
    seeds = record.contours[:, :, 0, 0]
    assert np.abs(np.linalg.norm(seeds[:, 0] - seeds[:, 1], axis=-1) - settings.seed_distance).max() < 0.75
    for image in range(COUNTS[size]):
        margin = int(record.margins[image])
        snakes = [*record.contours[image], *record.distractors[image]]
        snakes = [snake for snake in snakes if not np.isnan(snake).any()]
        for snake in snakes:
            assert snake.min() >= settings.padding - 0.5 and snake.max() <= size - settings.padding - 0.5
            assert np.abs(np.linalg.norm(snake[:, 1] - snake[:, 0], axis=-1) - settings.paddle_length).max() < 0.75
            gaps = np.linalg.norm(snake[1:, 0] - snake[:-1, 1], axis=-1)
            assert gaps.max() < 2 * margin + 3
        # Two paddles with margins may share the soft edges of their masks, not more.
        least = 2 * margin + settings.paddle_thickness - 2.1
        for one, other in itertools.combinations(snakes, 2):
            assert distances(one.reshape(-1, 2), other).min() > least
            assert distances(other.reshape(-1, 2), one).min() > least


def test_labels_are_balanced_in_every_block():
    easy = settings_for(32, "curv_baseline")
    for block, size, ones in ((0, 10, 5), (1, 10, 5), (0, 11, 5), (1, 11, 6)):
        assert generate_block(easy, 0, block, size).labels.sum() == ones
    drawn = generate_block(easy, 0, 0, 200)
    marked = drawn.marked
    assert ((marked[:, 0] == marked[:, 1]) == drawn.labels).all()
    assert 75 < marked[:, 0].sum() < 125  # either contour
    assert 30 < drawn.labels[:100].sum() < 70  # in random order
