"""A callback that writes the predictions of a data module's split into a CSV file, for `predict`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from torch import Tensor

from lra_ssm.errors import InputError
from lra_ssm.files import replacing

if TYPE_CHECKING:  # pandas takes half a second to import, and every fit imports this module
    import pandas as pd


def check_output_path(file: str, option: str = "--output") -> Path:
    """Return the file that an option names. Raises InputError if it cannot be written there."""
    path = Path(file)
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK | os.X_OK):
        raise InputError(f"{option} {path}: give a file in an existing folder that can be written")
    return path


class WritePredictions(BasePredictionWriter):
    """Writes a CSV file: one row per example with its label, its most probable class and the probabilities.

    Classes have the data module's names for them (`class_names`), else numbers. A batch is (inputs, labels) or
    (inputs, lengths, labels), labels (B,) integers; other batches have no label. For a task whose `predicts_classes`
    is false the rows are the predicted values, one row per position if it predicts each position.
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
        batches = [p.float().cpu() for p in predictions]
        names = getattr(getattr(trainer, "datamodule", None), "class_names", None) or ()
        rows, right = self._classes(torch.cat(batches), names) if classes else (_values(batches), "")
        existed = ", in place of the one before" if self.path.exists() else ""
        with replacing(self.path, newline="", encoding="utf-8", errors="backslashreplace") as file:
            rows.to_csv(file, float_format="%.6g")
        print(f"{sum(map(len, batches))} predictions{right} in {self.path}{existed}")

    def _classes(self, probabilities: Tensor, class_names: Any) -> "tuple[pd.DataFrame, str]":
        """Return a row per example of probabilities (examples, classes), and in words how many are right."""
        import pandas as pd

        names = class_names if len(class_names) == probabilities.shape[1] else range(probabilities.shape[1])
        predicted = probabilities.argmax(1)
        rows = pd.DataFrame(probabilities.numpy(), columns=[f"p_{name}" for name in names]).rename_axis("example")
        rows.insert(0, "prediction", [names[i] for i in predicted.tolist()])
        if not self._labels or any(labels is None for labels in self._labels):
            return rows, ""
        labels = torch.cat(self._labels)  # type: ignore[arg-type]
        rows.insert(0, "label", [names[i] for i in labels.tolist()])
        return rows, f", {(predicted == labels).float().mean().item():.2%} of them right,"


def _values(batches: list[Tensor]) -> "pd.DataFrame":
    """Return a row per example of batches (B, K), or per position of batches (B, L, K)."""
    import pandas as pd

    examples = [example for batch in batches for example in batch]
    frames = [pd.DataFrame(torch.atleast_2d(example).numpy()).add_prefix("y") for example in examples]
    rows = pd.concat(frames, keys=range(len(frames)), names=["example", "position"])
    return rows if examples[0].dim() == 2 else rows.droplevel("position")
