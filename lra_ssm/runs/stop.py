"""Stop a fit after a signal, at the same step in all processes, and save that step."""

import os
import signal
import subprocess
import sys
import threading
from typing import Any

import torch
from lightning.fabric.plugins.environments import SLURMEnvironment
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from lra_ssm.runs.checkpoints import SaveLast

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)


class Stopped(SystemExit):
    """A signal stopped the fit, and its step is saved.

    The exit code is 128 + signal in the first process and 0 in the others: whoever started the processes (Lightning,
    srun, torchrun) ends the first one as soon as another one fails, before it has recorded the end.
    """

    def __init__(self, signum: int, step: int, first: bool) -> None:
        super().__init__(128 + signum if first else 0)
        self.signum, self.step = signal.Signals(signum), step

    def __str__(self) -> str:
        return f"stopped by {self.signum.name} at step {self.step}, saved"


class StopOnSignal(Checkpoint):
    """Saves the step and raises `Stopped` after a signal: before the next batch, or after a running validation.

    The handler only sets a flag. Before each step all processes agree on the largest signal number that any received.
    Before and after training, signals have their usual effect: there is nothing to save. A second Ctrl-C ends the
    process at once; other signals may come twice (`timeout` sends SIGTERM to a process and to its group).

    A `Checkpoint`, so that Lightning calls it after the callbacks whose state is saved.
    """

    def __init__(self, last: SaveLast) -> None:
        self.last = last
        self.signum = 0
        self._before: dict[int, Any] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        # After this hook Lightning (2.6.6) would set a handler for SIGTERM that waits for the other processes wherever
        # the main thread is, so that two processes hang: https://github.com/Lightning-AI/pytorch-lightning/pull/20825
        trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.signum = 0
        if threading.current_thread() is not threading.main_thread():
            return
        for signum in _SIGNALS:
            if signal.getsignal(signum) is not signal.SIG_IGN:  # nohup
                self._before[signum] = signal.signal(signum, self._handle)

    def _handle(self, signum: int, frame: Any) -> None:
        self.signum = self.signum or signum
        if signum == signal.SIGINT:
            signal.signal(signum, self._before[signum])

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if batch_idx % trainer.accumulate_grad_batches:  # gradients are being accumulated
            return
        signum = self.signum
        if trainer.world_size > 1:
            received = torch.tensor(signum, device=trainer.strategy.root_device)
            signum = int(trainer.strategy.reduce(received, reduce_op="max"))
        if signum:
            self.last.save(trainer)
            raise Stopped(signum, trainer.global_step, trainer.is_global_zero)

    def _restore(self, *_: Any, **__: Any) -> None:
        for signum, before in self._before.items():
            signal.signal(signum, before)
        self._before = {}

    on_train_end = on_exception = teardown = _restore


def requeue(trainer: Trainer, signum: int) -> None:
    """Queue this Slurm job again if the signal is the one that announces the end of its time (sbatch --signal)."""
    environment = trainer._accelerator_connector.cluster_environment
    if not isinstance(environment, SLURMEnvironment) or not environment.auto_requeue or not trainer.is_global_zero:
        return
    if signum != (environment.requeue_signal or signal.SIGUSR1):
        return
    task = os.environ.get("SLURM_ARRAY_TASK_ID")
    job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{task}" if task else os.environ["SLURM_JOB_ID"]
    try:
        subprocess.run(["scontrol", "requeue", job], check=True, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip()
        print(f"warning: job {job} is not queued again: {reason}", file=sys.stderr)
