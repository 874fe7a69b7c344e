"""Sequence classification as a LightningModule.

Shapes: B batch, L length.
"""

from dataclasses import asdict
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import MeanMetric

from lra_ssm.errors import InputError
from lra_ssm.layers import NetworkSpec, check_lengths
from lra_ssm.layers.contract import check_call, wrong_output
from lra_ssm.layers.spec import NetworkFactory
from lra_ssm.tasks.optim import DEFAULTS, OptimizerSettings, optimizer_and_schedule, parameter_rates


class Classification(L.LightningModule):
    """Trains a network with cross-entropy; reports micro accuracy, as the LRA tables do.

    A batch is (inputs, lengths, labels) or (inputs, labels): inputs (B, L) int64 or (B, L, features), lengths (B,),
    labels (B,) int64; for a `DualEncoder` inputs (B, 2, L) and lengths (B, 2).

    Args:
        network: a specification: a `Classifier`, a `DualEncoder`, or any class whose instances map (inputs, lengths) to
            logits (B, number of classes).
        optimizer: how its parameters are trained; an `OptimizerSettings` or its values by name.
    """

    def __init__(self, network: NetworkFactory, optimizer: OptimizerSettings = DEFAULTS) -> None:
        super().__init__()
        spec = NetworkSpec.of(network)
        optimizer = OptimizerSettings.of(optimizer)
        self.network = spec()
        check_call(self.network, "network", "inputs", "lengths")
        self.optimizer_settings = optimizer
        self.save_hyperparameters({"network": spec.as_dict(), "optimizer": asdict(optimizer)})
        self.val_loss, self.test_loss = MeanMetric(), MeanMetric()
        self.val_accuracy, self.test_accuracy = MeanMetric(), MeanMetric()

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        logits = self.network(inputs, lengths)
        if not (isinstance(logits, Tensor) and logits.dim() == 2 and len(logits) == len(inputs)):
            raise wrong_output(self.network, logits, inputs, "a network gives logits (batch, num_classes)", "inputs")
        return logits

    def try_batch(self, batch: Any, num_classes: int | None = None) -> None:
        """The network on a batch, and what its parameters are to the optimizer: no loss, no log.

        num_classes: of the data, where that says it. Raises InputError for logits of fewer classes.
        """
        parameter_rates(self.network, self.optimizer_settings)
        inputs, lengths, _ = _unpack(batch)
        logits = self(inputs, lengths)
        if num_classes is not None and logits.shape[1] < num_classes:
            rule = f"the data has {num_classes} classes, and each has a logit"
            raise wrong_output(self.network, logits, inputs, rule, "inputs")

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Looks at the lengths while they are still on the CPU: on a GPU every look would have to wait for it.

        Raises InputError for lengths that the inputs cannot have."""
        inputs, lengths, _ = _unpack(batch)
        if isinstance(inputs, Tensor) and isinstance(lengths, Tensor) and inputs.dim() > lengths.dim() > 0:
            try:
                check_lengths(lengths.flatten(), inputs.flatten(0, lengths.dim() - 1), least=1)
            except ValueError as error:
                raise InputError(f"a batch of the data has {error}") from error
        return batch

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs, lengths, labels = _unpack(batch)
        logits = self(inputs, lengths)
        loss = F.cross_entropy(logits, labels)
        self.log("train/loss", loss, prog_bar=True, batch_size=len(labels))
        self.log("train/accuracy", _right(logits, labels).mean(), batch_size=len(labels))
        return loss * _share(labels)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._evaluate(batch, "val", self.val_loss, self.val_accuracy)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self._evaluate(batch, "test", self.test_loss, self.test_accuracy)

    def _evaluate(self, batch: Any, split: str, mean_loss: MeanMetric, accuracy: MeanMetric) -> None:
        """Every example counts once, whatever the sizes of batches and the shares of devices."""
        inputs, lengths, labels = _unpack(batch)
        logits = self(inputs, lengths)
        size = len(labels)
        mean_loss(F.cross_entropy(logits, labels), weight=size)
        accuracy(_right(logits, labels))
        self.log(f"{split}/loss", mean_loss, on_step=False, on_epoch=True, batch_size=size)
        self.log(f"{split}/accuracy", accuracy, on_step=False, on_epoch=True, prog_bar=True, batch_size=size)

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Probabilities (B, num_classes)."""
        inputs, lengths, _ = _unpack(batch)
        return self(inputs, lengths).softmax(-1)

    def configure_optimizers(self) -> Any:
        settings, total = self.optimizer_settings, int(self.trainer.estimated_stepping_batches)
        if settings.warmup_of(total) >= total:
            rank_zero_warn(
                f"the run has {total} steps, all within warmup_steps {settings.warmup_steps:g}: "
                f"lr stays below {settings.lr}"
            )
        return optimizer_and_schedule(self.network, settings, total)


def _right(logits: Tensor, labels: Tensor) -> Tensor:
    """1 where the most probable class is the label, else 0: (B,) float."""
    return (logits.argmax(-1) == labels).float()


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
