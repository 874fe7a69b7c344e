"""Sequence classification as a LightningModule.

Shapes: B batch, L length.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lra_ssm.errors import InputError
from lra_ssm.layers.contract import wrong_output
from lra_ssm.layers.spec import NetworkFactory
from lra_ssm.tasks.base import NetworkTask, ddp_loss_weight, unpack
from lra_ssm.tasks.metrics import Mean, Metrics
from lra_ssm.tasks.optim import DEFAULTS, OptimizerSettings
from lra_ssm.width.scaling import WidthSettings


class Classification(NetworkTask):
    """Trains a network with cross-entropy; reports micro accuracy, as the LRA tables do.

    A batch is (inputs, lengths, labels) or (inputs, labels): inputs (B, L) int64 or (B, L, features), lengths (B,),
    labels (B,) int64; for a `DualEncoder` inputs (B, 2, L) and lengths (B, 2).

    Args:
        network: a specification: a `Classifier`, a `DualEncoder`, or any class whose instances map (inputs, lengths) to
            logits (B, number of classes).
        optimizer: how its parameters are trained; an `OptimizerSettings` or its values by name.
        label_smoothing: share of each label that is spread over all classes in the training loss (Szegedy et al. 2016,
            section 7); at least 0 and below 1. The loss of validation and test is plain cross-entropy.
        class_weights: weight of each class in the training loss, which is divided by the sum of the batch's weights;
            None weights all equally.
        metrics: further metrics of validation and test by name, as specifications of torchmetrics' or other classes
            that take (logits (B, num_classes), labels (B,)), such as MulticlassF1Score: val/<name>, test/<name>.
        width: a width parameterization, `WidthSettings` or its values by name; None leaves the model as it is.

    Raises:
        InputError: label_smoothing is out of range, a class weight is not above 0, or a metric is not valid.
    """

    in_progress_bar = ("accuracy",)
    class_weights: Tensor | None

    def __init__(
        self,
        network: NetworkFactory,
        optimizer: OptimizerSettings = DEFAULTS,
        label_smoothing: float = 0.0,
        class_weights: list[float] | None = None,
        metrics: Metrics | None = None,
        width: WidthSettings | None = None,
    ) -> None:
        super().__init__(network, optimizer, width)
        if not 0 <= label_smoothing < 1:
            raise InputError(f"model.label_smoothing is {label_smoothing}; it must be at least 0 and below 1")
        if class_weights is not None and not all(0 < weight < math.inf for weight in class_weights):
            raise InputError(f"model.class_weights is {class_weights}; each must be a number above 0")
        self.label_smoothing = float(label_smoothing)
        weights = None if class_weights is None else torch.tensor(class_weights, dtype=torch.float32)
        self.register_buffer("class_weights", weights, persistent=False)
        self.save_hyperparameters({"label_smoothing": self.label_smoothing, "class_weights": class_weights})
        self.take_metrics(metrics, lambda: {"loss": Mean(), "accuracy": Mean()})

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        logits = self.network(inputs, lengths)
        if not (isinstance(logits, Tensor) and logits.dim() == 2 and len(logits) == len(inputs)):
            raise wrong_output(self.network, logits, inputs, "a network gives logits (batch, num_classes)", "inputs")
        return logits

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean training loss () of logits (B, num_classes) and labels (B,), unless there are class weights.

        A subclass may override it.
        """
        return F.cross_entropy(logits, labels, label_smoothing=self.label_smoothing)

    def dry_run(self, batch: Any, num_classes: int | None = None) -> None:
        """Run the network and the metrics on a batch and build the optimizer, without a loss or logs.

        num_classes: the data's number of classes, if known. Raises InputError for fewer logits than classes, for
        another number of class weights, and for metrics that refuse the logits.
        """
        self.try_optimizer()
        inputs, lengths, labels = _examples(batch)
        logits = self(inputs, lengths)
        if num_classes is not None and logits.shape[1] < num_classes:
            rule = f"the data has {num_classes} classes, and each has a logit"
            raise wrong_output(self.network, logits, inputs, rule, "inputs")
        weights, classes = self.class_weights, logits.shape[1]
        if weights is not None and len(weights) != classes:
            raise InputError(
                f"model.class_weights has {len(weights)} numbers, but the network has logits for {classes} classes"
            )
        self.try_metrics(logits, labels)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs, lengths, labels = _examples(batch)
        logits = self(inputs, lengths)
        if self.class_weights is None:
            mean = self.loss(logits, labels)
            self.log("train/loss", mean, batch_size=len(labels))
            loss = mean * ddp_loss_weight(len(labels), labels)
        else:  # the mean over all devices, whose sums of weights differ
            weights, smoothing = self.class_weights, self.label_smoothing
            total = F.cross_entropy(logits, labels, weights, reduction="sum", label_smoothing=smoothing)
            loss = self.log_mean_loss(total, weights[labels].sum(), len(labels))
        self.log("train/accuracy", _correct(logits, labels).mean(), batch_size=len(labels))
        return loss

    def evaluate(self, batch: Any, metrics: Mapping[str, Any]) -> None:
        inputs, lengths, labels = _examples(batch)
        logits = self(inputs, lengths)
        metrics["loss"].update(F.cross_entropy(logits, labels), weight=len(labels))
        metrics["accuracy"].update(_correct(logits, labels))
        for name in self.metric_specs:
            metrics[name].update(logits, labels)

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return probabilities (B, num_classes)."""
        inputs, lengths, _ = unpack(batch)
        return self(inputs, lengths).softmax(-1)


def _examples(batch: Any) -> tuple[Tensor, Tensor | None, Tensor]:
    """Unpack a batch. Raises InputError for real targets, which cross-entropy would read as shares of classes."""
    inputs, lengths, labels = unpack(batch)
    if labels.is_floating_point():
        raise InputError("the data has real targets, not classes: the task for them is Regression")
    return inputs, lengths, labels


def _correct(logits: Tensor, labels: Tensor) -> Tensor:
    """Return 1 where the most probable class is the label, otherwise 0: (B,) float."""
    return (logits.argmax(-1) == labels).float()
