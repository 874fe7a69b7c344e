"""Answers a Pathfinder image without its label: from the heap of drawn paddles, or from its pixels alone."""

import itertools
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


def solve_pixels(settings: PathfinderSettings, picture: np.ndarray) -> int:
    """1 if a contour's number of bright strokes leads from one disc to the other without sharp turns, else 0.

    Sees the image alone, as a patient human would. Discs hide what is under them: the first and the last paddle may lie
    in any direction there. Needs strokes that do not touch, so images of 128 pixels and more.
    """
    length, radius = settings.paddle_length, settings.marker_radius
    discs, strokes = _strokes(picture, radius)
    hidden = [length * np.array([math.sin(a), math.cos(a)]) for a in np.arange(36) * math.pi / 18]

    def follows(end: np.ndarray, angle: float, near: np.ndarray, next_angle: float, margin: int) -> bool:
        gap = near - end
        if not 2 * margin - 2.7 < math.hypot(*gap) < 2 * margin + 2.9:
            return False
        if turn_between(angle, next_angle) > math.pi / 2 / settings.continuity + 0.45:
            return False
        middle = math.atan2(math.sin(angle) + math.sin(next_angle), math.cos(angle) + math.cos(next_angle))
        return turn_between(math.atan2(*gap), middle) < 0.75

    def grow(end: np.ndarray, angle: float, used: frozenset[int], grown: int, goal: np.ndarray, margin: int) -> bool:
        last = grown + 1 == settings.contour_length
        if last and any(follows(end, angle, goal - paddle, math.atan2(*paddle), margin) for paddle in hidden):
            return True
        for number, stroke in enumerate(strokes):
            if number in used:
                continue
            for near, far in (stroke, stroke[::-1]):
                to_goal = math.hypot(*(goal - far))
                if to_goal > radius + 3 if last else to_goal < radius + 0.5:
                    continue
                tip = goal if last else far
                next_angle = math.atan2(*(tip - near))
                if follows(end, angle, near, next_angle, margin) and (
                    last or grow(far, next_angle, used | {number}, grown + 1, goal, margin)
                ):
                    return True
        return False

    for margin, (origin, goal) in itertools.product(settings.paddle_margins, (discs, discs[::-1])):
        starts = [(origin + paddle, frozenset[int]()) for paddle in hidden]
        for number, stroke in enumerate(strokes):
            for near, far in (stroke, stroke[::-1]):
                if math.hypot(*(near - origin)) < radius + 3.5 and 2.5 < math.hypot(*(far - origin)) < length + 3:
                    starts.append((far, frozenset({number})))
        if any(grow(end, math.atan2(*(end - origin)), used, 1, goal, margin) for end, used in starts):
            return 1
    return 0


def _strokes(picture: np.ndarray, radius: float) -> tuple[list[np.ndarray], list[tuple[np.ndarray, np.ndarray]]]:
    """The centres of the two discs, and both ends of every other stroke."""
    size, reach = len(picture), int(radius)
    padded = np.pad(picture, reach).astype(int)
    inside = [
        padded[reach + dy : reach + dy + size, reach + dx : reach + dx + size]
        for dy, dx in itertools.product(range(-reach, reach + 1), repeat=2)
        if dy * dy + dx * dx <= reach * reach
    ]
    score = np.mean(inside, axis=0) * (picture > 128)
    rest = picture.copy()
    y, x = np.ogrid[:size, :size]
    discs = []
    for _ in range(2):
        centre = np.array(np.unravel_index(score.argmax(), score.shape))
        square = (y - centre[0]) ** 2 + (x - centre[1]) ** 2
        score[square <= radius**2 + 3] = 0
        rest[square <= (radius + 1.2) ** 2] = 0
        discs.append(centre.astype(float))
    bright = {tuple(pixel) for pixel in np.argwhere(rest > 90).tolist()}
    strokes = []
    while bright:
        stack, stroke = [bright.pop()], []
        while stack:
            pixel = stack.pop()
            stroke.append(pixel)
            for dy, dx in itertools.product((-1, 0, 1), repeat=2):
                beside = pixel[0] + dy, pixel[1] + dx
                if beside in bright:
                    bright.remove(beside)
                    stack.append(beside)
        points = np.array(sorted(stroke), dtype=float)
        weights = rest[tuple(points.astype(int).T)].astype(float)
        middle = (points * weights[:, None]).sum(axis=0) / weights.sum()
        offsets = points - middle
        axis = np.linalg.eigh((offsets * weights[:, None]).T @ offsets)[1][:, 1]
        along = offsets @ axis
        strokes.append((middle + axis * along.min(), middle + axis * along.max()))
    return discs, strokes
