"""How a fit comes to its end: stopped by a signal at a step that is saved, or with a last validation."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed
from lightning.pytorch import LightningModule, Trainer, callbacks
from lightning.pytorch.callbacks import Checkpoint

from lra_ssm.ops.tensors import copy_to_cpu_async
from lra_ssm.runs.saving import SaveLast
from lra_ssm.runs.signals import Stopped, active

# In a checkpoint: the validation of its step was broken off, or had not begun.
_DUE = "lra_ssm_validation_due"
_SECONDS = "_val_check_time_interval"  # of a Trainer, from Lightning 2.6 on
# From then on too: while it validates, what trains is in these callbacks' copy, and their average in the model.
_AVERAGING = getattr(callbacks, "WeightAveraging", ())


class EndFit(Checkpoint):
    """Stops a fit that a signal asked to stop, with `last` saved at that step; validates at the last step of a run.

    All processes stop at the same place: before a batch, or at a batch of a validation, which is then made anew when
    the run goes on. Gradients that accumulate are never cut off. Costs one reduction of one number a step where there
    are several processes, nothing else.

    A `Checkpoint`, so that Lightning calls it last: what is saved is what the other callbacks left.
    """

    def __init__(self, last: SaveLast) -> None:
        self.last = last
        self._whole = False  # whether no gradients are accumulated that a stop would lose
        self._common = 0.0  # validation batches that every process has
        self._due, self._at = False, 0
        self._max_steps: int | None = None  # while it is one higher
        self._stopping_in_validation = False
        self._intervals: tuple[Any, ...] | None = None
        self._read: Callable[[], torch.Tensor] = partial(torch.zeros, ())

    # -- stopping --------------------------------------------------------------------------------------------------

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self._whole and (signum := self._asked_before(trainer)):
            self._stop(trainer, signum)

    def _asked_before(self, trainer: Trainer) -> int:
        """`_asked`, of several GPUs what they were asked a step before: the number is there, and none is waited for."""
        read, self._read = self._read, copy_to_cpu_async(_over_processes(trainer, _requested(), "MAX"))
        return int(read() if _is_behind(trainer) else self._read())

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking:
            return
        self._restore_intervals(trainer)
        if self._due:  # by the checkpoint that this run goes on from
            loop = trainer.fit_loop.epoch_loop
            loop._batches_that_stepped = trainer.global_step - 1
            loop.val_loop.batch_progress.total.reset()  # of the one that was broken off
            loop.max_steps = loop.max_steps if self._max_steps is None else self._max_steps
            self._due, self._max_steps = False, None
        self._common = _over_processes(trainer, float(sum(trainer.num_val_batches)), "MIN").item()

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if trainer.sanity_checking or not self._whole:
            return
        progress = trainer.fit_loop.epoch_loop.val_loop.batch_progress
        if progress.current.ready <= self._common < float("inf") and (signum := _asked(trainer)):
            # As Lightning marks a validation that was broken off in its first batch.
            progress.reset()
            progress.increment_ready()
            progress.increment_started()
            self._stopping_in_validation = True
            for callback in trainer.callbacks:  # type: ignore[attr-defined]
                if isinstance(callback, _AVERAGING):  # what is saved has each in its own place
                    callback.on_validation_epoch_end(trainer, pl_module)
                    callback.on_validation_end(trainer, pl_module)
            self._stop(trainer, signum)

    def _stop(self, trainer: Trainer, signum: int) -> None:
        if trainer.global_step != self.last.saved_at or self._stopping_in_validation:
            self.last.save(trainer)
        if signals := active():
            signals.leaving = True  # from here on the processes end one by one
            signals.stopped_at = trainer.global_step
            signals.ask_for_requeue(signum)
        raise Stopped(signum)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint[_DUE] = self._stopping_in_validation

    # -- going on from a stop in a validation ----------------------------------------------------------------------

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._due = bool(checkpoint.get(_DUE)) and trainer.state.fn == "fit"
        self._at = int(checkpoint["global_step"])

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._whole = False
        if self._due and 0 < trainer.max_steps <= self._at:
            # Lightning would leave a fit that has made its steps before this validation.
            self._max_steps = trainer.max_steps
            trainer.fit_loop.epoch_loop.max_steps = self._at + 1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._whole = True
        if self._due:
            self._validate_now(trainer)

    # -- the last validation ---------------------------------------------------------------------------------------

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if signals := active():
            signals.training = True
        loop = trainer.fit_loop
        self._whole = not loop._should_accumulate()
        epochs, done = loop.max_epochs, loop.epoch_progress.current.processed  # type: ignore[attr-defined]
        last_epoch = epochs is not None and 0 < epochs <= done + 1
        if 0 < trainer.max_steps <= trainer.global_step or last_epoch and loop.epoch_loop._num_ready_batches_reached():
            self._validate_now(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._restore_intervals(trainer)  # where there was nothing to validate

    def _validate_now(self, trainer: Trainer) -> None:
        """Makes a validation due at this batch, once."""
        if self._intervals is None:
            seconds = getattr(trainer, _SECONDS, None)
            self._intervals = (trainer.val_check_batch, trainer.check_val_every_n_epoch, seconds)
            trainer.val_check_batch = 1
            if trainer.check_val_every_n_epoch is not None:
                trainer.check_val_every_n_epoch = 1
            if seconds is not None:
                setattr(trainer, _SECONDS, None)

    def _restore_intervals(self, trainer: Trainer) -> None:
        if self._intervals is None:
            return
        trainer.val_check_batch, trainer.check_val_every_n_epoch, seconds = self._intervals
        if seconds is not None:
            setattr(trainer, _SECONDS, seconds)
        self._intervals = None


def _requested() -> int:
    """The signal that asked this process to stop, 0 for none."""
    signals = active()
    return signals.requested if signals else 0


def _asked(trainer: Trainer) -> int:
    """The signal that asked any process to stop, 0 for none; the same number in all of them."""
    return int(_over_processes(trainer, _requested(), "MAX"))


def _is_behind(trainer: Trainer) -> bool:
    """Whether asking all processes would wait for a GPU."""
    return trainer.world_size > 1 and trainer.strategy.root_device.type == "cuda"


def _over_processes(trainer: Trainer, number: float, operation: Literal["MIN", "MAX"]) -> torch.Tensor:
    """The smallest or the largest number () of all processes."""
    if trainer.world_size == 1:
        return torch.tensor(number)
    tensor = torch.tensor(number, dtype=torch.float32, device=trainer.strategy.root_device)
    torch.distributed.all_reduce(tensor, op=getattr(torch.distributed.ReduceOp, operation))
    return tensor
