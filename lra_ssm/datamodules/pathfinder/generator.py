"""Draw Pathfinder images in numbered blocks, each a pure function of (settings, seed, number).

    block = generate_block(SETTINGS[128], seed=0, block=0, size=100)
    block.images, block.labels

`Pathfinder` (module.py) prepares many blocks as a dataset; docs/pathfinder.md writes them as LRA's archive has them.

Sources: Linsley et al., "Learning long-range spatial dependencies with horizontal gated recurrent units" (2018), with
the algorithm of its public generator; Tay et al., "Long Range Arena" (2021).
"""

import hashlib
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lra_ssm.datamodules.parts import Parts
from lra_ssm.datamodules.pathfinder.drawing import (
    DEGREES,
    FULL,
    Bytes,
    Floats,
    Ints,
    PaddleTables,
    marker_stamp,
    paddle_tables,
)
from lra_ssm.datamodules.pathfinder.settings import PathfinderSettings
from lra_ssm.datamodules.pathfinder.snakes import Canvas, Paddles, below, grow_contours, grow_distractors

Shorts = npt.NDArray[np.uint16]

# Increase this when the same settings and seed would give other images than before.
GENERATOR_VERSION = 1
# Number of images that are drawn together, so that they fit into the cache.
CHUNK = 64


class PathfinderBlock(NamedTuple):
    """Images, and what was drawn. Points are (y, x) in pixels, the middle of the first pixel being (0, 0).

    A paddle is two points, the end nearer to its snake's start first; NaN where a distractor found no room.
    """

    images: Bytes  # (n, size, size)
    labels: Bytes  # (n,): 1 if both discs are on the same contour
    margins: Ints  # (n,)
    contours: Floats  # (n, 2, C, 2, 2): snake, paddle, end, coordinate
    distractors: Floats  # (n, D, d, 2, 2)
    markers: Ints  # (n, 2, 2): the disc at a contour's start, the disc at a contour's end
    marked: Ints  # (n, 2): on which contour each disc is; the same where the label is 1


def block_generator(seed: int, block: int) -> np.random.RandomState:
    """Return the random stream of a block; RandomState's streams never change (NEP 19)."""
    digest = hashlib.sha256(f"pathfinder/{seed}/{block}".encode()).digest()
    return np.random.RandomState(np.frombuffer(digest, dtype="<u4").astype(np.uint32))


def generate_block(settings: PathfinderSettings, seed: int, block: int, size: int) -> PathfinderBlock:
    """Draw one block.

    Labels are exactly balanced: half of them are 1; of an odd number, odd blocks have one more. A label decides
    where the second disc is and nothing else.

    Args:
        settings: parameters of the images.
        seed: any integer.
        block: the block's number, from 0.
        size: images in it; another size gives other images.
    """
    rng = block_generator(seed, block)
    labels = _shuffle((np.arange(size) + block) % 2, rng)
    margins = np.array(settings.paddle_margins)[below(rng, len(settings.paddle_margins), size)]
    # Chosen before the contours are drawn, so that labels do not depend on which contours succeed.
    origins = below(rng, 2, size)
    marked = np.stack([origins, np.where(labels == 1, origins, 1 - origins)], axis=1)
    drawn = PathfinderBlock(
        images=np.empty((size, settings.image_size, settings.image_size), dtype=np.uint8),
        labels=labels.astype(np.uint8),
        margins=margins,
        contours=np.full((size, 2, settings.contour_length, 2, 2), np.nan),
        distractors=np.full((size, settings.num_distractor_snakes, settings.distractor_length, 2, 2), np.nan),
        markers=np.zeros((size, 2, 2), dtype=np.int64),
        marked=marked,
    )
    for margin in sorted(set(settings.paddle_margins)):
        numbers = np.flatnonzero(margins == margin)
        if not len(numbers):
            continue
        tables = paddle_tables(settings, margin)
        contours = grow_contours(tables, settings, len(numbers), rng)
        for first in range(0, len(numbers), CHUNK):
            chunk = numbers[first : first + CHUNK]
            part = Paddles(*(array[first : first + CHUNK] for array in contours))
            _draw_chunk(settings, tables, part, chunk, drawn, rng)
    return drawn


def draw_block(parts: Parts, settings: PathfinderSettings, seed: int, numbered: tuple[int, int]) -> int:
    """Draw a block, given by its number and its size, as the part of that number; return its size.

    The part has `images` (size, H, W) uint8 and `labels` (size,) int64.
    """
    number, size = numbered

    def draw(block: int) -> tuple[dict[str, Bytes | Ints], dict[str, int]]:
        result = generate_block(settings, seed, block, size)
        return {"images": result.images, "labels": result.labels.astype(np.int64)}, {"images": size}

    parts.write(number, draw)
    return size


def _draw_chunk(
    settings: PathfinderSettings,
    tables: PaddleTables,
    contours: Paddles,
    numbers: Ints,
    drawn: PathfinderBlock,
    rng: np.random.RandomState,
) -> None:
    """Add distractors and discs to contours (m, 2, C), and fill in rows `numbers` of the block."""
    count = len(numbers)
    lanes = np.arange(count)
    canvas = Canvas(tables, count)
    for snake in range(2):
        for paddle in range(settings.contour_length):
            canvas.add(lanes, contours.starts[:, snake, paddle], contours.stamps[:, snake, paddle])
    distractors = grow_distractors(canvas, settings, rng)
    marked = drawn.marked[numbers]
    # A contour's first stamp starts at its start, its last one at its end.
    start = contours.starts[lanes, marked[:, 0], 0]
    end = contours.starts[lanes, marked[:, 1], -1]
    discs = np.stack([start, end], axis=1)
    drawn.contours[numbers] = _points(tables, contours)
    drawn.distractors[numbers] = _points(tables, distractors)
    drawn.markers[numbers] = _pixels(tables, discs)
    layers = [
        (contours, _contour_contrasts(settings, count, rng)),
        (distractors, _pick(settings.snake_contrasts, distractors.starts.shape, rng)),
    ]
    drawn.images[numbers] = _draw_images(settings, tables, layers, discs)


def _draw_images(
    settings: PathfinderSettings, tables: PaddleTables, layers: list[tuple[Paddles, Shorts]], discs: Ints
) -> Bytes:
    """Draw images (m, size, size) of paddles with their contrasts, and of discs (m, 2)."""
    count, area = len(discs), tables.side**2
    # In hundredths of 1/255: contrasts are given to two digits.
    sheet = np.zeros(count * area, dtype=np.uint16)
    for paddles, contrasts in layers:
        flat = Paddles(*(array.reshape(count, -1) for array in paddles))
        for column, percent in enumerate(contrasts.reshape(count, -1).T):
            present = np.flatnonzero(flat.starts[:, column] >= 0)
            stamps = flat.stamps[present, column]
            pixels = (present * area + flat.starts[present, column])[:, None] + tables.line.offsets[stamps]
            values = tables.line.values[stamps] * percent[present, None]
            sheet[pixels] = np.maximum(sheet[pixels], values)
    disc = marker_stamp(settings, tables.side)
    lanes = np.arange(count)
    for place in discs.T:
        pixels = (lanes * area + place)[:, None] + disc.offsets
        sheet[pixels] = np.maximum(sheet[pixels], disc.values.astype(np.uint16) * 100)
    reach, side = tables.reach, tables.side
    framed = sheet.reshape(count, side, side)[:, reach : side - reach, reach : side - reach]
    # The brightest pixel of every image becomes 255.
    scale = np.float32(FULL) / framed.max(axis=(1, 2), keepdims=True).astype(np.float32)
    return (framed * scale + np.float32(0.5)).astype(np.uint8)


def _shuffle(values: Ints, rng: np.random.RandomState) -> Ints:
    # Not RandomState.permutation: only the stream of random_sample is used.
    return values[np.argsort(rng.random_sample(len(values)), kind="stable")]


def _pick(contrasts: tuple[float, ...], shape: tuple[int, ...], rng: np.random.RandomState) -> Shorts:
    percent = np.array([round(100 * contrast) for contrast in contrasts], dtype=np.uint16)
    return percent[below(rng, len(percent), shape)]


def _contour_contrasts(settings: PathfinderSettings, count: int, rng: np.random.RandomState) -> Shorts:
    """Return (count, 2, C): a snake's contrast times its paddles', which both contours share, as published."""
    snakes = _pick(settings.snake_contrasts, (count, 2, 1), rng).astype(np.uint32)
    paddles = _pick(settings.paddle_contrasts, (count, 1, settings.contour_length), rng)
    return ((snakes * paddles + 50) // 100).astype(np.uint16)


def _pixels(tables: PaddleTables, numbers: Ints) -> Ints:
    """Return pixels of a framed image as y, x of the image: (…) to (…, 2)."""
    return np.stack([numbers // tables.side, numbers % tables.side], axis=-1) - tables.reach


def _points(tables: PaddleTables, paddles: Paddles) -> Floats:
    """Return both ends of paddles (…) as (…, 2, 2), the one nearer to the snake's start first; NaN for none."""
    starts = _pixels(tables, paddles.starts).astype(np.float64)
    others = starts + tables.ends[paddles.stamps]
    first = (paddles.stamps < DEGREES)[..., None]
    points = np.stack([np.where(first, starts, others), np.where(first, others, starts)], axis=-2)
    points[paddles.starts < 0] = np.nan
    return points
