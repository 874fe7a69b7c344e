"""Draw one batch of an image task as the model sees it."""

from pathlib import Path
from typing import Any

from lra_ssm.datamodules.images import ImageData
from lra_ssm.files import replacing

COLUMNS, ROWS = 6, 3


def draw_batch(datamodule: ImageData, path: Path) -> None:
    """Draw the first training batch of a prepared image dataset into a PNG file.

    Each sequence, normalized and permuted, is put back into rows and drawn below the name of its class. The first one
    is also drawn as a curve.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    batch: Any = next(iter(datamodule.train_dataloader()))
    inputs, labels = batch.inputs.numpy(), batch.labels.tolist()
    low, high = float(inputs.min()), float(inputs.max())
    num_drawn = min(len(inputs), COLUMNS * ROWS)
    rows = -(-num_drawn // COLUMNS)
    names = getattr(datamodule, "class_names", None) or range(max(labels) + 1)
    images = inputs.reshape(len(inputs), *datamodule.image_size, -1)
    curve = images[0].reshape(-1, images.shape[3])
    colors = images.shape[3] == 3
    with rc_context({"font.size": 8.5, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(9, 1.75 * rows + 2.3), dpi=110, layout="constrained")
        grid = figure.add_gridspec(rows + 1, COLUMNS)
        panels = [figure.add_subplot(grid[divmod(i, COLUMNS)]) for i in range(num_drawn)]
        for axes, image, label in zip(panels, images, labels, strict=False):
            axes.set_axis_off()
            # Colors are rescaled to 0 … 1; the color bar shows the original values.
            pixels = (image - low) / (high - low) if colors else image
            drawn = axes.imshow(pixels, cmap="gray", vmin=low, vmax=high, interpolation="nearest")
            axes.set_title(names[label])
        figure.colorbar(drawn, ax=panels, aspect=40)
        below = figure.add_subplot(grid[rows, :])
        for channel, color in zip(curve.T, ("#c0392b", "#27833b", "#2a5db0") if colors else ("#222222",), strict=True):
            below.plot(channel, color=color, linewidth=0.6, alpha=0.8)
        below.set(xlim=(0, len(curve) - 1), xlabel="position in the sequence of the first image", ylabel="value")
        shape = " × ".join(map(str, inputs.shape))
        facts = f"{num_drawn} of the batch {shape} {inputs.dtype}; values from {low:.4g} to {high:.4g}"
        figure.suptitle(f"{datamodule.describe()}\n{facts}", x=0.01, ha="left")
        with replacing(path, "wb") as file:
            figure.savefig(file, format="png", metadata={"Software": None})
