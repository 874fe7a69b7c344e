"""Callbacks and the small Trainer plugins every run of the command line has.

Randomness by step, stop on a loss that is not finite, throughput, the `last` checkpoint, the optimizer groups' table,
predictions as a file; `AtomicCheckpointIO` and `CSVRunLogger` are what the run directory needs of the Trainer.
"""

import csv
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter, Checkpoint, ModelCheckpoint
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.data import extract_batch_size
from torch import Tensor

from lra_ssm.errors import InputError
from lra_ssm.files import appending, replacing
from lra_ssm.tasks.optim import format_groups


class SeedByStep(Callback):
    """Seeds torch, numpy and random before every training batch from (seed, batches trained so far, rank).

    The randomness of a step (dropout) then depends on its place in the run alone, so that a run resumed at any step
    draws what an uninterrupted one draws, on any device, without random states in checkpoints.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        done = trainer.fit_loop.epoch_loop.batch_progress.total.completed
        words = np.random.SeedSequence((self.seed, done, trainer.global_rank)).generate_state(3, np.uint32)
        torch_seed, numpy_seed, python_seed = words.tolist()
        torch.manual_seed(torch_seed)
        np.random.seed(numpy_seed)
        random.seed(python_seed)


class StopOnNonFinite(Callback):
    """Raises InputError, before the weights are touched, when the loss or a gradient is NaN or infinite.

    The message has the step, the loss and the largest gradient by parameter name; of the step before, where the loss
    is not finite: its gradients say nothing. With a gradient scaler (16-mixed) infinite gradients are its business.
    Costs one pass over the gradients and two device synchronisations a step.
    """

    def __init__(self) -> None:
        self._loss = torch.zeros(())
        self._names: list[str] = []
        self._norms: Tensor | None = None

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        self._loss = loss.detach()
        if not torch.isfinite(self._loss):
            raise InputError(f"loss is {loss.item()} {_place(trainer)}; {self._largest_gradient('of the step before')}")

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        named = [(name, p.grad) for name, p in pl_module.named_parameters() if p.grad is not None]
        if not named:
            return
        self._names = [name for name, _ in named]
        self._norms = torch.stack([n.float() for n in torch._foreach_norm([g for _, g in named], torch.inf)])
        if getattr(trainer.precision_plugin, "scaler", None) is None and not torch.isfinite(self._norms).all():
            raise InputError(f"loss is {self._loss.item():.4g} {_place(trainer)}, but {self._largest_gradient('is')}")

    def _largest_gradient(self, when: str) -> str:
        if self._norms is None:
            return "no gradient was computed before"
        norms = self._norms.cpu()
        i = int(norms.argsort()[-1])  # NaN sorts last, hence is the largest: it is what we want to name
        return f"the largest gradient {when} {norms[i].item():.3g} in {self._names[i]}"


def _place(trainer: Trainer) -> str:
    return f"at step {trainer.global_step} (epoch {trainer.current_epoch})"


class Throughput(Callback):
    """Logs `train/samples_per_s` over all devices, between two log steps, validation left out."""

    def __init__(self) -> None:
        self._samples = 0
        self._seconds = 0.0
        self._started = 0.0

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        # The time from the end of one batch to the start of the next belongs to the data; validation does not.
        self._started = self._started or time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # Lightning takes a part that is None (no lengths) for something ambiguous, and warns.
        parts = [part for part in batch if part is not None] if isinstance(batch, tuple) else batch
        self._samples += extract_batch_size(parts)
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]  # set when the trainer is built
        if not every or (trainer.fit_loop.epoch_loop._batches_that_stepped + 1) % every:
            return
        if pl_module.device.type == "cuda":
            torch.cuda.synchronize(pl_module.device)
        now = time.perf_counter()
        self._seconds += now - self._started
        rate = self._samples * trainer.world_size / self._seconds
        pl_module.log("train/samples_per_s", rate, prog_bar=True)
        self._samples, self._seconds, self._started = 0, 0.0, now

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._started:
            self._seconds += time.perf_counter() - self._started
            self._started = 0.0


class ShowOptimizerGroups(Callback):
    """Prints the optimizer's groups at the start of a fit, one row each."""

    @rank_zero_only
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for optimizer in trainer.optimizers:
            print(format_groups(optimizer.param_groups), flush=True)


def fit_callbacks(seed: int) -> list[Callback]:
    """What every fit has, in a run directory or not."""
    return [SeedByStep(seed), StopOnNonFinite(), ShowOptimizerGroups(), Throughput()]


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
        self.saved_at = 0
        self._due = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # While gradients accumulate, the step stands still: a save then would lose them.
        self.saved_at = trainer.global_step
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
            self.save(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # Saved when the next batch starts: a validation that is due at this step has then been done, and is not lost.
        self._due |= trainer.global_step % self.every_n_steps == 0 and trainer.global_step != self.saved_at

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.save(trainer)

    def save(self, trainer: Trainer) -> None:
        self._due, self.saved_at = False, trainer.global_step
        trainer.save_checkpoint(self.path)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["lra_ssm_code_version"] = self.code_version


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its place and renames it: whoever reads it finds the old one or the new one, whole.

    (Lightning's own write goes through the system's temporary folder, and is a copy where that is another disk.)
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with replacing(Path(path), "wb") as file:
            torch.save(checkpoint, file)


class WritePredictions(BasePredictionWriter):
    """Writes `predictions.csv`: one row per example with its most probable class and the probabilities."""

    def __init__(self, path: Path) -> None:
        super().__init__(write_interval="epoch")
        self.path = path

    def write_on_epoch_end(
        self, trainer: Trainer, pl_module: LightningModule, predictions: Any, batch_indices: Any
    ) -> None:
        if trainer.world_size > 1:
            raise InputError("predict writes what one device saw: run it with --trainer.devices=1")
        if not all(isinstance(p, Tensor) and p.dim() == 2 for p in predictions):
            raise InputError(
                "predictions.csv takes what predict_step returns as a tensor (batch, classes), nothing else"
            )
        rows = torch.cat(list(predictions)).float().cpu()
        with replacing(self.path, newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["example", "prediction", *(f"p{i}" for i in range(rows.shape[1]))])
            for i, row in enumerate(rows):
                writer.writerow([i, int(row.argmax()), *(f"{p:.6g}" for p in row.tolist())])
        print(f"{len(rows)} predictions in {self.path}")


class CSVRunLogger(Logger):
    """metrics.csv of a run: one row per log call, `step` and `epoch` first; appended to when the run goes on.

    (Lightning's CSVLogger deletes the rows of before.) `forget_from(step)` drops the rows of steps that a killed run
    had logged after the checkpoint it goes on from: they are about to be made again.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._columns: list[str] = []
        if path.is_file():
            with open(path, newline="") as file:
                self._columns = next(csv.reader(file), [])

    @property
    def name(self) -> str:
        return self.path.parent.parent.name

    @property
    def version(self) -> str:
        return self.path.parent.name

    @property
    def save_dir(self) -> str:
        return str(self.path.parent)

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """config.yaml has them."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        row = {
            "step": step,
            "epoch": int(metrics.get("epoch", 0)),
            **{k: v for k, v in metrics.items() if k != "epoch"},
        }
        new = [key for key in row if key not in self._columns]
        if new:
            rows = self._rows()
            self._columns += new
            self._write(rows)
        with appending(self.path, newline="") as file:
            csv.DictWriter(file, self._columns).writerow(row)

    def forget_from(self, step: int) -> None:
        if not self.path.is_file():
            return
        # A kill may leave half a row at the end: its step may be missing.
        self._write([row for row in self._rows() if (row["step"] or "").isdigit() and int(row["step"]) < step])

    def _rows(self) -> list[dict[str, str]]:
        if not self.path.is_file():
            return []
        with open(self.path, newline="") as file:
            return list(csv.DictReader(file))

    def _write(self, rows: list[dict[str, str]]) -> None:
        with replacing(self.path, newline="") as file:
            writer = csv.DictWriter(file, self._columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
