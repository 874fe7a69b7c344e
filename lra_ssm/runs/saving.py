"""Which checkpoints a fit writes, the best one, the last one and the one before; and how it takes them up again."""

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint, Timer
from torch import Tensor

from lra_ssm.errors import InputError
from lra_ssm.runs.checkpoints import differing_parts, load_checkpoint, parts
from lra_ssm.runs.directory import previous
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

    neutral: ClassVar = ("every_n_steps",)  # cannot change a result

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
            own = given.parent == self.path.absolute().parent
            check_training_state(trainer, self._loaded, given, own)
            if trainer.precision == "64-true":  # Lightning loads weights before it makes the model float64
                # Lightning's averages of weights have state_dict's place; what trains stands beside them.
                pl_module.load_state_dict(self._loaded.get("current_model_state", self._loaded["state_dict"]))
            self._loaded = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # While gradients accumulate, the step stands still: a save then would lose them.
        self.saved_at, self._stop_then = trainer.global_step, False
        for optimizer in trainer.optimizers:
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


def check_training_state(trainer: Trainer, state: dict[str, Any], path: Path, own: bool) -> None:
    """What is restored next belongs to this Trainer's loops, optimizers and schedules. Raises InputError.

    own: whether the run goes on from a checkpoint of its own, so that each of its callbacks has its state there.
    """

    def refuse(what: str) -> None:
        raise InputError(f"checkpoint {path} does not fit: {what}; --init_from starts from its weights")

    optimizers: list[Any] = list(trainer.optimizers)
    schedulers: list[Any] = [config.scheduler for config in trainer.lr_scheduler_configs]
    for name, ours in (("optimizer_states", optimizers), ("lr_schedulers", schedulers)):
        theirs = state[name]
        if len(theirs) != len(ours) or not all(isinstance(one, dict) for one in theirs):
            refuse(f"{name} has {len(theirs)} there, {len(ours)} here")
    if "legacy_pytorch-lightning_version" not in state:  # another version's has been converted as far as it goes
        loops = {"fit_loop": trainer.fit_loop.state_dict()}
        if wrong := differing_parts(dict(parts(loops)), dict(parts(state["loops"]))):
            refuse(f"loops.{wrong}")
    for i, (scheduler, theirs) in enumerate(zip(schedulers, state["lr_schedulers"], strict=True)):
        if missing := sorted(scheduler.state_dict().keys() - theirs.keys()):
            refuse(f"lr_schedulers.{i} has no {missing[0]}")
    for i, (optimizer, theirs) in enumerate(zip(optimizers, state["optimizer_states"], strict=True)):
        if wrong := _unlike(optimizer, theirs):
            refuse(f"optimizer_states.{i}{wrong}")
    for callback in trainer.callbacks if own else ():  # type: ignore[attr-defined]
        # A Timer stands for max_time, which may be given or not from one start to the next.
        needed = bool(callback.state_dict()) and not isinstance(callback, Timer)
        if needed and not isinstance(state["callbacks"].get(callback.state_key), dict):
            refuse(f"callbacks has no state of {callback.state_key}")


def _unlike(optimizer: Any, state: dict[str, Any]) -> str:
    """How an optimizer's saved state is none of this optimizer; empty where it is."""
    groups, saved = state.get("param_groups"), state.get("state")
    if not isinstance(groups, list) or not isinstance(saved, dict) or not all(isinstance(g, dict) for g in groups):
        return " is no state of an optimizer"
    if len(groups) != len(optimizer.param_groups):
        return f".param_groups are {len(groups)} there, {len(optimizer.param_groups)} here"
    parameters: dict[Any, Tensor] = {}
    for i, (ours, theirs) in enumerate(zip(optimizer.param_groups, groups, strict=True)):
        if missing := sorted(ours.keys() - theirs.keys()):
            return f".param_groups.{i} has no {missing[0]}"
        if not isinstance(theirs["params"], list) or len(theirs["params"]) != len(ours["params"]):
            return f".param_groups.{i}.params are not {len(ours['params'])}"
        for name, value in ours.items():
            if name in _COMPUTED:
                continue
            numbers = isinstance(value, (int, float)) and isinstance(theirs[name], (int, float, Tensor))
            if name != "params" and value is not None and not numbers and type(theirs[name]) is not type(value):
                return f".param_groups.{i}.{name} is a {type(theirs[name]).__name__}, not a {type(value).__name__}"
        parameters.update(zip(theirs["params"], ours["params"], strict=True))
    for key, values in saved.items():
        if not isinstance(values, dict):
            return f".state.{key} is a {type(values).__name__}"
        for name in _LIKE_PARAMETER:
            value = values.get(name)
            if key in parameters and isinstance(value, Tensor) and value.shape != parameters[key].shape:
                return f".state.{key}.{name} is {tuple(value.shape)}, its parameter {tuple(parameters[key].shape)}"
    return ""
