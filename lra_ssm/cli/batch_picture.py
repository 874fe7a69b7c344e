"""A picture of one batch of an image task, as the model is given it. Needs matplotlib."""

import os
from pathlib import Path
from typing import Any

from lra_ssm.datamodules.base import PreparedDataModule
from lra_ssm.datamodules.images.transforms import PixelSequence
from lra_ssm.datamodules.loading.batches import ImageDataset
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
    """Draws the first training batch of a prepared image dataset into a PNG file.

    Each sequence is put back into rows, after normalization, augmentation and permutation, below its class; the first
    is drawn as a curve, too. Raises InputError: not prepared, or no dataset of images.
    """
    from matplotlib.figure import Figure

    datamodule.setup("fit")
    dataset = _images(datamodule)
    batch: Any = next(iter(datamodule.train_dataloader()))
    inputs, labels = batch.inputs.numpy(), batch.labels.tolist()
    low, high = dataset.transform.value_range()
    shown = min(len(inputs), COLUMNS * ROWS)
    rows = -(-shown // COLUMNS)

    figure = Figure(figsize=(9, 1.75 * rows + 2.3), dpi=110, layout="constrained")
    above, below = figure.subfigures(2, height_ratios=(rows, 0.9))  # type: ignore[misc]
    grid = above.subplots(rows, COLUMNS, squeeze=False)
    names = getattr(datamodule, "class_names", None) or range(max(labels) + 1)
    images = inputs.reshape(len(inputs), *dataset.split.images.shape[1:3], -1)
    _draw_curve(below.subplots(), images[0].reshape(-1, images.shape[3]), low, high)
    if images.shape[3] == 3:  # colors are drawn from 0 to 1; the bar says what that was
        images = (images - low) / (high - low)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, image, label in zip(grid.flat, images, labels, strict=False):
        drawn = axes.imshow(image, cmap="gray", vmin=low, vmax=high, interpolation="nearest")
        axes.set_title(names[label], fontsize=8.5, color=INK, pad=3)
    bar = above.colorbar(drawn, ax=grid, aspect=40)
    bar.ax.tick_params(labelsize=8, colors=INK)
    bar.outline.set_visible(False)

    shape = " × ".join(map(str, inputs.shape))
    facts = f"{shown} of the batch {shape} {inputs.dtype}; values from {low:.4g} to {high:.4g}".replace("-", "−")
    facts += _permuted(dataset.transform.permutation)
    figure.suptitle(_title(datamodule), x=0.01, ha="left", fontsize=12, color=INK, weight="bold")
    above.suptitle(facts, x=0.01, ha="left", fontsize=8.5, color=FAINT)
    with replacing(path, "wb") as file:
        figure.savefig(file, format="png", metadata={"Software": None})


def _images(datamodule: PreparedDataModule) -> Any:
    dataset = datamodule._datasets["train"]
    if not isinstance(dataset, ImageDataset) or not isinstance(dataset.transform, PixelSequence):
        raise InputError(f"{type(datamodule).__name__}: is no dataset of images, so its batches cannot be drawn")
    return dataset


def _draw_curve(axes: Any, values: Any, low: float, high: float) -> None:
    """values (positions, channels) of one sequence."""
    for channel, color in enumerate(CHANNEL_COLORS.get(values.shape[1], ())):
        axes.plot(values[:, channel], color=color, linewidth=0.6, alpha=0.8)
    margin = 0.05 * (high - low)
    axes.set_xlim(0, len(values) - 1)
    axes.set_ylim(low - margin, high + margin)
    axes.set_xlabel("position in the sequence of the first image", fontsize=8.5, color=INK)
    axes.set_ylabel("value", fontsize=8.5, color=INK)
    axes.tick_params(labelsize=8, colors=INK)
    axes.spines[["top", "right"]].set_visible(False)


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


def _permuted(permutation: Any) -> str:
    if permutation is None:
        return "; pixels row by row"
    first = ", ".join(map(str, permutation[:6].tolist()))
    return f"; pixels {first}, … put row by row"
