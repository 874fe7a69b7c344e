"""Parameters of Pathfinder images: LRA's for the four image sizes and the three difficulties.

Sources: Linsley et al., "Learning long-range spatial dependencies with horizontal gated recurrent units" (2018), whose
public generator (drewlinsley/pathfinder, snakes2.py) has the defaults; Tay et al., "Long Range Arena" (2021), whose
reader (google-research/long-range-arena, lra_benchmarks/data/pathfinder.py) names what LRA changed for each size.
"""

from typing import Any, NamedTuple

# Difficulty, which is a folder's name in LRA's archive, by the number of paddles in a contour. LRA's task uses 14.
DIFFICULTIES: dict[str, int] = {"curv_baseline": 6, "curv_contour_length_9": 9, "curv_contour_length_14": 14}
HARD = "curv_contour_length_14"


class PathfinderSettings(NamedTuple):
    """Parameters of one kind of image. Lengths are in pixels; names are those of the public generator where it has one.

    A paddle is one short straight line; a snake is a chain of paddles. The two snakes of `contour_length` paddles are
    the contours that the question is about; the others are distractors.
    """

    image_size: int  # side of the square image
    padding: int  # a frame of this width that stays free of paddles
    paddle_margins: tuple[int, ...]  # free space around a paddle; an image draws one for all its paddles
    seed_distance: int  # from the first tip of one contour to that of the other
    marker_radius: float
    paddle_length: int
    paddle_thickness: float
    continuity: float  # turns between paddles stay under pi / 2 / continuity: higher is straighter
    contour_length: int  # paddles in each of the two contours
    distractor_length: int  # paddles in each distractor
    num_distractor_snakes: int  # as many are tried; where there is no room, fewer are drawn
    snake_contrasts: tuple[float, ...]  # a contour draws one, times a paddle's; every paddle of a distractor draws one
    paddle_contrasts: tuple[float, ...]  # every paddle of a contour draws one
    antialias_scale: int = 2  # lines are drawn this many times larger, then downsampled
    max_paddle_retrial: int = 2  # a paddle that overlaps is drawn again this often
    max_distractor_contour_retrial: int = 4  # a distractor that finds no room is started again this often


# What differs between the sizes: the numbers of LRA's list, and how many paddles all distractors have together.
_BY_SIZE: dict[int, dict[str, Any]] = {
    32: dict(
        padding=1, paddle_margins=(1,), seed_distance=7, marker_radius=1.5, paddle_length=2, paddle_thickness=0.5,
        continuity=1.0, distractor_paddles=20, snake_contrasts=(2.0,), paddle_contrasts=(0.75,),
    ),
    64: dict(
        padding=1, paddle_margins=(1,), seed_distance=12, marker_radius=2.5, paddle_length=5, paddle_thickness=1.0,
        continuity=1.8, distractor_paddles=22, snake_contrasts=(0.8,), paddle_contrasts=(1.0,),
    ),
    128: dict(
        padding=1, paddle_margins=(2, 3), seed_distance=20, marker_radius=3.0, paddle_length=5, paddle_thickness=1.5,
        continuity=1.8, distractor_paddles=35, snake_contrasts=(0.9,), paddle_contrasts=(1.0,),
    ),
    256: dict(
        padding=22, paddle_margins=(3,), seed_distance=27, marker_radius=5.0, paddle_length=5, paddle_thickness=2.0,
        continuity=1.8, distractor_paddles=30, snake_contrasts=(1.0,), paddle_contrasts=(1.0,),
    ),
}  # fmt: skip
SIZES = tuple(_BY_SIZE)


def settings_for(size: int, difficulty: str = HARD) -> PathfinderSettings:
    """Return LRA's parameters.

    Args:
        size: 32, 64, 128 or 256 pixels.
        difficulty: a key of DIFFICULTIES. LRA publishes its parameters only for contours of 14 paddles; the others
            differ in `contour_length` and what is computed from it: the number of distractors too, as in LRA's list.
    """
    values, contour_length = dict(_BY_SIZE[size]), DIFFICULTIES[difficulty]
    # LRA writes 14/3 and 22/length. Both are whole-number divisions: the generator was Python 2, and in Python 3 it
    # would stop at the fraction, for it counts with range().
    distractor_length = contour_length // 3
    return PathfinderSettings(
        image_size=size,
        contour_length=contour_length,
        distractor_length=distractor_length,
        num_distractor_snakes=values.pop("distractor_paddles") // distractor_length,
        **values,
    )


# LRA's task: contours of 14 paddles.
SETTINGS: dict[int, PathfinderSettings] = {size: settings_for(size) for size in SIZES}
