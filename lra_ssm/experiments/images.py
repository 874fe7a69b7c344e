"""Images in memory, for trainings without a Trainer: n images of L pixels and C channels."""

from collections.abc import Iterator
from dataclasses import fields
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lra_ssm.datamodules.images.published import PublishedImages
from lra_ssm.datamodules.loading.batches import Batch
from lra_ssm.datamodules.storage.format import MANIFEST, PreparedDataset, open_prepared
from lra_ssm.datamodules.synthetic.base import SPLITS
from lra_ssm.errors import InputError
from lra_ssm.experiments.train import shuffled


class Images(NamedTuple):
    """Splits whole, by name: inputs (n, L, C) float32, no lengths, labels (n,) int64."""

    splits: dict[str, Batch]
    pixels: str  # "exact"; "lossy", out of JPEG files; "made up"


def images_of(data: PublishedImages) -> Images:
    """What is prepared for `data`; where its own source is not, what another of the same images is prepared from.

    Raises InputError: nothing is; it names the `lra-ssm prepare` command.
    """
    prepared = _prepared(data)
    datasets = {name: data.make_dataset(prepared.split(name), name) for name in SPLITS}
    splits = {name: dataset.batch(np.arange(len(dataset)), 0) for name, dataset in datasets.items()}
    return Images(splits, "lossy" if prepared.manifest["source"].get("lossy") else "exact")  # type: ignore[arg-type]


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


def _prepared(data: PublishedImages) -> PreparedDataset:
    folders = sorted(file.parent for file in (data.data_root / data.dataset).glob(f"*/{MANIFEST}"))
    own = data.prepared_folder if data.is_prepared() else None
    for prepared in map(open_prepared, sorted(folders, key=lambda folder: folder != own)):
        source, shape = prepared.manifest["source"], prepared.manifest["splits"]["train"]["arrays"]["images"]["shape"]
        same = source["split"]["seed"] == data.split_seed and source["limit"] == data.limit
        if same and data.stored_settings().items() <= source.items() and tuple(shape[1:3]) == data.image_size:
            return prepared
    raise InputError(
        f"{data.data_root}: {data.dataset} is not prepared; `{_command(data)}` does, with --source of yours"
    )


def _command(data: PublishedImages) -> str:
    other = {"source", *data.neutral_settings, *data.order_settings()}
    given = [one for one in fields(data) if one.init and one.name not in other]
    options = [f"--{one.name}={value}" for one in given if (value := getattr(data, one.name)) != one.default]
    return " ".join(["lra-ssm prepare", data.command, f"--root={data.data_root}", *options])
