"""Checkpoints of a run, best.ckpt and last.ckpt: write and read them, and resume a fit from one."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping, ModelCheckpoint, Timer
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason
from lightning.pytorch.plugins.io import TorchCheckpointIO

from lra_ssm.errors import InputError, hint, to_one_line
from lra_ssm.files import replacing

_STOP = "lra_ssm_stopped"  # key in a checkpoint: why the fit ended before its last step
# The parts of a checkpoint that a fit needs to resume; a file with only weights lacks them.
_TRAINING = ("loops", "optimizer_states", "lr_schedulers", "callbacks", "global_step")
# Settings of an optimizer's groups that belong to the device that computes, not to the checkpoint.
_COMPUTED = ("foreach", "fused", "capturable")


@dataclass(frozen=True)
class CheckpointSettings:
    """Which checkpoints a run keeps.

    Args:
        every_n_steps: steps between saves of last.ckpt.
        monitor: metric of best.ckpt.
        mode: whether the smallest or the largest value is the best.

    Raises:
        InputError: every_n_steps is below 1.
    """

    every_n_steps: int = 500
    monitor: str = "val/accuracy"
    mode: Literal["min", "max"] = "max"

    def __post_init__(self) -> None:
        if self.every_n_steps < 1:
            raise InputError(f"checkpoint.every_n_steps is {self.every_n_steps}; it must be at least 1")


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint to a temporary file and renames it: a reader sees the old file or the complete new one."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)  # on a full disk, torch would raise several errors at once
        with replacing(Path(path), "wb") as file:
            file.write(buffer.getbuffer())


def load_checkpoint(path: Path, resuming: bool = False) -> dict[str, Any]:
    """Read a checkpoint on the CPU, its tensors mapped from the file.

    Args:
        path: the file.
        resuming: also require the state of training.

    Raises:
        InputError: the file cannot be read or is not a checkpoint.
    """
    best = path.with_name("best.ckpt")
    remedy = f"; {best} is a complete checkpoint, too: copy it over this one" if path.name == "last.ckpt" else ""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise InputError(f"checkpoint {path} cannot be read: {error.strerror}") from error
    except Exception as error:  # from the system, pickle or torch: a damaged file raises many types
        reason = to_one_line(str(error))[:200]
        raise InputError(f"checkpoint {path} is damaged or not a checkpoint: {reason}{remedy}") from error
    if not isinstance(state, dict) or not isinstance(state.get("state_dict"), dict):
        raise InputError(f"{path} is not a checkpoint: it has no state_dict{remedy}")
    if resuming and (missing := [name for name in _TRAINING if name not in state]):
        raise InputError(f"{path} cannot be resumed from: it has no {missing[0]}; --init_from starts from its weights")
    return state


class SaveBest(ModelCheckpoint):
    """best.ckpt, the checkpoint with the best `monitor`.

    It is an error before training if validation does not log the monitor, or that of early stopping.
    """

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking:
            _check_monitor("checkpoint.monitor", self.monitor, trainer)
            for callback in trainer.callbacks:  # type: ignore[attr-defined]  # set when the trainer is built
                stops = isinstance(callback, EarlyStopping) and callback.strict
                if stops and not callback.monitor.startswith("train/"):
                    _check_monitor(f"{type(callback).__name__}'s monitor", callback.monitor, trainer)
        super().on_validation_end(trainer, pl_module)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the best score so far, for the best.ckpt in this run's directory.

        Lightning (2.6) knows the file by its absolute path and forgets it when a run is moved or copied; any score
        would then count as the best.
        """
        path = Path(str(self.dirpath)) / f"{self.filename}.ckpt"
        score = state_dict.get("best_model_score")
        if score is None or not path.is_file():
            return  # the next validation counts as the best
        name = str(path)
        paths = {"best_model_path": name, "kth_best_model_path": name, "best_k_models": {name: score}}
        super().load_state_dict({**state_dict, **paths, "dirpath": self.dirpath, "last_model_path": ""})


def _check_monitor(what: str, name: str | None, trainer: Trainer) -> None:
    if name not in trainer.callback_metrics:
        near = hint(str(name), sorted(trainer.callback_metrics), "it logs")
        raise InputError(f"{what} is {name!r}, which validation does not log; {near}")


class SaveLast(Checkpoint):
    """last.ckpt, from which a run resumes: every few steps, before each validation and at the end of each epoch.

    Also validates at the last step of a run, and saves an early stop, so that a run that was killed after it does not
    train on. A `Checkpoint`, so that Lightning calls it after the callbacks whose state it saves.

    Args:
        path: the path of last.ckpt.
        every_n_steps: steps between saves.
        made_by: further entries of the checkpoint, such as the version of the code.
    """

    def __init__(self, path: Path, every_n_steps: int, made_by: dict[str, Any] | None = None) -> None:
        self.path = path
        self.every_n_steps = every_n_steps
        self.made_by = made_by or {}
        self.saved_at = 0
        self.reason = ""  # why the fit ended before its last step
        self._stop_requested = False
        self._loaded: dict[str, Any] | None = None

    # -- saving ------------------------------------------------------------------------------------------------------

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        # Lightning (2.6) resumes some checkpoints with its step for loggers one too high.
        trainer.fit_loop.epoch_loop._batches_that_stepped = trainer.global_step
        if batch_idx % trainer.accumulate_grad_batches:  # gradients are being accumulated, and no checkpoint has them
            return
        steps = trainer.global_step - self.saved_at
        if steps >= self.every_n_steps or steps and _validates_after(trainer, batch_idx):
            self.save(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # A stop (max_time) while gradients accumulate waits for the step.
        self._stop_requested |= trainer.should_stop
        trainer.should_stop = self._stop_requested and not trainer.fit_loop._should_accumulate()
        if _is_last_step(trainer, trainer.global_step, trainer.is_last_batch):
            trainer.should_stop = True  # has Lightning validate; the fit ends here anyway
            if trainer.check_val_every_n_epoch is not None:
                trainer.check_val_every_n_epoch = 1

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.should_stop and not _is_last_step(trainer, trainer.global_step, trainer.is_last_batch):
            self.reason = _early_stop(trainer)
        self.save(trainer)

    def save(self, trainer: Trainer) -> None:
        self.saved_at = trainer.global_step
        trainer.save_checkpoint(self.path)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint.update({**self.made_by, _STOP: self.reason})

    # -- resuming ----------------------------------------------------------------------------------------------------

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._loaded = checkpoint

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.reason, self._stop_requested = "", False
        if self._loaded is None:
            return
        self.reason = str(self._loaded.get(_STOP, ""))
        trainer.should_stop |= bool(self.reason)
        if trainer.precision == "64-true":  # Lightning loads weights before it makes the model float64
            # If weights are averaged, state_dict has the average, and current_model_state the weights in training.
            pl_module.load_state_dict(self._loaded.get("current_model_state", self._loaded["state_dict"]))
        self._loaded = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.saved_at = trainer.global_step
        for optimizer in trainer.optimizers:
            for group in optimizer.param_groups:
                group.update({name: optimizer.defaults[name] for name in _COMPUTED if name in optimizer.defaults})
        loop = trainer.fit_loop
        if loop.restarted_on_epoch_end:
            # With max_steps, Lightning (2.6) resumes a checkpoint from the end of an epoch as an epoch without batches,
            # and counts one epoch too many. Make it the start of the next epoch.
            loop.epoch_progress.increment_completed()
            loop.reset_restart_stage()
            loop._restarting = False  # its setter would keep it true
            loop.epoch_loop.restarting = False
        # A checkpoint saved before a batch counts it as begun. Lightning would count it again, and validate early.
        loop.epoch_loop.batch_progress.total.reset_on_restart()


def _early_stop(trainer: Trainer) -> str:
    """Return why callbacks stop the fit, as in "stopped at step 20: val/loss did not improve in 3 validations".

    Empty for `max_time`: more time lets the run train on.
    """
    step = f"stopped at step {trainer.global_step}"
    for callback in trainer.callbacks:  # type: ignore[attr-defined]  # set when the trainer is built
        if isinstance(callback, Timer) and (left := callback.time_remaining()) is not None and left <= 0:
            return ""
        if isinstance(callback, EarlyStopping) and callback.stopping_reason != EarlyStoppingReason.NOT_STOPPED:
            if callback.stopping_reason == EarlyStoppingReason.PATIENCE_EXHAUSTED:
                count = f"{callback.wait_count} validation" + "s" * (callback.wait_count > 1)
                return f"{step}: {callback.monitor} did not improve in {count}"
            return f"{step}: {callback.monitor}: {callback.stopping_reason.name.lower().replace('_', ' ')}"
    return f"{step}: a callback stopped it"


def _is_last_step(trainer: Trainer, step: int, is_last_batch: bool) -> bool:
    """Return whether the fit ends with this optimizer step, counted from 1."""
    last_epoch = trainer.max_epochs is not None and 0 < trainer.max_epochs <= trainer.current_epoch + 1
    return 0 < trainer.max_steps <= step or last_epoch and is_last_batch


def _validates_after(trainer: Trainer, batch_idx: int) -> bool:
    """Return whether a validation follows the optimizer step that begins with this batch."""
    batches, every = trainer.accumulate_grad_batches, getattr(trainer, "val_check_batch", None)
    ends_epoch = batch_idx + batches >= trainer.num_training_batches
    if _is_last_step(trainer, trainer.global_step + 1, ends_epoch):
        return True
    if trainer.check_val_every_n_epoch is not None and (trainer.current_epoch + 1) % trainer.check_val_every_n_epoch:
        return False
    first = trainer.fit_loop.total_batch_idx if trainer.check_val_every_n_epoch is None else batch_idx
    # The interval is unknown (None, inf) if validation is due by time, or at the end of data of unknown length.
    return isinstance(every, int) and (first + batches) // every > first // every
