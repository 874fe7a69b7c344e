"""Targets at single positions as a LightningModule: self-pretraining, recall and state tracking.

Shapes: B batch, L length, V classes, C features per position.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lra_ssm.errors import InputError
from lra_ssm.layers.contract import wrong_output
from lra_ssm.layers.spec import NetworkFactory
from lra_ssm.tasks.base import NetworkTask, all_reduce_sums
from lra_ssm.tasks.language_modelling import NOT_SCORED, Tokens
from lra_ssm.tasks.metrics import Mean
from lra_ssm.tasks.optim import DEFAULTS, OptimizerSettings
from lra_ssm.width.scaling import WidthSettings


class MaskedModelling(NetworkTask):
    """Trains a network to predict the positions that have a target; all others only give context.

    A batch is (inputs, targets, reset, lengths) or (inputs, targets): inputs (B, L) int64 or (B, L, features); targets
    (B, L) int64, −100 where nothing is scored, for cross-entropy; or (B, L, C) float, NaN where nothing is scored, for
    the absolute error (L1). `data.pretrain` makes such batches from any data module. reset is not used.

    The loss of a batch is the mean over its scored positions on all devices. Logged for validation and test, over all
    scored positions: `loss`, and for classes `accuracy`.

    Source: Amos, Berant & Gupta 2024, "Never Train from Scratch", section 3.

    Args:
        network: a specification: a `Regressor` with `pooling: null`, a `LanguageModel`, or any class whose instances
            map (inputs, lengths) to logits (B, L, at least V) or values (B, L, C).
        optimizer: how its parameters are trained; an `OptimizerSettings` or its values by name.
        accuracy_up_to: also log the accuracy of positions by their place: [64, 256] logs `accuracy_64` of the first 64
            positions and `accuracy_256` of positions 65 to 256.
        width: a width parameterization, `WidthSettings` or its values by name; None leaves the model as it is.

    Raises:
        InputError: accuracy_up_to does not rise.
    """

    predicts_classes = False  # so predictions.csv has values: a log-likelihood, or an error, per position
    in_progress_bar = ("loss", "accuracy")

    def __init__(
        self,
        network: NetworkFactory,
        optimizer: OptimizerSettings = DEFAULTS,
        accuracy_up_to: list[int] | None = None,
        width: WidthSettings | None = None,
    ) -> None:
        super().__init__(network, optimizer, width)
        self.ends = list(accuracy_up_to or [])
        if sorted(set(self.ends)) != self.ends or min(self.ends, default=1) < 1:
            raise InputError(f"model.accuracy_up_to is {self.ends}; it must be rising positions from 1 on")
        self.save_hyperparameters({"accuracy_up_to": accuracy_up_to})
        names = ["loss", "accuracy", *(f"accuracy_{end}" for end in self.ends)]
        self.keep_metrics(lambda: {name: Mean() for name in names})

    def predicts_next(self, data: Any) -> bool:
        """Return whether later positions hold what a position is to predict: then no layer may look ahead."""
        return getattr(getattr(data, "pretrain", None), "objective", None) == "causal"

    def inputs_of(self, batch: Any) -> tuple[Tensor, Tensor | None]:
        tokens = _unpack_targets(batch)
        return tokens.inputs, tokens.lengths

    def dry_run(self, batch: Any, num_classes: int | None = None) -> None:
        """Run the network on a batch and build the optimizer, without a loss or logs.

        Raises InputError if the network has no output per position, or too few classes.
        """
        self.try_optimizer()
        tokens = _unpack_targets(batch)
        outputs = self._outputs(tokens)
        if not tokens.targets.is_floating_point() and outputs.shape[-1] <= (largest := int(tokens.targets.max())):
            rule = f"class {largest} is among the targets, and each has a logit"
            raise wrong_output(self.network, outputs, tokens.inputs, rule, "inputs")

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        losses, correct, scored = self._scored(_unpack_targets(batch))
        count, size = scored.sum().float(), len(batch[0])
        if not batch[1].is_floating_point():
            (hits, number), _ = all_reduce_sums(correct.sum(), count)
            self.log("train/accuracy", hits / number.clamp(min=1), batch_size=size)
        return self.log_mean_loss(losses.sum(), count, size)

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return log p of the targets, or minus the absolute error: (B, L, 1), 0 where nothing is scored."""
        losses, _, _ = self._scored(_unpack_targets(batch))
        return -losses.unsqueeze(-1)

    def evaluate(self, batch: Any, metrics: Mapping[str, Any]) -> None:
        tokens = _unpack_targets(batch)
        losses, correct, scored = self._scored(tokens)
        metrics["loss"].update(losses, scored)
        if tokens.targets.is_floating_point():
            return
        metrics["accuracy"].update(correct, scored)
        for start, end in zip([0, *self.ends], self.ends, strict=False):
            metrics[f"accuracy_{end}"].update(correct[:, start:end], scored[:, start:end])

    def results(self, split: str) -> dict[str, Tensor]:
        """Leave out places without a scored position: a split may be shorter than `accuracy_up_to`."""
        values = super().results(split)
        return {name: value for name, value in values.items() if name in self.in_progress_bar or not value.isnan()}

    def _scored(self, tokens: Tokens) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss of each position, whether it is right (float), both 0 where nothing is scored, and the scored
        mask: all (B, L). No selection by the mask, for which a GPU would have to wait."""
        outputs, targets = self._outputs(tokens), tokens.targets
        if targets.is_floating_point():
            scored = ~targets.isnan().any(-1)
            losses = (outputs - targets.nan_to_num()).abs().mean(-1) * scored
            return losses, torch.zeros_like(losses), scored
        scored = targets != NOT_SCORED
        logits = outputs.float().flatten(0, 1)
        losses = F.cross_entropy(logits, targets.flatten(), ignore_index=NOT_SCORED, reduction="none")
        return losses.view_as(targets), (outputs.argmax(-1) == targets).float(), scored

    def _outputs(self, tokens: Tokens) -> Tensor:
        """Return the outputs (B, L, at least V) or (B, L, C). Raises InputError for another shape."""
        outputs = self(tokens.inputs, tokens.lengths)
        targets, is_tensor = tokens.targets, isinstance(outputs, Tensor)
        if is_tensor and outputs.dim() == 3 and outputs.shape[:2] == targets.shape[:2]:
            if not targets.is_floating_point() or outputs.shape == targets.shape:
                return outputs
        expected = tuple(targets.shape) if targets.is_floating_point() else "(batch, length, classes)"
        rule = f"this task needs a prediction per position, {expected}, as a Regressor with model.network.pooling null"
        raise wrong_output(self.network, outputs, tokens.inputs, rule, "inputs")


def _unpack_targets(batch: Any) -> Tokens:
    """Return a batch by its parts. Raises InputError if it does not have a target per position."""
    if isinstance(batch, (tuple, list)) and len(batch) in (2, 4):
        inputs, targets = batch[:2]
        if isinstance(targets, Tensor) and targets.dim() == 2 + targets.is_floating_point():
            if targets.shape[:2] == inputs.shape[:2]:
                return Tokens(*batch)
    raise InputError("the data has no target per position: set data.pretrain to predict its inputs")
