"""Sequence classification as a LightningModule.

Shapes: B batch, L length.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from lra_ssm.layers import LayerSpec
from lra_ssm.models import Classifier, DualEncoder
from lra_ssm.tasks.optim import parameter_groups, warmup_cosine


class Classification(L.LightningModule):
    """Trains a `Classifier`, or a `DualEncoder`, with cross-entropy; reports micro accuracy, as the LRA tables do.

    A batch is (inputs, lengths, labels) or (inputs, labels): inputs (B, L) int64 or (B, L, features), lengths (B,),
    labels (B,) int64; for a DualEncoder inputs (B, 2, L) and lengths (B, 2).
    The first ten arguments are the model's. pair_head: the DualEncoder's head; None for a Classifier. lr, recurrent_lr,
    delta_lr_factor, weight_decay: see `lra_ssm.tasks.optim`. warmup_steps: optimizer steps of linear warm-up before the
    cosine.
    """

    def __init__(
        self,
        layer: Callable[[int], nn.Module],
        num_classes: int,
        vocab_size: int | None = None,
        d_input: int | None = None,
        d_model: int = 128,
        n_layers: int = 8,
        norm: Literal["batch", "layer", "rms"] = "batch",
        prenorm: bool = False,
        dropout: float = 0.0,
        pooling: Literal["mean", "last", "max"] = "mean",
        lr: float = 0.01,
        recurrent_lr: float = 0.001,
        delta_lr_factor: float | None = None,
        weight_decay: float = 0.05,
        warmup_steps: int = 1000,
        pair_head: Literal["nli", "lra"] | None = None,
    ) -> None:
        super().__init__()
        rates = {
            "lr": lr,
            "recurrent_lr": recurrent_lr,
            "delta_lr_factor": delta_lr_factor,
            "weight_decay": weight_decay,
        }
        for name, value in {**rates, "warmup_steps": warmup_steps}.items():
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value}; it must be a number of at least 0")
        spec = LayerSpec.of(layer)
        shape = (num_classes, vocab_size, d_input, d_model, n_layers, norm, prenorm, dropout, pooling)
        self.model = Classifier(spec, *shape) if pair_head is None else DualEncoder(spec, *shape, pair_head)
        layer = spec.as_dict()  # type: ignore[assignment]  # what save_hyperparameters stores: the plain dict
        self.save_hyperparameters()
        self.val_loss, self.test_loss = MeanMetric(), MeanMetric()
        self.val_accuracy = MulticlassAccuracy(num_classes, average="micro")
        self.test_accuracy = MulticlassAccuracy(num_classes, average="micro")

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.model(inputs, lengths)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs, lengths, labels = _unpack(batch)
        logits = self(inputs, lengths)
        loss = F.cross_entropy(logits, labels)
        accuracy = (logits.argmax(-1) == labels).float().mean()
        self.log("train/loss", loss, prog_bar=True, batch_size=len(labels))
        self.log("train/accuracy", accuracy, batch_size=len(labels))
        return loss * _share(labels)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._evaluate(batch, "val", self.val_loss, self.val_accuracy)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self._evaluate(batch, "test", self.test_loss, self.test_accuracy)

    def _evaluate(self, batch: Any, split: str, mean_loss: MeanMetric, accuracy: MulticlassAccuracy) -> None:
        """Every example counts once, whatever the sizes of batches and the shares of devices."""
        inputs, lengths, labels = _unpack(batch)
        logits = self(inputs, lengths)
        size = len(labels)
        mean_loss(F.cross_entropy(logits, labels), weight=size)
        accuracy(logits, labels)
        self.log(f"{split}/loss", mean_loss, on_step=False, on_epoch=True, batch_size=size)
        self.log(f"{split}/accuracy", accuracy, on_step=False, on_epoch=True, prog_bar=True, batch_size=size)

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Probabilities (B, num_classes)."""
        inputs, lengths, _ = _unpack(batch)
        return self(inputs, lengths).softmax(-1)

    def configure_optimizers(self) -> Any:
        h = self.hparams
        groups = parameter_groups(self.model, h["lr"], h["recurrent_lr"], h["weight_decay"], h["delta_lr_factor"])
        optimizer = torch.optim.AdamW(groups)
        total = int(self.trainer.estimated_stepping_batches)
        if h["warmup_steps"] >= total:
            rank_zero_warn(
                f"the run has {total} steps, all within warmup_steps {h['warmup_steps']}: lr stays below {h['lr']}"
            )
        schedule = warmup_cosine(optimizer, h["warmup_steps"], total)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def _share(labels: Tensor) -> float | Tensor:
    """What this process's mean loss counts for where the gradients of all are averaged: the last batch of an epoch may
    not be shared out evenly. labels (B,)."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return 1.0
    total = torch.tensor(float(len(labels)), device=labels.device)
    dist.all_reduce(total)
    return len(labels) * dist.get_world_size() / total


def _unpack(batch: Any) -> tuple[Tensor, Tensor | None, Tensor]:
    if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
        raise TypeError(f"a batch is (inputs, lengths, labels) or (inputs, labels), not {type(batch).__name__}")
    return batch[0], batch[1] if len(batch) == 3 else None, batch[-1]
