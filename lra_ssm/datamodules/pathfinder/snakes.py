"""Grow Pathfinder's snakes, many images in lockstep: n images of one margin are a few thousand numpy calls.

Every choice is made with whole numbers and `RandomState.random_sample`, whose stream numpy promises not to change, so
that the same generator gives the same snakes on every machine.

Shape legend: n images; m of them at work ("lanes"); C paddles of a contour; D distractors of d paddles; T the side of a
framed image (see drawing.py); P pixels of a stamp; K pixels of a circle.

Source: Linsley et al. (2018) and the algorithm of its public generator (drewlinsley/pathfinder, snakes2.py). Three
things are stricter here, so that no two paddles ever overlap, and no label is a guess: a contour also keeps off the
other one's newest paddle, the second seed off the first and the padding, distractors off both contours' last paddles.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lra_ssm.datamodules.pathfinder.drawing import DEGREES, FULL, WEIGHT_ONE, Ints, PaddleTables
from lra_ssm.datamodules.pathfinder.settings import PathfinderSettings

Flags = npt.NDArray[np.bool_]

# A circle whose weights sum to less (1e-4 of one free pixel straight ahead) is a dead end.
MIN_WEIGHT = 1e-4 * FULL * WEIGHT_ONE
# A pixel is free for a new snake where no more than 0.3 of it is taken.
FREE = 76
# Contours that grow at the same time: numpy's cost per call against the cache.
LANES = 256


class Paddles(NamedTuple):
    """Paddles: the pixel of the framed image where each starts, and its stamp; -1 for one that is not drawn."""

    starts: Ints
    stamps: Ints


class Canvas:
    """The masks of m images, flat (m T T): how much of each pixel is covered, 0 to FULL."""

    def __init__(self, tables: PaddleTables, count: int) -> None:
        self.tables = tables
        self.area = tables.side**2
        self.mask = np.tile(tables.frame, count)

    def bases(self, lanes: Ints) -> Ints:
        """Return the numbers of the lanes' first pixels."""
        return lanes * self.area

    def clear(self, lanes: Ints) -> None:
        self.mask.reshape(-1, self.area)[lanes] = self.tables.frame

    def add(self, lanes: Ints, starts: Ints, stamps: Ints) -> None:
        """Add one paddle to each lane; lanes must differ."""
        stamp = self.tables.mask
        pixels = ((self.bases(lanes) + starts)[:, None] + stamp.offsets[stamps]).ravel()
        self.mask[pixels] = np.maximum(self.mask[pixels], stamp.values[stamps].ravel())

    def fits(self, lanes: Ints, starts: Ints, stamps: Ints) -> Flags:
        """Return whether a paddle overlaps with nothing in its lane's mask."""
        core = self.tables.core
        taken = self.mask[(self.bases(lanes) + starts)[:, None] + core.offsets[stamps]]
        return (taken <= core.values[stamps]).all(axis=1)


def below(rng: np.random.RandomState, bounds: int | Ints, shape: int | tuple[int, ...]) -> Ints:
    """Return random integers from 0 to bounds - 1, uniform up to 2**-53."""
    return np.floor(rng.random_sample(shape) * bounds).astype(np.int64)


def extend(
    canvas: Canvas, lanes: Ints, pivots: Ints, stamps: Ints, retrials: int, rng: np.random.RandomState
) -> tuple[Ints, Ints, Ints]:
    """Find the next paddle of a snake in each lane, without adding it to the canvas.

    Args:
        canvas: everything except the last paddles of these snakes.
        lanes, pivots, stamps: (m,) the snakes' last pivots and paddles.
        retrials: how often an overlapping paddle is drawn again.
        rng: source of random numbers.

    Returns:
        (m,) each: the new pivots, and the new paddles' starts and stamps, both -1 where none fits.
    """
    tables = canvas.tables
    pivots = pivots + tables.steps[stamps]
    # The margin around the end must be free too: the circle's pixels are weighted by the most taken pixel around each.
    around = canvas.mask[(canvas.bases(lanes) + pivots)[:, None, None] + tables.around[stamps]]
    # Copied (D, m, F): numpy is four times as fast over the first axis.
    around = np.ascontiguousarray(around.transpose(1, 0, 2))
    sums = np.cumsum(tables.weights[stamps] * (FULL - around.max(axis=0)), axis=1, dtype=np.int32)
    totals = sums[:, -1]
    starts, new_stamps = np.full((2, len(lanes)), -1)
    pending = np.flatnonzero(totals >= MIN_WEIGHT)
    for _ in range(retrials + 1):
        if not len(pending):
            break
        threshold = rng.random_sample(len(pending)) * totals[pending]
        pixel = tables.ahead[stamps[pending], (sums[pending] <= threshold[:, None]).sum(axis=1)]
        ends = pivots[pending] + tables.circle[pixel]
        fits = canvas.fits(lanes[pending], ends, DEGREES + pixel)
        placed = pending[fits]
        starts[placed], new_stamps[placed] = ends[fits], DEGREES + pixel[fits]
        pending = pending[~fits]
    return pivots, starts, new_stamps


class _FirstSeeds:
    """Where the first contour may start, for each of the 360 directions: as far inside as two seed distances."""

    def __init__(self, tables: PaddleTables, settings: PathfinderSettings) -> None:
        # Offsets as y, x; the pixels from which all of a footprint lies in a square are a rectangle.
        offsets = tables.footprint.offsets[:DEGREES] + tables.reach * (tables.side + 1)
        parts = np.stack([offsets // tables.side, offsets % tables.side]) - tables.reach
        inset = 2 * settings.seed_distance
        self.low = inset - parts.min(axis=2) + tables.reach
        self.size = settings.image_size - 2 * inset - (parts.max(axis=2) - parts.min(axis=2))
        self.side = tables.side
        self.degrees = np.flatnonzero((self.size > 0).all(axis=0))

    def draw(self, count: int, rng: np.random.RandomState) -> tuple[Ints, Ints]:
        """Return starts and stamps (count,). Directions without room are left out."""
        degrees = self.degrees[below(rng, len(self.degrees), count)]
        y, x = self.low[:, degrees] + below(rng, self.size[:, degrees], (2, count))
        return y * self.side + x, degrees


class _Growth:
    """Contours that are growing, two in each of LANES lanes: each step adds a paddle to both."""

    def __init__(self, tables: PaddleTables, settings: PathfinderSettings, rng: np.random.RandomState) -> None:
        self.tables, self.rng = tables, rng
        self.length, self.retrials = settings.contour_length, settings.max_paddle_retrial
        self.seeds = _FirstSeeds(tables, settings)
        distance, angles = settings.seed_distance, np.radians(np.arange(DEGREES))
        rows = [round(distance * np.sin(angle)) for angle in angles]
        columns = [round(distance * np.cos(angle)) for angle in angles]
        self.second = np.array(rows) * tables.side + np.array(columns)  # from the first contour's start to the other's
        # View s is what snake s must keep off: the other snake, and all of itself but its last paddle.
        self.views = Canvas(tables, LANES), Canvas(tables, LANES)
        self.starts, self.stamps = np.zeros((2, LANES, 2, self.length), dtype=np.int64)
        self.pivots = np.zeros((LANES, 2), dtype=np.int64)
        # Number of paddles in each of a lane's contours; 0 where they must be started.
        self.grown = np.zeros(LANES, dtype=np.int64)

    def begin(self) -> None:
        """Put two first paddles into each lane that has none, where the second fits."""
        empty = np.flatnonzero(self.grown == 0)
        if not len(empty):
            return
        starts, stamps = self.starts[empty, :, 0], self.stamps[empty, :, 0]
        starts[:, 0], stamps[:, 0] = self.seeds.draw(len(empty), self.rng)
        starts[:, 1] = starts[:, 0] + self.second[below(self.rng, DEGREES, len(empty))]
        stamps[:, 1] = below(self.rng, DEGREES, len(empty))
        for view in self.views:
            view.clear(empty)
        self.views[1].add(empty, starts[:, 0], stamps[:, 0])
        fits = self.views[1].fits(empty, starts[:, 1], stamps[:, 1])
        self.views[0].add(empty, starts[:, 1], stamps[:, 1])
        self.starts[empty, :, 0], self.stamps[empty, :, 0] = starts, stamps
        self.pivots[empty] = starts + self.tables.first_pivots[stamps]
        self.grown[empty[fits]] = 1

    def grow(self) -> None:
        """Add a paddle to both contours of each lane; where one finds no room, both are thrown away."""
        alive = np.flatnonzero(self.grown > 0)
        for snake, view in enumerate(self.views):
            number = self.grown[alive]
            last_starts = self.starts[alive, snake, number - 1]
            last_stamps = self.stamps[alive, snake, number - 1]
            pivots = self.pivots[alive, snake]
            pivots, starts, stamps = extend(view, alive, pivots, last_stamps, self.retrials, self.rng)
            placed = starts >= 0
            self.grown[alive[~placed]] = 0
            alive, number = alive[placed], number[placed]
            self.pivots[alive, snake] = pivots[placed]
            self.starts[alive, snake, number] = starts[placed]
            self.stamps[alive, snake, number] = stamps[placed]
            view.add(alive, last_starts[placed], last_stamps[placed])
            self.views[1 - snake].add(alive, starts[placed], stamps[placed])
        self.grown[alive] += 1

    def take(self, most: int) -> Paddles:
        """Return at most so many complete pairs of contours, and empty their lanes."""
        finished = np.flatnonzero(self.grown == self.length)[:most]
        self.grown[finished] = 0
        return Paddles(self.starts[finished], self.stamps[finished])


def grow_contours(
    tables: PaddleTables, settings: PathfinderSettings, count: int, rng: np.random.RandomState
) -> Paddles:
    """Grow two contours in each of `count` images.

    Attempts run in lanes, and the first `count` that succeed are kept. As every success takes equally many steps, no
    kind of contour is favored.

    Returns:
        Paddles (count, 2, C).
    """
    growth = _Growth(tables, settings, rng)
    batches: list[Paddles] = []
    done = 0
    while done < count:
        growth.begin()
        growth.grow()
        finished = growth.take(count - done)
        batches.append(finished)
        done += len(finished.starts)
    return Paddles(*(np.concatenate(parts) for parts in zip(*batches, strict=True)))


def grow_distractors(canvas: Canvas, settings: PathfinderSettings, rng: np.random.RandomState) -> Paddles:
    """Add distractors, one after the other, to every image of a canvas, as far as there is room.

    Args:
        canvas: masks of m images; the new snakes are added to it.
        settings: parameters of the images.
        rng: source of random numbers.

    Returns:
        Paddles (m, D, d), -1 where a snake was left out.
    """
    tables, area = canvas.tables, canvas.area
    count, length = settings.num_distractor_snakes, settings.distractor_length
    total = len(canvas.mask) // area
    out = Paddles(*np.full((2, total, count, length), -1))
    masks = canvas.mask.reshape(total, area)
    for number in range(count):
        lanes = np.arange(total)
        for _ in range(settings.max_distractor_contour_retrial + 1):
            saved = masks[lanes]
            starts, stamps = np.full((2, len(lanes), length), -1)
            starts[:, 0], stamps[:, 0] = _choose_seeds(canvas, settings, lanes, rng)
            alive = np.flatnonzero(starts[:, 0] >= 0)
            pivots = starts[:, 0] + tables.first_pivots[stamps[:, 0]]
            for paddle in range(1, length):
                last = stamps[alive, paddle - 1]
                grown = extend(canvas, lanes[alive], pivots[alive], last, settings.max_paddle_retrial, rng)
                pivots[alive], starts[alive, paddle], stamps[alive, paddle] = grown
                alive = alive[starts[alive, paddle] >= 0]
                canvas.add(lanes[alive], starts[alive, paddle - 1], stamps[alive, paddle - 1])
            canvas.add(lanes[alive], starts[alive, -1], stamps[alive, -1])
            out.starts[lanes[alive], number], out.stamps[lanes[alive], number] = starts[alive], stamps[alive]
            failed = np.ones(len(lanes), dtype=bool)
            failed[alive] = False
            masks[lanes[failed]] = saved[failed]
            lanes = lanes[failed]
            if not len(lanes):
                break
    return out


def _choose_seeds(
    canvas: Canvas, settings: PathfinderSettings, lanes: Ints, rng: np.random.RandomState
) -> tuple[Ints, Ints]:
    """Choose a first paddle for each lane: a direction, then one of the pixels from which it touches nothing.

    A few pixels are tried at random; lanes in which none of them is free are searched completely.

    Returns:
        Starts and stamps (m,); starts are -1 where no pixel is free.
    """
    tables, size = canvas.tables, settings.image_size
    footprint = tables.footprint.offsets
    stamps = below(rng, DEGREES, len(lanes))
    tries = max(512 // footprint.shape[1], 4)
    pixels = below(rng, size, (2, len(lanes), tries)) + tables.reach
    pixels = pixels[0] * tables.side + pixels[1]
    touched = (canvas.bases(lanes)[:, None] + pixels)[:, :, None] + footprint[stamps][:, None]
    free = (canvas.mask[touched] <= FREE).all(axis=2)
    starts = np.where(free.any(axis=1), pixels[np.arange(len(lanes)), free.argmax(axis=1)], -1)
    unplaced = np.flatnonzero(starts < 0)
    chances = rng.random_sample(len(unplaced))
    for lane, chance in zip(unplaced, chances, strict=True):
        everywhere = _free_starts(canvas, int(lanes[lane]), int(stamps[lane]), size)
        if len(everywhere):
            starts[lane] = everywhere[int(chance * len(everywhere))]
    return starts, stamps


def _free_starts(canvas: Canvas, lane: int, stamp: int, size: int) -> Ints:
    """Return all pixels of an image from which a stamp's footprint is free."""
    tables = canvas.tables
    taken = canvas.mask[lane * canvas.area : (lane + 1) * canvas.area] > FREE
    first = tables.reach * (tables.side + 1)
    span = (size - 1) * (tables.side + 1) + 1  # from the image's first pixel to its last, with the frame between rows
    blocked = np.zeros(span, dtype=bool)
    for offset in set(tables.footprint.offsets[stamp].tolist()):
        blocked |= taken[first + offset : first + offset + span]
    pixels = np.flatnonzero(~blocked) + first
    column = pixels % tables.side - tables.reach
    return pixels[(column >= 0) & (column < size)]
