"""Which checkpoints a fit writes: the best one and the last one."""

from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint

from lra_ssm.errors import InputError


class SaveBest(ModelCheckpoint):
    """The checkpoint with the best `monitor`; a name that validation does not log is an error at once."""

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking and self.monitor not in trainer.callback_metrics:
            logged = ", ".join(sorted(trainer.callback_metrics))
            raise InputError(f"checkpoint.monitor is {self.monitor!r}, which validation does not log; it logs {logged}")
        super().on_validation_end(trainer, pl_module)


class SaveLast(Checkpoint):
    """Keeps `path` at most `every_n_steps` optimizer steps, and never more than an epoch, behind the run.

    A `Checkpoint`, so that Lightning calls it after the callbacks whose state it saves (the best checkpoint's).
    """

    def __init__(self, path: Path, every_n_steps: int, code_version: str) -> None:
        self.path = path
        self.every_n_steps = every_n_steps
        self.code_version = code_version
        self._saved_at = 0
        self._due = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # While gradients accumulate, the step stands still: a save then would lose them.
        self._saved_at = trainer.global_step
        loop = trainer.fit_loop
        if loop.restarted_on_epoch_end:
            # With max_steps, Lightning (2.6) takes up what was saved at the end of an epoch as an epoch without
            # batches, and counts one epoch too many. It is the start of the next one.
            loop.epoch_progress.increment_completed()
            loop.reset_restart_stage()
            loop._restarting = False  # its setter would keep it true
            loop.epoch_loop.restarting = False

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        # Lightning (2.6) takes up some checkpoints with its step for loggers one too high.
        trainer.fit_loop.epoch_loop._batches_that_stepped = trainer.global_step
        if self._due:
            self._save(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # Saved when the next batch starts: a validation that is due at this step has then been done, and is not lost.
        self._due |= trainer.global_step % self.every_n_steps == 0 and trainer.global_step != self._saved_at

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._save(trainer)

    def _save(self, trainer: Trainer) -> None:
        self._due, self._saved_at = False, trainer.global_step
        trainer.save_checkpoint(self.path)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["lra_ssm_code_version"] = self.code_version
