"""Draws blocks of images as parts of a preparation. Worker processes import only this: neither torch nor lightning."""

from typing import Any

import numpy as np

from lra_ssm.datamodules.parts import Parts
from lra_ssm.datamodules.pathfinder.generator import generate_block
from lra_ssm.datamodules.pathfinder.settings import PathfinderSettings
from lra_ssm.datamodules.storage import Array


def draw_block(parts: Parts, settings: PathfinderSettings, seed: int, numbered: tuple[int, int]) -> int:
    """Draw a block, given by its number and its size, as the part of that number; return its size.

    The part has `images` (size, H, W) uint8 and `labels` (size,) int64.
    """
    number, size = numbered

    def draw(block: int) -> tuple[dict[str, Array], dict[str, Any]]:
        drawn = generate_block(settings, seed, block, size)
        return {"images": drawn.images, "labels": drawn.labels.astype(np.int64)}, {"images": size}

    parts.write(number, draw)
    return size
