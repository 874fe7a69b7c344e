"""Which checkpoints a fit writes, the best one, the last one and the one before; and how it takes them up again."""

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from torch import Tensor
from torch.optim import Optimizer

from lra_ssm.errors import InputError
from lra_ssm.runs.checkpoints import load_checkpoint
from lra_ssm.runs.metrics import ROWS, CSVRunLogger

# Of an optimizer's state, what has its parameter's shape in each of torch's optimizers.
_LIKE_PARAMETER = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "sum")
# Of an optimizer's groups, how a step is computed: each device's own, whatever wrote the checkpoint.
_COMPUTED = ("foreach", "fused", "capturable")


@dataclass(frozen=True)
class CheckpointSettings:
    """Which checkpoints a run keeps.

    Args:
        every_n_steps: steps between saves of last.ckpt.
        monitor: metric of best.ckpt.
        mode: what is best.

    Raises:
        InputError: never saving.
    """

    every_n_steps: int = 500
    monitor: str = "val/accuracy"
    mode: Literal["min", "max"] = "max"

    def __post_init__(self) -> None:
        if self.every_n_steps < 1:
            raise InputError(f"checkpoint.every_n_steps is {self.every_n_steps}; it must be at least 1")


DEFAULT_CHECKPOINTS = CheckpointSettings()


class SaveBest(ModelCheckpoint):
    """The checkpoint with the best `monitor`; a name that validation does not log is an error at once."""

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking and self.monitor not in trainer.callback_metrics:
            logged = ", ".join(sorted(trainer.callback_metrics))
            raise InputError(f"checkpoint.monitor is {self.monitor!r}, which validation does not log; it logs {logged}")
        super().on_validation_end(trainer, pl_module)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The best score so far is that of the best checkpoint that lies here.

        Lightning (2.6) knows it by the folder's absolute name and forgets it where a run was moved or copied; what is
        better than nothing would then replace the best.
        """
        path = os.path.join(str(self.dirpath), f"{self.filename}.ckpt")
        if state_dict.get("best_model_score") is None:
            return
        try:
            best = load_checkpoint(Path(path)).get("callbacks")
        except InputError as error:
            print(f"warning: {error}; the next validation's is the best again")
            return
        own = best.get(self.state_key) if isinstance(best, dict) else None
        score = own.get("best_model_score") if isinstance(own, dict) else None
        score = score if isinstance(score, Tensor) else state_dict["best_model_score"]
        if not isinstance(score, Tensor) or score.numel() != 1:
            raise InputError(f"the last checkpoint's best_model_score is {score!r}, not a number")
        score = score.clone()  # it is mapped from the file
        here = {"dirpath": self.dirpath, "best_model_path": path, "kth_best_model_path": path, "last_model_path": ""}
        values = {"best_model_score": score, "kth_value": score, "best_k_models": {path: score}}
        super().load_state_dict({**state_dict, **here, **values})


class SaveLast(Checkpoint):
    """Keeps `path` at most `every_n_steps` optimizer steps, and never more than an epoch, behind the run.

    A `Checkpoint`, so that Lightning calls it after the callbacks whose state it saves (the best checkpoint's).

    Args:
        path: of the last checkpoint; the one before is kept as `previous(path)`.
        every_n_steps: steps between saves.
        code_version, source: what the checkpoint was made by: lra_ssm's version, and the user's files (source.py).
    """

    def __init__(self, path: Path, every_n_steps: int, code_version: str, source: dict[str, str] | None = None) -> None:
        self.path = path
        self.every_n_steps = every_n_steps
        self.made_by = {"lra_ssm_code_version": code_version, "lra_ssm_source": source or {}}
        self.saved_at = 0
        self._due = self._stop_then = False
        self._whole = False  # whether `path` holds what this run goes on from, or wrote
        self._loaded: dict[str, Any] | None = None

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._loaded = checkpoint

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Optimizers are there now, and are restored next."""
        given = Path(str(trainer.ckpt_path)).absolute()
        self._whole = self._loaded is not None and given == self.path.absolute()
        if self._loaded is not None:
            for name, ours in (
                ("optimizer_states", trainer.optimizers),
                ("lr_schedulers", trainer.lr_scheduler_configs),
            ):
                if len(theirs := self._loaded[name]) != len(ours):  # Lightning would take up as many as there are
                    raise InputError(
                        f"checkpoint {given} does not fit: {name} has {len(theirs)} there, {len(ours)} here"
                    )
            if trainer.precision == "64-true":  # Lightning loads weights before it makes the model float64
                # Lightning's averages of weights have state_dict's place; what trains stands beside them.
                pl_module.load_state_dict(self._loaded.get("current_model_state", self._loaded["state_dict"]))
            self._loaded = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # While gradients accumulate, the step stands still: a save then would lose them.
        self.saved_at, self._stop_then = trainer.global_step, False
        for optimizer in trainer.optimizers:
            check_moments(optimizer, str(trainer.ckpt_path))
            for group in optimizer.param_groups:
                group.update({name: optimizer.defaults[name] for name in _COMPUTED if name in optimizer.defaults})
        loop = trainer.fit_loop
        if loop.restarted_on_epoch_end:
            # With max_steps, Lightning (2.6) takes up what was saved at the end of an epoch as an epoch without
            # batches, and counts one epoch too many. It is the start of the next one.
            loop.epoch_progress.increment_completed()
            loop.reset_restart_stage()
            loop._restarting = False  # its setter would keep it true
            loop.epoch_loop.restarting = False
        # What is saved before a batch has counted it as begun; Lightning counts it again, and validates one too early.
        loop.epoch_loop.batch_progress.total.reset_on_restart()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        # Lightning (2.6) takes up some checkpoints with its step for loggers one too high.
        trainer.fit_loop.epoch_loop._batches_that_stepped = trainer.global_step
        if self._due:
            self.save(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # Saved when the next batch starts: a validation that is due at this step has then been done, and is not lost.
        self._due |= trainer.global_step % self.every_n_steps == 0 and trainer.global_step != self.saved_at
        # max_time may be over while gradients accumulate, which no checkpoint has: the step is made first.
        self._stop_then |= trainer.should_stop
        trainer.should_stop = self._stop_then and not trainer.fit_loop._should_accumulate()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.save(trainer)

    def save(self, trainer: Trainer) -> None:
        self._due, self.saved_at = False, trainer.global_step
        if self._whole and trainer.is_global_zero:
            keep_as_previous(self.path)
        trainer.save_checkpoint(self.path)
        self._whole = True

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint.update(self.made_by)
        logs = [logger for logger in trainer.loggers if isinstance(logger, CSVRunLogger)]
        checkpoint[ROWS] = sum(log.rows_before(trainer.global_step) for log in logs)


def previous(path: Path) -> Path:
    """Where the checkpoint before the last one is kept."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def keep_as_previous(path: Path) -> None:
    """A second name for `path`, which the next one replaces: at every moment one of the two is there, whole."""
    try:
        link = path.with_name(f"{previous(path).name}.link")
        link.unlink(missing_ok=True)
        os.link(path, link)
        os.replace(link, previous(path))
        link.unlink(missing_ok=True)  # a rename of two names of one file does nothing
    except FileNotFoundError:  # somebody removed the last one
        pass
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS):
            raise
        os.replace(path, previous(path))  # a file system without links


def check_moments(optimizer: Optimizer, path: str) -> None:
    """What an optimizer has taken up belongs to its parameters; torch's fused steps do not look. Raises InputError."""
    for parameter, state in optimizer.state.items():
        for name in _LIKE_PARAMETER:
            value = state.get(name)
            if isinstance(value, Tensor) and value.shape != parameter.shape:
                raise InputError(
                    f"checkpoint {path} does not fit: the optimizer's {name} is {tuple(value.shape)}, its parameter"
                    f" {tuple(parameter.shape)}; --init_from starts from its weights"
                )
