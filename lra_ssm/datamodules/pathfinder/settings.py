"""What a Pathfinder image is drawn from: LRA's parameters for the four image sizes and the three difficulties.

Sources: Linsley et al., "Learning long-range spatial dependencies with horizontal gated recurrent units" (2018), whose
public generator (drewlinsley/pathfinder, snakes2.py) has the defaults; Tay et al., "Long Range Arena" (2021), whose
reader (google-research/long-range-arena, lra_benchmarks/data/pathfinder.py) names what LRA changed for each size.
"""

import math
from typing import NamedTuple

from lra_ssm.errors import InputError

# Difficulty, which is a folder's name in LRA's archive, by the number of paddles in a contour. LRA's task uses 14.
DIFFICULTIES: dict[str, int] = {"curv_baseline": 6, "curv_contour_length_9": 9, "curv_contour_length_14": 14}
HARD = "curv_contour_length_14"


class PathfinderSettings(NamedTuple):
    """Parameters of one kind of image. Lengths are in pixels; names are those of the public generator where it has one.

    A paddle is one short straight line; a snake is a chain of paddles. The two snakes of `contour_length` paddles are
    the contours of which the question is asked, the others distract.
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
    use_single_paddles: bool = False  # fill up with paddles that belong to no snake; LRA's value is not published


def _settings(
    size: int,
    distractor_paddles: int,
    *,
    margins: tuple[int, ...],
    seed_distance: int,
    radius: float,
    thickness: float,
    contrast: float,
    padding: int = 1,
    length: int = 5,
    continuity: float = 1.8,
    paddle_contrast: float = 1.0,
    contour_length: int = 14,
) -> PathfinderSettings:
    # LRA writes 14/3 and 22/length. Both are whole-number divisions: the generator was Python 2, and in Python 3 it
    # would stop at the fraction, for it counts with range().
    distractor_length = contour_length // 3
    return PathfinderSettings(
        image_size=size,
        padding=padding,
        paddle_margins=margins,
        seed_distance=seed_distance,
        marker_radius=radius,
        paddle_length=length,
        paddle_thickness=thickness,
        continuity=continuity,
        contour_length=contour_length,
        distractor_length=distractor_length,
        num_distractor_snakes=distractor_paddles // distractor_length,
        snake_contrasts=(contrast,),
        paddle_contrasts=(paddle_contrast,),
    )


def settings_for(size: int, difficulty: str = HARD) -> PathfinderSettings:
    """LRA's parameters.

    Args:
        size: 32, 64, 128 or 256 pixels.
        difficulty: a key of DIFFICULTIES. LRA publishes its parameters for contours of 14 paddles alone; the others
            differ in `contour_length` and what is computed from it: the number of distractors too, as in LRA's list.

    Raises:
        InputError: another size or difficulty.
    """
    if difficulty not in DIFFICULTIES:
        raise InputError(f"Pathfinder difficulty {difficulty!r}: must be one of {', '.join(DIFFICULTIES)}")
    contour_length = DIFFICULTIES[difficulty]
    if size == 32:
        return _settings(
            32, 20, margins=(1,), seed_distance=7, radius=1.5, thickness=0.5, contrast=2.0, length=2, continuity=1.0,
            paddle_contrast=0.75, contour_length=contour_length,
        )  # fmt: skip
    if size == 64:
        return _settings(
            64, 22, margins=(1,), seed_distance=12, radius=2.5, thickness=1.0, contrast=0.8,
            contour_length=contour_length,
        )  # fmt: skip
    if size == 128:
        return _settings(
            128, 35, margins=(2, 3), seed_distance=20, radius=3.0, thickness=1.5, contrast=0.9,
            contour_length=contour_length,
        )  # fmt: skip
    if size == 256:
        return _settings(
            256, 30, margins=(3,), seed_distance=27, radius=5.0, thickness=2.0, contrast=1.0, padding=22,
            contour_length=contour_length,
        )  # fmt: skip
    raise InputError(f"Pathfinder image size {size}: must be one of {', '.join(map(str, SIZES))}")


SIZES = (32, 64, 128, 256)
# LRA's task: contours of 14 paddles.
SETTINGS: dict[int, PathfinderSettings] = {size: settings_for(size) for size in SIZES}


def num_single_paddles(settings: PathfinderSettings, margin: int) -> int:
    """Single paddles that the public generator tries to place where it uses them: 150 paddles in all at margin 4.

    Fewer at larger margins, in proportion to the area that a paddle takes with its margin.
    """
    if not settings.use_single_paddles:
        return 0
    total = int(150 * 123.5 / (7.5 + 13 * margin + 4 * margin * margin))
    snakes = 2 * settings.contour_length + settings.num_distractor_snakes * settings.distractor_length
    return max(total - snakes, 0)


def check_settings(settings: PathfinderSettings) -> None:
    """Raises InputError where the settings make no sense."""
    _check_whole_numbers(settings)
    if not settings.paddle_margins or min(settings.paddle_margins) < 1:
        raise InputError(f"Pathfinder paddle_margins {settings.paddle_margins}: needs one or more of at least 1")
    fine = settings.paddle_thickness * settings.antialias_scale
    if fine < 1 or fine != math.floor(fine):
        raise InputError(
            f"Pathfinder paddle_thickness {settings.paddle_thickness}: times antialias_scale"
            f" {settings.antialias_scale} it must be a whole number of at least 1"
        )
    if not settings.continuity > 0 or not settings.marker_radius > 0:
        raise InputError(
            f"Pathfinder continuity {settings.continuity}, marker_radius {settings.marker_radius}: must be positive"
        )
    for name in ("snake_contrasts", "paddle_contrasts"):
        if not getattr(settings, name) or min(getattr(settings, name)) <= 0:
            raise InputError(f"Pathfinder {name} {getattr(settings, name)}: needs one or more positive numbers")
    if max(settings.snake_contrasts) * max(1.0, *settings.paddle_contrasts) > 2.5:
        # Pixels are 16-bit numbers in units of a hundredth of 1/255.
        raise InputError(
            "Pathfinder snake_contrasts, paddle_contrasts: no contrast may exceed 2.5, nor a product of two"
        )
    if settings.image_size < 4 * settings.seed_distance + 2:
        raise InputError(
            f"Pathfinder image_size {settings.image_size}: must be at least 4 times seed_distance"
            f" {settings.seed_distance} and 2 more, for contours begin in the middle"
        )


def _check_whole_numbers(settings: PathfinderSettings) -> None:
    at_least = {
        "padding": 1,
        "seed_distance": 1,
        "paddle_length": 1,
        "contour_length": 2,
        "distractor_length": 1,
        "num_distractor_snakes": 0,
        "antialias_scale": 1,
        "max_paddle_retrial": 0,
        "max_distractor_contour_retrial": 0,
    }
    for name, low in at_least.items():
        if getattr(settings, name) < low:
            raise InputError(f"Pathfinder {name} {getattr(settings, name)}: must be at least {low}")
