"""Tables of every possible Pathfinder paddle, drawn once, so that growing a snake only looks them up.

A paddle starts at a whole pixel and has one of few directions: 360 whole degrees for the first of a snake, the pixels
of a small circle for the others. So each is a stamp of a few pixels, and whether two overlap, what is free around them
and how they look is read from tables of whole numbers; the floating-point arithmetic that makes the tables is rounded
where no processor's last bit can matter. This module needs only numpy.

Masks and images have a frame of `reach` pixels around them so that stamps need no clipping: T = image_size + 2 reach
is the side of a framed image, and a pixel (y, x) of the image is number (y + reach) T + x + reach of it.

Source of the geometry: Linsley et al. (2018) and the algorithm of its public generator (drewlinsley/pathfinder).
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lra_ssm.datamodules.pathfinder.settings import PathfinderSettings

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

DEGREES = 360  # stamps 0 to 359 point to -180, -179, … degrees; those after them belong to the circle
FULL = 255  # a mask's value where a paddle or its margin covers the whole pixel
# Two masks overlap where they sum to 1.8 or more.
OVERLAP = 459
# Weights of directions are whole numbers in units of 2**-16: 128 pixels of FULL then sum to less than 2**31.
WEIGHT_ONE = 1 << 16
# Decides roundings that are exact ties in real numbers, which floating point would decide by its last bit.
TIE = 1e-6


class Stamps(NamedTuple):
    """Pixels of every stamp: offsets from the start in a framed image (stamps, P) and values (stamps, P) uint8.

    Shorter lists repeat their first pixel, which changes neither a comparison nor a maximum.
    """

    offsets: Ints
    values: Bytes


@dataclass(frozen=True)
class PaddleTables:
    """Stamps of one margin's paddles (K: pixels of the circle on which paddles end).

    Stamp i < 360 starts where a snake starts and points onwards; stamp 360 + k starts at the paddle's far end, on pixel
    k of the circle, and points back.
    """

    margin: int
    reach: int
    side: int  # T
    frame: Bytes  # (T T,) the mask of an image without paddles: FULL outside and in the padding
    ends: Floats  # (360 + K, 2) from the stamp's start to its other end: y, x
    angles: Floats  # (360 + K,) direction of growth in radians, by which the next paddle is turned
    line: Stamps  # how the paddle looks
    mask: Stamps  # paddle and margin
    core: Stamps  # the pixels of `mask` that can make an overlap, with the highest value that makes none
    footprint: Stamps  # the pixels of `mask` that are FULL; must be free where a snake starts
    steps: Ints  # (360 + K,) from a paddle's pivot to the next one's
    first_pivots: Ints  # (360,) from a snake's start to its first pivot
    circle: Ints  # (K,) from a pivot to the circle's pixels
    ahead: Ints  # (360 + K, F) pixels of the circle that may follow a stamp: those of the F largest weights
    weights: npt.NDArray[np.int32]  # (360 + K, F) preference for each of them
    around: Ints  # (360 + K, D, F) from a pivot to the D pixels within a margin of each of them


def lanczos(fine: Bytes, size: int) -> Bytes:
    """Downsample (…, n, n) to (…, size, size) with a Lanczos window of 3 lobes, rounding after each direction."""
    n = fine.shape[-1]
    scale = n / size
    position = (np.arange(n)[None] + 0.5 - (np.arange(size)[:, None] + 0.5) * scale) / scale
    matrix = np.where(np.abs(position) < 3, np.sinc(position) * np.sinc(position / 3), 0.0)
    matrix /= matrix.sum(axis=1, keepdims=True)

    def rounded(values: Floats) -> Bytes:
        return np.floor(np.clip(values, 0, 255) + 0.5 + TIE).astype(np.uint8)

    across = rounded(np.einsum("oi,...yi->...yo", matrix, fine.astype(np.float64)))
    return rounded(np.einsum("oi,...ix->...ox", matrix, across.astype(np.float64)))


def disc(radius: int) -> list[tuple[int, int]]:
    """Return the offsets (dy, dx) of the pixels within a radius."""
    span = range(-radius, radius + 1)
    return [(dy, dx) for dy in span for dx in span if dy * dy + dx * dx <= radius * radius]


def dilate(images: Bytes, radius: int) -> Bytes:
    """Replace every pixel by the largest one within a radius: (n, s, s) to the same; outside is 0."""
    padded = np.pad(images, ((0, 0), (radius, radius), (radius, radius)))
    size = images.shape[-1]
    out = np.zeros_like(images)
    for dy, dx in disc(radius):
        np.maximum(out, padded[:, radius + dy : radius + dy + size, radius + dx : radius + dx + size], out=out)
    return out


def draw_line(size: int, end: tuple[int, int], width: int) -> Bytes:
    """Draw a line from the center of a (size, size) image, size odd, to the pixel `end` (dy, dx) away: 255 on 0."""
    image = np.zeros((size, size), dtype=np.uint8)
    center = size // 2
    steps = max(abs(end[0]), abs(end[1]))
    if width == 1:
        along = np.arange(steps + 1)
        # floor(a / b + 1/2) in whole numbers
        y, x = ((2 * along * part + steps) // (2 * steps) for part in end)
        image[center + y, center + x] = FULL
        return image
    y, x = np.mgrid[-center : center + 1, -center : center + 1]
    # Whole numbers again: both sides times the length, so that only the square of the length is needed.
    across, along = x * end[0] - y * end[1], x * end[1] + y * end[0]
    square = end[0] ** 2 + end[1] ** 2
    near = 4 * across**2 <= width**2 * square
    # A line of even width cannot lie symmetrically about its pixels: one of its two edges is left out.
    near &= (4 * across**2 != width**2 * square) | (across > 0)
    image[near & (along >= 0) & (along <= square)] = FULL
    return image


def _ceil(value: float) -> int:
    return math.ceil(value - TIE)


def _stamps(images: Bytes, side: int, keep: int = 1) -> Stamps:
    """Return the pixels of (n, s, s) images, s odd, with a value of at least `keep`, as offsets from the center."""
    size = images.shape[-1]
    count = max(int((images >= keep).sum(axis=(1, 2)).max()), 1)
    offsets = np.zeros((len(images), count), dtype=np.int64)
    values = np.zeros((len(images), count), dtype=np.uint8)
    for row, image in enumerate(images):
        y, x = np.nonzero(image >= keep)
        num_pixels = len(y)
        offsets[row, :num_pixels] = (y - size // 2) * side + x - size // 2
        values[row, :num_pixels] = image[y, x]
        if num_pixels:
            offsets[row, num_pixels:], values[row, num_pixels:] = offsets[row, 0], values[row, 0]
    return Stamps(offsets, values)


def _circle(radius: int) -> list[tuple[int, int]]:
    """Return the pixels (dy, dx) of a walk around a circle in steps of one pixel's length, in order of y, x."""
    count = math.ceil(2 * math.pi * radius - TIE)
    angles = [step / radius for step in range(count)]
    return sorted({(math.floor(radius * math.sin(a) + TIE), math.floor(radius * math.cos(a) + TIE)) for a in angles})


@lru_cache(maxsize=16)
def paddle_tables(settings: PathfinderSettings, margin: int) -> PaddleTables:
    """Draw the stamps for one of the settings' margins."""
    length, scale = settings.paddle_length, settings.antialias_scale
    extent = length + math.ceil(settings.paddle_thickness) + margin  # of a paddle's mask from its start
    # A stamp starts inside; a pivot may lie margin + 3 outside, with its circle and a margin.
    reach = max(extent, length + 3 * margin + 4) + 1
    side = settings.image_size + 2 * reach

    circle = _circle(length + margin)
    degrees = [math.radians(degree) for degree in range(-180, 180)]
    angles = degrees + [math.atan2(dy, dx) for dy, dx in circle]
    line_angles = degrees + [angle + math.pi for angle in angles[DEGREES:]]
    fine_ends = [(_ceil(length * scale * math.sin(a)), _ceil(length * scale * math.cos(a))) for a in line_angles]
    width = round(settings.paddle_thickness * scale)
    fine = np.stack([draw_line(2 * extent * scale + 1, end, width) for end in fine_ends])
    mask = lanczos(dilate(fine, margin * scale), 2 * extent + 1)
    core = _stamps(mask, side, OVERLAP - FULL)

    def flat(offset: tuple[int, int]) -> int:
        return offset[0] * side + offset[1]

    def first_pivot(angle: float) -> int:
        tip = _ceil(length * math.sin(angle)), _ceil(length * math.cos(angle))
        back = length + margin
        return flat((_ceil(tip[0] - back * math.sin(angle)), _ceil(tip[1] - back * math.cos(angle))))

    step = length + 2 * margin
    frame, edge = np.full((side, side), FULL, dtype=np.uint8), reach + settings.padding
    frame[edge : side - edge, edge : side - edge] = 0
    circle_offsets = np.array([flat(pixel) for pixel in circle])
    ahead, weights = _weights(np.array(angles), settings.continuity)
    return PaddleTables(
        margin=margin,
        reach=reach,
        side=side,
        frame=frame.ravel(),
        ends=np.array(fine_ends, dtype=np.float64) / scale,
        angles=np.array(angles),
        line=_stamps(lanczos(fine, 2 * extent + 1), side),
        mask=_stamps(mask, side),
        core=Stamps(core.offsets, (OVERLAP - 1 - np.maximum(core.values, OVERLAP - FULL).astype(int)).astype(np.uint8)),
        footprint=_stamps(mask, side, FULL),
        steps=np.array([flat((_ceil(step * math.sin(a)), _ceil(step * math.cos(a)))) for a in angles]),
        first_pivots=np.array([first_pivot(a) for a in degrees]),
        circle=circle_offsets,
        ahead=ahead,
        weights=weights,
        around=np.array([flat(pixel) for pixel in disc(margin)])[:, None] + circle_offsets[ahead][:, None],
    )


def _weights(angles: Floats, continuity: float) -> tuple[Ints, npt.NDArray[np.int32]]:
    """Return max(cos(min(continuity |turn|, pi / 2)), 0)^2 in units of 1 / WEIGHT_ONE, where it is not 0.

    Returns:
        (360 + K, F) which of the circle's pixels, in order, and their weights; F is the most that a stamp has. Shorter
        rows are filled up with pixels of weight 0.
    """
    turn = np.abs(angles[DEGREES:][None] - angles[:, None])
    turn = np.minimum(np.minimum(turn, 2 * np.pi - turn) * continuity, np.pi / 2)
    weights = np.floor(np.cos(turn) ** 2 * WEIGHT_ONE + TIE).astype(np.int32)
    max_count = max(int((weights > 0).sum(axis=1).max()), 1)
    ahead = np.sort(np.argsort(weights == 0, axis=1, kind="stable")[:, :max_count], axis=1)
    return ahead, np.take_along_axis(weights, ahead, axis=1)


@lru_cache(maxsize=16)
def marker_stamp(settings: PathfinderSettings, side: int) -> Stamps:
    """Draw the disc that marks an end, as one stamp of a framed image."""
    scale, radius = settings.antialias_scale, settings.marker_radius
    extent = math.ceil(radius) + 3
    y, x = np.ogrid[: (2 * extent + 1) * scale, : (2 * extent + 1) * scale]
    inside: npt.NDArray[Any] = (y - extent * scale) ** 2 + (x - extent * scale) ** 2 <= (radius * scale) ** 2
    return _stamps(lanczos(inside.astype(np.uint8) * np.uint8(FULL), 2 * extent + 1)[None], side)
