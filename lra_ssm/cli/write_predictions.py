"""What `predict` writes: a callback that makes a CSV file of the predictions of a data module's split."""

import csv
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from torch import Tensor

from lra_ssm.errors import InputError
from lra_ssm.files import replacing


def check_output_path(file: str, option: str = "--output") -> Path:
    """Return the file that an option names. Raises InputError if it cannot be written there."""
    path = Path(file)
    if path.is_dir():
        raise InputError(f"{option} {path}: this is a folder")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{option} {path}: its folder does not exist")
    if not os.access(path.absolute().parent, os.W_OK | os.X_OK):
        raise InputError(f"{option} {path}: its folder cannot be written")
    return path


def write_csv(path: Path, rows: Iterable[Sequence[object]]) -> str:
    """Writes rows, the first of which names the columns; returns where they are, as it is said."""
    before = ", in place of the one before" if path.exists() else ""
    with replacing(path, newline="", encoding="utf-8", errors="backslashreplace") as file:
        csv.writer(file).writerows(rows)
    return f"{path}{before}"


def shown(values: Tensor) -> list[str]:
    """The cells of values (n,)."""
    return [f"{value:.6g}" for value in values.tolist()]


class WritePredictions(BasePredictionWriter):
    """Writes a CSV file: one row per example with its label, its most probable class and the probabilities, classes by
    the names that the data module has for them (`class_names`), else by number; of a task whose `predicts_classes` is
    false with its values, one row per position where it has some at each.

    A batch is (inputs, labels) or (inputs, lengths, labels), labels (B,) integers; of other batches there is no label.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(write_interval="batch_and_epoch")
        self.path = path
        self._labels: list[Tensor | None] = []

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._labels.clear()

    def write_on_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, prediction: Any, batch_indices: Any, batch: Any,
        batch_idx: int, dataloader_idx: int,
    ) -> None:  # fmt: skip
        last = batch[-1] if isinstance(batch, (tuple, list)) and len(batch) in (2, 3) else None
        labels = last if isinstance(last, Tensor) and last.dim() == 1 and not last.is_floating_point() else None
        self._labels.append(labels.cpu() if labels is not None and len(labels) == len(prediction) else None)

    def write_on_epoch_end(
        self, trainer: Trainer, pl_module: LightningModule, predictions: Any, batch_indices: Any
    ) -> None:
        if trainer.world_size > 1:
            raise InputError("predict writes what one device saw: run it with --trainer.devices=1")
        classes = getattr(pl_module, "predicts_classes", True)
        shapes = "(batch, classes)" if classes else "(batch, outputs) or (batch, length, outputs)"
        if not all(isinstance(p, Tensor) and (p.dim() == 2 or (p.dim() == 3 and not classes)) for p in predictions):
            raise InputError(f"predictions.csv takes what predict_step returns as a tensor {shapes}, nothing else")
        if not classes:
            self._write_values([p.float().cpu() for p in predictions])
            return
        rows = torch.cat(list(predictions)).float().cpu()
        predicted = rows.argmax(1)
        known = [labels for labels in self._labels if labels is not None]
        labels = torch.cat(known) if known and len(known) == len(self._labels) else None
        names = getattr(getattr(trainer, "datamodule", None), "class_names", None) or ()
        if len(names) != rows.shape[1]:
            names = range(rows.shape[1])
        written: list[list[object]] = [["example", *([] if labels is None else ["label"]), "prediction"]]
        written[0] += [f"p_{name}" for name in names]
        for i, row in enumerate(rows):
            label = [] if labels is None else [names[int(labels[i])]]
            written.append([i, *label, names[int(predicted[i])], *shown(row)])
        place = write_csv(self.path, written)
        right = "" if labels is None else f", {(predicted == labels).float().mean().item():.2%} of them right,"
        print(f"{len(rows)} predictions{right} in {place}")

    def _write_values(self, batches: list[Tensor]) -> None:
        """Batches (B, K) or (B, L, K)."""
        examples = [example for batch in batches for example in batch]
        by_position = examples[0].dim() == 2
        written: list[list[object]] = [["example", *(["position"] if by_position else [])]]
        written[0] += [f"y{i}" for i in range(examples[0].shape[-1])]
        for number, example in enumerate(examples):
            for position, row in enumerate(example if by_position else example[None]):
                written.append([number, *([position] if by_position else []), *shown(row)])
        print(f"predictions of {len(examples)} examples in {write_csv(self.path, written)}")
