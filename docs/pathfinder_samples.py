"""Draw docs/pathfinder-<size>.png, the sample pages of docs/pathfinder.md: `python docs/pathfinder_samples.py`."""

from pathlib import Path

import matplotlib

from lra_ssm.datamodules.pathfinder.generator import PathfinderBlock, generate_block
from lra_ssm.datamodules.pathfinder.settings import SETTINGS, SIZES

matplotlib.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402 - the backend comes first

COLUMNS = 5
KINDS = {1: "label 1: one contour joins the discs", 0: "label 0: the discs are on different contours"}


def draw_page(block: PathfinderBlock, size: int, path: Path) -> None:
    """Draw two rows of images with label 1 and two with label 0, the first ones of a block."""
    figure, axes = plt.subplots(4, COLUMNS, figsize=(1.75 * COLUMNS, 8.1), layout="constrained")
    for row, axis_row in enumerate(axes):
        label = 1 if row < 2 else 0
        numbers = (block.labels == label).nonzero()[0][row % 2 * COLUMNS :][:COLUMNS]
        for column, (axis, number) in enumerate(zip(axis_row, numbers, strict=True)):
            axis.imshow(block.images[number], cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            axis.set(xticks=[], yticks=[])
            if row % 2 == 0 and column == 0:
                axis.set_title(KINDS[label], loc="left", fontsize=10, fontweight="bold")
    figure.suptitle(f"Pathfinder, {size} × {size}, contours of 14 paddles", fontsize=12)
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    for size in SIZES:
        page = Path(__file__).with_name(f"pathfinder-{size}.png")
        draw_page(generate_block(SETTINGS[size], seed=0, block=0, size=4 * COLUMNS), size, page)
