"""Images in memory, for trainings without a Trainer: n images of L pixels and C channels."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lra_ssm.datamodules.batches import Batch
from lra_ssm.datamodules.images import PublishedImages
from lra_ssm.datamodules.synthetic.base import SPLITS
from lra_ssm.errors import InputError
from lra_ssm.experiments.train import shuffled


class Images(NamedTuple):
    """Splits whole, by name: inputs (n, L, C) float32, no lengths, labels (n,) int64."""

    splits: dict[str, Batch]
    pixels: str  # "exact"; "made up"


def images_of(data: PublishedImages) -> Images:
    """The prepared data of `data`. Raises InputError if it is not prepared."""
    if not data.is_prepared():
        command = f"lra-ssm prepare {type(data).__name__.lower()} --root={data.data_root}"
        raise InputError(f"{data.data_root}: {data.dataset} is not prepared; `{command}` does, with --source of yours")
    datasets = {name: data.open_split(name) for name in SPLITS}
    splits = {name: dataset.batch(np.arange(len(dataset)), 0) for name, dataset in datasets.items()}
    return Images(splits, "exact")  # type: ignore[arg-type]


def made_up(data: PublishedImages, count: int = 60) -> Images:
    """Noise in the shape of `data`, brighter by class, for quick forms: `count` images in each split."""
    labels = torch.arange(count) % (data.num_classes or 1)
    noise = torch.randn(3, count, data.longest, data.d_input or 1, generator=torch.Generator().manual_seed(0))
    made = (Batch(values + labels[:, None, None] / 5 - 1, None, labels) for values in noise)
    return Images(dict(zip(SPLITS, made, strict=True)), "made up")


def batches_of(images: Batch, size: int, seed: int) -> Iterator[Batch]:
    """As `train.shuffled` has them, without end."""
    for _, part in shuffled(len(images.labels), size, seed):
        yield Batch(images.inputs[part], None, images.labels[part])


@torch.no_grad()
def logits(network: nn.Module, images: Batch) -> Tensor:
    """What a classifier says of each: (n, K)."""
    network.eval()
    return torch.cat([network(part) for part in images.inputs.split(200)])
