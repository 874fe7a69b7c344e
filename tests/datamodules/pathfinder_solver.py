"""Answers a Pathfinder image without its label, from the heap of drawn paddles."""

import math

import numpy as np

from lra_ssm.datamodules.pathfinder.generator import PathfinderBlock
from lra_ssm.datamodules.pathfinder.settings import PathfinderSettings

Paddle = tuple[tuple[float, float], tuple[float, float]]


def all_paddles(block: PathfinderBlock, image: int) -> np.ndarray:
    """Every paddle of an image (n, 2, 2), in no order that tells what belongs together."""
    record = block.geometry
    parts = [array[image].reshape(-1, 2, 2) for array in (record.contours, record.distractors)]
    paddles = np.concatenate(parts)
    paddles = paddles[~np.isnan(paddles).any(axis=(1, 2))]
    return paddles[np.lexsort(paddles.reshape(-1, 4).T)]


def turn_between(one: float, other: float) -> float:
    return abs((one - other + math.pi) % (2 * math.pi) - math.pi)


def solve_record(settings: PathfinderSettings, block: PathfinderBlock, image: int) -> int:
    """1 if a contour's number of paddles leads from one disc to the other exactly by the rule of growth, else 0.

    Knows the rule, the discs and the heap of paddles; neither which snake a paddle is of, nor its place in it.
    """
    margin, length, scale = int(block.geometry.margins[image]), settings.paddle_length, settings.antialias_scale

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
    discs = [tuple(map(float, disc)) for disc in block.geometry.markers[image].tolist()]
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
