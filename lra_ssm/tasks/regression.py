"""Regression as a LightningModule: real targets of a sequence, or of each of its positions.

Shapes: B batch, L length, K outputs.
"""

from typing import Any

from torch import Tensor

from lra_ssm.errors import InputError
from lra_ssm.layers import valid_mask
from lra_ssm.layers.contract import wrong_output
from lra_ssm.layers.spec import NetworkFactory
from lra_ssm.tasks.base import NetworkTask, share, unpack
from lra_ssm.tasks.metrics import Mean, Metrics, RelativeError
from lra_ssm.tasks.optim import DEFAULTS, OptimizerSettings
from lra_ssm.width.scaling import WidthSettings


class Regression(NetworkTask):
    """Trains a network with the mean squared error.

    A batch is (inputs, lengths, labels) or (inputs, labels): inputs (B, L) int64 or (B, L, features), lengths (B,),
    labels (B, K) or (B, L, K) float, of which padding is passed over.

    Logged of validation and test, over all that is scored: `loss`, the squared error, mean over outputs too;
    `l2_error`, the mean of ‖ŷ − y‖₂ over examples (and positions); `relative_error`, that divided by the root mean
    square of ‖y‖₂.

    Args:
        network: a specification: a `Regressor`, or any class whose instances map (inputs, lengths) to outputs of the
            labels' shape.
        optimizer: how its parameters are trained; an `OptimizerSettings` or its values by name.
        metrics: further ones of validation and test by name, as specifications of torchmetrics' or other classes that
            take (outputs (n, K), targets (n, K)), padding left out, such as MeanAbsoluteError: val/<name>, test/<name>.

    Raises InputError for a metric that is not valid.
    """

    predicts_classes = False  # so predictions.csv has values, no probabilities
    own_metrics = ("loss", "l2_error", "relative_error")

    def __init__(
        self,
        network: NetworkFactory,
        optimizer: OptimizerSettings = DEFAULTS,
        metrics: Metrics | None = None,
        width: WidthSettings | None = None,
    ) -> None:
        super().__init__(network, optimizer, width)
        self.take_metrics(metrics)
        self.val_loss, self.val_l2_error, self.val_relative_error = Mean(), Mean(), RelativeError()
        self.test_loss, self.test_l2_error, self.test_relative_error = Mean(), Mean(), RelativeError()

    def try_batch(self, batch: Any, num_classes: int | None = None) -> None:
        """The network on a batch, and what its parameters are to the optimizer: no loss, no log.

        Raises InputError where the outputs are not in the targets' shape, the targets are classes, or a metric does not
        take them.
        """
        self.try_optimizer()
        self.try_metrics(*self._scored(batch))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        outputs, targets = self._scored(batch)
        errors = outputs - targets
        loss = errors.square().mean()
        self.log("train/loss", loss, batch_size=len(errors))
        return loss * share(len(errors), errors)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._evaluate(batch, "val", self.val_loss, self.val_l2_error, self.val_relative_error)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self._evaluate(batch, "test", self.test_loss, self.test_l2_error, self.test_relative_error)

    def _evaluate(self, batch: Any, split: str, loss: Mean, l2_error: Mean, relative_error: RelativeError) -> None:
        """Every scored row counts once, whatever the sizes of batches and the shares of devices."""
        outputs, targets = self._scored(batch)
        errors = outputs - targets
        norms = errors.norm(dim=-1)
        loss.update(errors.square())
        l2_error.update(norms)
        relative_error.update(norms, targets.norm(dim=-1))
        self.log_metrics(split, outputs, targets)
        size = len(errors)
        self.log(f"{split}/loss", loss, on_step=False, on_epoch=True, prog_bar=True, batch_size=size)
        self.log(f"{split}/l2_error", l2_error, on_step=False, on_epoch=True, batch_size=size)
        self.log(f"{split}/relative_error", relative_error, on_step=False, on_epoch=True, batch_size=size)

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The network's outputs: (B, K) or (B, L, K)."""
        inputs, lengths, _ = unpack(batch)
        return self(inputs, lengths)

    def _scored(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Outputs and targets of what is scored, a row of K each: (n, K).

        Raises InputError where the targets are classes, or not in the outputs' shape.
        """
        inputs, lengths, labels = unpack(batch)
        if not labels.is_floating_point():
            raise InputError("the data has classes, not real targets: the task for them is Classification")
        outputs = self(inputs, lengths)
        if not isinstance(outputs, Tensor) or outputs.shape != labels.shape:
            rule = (
                f"the targets are {tuple(labels.shape)}; a Regressor has an output at every position with"
                " model.network.pooling null, else one for a sequence"
            )
            raise wrong_output(self.network, outputs, inputs, rule, "inputs")
        if outputs.dim() == 2 or lengths is None:
            return outputs.flatten(0, -2), labels.flatten(0, -2)
        real = valid_mask(lengths, labels.shape[1]).squeeze(-1)
        return outputs[real], labels[real]
