"""Callbacks of every fit: randomness by step, a stop on NaN, and what is logged and printed of training."""

import random
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.throughput import get_available_flops
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
    StochasticWeightAveraging,
)
from lightning.pytorch.utilities import rank_zero_only, rank_zero_warn
from lightning.pytorch.utilities.data import extract_batch_size
from torch import Tensor
from torch.distributed.tensor import DTensor

from lra_ssm.analysis.flops import training_flops_per_token
from lra_ssm.analysis.gradients import gradient_over_weight
from lra_ssm.errors import InputError, to_one_line
from lra_ssm.layers import NetworkSpec
from lra_ssm.layers.roles import ROLES, parameter_roles
from lra_ssm.ops import record_backends
from lra_ssm.ops.tensors import copy_to_cpu_async
from lra_ssm.tasks.base import all_reduce_sums
from lra_ssm.tasks.optim import format_groups

LEARNING_RATE = "lr/"  # prefix of the names of logged learning rates
# Lightning's callbacks that train with other rates, parameter groups or batches than the configuration says.
OVERRIDING = (
    BaseFinetuning, BatchSizeFinder, GradientAccumulationScheduler, LearningRateFinder, StochasticWeightAveraging
)  # fmt: skip
_COUNTED = 128  # positions on which operations are counted: those of a recurrence are the same for each
_DTYPES = {"64": torch.float64, "32": torch.float32, "16": torch.float16, "bf16": torch.bfloat16}


def fit_callbacks(seed: int) -> list[Callback]:
    """Return the callbacks of every fit, in a run's directory or not."""
    logged = [LogLearningRates(), LogGradientNorm(), LogEpochMeans(), Throughput()]
    return [SeedByStep(seed), StopOnNonFinite(), ShowOptimizerGroups(), ShowBackends(), *logged]


class SeedByStep(Callback):
    """Seeds torch, numpy and random before every training batch from (seed, batches trained so far, rank).

    The randomness of a step (dropout) then depends only on its place in the run: a run resumed at any step draws
    what an uninterrupted run draws, on any device, and checkpoints need no random states.
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
    """Raises InputError when the loss or a gradient is NaN or infinite.

    The message has the step, the loss and the largest gradient by parameter name (from the previous step if the loss
    is not finite, because this step's gradients are then meaningless). A gradient scaler (16-mixed) handles infinite
    gradients itself. The check costs one pass over the gradients a step. On a CPU it stops before the weights change.
    It does not wait for a GPU, and stops a step later there, but before anything is saved or validated.
    """

    def __init__(self) -> None:
        self._loss = torch.zeros(())
        self._names: list[str] = []
        self._norms: Tensor | None = None
        self._unread: list[Callable[[], None]] = []

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        self._catch_up(trainer, pl_module)
        self._loss = loss.detach()
        self._stop_unless(torch.isfinite(self._loss), "; the largest gradient of the step before", trainer)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        named = [(name, p.grad) for name, p in pl_module.named_parameters() if p.grad is not None]
        if not named:
            return
        self._names = [name for name, _ in named]
        gradients = [grad.to_local() if isinstance(grad, DTensor) else grad for _, grad in named]
        sharded = any(isinstance(grad, DTensor) for _, grad in named)
        gradients = [grad if grad.numel() else grad.new_zeros(1) for grad in gradients] if sharded else gradients
        self._norms = torch.stack([n.float() for n in torch._foreach_norm(gradients, torch.inf)])
        if sharded:  # every process stops with the same message; max ignores NaN, so it becomes infinite
            self._norms = trainer.strategy.reduce(self._norms.nan_to_num(torch.inf), reduce_op="max")
        if getattr(trainer.precision_plugin, "scaler", None) is None:
            self._stop_unless(torch.isfinite(self._norms).all(), ", but the largest gradient is", trainer)

    def _stop_unless(self, finite: Tensor, largest: str, trainer: Trainer) -> None:
        read, loss, names, norms = copy_to_cpu_async(finite), self._loss, self._names, self._norms
        place = f"at step {trainer.global_step} (epoch {trainer.current_epoch})"

        def look() -> None:
            if not read():
                gradient = "; no gradient was computed before" if norms is None else _largest(largest, names, norms)
                raise InputError(f"loss is {loss.item():.4g} {place}{gradient}")

        if _is_waited_for(finite):
            look()
        else:
            self._unread.append(look)

    def _catch_up(self, trainer: Trainer, pl_module: LightningModule, checkpoint: Any = None) -> None:
        unread, self._unread = self._unread, []
        for look in unread:
            look()

    on_validation_start = on_save_checkpoint = on_train_end = _catch_up


def _is_waited_for(x: Tensor) -> bool:
    return x.device.type != "cuda"


def _largest(what: str, names: list[str], norms: Tensor) -> str:
    i = int(norms.argsort()[-1])  # NaN sorts last, hence counts as the largest: it is what we want to name
    return f"{what} {norms[i].item():.3g} in {names[i]}"


class Throughput(Callback):
    """Logs speed over all devices, between two log steps, without validation.

    `train/samples_per_s`; for a task that has `tokens_of` (language models) `train/tokens_per_s`, without padding; and,
    on a GPU whose peak Lightning knows, `train/mfu`, model FLOPs utilization (Chowdhery et al. 2022, PaLM, appendix B):
    the operations that tokens/s need by `analysis/flops.py`, over those of all devices at their peak.
    (They are counted on sequences of 128 tokens; attention of a user's network would need more on longer ones.)
    """

    def __init__(self) -> None:
        self._samples: Tensor | float = 0.0
        self._tokens: Tensor | float = 0.0
        self._seconds = 0.0
        self._started = 0.0
        self._share: float | None = None  # the share of a device's peak that one token per second needs

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._share = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        # The time from the end of one batch to the start of the next belongs to the data; validation does not.
        self._started = self._started or time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._samples += _batch_size(batch)
        tokens_of = getattr(pl_module, "tokens_of", None)
        if tokens_of is not None:
            self._tokens += tokens_of(batch)  # on a GPU a tensor: this does not wait for it
        if not _logs(trainer):
            return
        # Reading the numbers waits for the device. Devices may have different numbers of examples.
        done = torch.tensor([float(self._samples), float(self._tokens)], device=pl_module.device)
        samples, tokens = trainer.strategy.reduce(done, reduce_op="sum").tolist()
        if pl_module.device.type == "cuda":
            torch.cuda.synchronize(pl_module.device)
        now = time.perf_counter()
        self._seconds += now - self._started
        pl_module.log("train/samples_per_s", samples / self._seconds)
        if tokens_of is not None:
            pl_module.log("train/tokens_per_s", tokens / self._seconds)
            if self._share is None:
                self._share = self._share_of_peak(trainer, pl_module, min(_COUNTED, batch[0].shape[-1]))
                now = time.perf_counter()
            if self._share:
                pl_module.log("train/mfu", self._share * tokens / self._seconds / trainer.world_size)
        self._samples, self._tokens, self._seconds, self._started = 0.0, 0.0, 0.0, now

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._started:
            self._seconds += time.perf_counter() - self._started
            self._started = 0.0

    def _share_of_peak(self, trainer: Trainer, pl_module: LightningModule, length: int) -> float:
        """Return the share of the peak that one token per second needs; 0 if the peak or the count is unknown."""
        peak = _known_peak(trainer, pl_module.device)
        spec = pl_module.hparams.get("network")
        if not (peak and spec):
            return 0.0
        try:
            with torch.random.fork_rng(devices=[]), torch.device("meta"):
                return training_flops_per_token(NetworkSpec.of(spec)(), length) / peak
        except Exception as error:  # a user's network; a number for the log is no reason for a run to fail
            rank_zero_warn(f"train/mfu is not logged, the network cannot be counted: {to_one_line(str(error))[:200]}")
            return 0.0


def _known_peak(trainer: Trainer, device: torch.device) -> float | None:
    """Return a device's operations per second of matrix products, as far as Lightning knows them."""
    if device.type != "cuda":
        return None
    with warnings.catch_warnings(action="ignore"):  # it warns of GPUs that it does not know
        return get_available_flops(device, _DTYPES[str(trainer.precision).partition("-")[0]])


def _batch_size(batch: Any) -> int:
    """Return the number of examples of this process's batch."""
    # Lightning takes a part that is None (no lengths) for something ambiguous, and warns.
    return extract_batch_size([part for part in batch if part is not None] if isinstance(batch, tuple) else batch)


def _logs(trainer: Trainer) -> bool:
    """Return whether the current optimizer step, or the one just made, is logged."""
    every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]  # set when the trainer is built
    return bool(every) and (trainer.fit_loop.epoch_loop._batches_that_stepped + 1) % every == 0


class LogLearningRates(Callback):
    """Logs `lr/<group>`, the rate that a step is made with, for every group of the optimizer.

    (Lightning's LearningRateMonitor writes a separate row for them, and fails without a logger.)
    """

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        if not _logs(trainer):
            return
        prefix = [] if len(trainer.optimizers) == 1 else [str(trainer.optimizers.index(optimizer))]
        for number, group in enumerate(optimizer.param_groups):
            # Loggers refuse commas. float64, or 0.008 would be 0.00800000037997961 in the log.
            name = "/".join([*prefix, group.get("name", str(number)).replace(", ", "-")])
            pl_module.log(LEARNING_RATE + name, torch.tensor(float(group["lr"]), dtype=torch.float64))


class LogGradientNorm(Callback):
    """Logs `train/grad_norm`, the 2-norm of all gradients together before clipping, at every log step."""

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        gradients = [p.grad for p in pl_module.parameters() if p.grad is not None]
        if gradients and _logs(trainer):
            norm = torch.nn.utils.get_total_norm(gradients)
            pl_module.log("train/grad_norm", norm.full_tensor() if isinstance(norm, DTensor) else norm)


class LogEpochMeans(Callback):
    """Logs `<name>_epoch`, at the end of an epoch, for each value that the training step logs for its batch only.

    It is the mean over the epoch's batches, weighted by their sizes, and over all devices. Lightning's mean
    (`on_epoch=True`) forgets the batches before the checkpoint when an epoch is resumed in its middle.
    """

    def __init__(self) -> None:
        # This device's sums since the epoch's start: (2,) float64, of values times examples and of examples.
        self._sums: dict[str, Tensor] = {}
        self._last: dict[str, Tensor] = {}
        self._batches = 0

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self._sum_over_devices(), "batches": self._batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        is_first = getattr(rank_zero_only, "rank", 0) == 0  # the saved sums are over all devices
        self._batches, self._sums = state["batches"], {name: x * is_first for name, x in state["sums"].items()}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._sums = {name: x.to(pl_module.device) for name, x in self._sums.items()}

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        size = _batch_size(batch)
        self._batches += 1
        values = _values_of_batch(trainer)
        for name, value in values.items():
            if value is not self._last.get(name):  # else it is from an earlier batch: not every step logs it
                counted = size * torch.stack([value.detach().double(), torch.ones_like(value, dtype=torch.float64)])
                self._sums[name] = self._sums[name] + counted if name in self._sums else counted
        self._last = values

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # A checkpoint without this state may have been in the middle of the epoch.
        if self._batches == trainer.fit_loop.epoch_loop.batch_progress.current.completed:
            for name, (total, examples) in self._sum_over_devices().items():
                pl_module.log(f"{name}_epoch", (total / examples).float(), sync_dist=True)  # else Lightning warns
        self._sums, self._batches = {}, 0

    def _sum_over_devices(self) -> dict[str, Tensor]:
        """Return the sums over all devices. Every process calls this, and has logged the same names."""
        return dict(zip(self._sums, all_reduce_sums(*self._sums.values())[0], strict=True)) if self._sums else {}


def _values_of_batch(trainer: Trainer) -> dict[str, Any]:
    """Return what the training step logged for its batch only, by name: tensors () on this device."""
    results = trainer.fit_loop.epoch_loop._results.values()
    step_results = [result for result in results if result.meta.fx == "training_step" and not result.meta.on_epoch]
    return {result.meta.name: result._forward_cache for result in step_results if result._forward_cache is not None}


class LogGradientOverWeight(Callback):
    """Logs `grad_over_weight/<parameter>`, the largest |gradient| / |weight| of its entries, at every log step.

    StableSSM's measure of stability in training (Wang & Li 2024, fig. 3); before clipping.

    Args:
        roles: roles of the logged parameters: "recurrent", "delta", "no_decay", "norm", "embedding", "base", or a role
            that your own layer defines.

    Raises:
        InputError: when a fit starts, for a role that no parameter has and that is not one of these.
    """

    def __init__(self, roles: tuple[str, ...] = ("recurrent", "delta")) -> None:
        self.roles = tuple(roles)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        known = dict.fromkeys([*ROLES, *parameter_roles(pl_module).values()])
        for role in self.roles:
            if role not in known:
                raise InputError(f"LogGradientOverWeight role {role!r}: it must be one of {', '.join(known)}")

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        if not _logs(trainer):
            return
        roles, ratios = parameter_roles(pl_module), gradient_over_weight(pl_module)
        chosen = {f"grad_over_weight/{n}": r.largest for n, r in ratios.items() if roles[n] in self.roles}
        pl_module.log_dict(chosen)


class ShowOptimizerGroups(Callback):
    """Prints the number of parameters and the optimizer's groups at the start of a fit, one row each."""

    @rank_zero_only
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        counts = [sum(p.numel() for p in pl_module.parameters() if p.requires_grad or whole) for whole in (True, False)]
        trained = "all" if counts[0] == counts[1] else f"{counts[1]:,}"
        print(f"{counts[0]:,} parameters, {trained} of them trained")
        for optimizer in trainer.optimizers:
            print(format_groups(optimizer.param_groups), flush=True)


class ShowBackends(Callback):
    """Prints which backends ran the scans of the first batch's forward pass, such as "selective scan by cpu"."""

    def __init__(self) -> None:
        self._recording = ExitStack()
        self._used: dict[str, dict[str, None]] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._used = self._recording.enter_context(record_backends())

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        self._recording.close()
        if self._used and trainer.is_global_zero:
            print("; ".join(f"{what} by {', '.join(names)}" for what, names in self._used.items()), flush=True)
        self._used = {}

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._recording.close()
