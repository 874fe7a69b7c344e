"""A picture of one batch of an image task, as the model is given it. Needs matplotlib."""

import os
from pathlib import Path
from typing import Any

from lra_ssm.datamodules.base import PreparedDataModule
from lra_ssm.datamodules.images.transforms import PixelSequence
from lra_ssm.datamodules.loading.batches import Batch, ImageDataset
from lra_ssm.errors import InputError
from lra_ssm.files import replacing

COLUMNS, ROWS = 6, 3
INK, FAINT = "#222222", "#777777"
CHANNEL_COLORS = {1: (INK,), 3: ("#c0392b", "#27833b", "#2a5db0")}


def check_picture(datamodule: PreparedDataModule, path: Path) -> None:
    """Raises InputError before hours of preparing: the dataset has no images, or no file can be written there."""
    if not hasattr(datamodule, "image_size"):
        raise InputError(f"picture {path}: {type(datamodule).__name__} is no dataset of images")
    if path.is_dir() or not path.name:
        raise InputError(f"picture {str(path)!r}: is a folder; name a PNG file")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise InputError(f"picture {path}: {path.parent} is no existing folder that can be written")


def draw_batch(datamodule: PreparedDataModule, path: Path) -> None:
    """Draws the first training batch of a prepared image dataset into a PNG file: each sequence put back into rows,
    after normalization, augmentation and permutation, below its class; then one sequence as a curve.

    Raises:
        InputError: not prepared, or no dataset of images.
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    datamodule.setup("fit")
    dataset = datamodule._datasets["train"]
    if not isinstance(dataset, ImageDataset) or not isinstance(dataset.transform, PixelSequence):
        raise InputError(f"{type(datamodule).__name__}: is no dataset of images, so its batches cannot be drawn")
    batch = next(iter(datamodule.train_dataloader()))
    assert isinstance(batch, Batch)
    inputs, labels = batch.inputs.numpy(), batch.labels.tolist()
    values = inputs[..., None] if inputs.ndim == 2 else inputs
    height, width = dataset.split.images.shape[1:3]
    low, high = dataset.transform.value_range()
    shown = min(len(values), COLUMNS * ROWS)
    rows = -(-shown // COLUMNS)

    figure = Figure(figsize=(9, 1.75 * rows + 2.3), dpi=110)
    grid = figure.add_gridspec(
        rows + 1, COLUMNS, height_ratios=[1.0] * rows + [0.75], left=0.065, right=0.9, hspace=0.22, wspace=0.1,
        top=1 - 0.85 / (1.75 * rows + 2.3), bottom=0.5 / (1.75 * rows + 2.3),
    )  # fmt: skip
    names = getattr(datamodule, "class_names", None) or [str(number) for number in range(max(labels) + 1)]
    mapped: Any = None
    for number in range(shown):
        axes = figure.add_subplot(grid[number // COLUMNS, number % COLUMNS])
        image = values[number].reshape(height, width, -1)
        if image.shape[2] == 3:
            axes.imshow((image - low) / (high - low), interpolation="nearest")
        else:
            mapped = axes.imshow(image[..., 0], cmap="gray", vmin=low, vmax=high, interpolation="nearest")
        axes.set_title(names[labels[number]], fontsize=8.5, color=INK, pad=3)
        axes.set_axis_off()
    if mapped is None:
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

        mapped = ScalarMappable(Normalize(low, high), "gray")
    top, bottom = (grid[row, 0].get_position(figure) for row in (0, rows - 1))
    bar = figure.colorbar(mapped, cax=figure.add_axes((0.925, bottom.y0, 0.015, top.y1 - bottom.y0)))
    bar.ax.tick_params(labelsize=8, colors=INK)
    bar.outline.set_visible(False)

    axes = figure.add_subplot(grid[rows, :])
    for channel, color in enumerate(CHANNEL_COLORS.get(values.shape[2], ())):
        axes.plot(values[0, :, channel], color=color, linewidth=0.6, alpha=0.8)
    axes.set_xlim(0, values.shape[1] - 1)
    axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    axes.set_xlabel("position in the sequence of the first image", fontsize=8.5, color=INK)
    axes.set_ylabel("value", fontsize=8.5, color=INK)
    axes.tick_params(labelsize=8, colors=INK)
    axes.spines[["top", "right"]].set_visible(False)

    figure.text(0.065, 1 - 0.27 / figure.get_figheight(), _title(datamodule), fontsize=12, color=INK, weight="bold")
    shape = " × ".join(map(str, inputs.shape))
    facts = f"{shown} of the batch {shape} {inputs.dtype}; values from {low:.4g} to {high:.4g}" + _permuted(dataset)
    facts = facts.replace("-", "−")
    figure.text(0.065, 1 - 0.47 / figure.get_figheight(), facts, fontsize=8.5, color=FAINT)
    with replacing(path, "wb") as file:
        figure.savefig(file, format="png", metadata={"Software": None})


def _title(datamodule: PreparedDataModule) -> str:
    source = datamodule.manifest()["source"]
    parts = [type(datamodule).__name__, source["kind"]]
    for name in ("resolution", "difficulty", "permutation", "inputs", "augment"):
        value = getattr(datamodule, name, None)
        if value not in (None, "none"):
            parts.append(f"{name} {value}")
    if source.get("lossy"):
        parts.append("a lossy JPEG stand-in")
    return " · ".join(parts)


def _permuted(dataset: ImageDataset) -> str:
    assert isinstance(dataset.transform, PixelSequence)
    permutation = dataset.transform.permutation
    if permutation is None:
        return "; pixels row by row"
    return "; pixels " + ", ".join(map(str, permutation[:6].tolist())) + ", … put row by row"
