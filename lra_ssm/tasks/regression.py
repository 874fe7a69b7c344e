"""Regression as a LightningModule: real targets for a sequence, or for each of its positions.

Shapes: B batch, L length, K outputs.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lra_ssm.errors import InputError
from lra_ssm.layers import valid_mask
from lra_ssm.layers.contract import wrong_output
from lra_ssm.layers.spec import NetworkFactory
from lra_ssm.tasks.base import NetworkTask, ddp_loss_weight, unpack
from lra_ssm.tasks.metrics import Mean, Metrics, RelativeError
from lra_ssm.tasks.optim import DEFAULTS, OptimizerSettings
from lra_ssm.width.scaling import WidthSettings


class Regression(NetworkTask):
    """Trains a network with the mean squared error.

    A batch is (inputs, lengths, labels) or (inputs, labels): inputs (B, L) int64 or (B, L, features), lengths (B,),
    labels (B, K) or (B, L, K) float; padding is not scored.

    Logged for validation and test, over everything that is scored: `loss`, the squared error, averaged over outputs
    too; `l2_error`, the mean of ‖ŷ − y‖₂ over examples (and positions); `relative_error`, that divided by the root mean
    square of ‖y‖₂.

    Args:
        network: a specification: a `Regressor`, or any class whose instances map (inputs, lengths) to outputs with the
            labels' shape.
        optimizer: how its parameters are trained; an `OptimizerSettings` or its values by name.
        metrics: further metrics of validation and test by name, as specifications of torchmetrics' or other classes
            that take (outputs (n, K), targets (n, K)), without padding, such as MeanAbsoluteError: val/<name>,
            test/<name>.
        width: a width parameterization, `WidthSettings` or its values by name; None leaves the model as it is.

    Raises:
        InputError: a metric is not valid.
    """

    predicts_classes = False  # predictions.csv has values, not probabilities

    def __init__(
        self,
        network: NetworkFactory,
        optimizer: OptimizerSettings = DEFAULTS,
        metrics: Metrics | None = None,
        width: WidthSettings | None = None,
    ) -> None:
        super().__init__(network, optimizer, width)
        self.take_metrics(metrics, lambda: {"loss": Mean(), "l2_error": Mean(), "relative_error": RelativeError()})

    def dry_run(self, batch: Any, num_classes: int | None = None) -> None:
        """Run the network and the metrics on a batch and build the optimizer, without a loss or logs.

        Raises InputError if outputs and targets have different shapes, the targets are classes, or a metric refuses
        them.
        """
        self.try_optimizer()
        self.try_metrics(*self._scored(batch))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        outputs, targets = self._scored(batch)
        errors = outputs - targets
        loss = errors.square().mean()
        self.log("train/loss", loss, batch_size=len(errors))
        return loss * ddp_loss_weight(len(errors), errors)

    def evaluate(self, batch: Any, metrics: Mapping[str, Any]) -> None:
        outputs, targets = self._scored(batch)
        errors = outputs - targets
        norms = errors.norm(dim=-1)
        metrics["loss"].update(errors.square())
        metrics["l2_error"].update(norms)
        metrics["relative_error"].update(norms, targets.norm(dim=-1))
        for name in self.metric_specs:
            metrics[name].update(outputs, targets)

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the network's outputs, (B, K) or (B, L, K)."""
        inputs, lengths, _ = unpack(batch)
        return self(inputs, lengths)

    def _scored(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return the outputs and targets that are scored, one row of K each: (n, K).

        Raises InputError if the targets are classes or have another shape than the outputs.
        """
        inputs, lengths, labels = unpack(batch)
        if not labels.is_floating_point():
            raise InputError("the data has classes, not real targets: the task for them is Classification")
        outputs = self(inputs, lengths)
        if not isinstance(outputs, Tensor) or outputs.shape != labels.shape:
            rule = (
                f"the targets are {tuple(labels.shape)}; a Regressor has an output at every position with"
                " model.network.pooling null, otherwise one per sequence"
            )
            raise wrong_output(self.network, outputs, inputs, rule, "inputs")
        if outputs.dim() == 2 or lengths is None:
            return outputs.flatten(0, -2), labels.flatten(0, -2)
        real = valid_mask(lengths, labels.shape[1]).squeeze(-1)
        return outputs[real], labels[real]
