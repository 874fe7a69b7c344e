"""A tiny dataset, what is stored of one, a model that keeps its batches, and where the real data are."""

import os
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch

from lra_ssm.datamodules import SequenceData
from lra_ssm.datamodules.storage import Prepared, Split


def prepared(data: Any, *stages: str | None) -> Any:
    """Prepare a data module and set it up for these stages."""
    data.prepare_data()
    for stage in stages:
        data.setup(stage)
    return data


def real_data(name: str) -> Path:
    """A file or folder of the real data; skips where it is not there."""
    folder = os.environ.get("LRA_SSM_TEST_DATA")
    if not folder or not (Path(folder) / name).exists():
        pytest.skip(f"LRA_SSM_TEST_DATA does not name a folder with {name}")
    return Path(folder) / name


def sequences(split: Split) -> list[list[int]]:
    """The sequences of a split, which are stored one after another."""
    return [part.tolist() for part in np.split(split["tokens"], split["offsets"][1:-1])]


def words(data: Any, name: str) -> list[list[str]]:
    """The sequences of a split as words of the vocabulary, without the `<eos>` that each ends with."""
    vocabulary, found = data.manifest()["vocabulary"], sequences(data.prepared.split(name))
    assert all(tokens[-1] == 2 and 2 not in tokens[:-1] for tokens in found)
    return [[vocabulary[token] for token in tokens[:-1]] for tokens in found]


def texts(data: Any, name: str) -> list[str]:
    """The same of characters."""
    return ["".join(characters) for characters in words(data, name)]


def digests(data: Any) -> list[str]:
    splits = data.manifest()["splits"].values()
    return [array["sha256"] for split in splits for array in split["arrays"].values()]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


class Tiny(SequenceData):
    """Sequences of lengths 1 to 7 whose label is their index."""

    sources = ("made",)
    source: str = "made"
    num_classes, vocabulary = 26, tuple("abcde")
    num_train: int = 26
    num_val: int = 6

    def examples(self):
        for name, count in (("train", self.num_train), ("val", self.num_val)):
            for index in range(count):
                yield name, [1 + index % 4] * (1 + index % 7), index


def tiny_dataset(root: Path, **settings: Any) -> Prepared:
    return prepared(Tiny(root=str(root), **settings)).prepared


class Recorder(L.LightningModule):
    """Keeps the batches that it is trained and validated on; its weight depends on their order."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.batches, self.validated = list[Any](), list[Any]()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.batches.append(batch)
        return (self.weight * batch[-1 if hasattr(batch, "labels") else 0].double().mean()).sin()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.validated.append(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def trainer(**settings: Any) -> L.Trainer:
    silent = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return L.Trainer(accelerator="cpu", enable_checkpointing=False, num_sanity_val_steps=0, **silent, **settings)


def fit(data: Any, path: Path | None = None, **settings: Any) -> Recorder:
    """Train on a data module or loader, from a checkpoint if one is given; its warnings are not of interest."""
    model = Recorder()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer(**settings).fit(model, data, ckpt_path=path, weights_only=True)
    return model
