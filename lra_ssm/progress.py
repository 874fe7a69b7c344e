"""What a Trainer shows: Lightning's rich bar in a terminal, a line every 30 s in a job's log and in a notebook.

Rich's bar does not work in a notebook: with ipykernel 7, printing while the bar is shown recurses without end.
"""

import logging
import math
import sys
import time
import warnings
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar, RichProgressBar
from lightning.pytorch.callbacks.progress.rich_progress import RichProgressBarTheme

from lra_ssm.tables import duration

# Warnings and messages of Lightning that do not help a user, or that repeat ours.
_WARNINGS = (
    "does not have many workers",
    "callbacks used to create the checkpoint need to be provided",
    "Couldn't infer the batch indices",
    "overridden `on_before_batch_transfer` in `LightningModule`",
    "LeafSpec.* is deprecated",
    "Checkpoint directory .* exists and is not empty",
    "The `srun` command is available",
)
_MESSAGES = (
    "litlogger",  # a package that overwrites the `lightning` command
    "`weights_only` was not set",
    "to estimate number of stepping batches",
    "TPU available",
    "`Trainer.fit` stopped: `max_",  # the run says that it is finished
    "Restoring states from the checkpoint",
    "Restored all states from the checkpoint",
    "Loaded model weights from the checkpoint",
)


def quiet() -> None:
    """Silence Lightning's needless warnings and messages, in this process from now on."""
    for text in _WARNINGS:
        warnings.filterwarnings("ignore", message=f".*{text}.*")
    for name in ("utilities.rank_zero", "trainer.connectors.checkpoint_connector"):
        logging.getLogger(f"lightning.pytorch.{name}").addFilter(_is_useful)


def _is_useful(record: logging.LogRecord) -> bool:
    return not any(text in record.getMessage() for text in _MESSAGES)


def display_arguments(arguments: Mapping[str, Any], callbacks: list[Any]) -> dict[str, Any]:
    """Return the arguments of a Trainer that decide what it shows: our progress unless the user has chosen.

    Lightning's table of the model, half of which is metrics, is shown only if the user enables it.

    Args:
        arguments: the Trainer's arguments.
        callbacks: all callbacks of the Trainer.
    """
    summary = {"enable_model_summary": bool(arguments.get("enable_model_summary"))}
    has_progress = any(isinstance(callback, (ProgressBar, LogLines)) for callback in callbacks)
    if has_progress or arguments.get("enable_progress_bar") is False:
        return {"callbacks": callbacks, **summary}
    if sys.stdout.isatty():
        return {"callbacks": [*callbacks, Bar()], **summary}
    return {"callbacks": [*callbacks, LogLines()], "enable_progress_bar": False, **summary}


def shown_metrics(trainer: Trainer) -> dict[str, Any]:
    """Return what progress shows: the last batch's loss, and what is logged with prog_bar=True.

    The loss is not logged that way: Lightning would wait for the GPU at every step to turn it into a number.
    """
    loss = {name: value for name, value in trainer.callback_metrics.items() if name == "train/loss"}
    return {**loss, **trainer.progress_bar_metrics}


class Bar(RichProgressBar):
    """Lightning's rich bar, with the metrics of `shown_metrics`."""

    def __init__(self) -> None:
        super().__init__(refresh_rate=5, theme=RichProgressBarTheme(metrics_format=".4g"))

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        return {name.removeprefix("train/"): value for name, value in shown_metrics(trainer).items()}


class LogLines(Callback):
    """Prints a line at the first and the last step of a fit, and every `every_s` seconds between them.

    Args:
        every_s: seconds between lines.
    """

    def __init__(self, every_s: float = 30.0) -> None:
        self.every_s = every_s
        self._last = (-math.inf, 0)  # time and step of the last line

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._last = -math.inf, trainer.global_step

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.is_global_zero and time.monotonic() - self._last[0] >= self.every_s:
            self._print(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            self._print(trainer)

    def _print(self, trainer: Trainer) -> None:
        now, step, total = time.monotonic(), trainer.global_step, trainer.estimated_stepping_batches
        rate = (step - self._last[1]) / (now - self._last[0])
        parts = [f"step {step:,}" + (f"/{total:,.0f}" if total < math.inf else ""), f"epoch {trainer.current_epoch}"]
        parts += [f"{name} {float(value):.4g}" for name, value in shown_metrics(trainer).items()]
        if rate > 0:
            parts.append(f"{rate:.3g} steps/s")
            parts += [f"{duration((total - step) / rate)} left"] if step < total < math.inf else []
        self._last = now, step
        print(", ".join(parts), flush=True)
