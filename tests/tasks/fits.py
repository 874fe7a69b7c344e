"""Small networks of tokens and of features, and fits of batches."""

from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tests.datamodules.helpers import trainer


class Table(nn.Module):
    """Logits by token, without any layer: (B, L, classes), or with `first` (B, classes) for the first position."""

    def __init__(self, classes: int = 5, tokens: int = 5, first: bool = False) -> None:
        super().__init__()
        self.table, self.first = nn.Embedding(tokens, classes), first

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.table(inputs[:, 0] if self.first else inputs)


class Scale(nn.Module):
    """Features times a factor: (B, L, K), or with `first` (B, K) for the first position."""

    def __init__(self, first: bool = False) -> None:
        super().__init__()
        self.factor, self.first = nn.Parameter(torch.tensor(2.0)), first

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.factor * (inputs[:, 0] if self.first else inputs)


def loader(batches: list[Any]) -> DataLoader[Any]:
    return DataLoader(batches, batch_size=None)  # type: ignore[arg-type]


def fitted(task: LightningModule, batches: list[Any], **settings: Any) -> Trainer:
    """Fit the task to these batches, by default once to each."""
    fitting = trainer(**{"max_epochs": 1, **settings})
    fitting.fit(task, loader(batches))
    return fitting


def scores_of(task: LightningModule, data: list[Any] | LightningDataModule) -> dict[str, float]:
    """Return what the task logs of a split of these batches, by name; validation and test log the same."""
    source: dict[str, Any] = {"dataloaders": loader(data)} if isinstance(data, list) else {"datamodule": data}
    (validated,), (tested,) = (run(task, **source, verbose=False) for run in (trainer().validate, trainer().test))
    assert {name.replace("val/", "test/"): value for name, value in validated.items()} == tested
    return {name.removeprefix("test/"): value for name, value in tested.items()}
