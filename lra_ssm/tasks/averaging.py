"""Averages of weights over a training: what is validated, tested and exported in the place of the last weights."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from lra_ssm.errors import InputError

_CURRENT = "current_model_state"  # in a checkpoint: what trains, where state_dict has the averages, as in Lightning's


class AverageWeights(Callback):
    """Exponential moving averages of all weights and buffers: after each step decay · average + (1 − decay) · weight.

    They start from the first weights, are in the model while it is validated and after the fit, and are a checkpoint's
    `state_dict`; the weights that train are stored next to them, so that a run that is resumed has both again.
    Complex weights are averaged too. Integers (a norm's count of batches) are taken over. Averages of
    bfloat16 and float16 weights are float32: a step's share of a weight is below their rounding. The model has them
    rounded to its own dtype.

    (Lightning's WeightAveraging keeps a copy of the whole module: on the CPU, where DDP moves the module to a GPU
    after it is made, and in float32, where the module becomes float64.)

    Args:
        decay: how much of an average stays at a step; it has about the last 1/(1 − decay) of them.
    """

    def __init__(self, decay: float = 0.999) -> None:
        self.decay = decay
        self._averages: dict[str, Tensor] = {}
        self._current: dict[str, Tensor] = {}  # what trains, while the averages are in the model
        self._loaded: dict[str, Any] | None = None
        self._averaged_at = 0  # the step

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if isinstance(trainer.strategy, ModelParallelStrategy):
            raise InputError("optimizer.ema_decay: there are no averages of sharded weights; use DDP, or leave it out")

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._loaded = checkpoint

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The model is on its device and has its dtype now."""
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
            self._put_in(pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == TrainerFn.FITTING:
            _copy(self._current, pl_module.state_dict())
            self._current = {}

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._put_in(pl_module)

    def _put_in(self, pl_module: LightningModule) -> None:
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
