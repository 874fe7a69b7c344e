"""Averages of weights over training, which are validated, tested and exported in place of the last weights."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from lra_ssm.errors import InputError

_CURRENT = "current_model_state"  # in a checkpoint: the weights in training, named as in Lightning's WeightAveraging


class AverageWeights(Callback):
    """Exponential moving averages of all weights and buffers: after each step decay · average + (1 − decay) · weight.

    They start from the first weights. They are in the model during validation and after the fit, and are a checkpoint's
    `state_dict`; the weights in training are stored next to them, so that a resumed run has both. Complex weights are
    averaged too; integers (a norm's count of batches) are copied. Averages of bfloat16 and float16 weights are float32,
    because a step's share of a weight is below their rounding; the model gets them rounded to its own dtype.

    (Lightning's WeightAveraging keeps a copy of the whole module: on the CPU if DDP moves the module to a GPU later,
    and in float32 if the module becomes float64.)

    Args:
        decay: the share of an average that stays at a step; it averages about the last 1/(1 − decay) steps.
    """

    def __init__(self, decay: float = 0.999) -> None:
        self.decay = decay
        self._averages: dict[str, Tensor] = {}
        self._current: dict[str, Tensor] = {}  # the weights in training, while the averages are in the model
        self._loaded: dict[str, Any] | None = None
        self._averaged_at = 0  # the step

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if isinstance(trainer.strategy, ModelParallelStrategy):
            raise InputError("optimizer.ema_decay: sharded weights cannot be averaged; use DDP, or leave it out")

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._loaded = checkpoint

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start or restore the averages; only now the model is on its device and has its dtype."""
        state, self._loaded = self._loaded, None
        weights, self._current = pl_module.state_dict(), {}
        self._averages = {name: weight.to(_dtype_of_average(weight), copy=True) for name, weight in weights.items()}
        if state is not None:
            _copy(state["state_dict"], self._averages)
            _copy(state.get(_CURRENT, state["state_dict"]), weights)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._averaged_at = trainer.global_step

    @torch.no_grad()
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self._averaged_at:  # gradients accumulate
            return
        self._averaged_at = trainer.global_step
        weights = pl_module.state_dict()
        averaged = [name for name, value in self._averages.items() if value.is_floating_point() or value.is_complex()]
        current = [weights[name].to(self._averages[name].dtype) for name in averaged]
        torch._foreach_lerp_([self._averages[name] for name in averaged], current, 1 - self.decay)
        _copy({name: weights[name] for name in self._averages.keys() - set(averaged)}, self._averages)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # `Trainer.validate` after a fit finds the averages in the model, or the weights of the checkpoint it names.
        if trainer.state.fn == TrainerFn.FITTING:
            self._load_averages(pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == TrainerFn.FITTING:
            _copy(self._current, pl_module.state_dict())
            self._current = {}

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._load_averages(pl_module)

    def _load_averages(self, pl_module: LightningModule) -> None:
        weights = pl_module.state_dict()
        self._current = {name: weight.clone() for name, weight in weights.items()}
        _copy(self._averages, weights)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self._averages:
            checkpoint[_CURRENT] = self._current or checkpoint["state_dict"]
            checkpoint["state_dict"] = self._averages


def _dtype_of_average(weight: Tensor) -> torch.dtype:
    inexact = weight.is_floating_point() or weight.is_complex()
    return torch.promote_types(weight.dtype, torch.float32) if inexact else weight.dtype


@torch.no_grad()
def _copy(source: dict[str, Tensor], target: dict[str, Tensor]) -> None:
    for name, value in source.items():
        target[name].copy_(value)
