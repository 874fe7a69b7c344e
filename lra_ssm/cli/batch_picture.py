"""Draw one batch of an image task as the model sees it."""

from pathlib import Path
from typing import Any

from lra_ssm.datamodules.base import PreparedData
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

    loader = datamodule.train_dataloader()
    dataset: Any = loader.dataset
    batch: Any = next(iter(loader))
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
        figure.suptitle(
            f"{_title(datamodule)}\n{facts}{_describe_order(dataset.transform.permutation)}", x=0.01, ha="left"
        )
        with replacing(path, "wb") as file:
            figure.savefig(file, format="png", metadata={"Software": None})


def _title(datamodule: PreparedData) -> str:
    source = datamodule.manifest()["source"]
    names = ("resolution", "difficulty", "permutation", "inputs")
    settings = {name: getattr(datamodule, name, None) for name in names}
    texts = [f"{name} {value}" for name, value in settings.items() if value not in (None, "none")]
    return " · ".join([type(datamodule).__name__, source["kind"], *texts])


def _describe_order(permutation: Any) -> str:
    if permutation is None:
        return "; pixels row by row"
    first = ", ".join(map(str, permutation[:6].tolist()))
    return f"; pixels {first}, … put row by row"
