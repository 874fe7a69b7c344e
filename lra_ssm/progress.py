"""What a Trainer shows: the model's parts, and how far it is: a bar in a terminal, plain lines in a job's log; and what
of Lightning's it does not."""

import logging
import math
import sys
import warnings
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelSummary, ProgressBar
from lightning.pytorch.trainer.connectors.logger_connector.result import _METRICS, _ResultCollection
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor, nn
from torchmetrics import Metric

from lra_ssm.bars import Bar
from lra_ssm.tables import table, terminal_width

_OF_A_STEP = ("training_step", "on_before_optimizer_step")  # hooks that log of one batch, or one optimizer step


# Of Lightning's warnings and messages those that tell nobody anything, or that ours say.
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
    "Restoring states from the checkpoint",
    "Restored all states from the checkpoint",
    "Loaded model weights from the checkpoint",
)


def _tells(record: logging.LogRecord) -> bool:
    return not any(text in record.getMessage() for text in _MESSAGES)


def quiet() -> None:
    """Silences what Lightning says without need, in this process from now on."""
    for text in _WARNINGS:
        warnings.filterwarnings("ignore", message=f".*{text}.*")
    for name in ("utilities.rank_zero", "trainer.connectors.checkpoint_connector"):
        logging.getLogger(f"lightning.pytorch.{name}").addFilter(_tells)


def shown_by_us(settings: Mapping[str, Any], callbacks: list[Any]) -> list[Callback]:
    """The progress and the summary that every Trainer of ours has, where its settings and callbacks leave them open.

    settings: the Trainer's arguments. A notebook keeps Lightning's own bar, which is made for it.
    """
    from rich.console import Console

    def is_open(setting: str, kind: type[Callback]) -> bool:
        return settings.get(setting) is not False and not any(isinstance(c, kind) for c in callbacks)

    progress = is_open("enable_progress_bar", ProgressBar) and not Console().is_jupyter
    model = is_open("enable_model_summary", ModelSummary)
    return [*([Progress()] if progress else []), *([ShowModel()] if model else [])]


def of_one_batch(trainer: Trainer) -> set[str]:
    """Names of what a training step logs of its batch alone, not of an epoch."""
    results = [result.meta for result in trainer.fit_loop.epoch_loop._results.values()]
    return {meta.forked_name(on_step=True) for meta in results if meta.on_step and meta.fx in _OF_A_STEP}


def values_of_batch(trainer: Trainer) -> dict[str, Any]:
    """What the training step logged of the batch before, and of it alone, by name: numbers () of this device."""
    results = trainer.fit_loop.epoch_loop._results.values()
    own = [result for result in results if result.meta.fx == "training_step" and not result.meta.on_epoch]
    return {result.meta.name: result._forward_cache for result in own if result._forward_cache is not None}


class _OnDevice(_ResultCollection):
    """What steps log, as tensors for the bar too: Lightning makes numbers of these, and waits for a GPU at every step,
    drawn or not."""

    def metrics(self, on_step: bool) -> _METRICS:
        of_bar = [result.meta for result in self.values() if result.meta.prog_bar]
        for meta in of_bar:
            meta.prog_bar = False
        found = super().metrics(on_step)
        for meta in of_bar:
            meta.prog_bar = True
            name = meta.forked_name(on_step)
            if name in found["callback"]:  # all that is logged in training is
                found["pbar"][name] = found["callback"][name]  # type: ignore[assignment]
        return found


def wait_for_no_bar(trainer: Trainer) -> None:
    """Within a fit no step waits for its values, but for a bar of somebody else."""
    if isinstance(trainer.progress_bar_callback, Progress | None):
        trainer.fit_loop.epoch_loop._results.__class__ = _OnDevice


def ends(trainer: Trainer) -> tuple[float, float]:
    """Optimizer steps after which a fit ends by max_steps and by max_epochs; infinite where it does not."""
    batches, epochs = trainer.fit_loop.max_batches, trainer.max_epochs
    an_epoch = math.ceil(batches / trainer.accumulate_grad_batches) if batches < math.inf else 0
    by_epochs = an_epoch * epochs if an_epoch and epochs is not None and epochs > 0 else math.inf
    return trainer.max_steps if trainer.max_steps > 0 else math.inf, by_epochs


class Progress(ProgressBar):
    """How far it is: optimizer steps of a whole fit, batches of a validation, a test or a prediction.

    In a terminal one bar, one line high. Elsewhere a plain line at most every `line_every_s`, and at the first and the
    last step of a fit. Both have the rate, the time left, and what the task logs for the progress bar; values of the
    last batch alone are marked so.

    Args:
        line_every_s: seconds between lines where there is no terminal.
        bar_every_s: seconds between drawings of the bar.
    """

    def __init__(self, line_every_s: float = 30.0, bar_every_s: float = 0.2) -> None:
        super().__init__()
        self.line_every_s, self.bar_every_s = line_every_s, bar_every_s
        self._enabled = True
        self._bar: Bar | None = None
        self._streams: list[tuple[Any, Any]] = []

    def disable(self) -> None:
        self._stop()
        self._enabled = False

    def enable(self) -> None:
        self._enabled = True

    def _start(self, what: str, unit: str, text: str = "", at_once: bool = False) -> None:
        if self._bar is None:
            self._bar = Bar(
                what, unit=unit, done=None, show=self._enabled, stream=sys.stdout, bar_every_s=self.bar_every_s,
                line_every_s=self.line_every_s,
            )  # fmt: skip
        self._bar.start(text, at_once)
        if not self._bar.is_drawn:
            return
        # Lightning's messages go to the stream that it found first, into the bar's line; now they stand above the bar.
        for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
            for handler in logging.getLogger(name).handlers:
                if isinstance(handler, logging.StreamHandler) and handler.stream is sys.__stderr__:
                    self._streams.append((handler, handler.setStream(sys.stderr)))

    def _stop(self, *_: Any, **__: Any) -> None:
        for handler, stream in self._streams:
            handler.setStream(stream)
        self._streams.clear()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    # -- a fit -----------------------------------------------------------------------------------------------------

    def _draw_fit(self, bar: Bar, trainer: Trainer, more: str = "") -> None:
        marked = of_one_batch(trainer)
        steps, by_epochs = ends(trainer)
        # The epoch that is trained or was trained last, from 1; the last one is known where it is not max_steps' end.
        number = trainer.fit_loop.epoch_progress.current.ready
        known = by_epochs <= steps and by_epochs < math.inf
        parts = []
        for name, value in self.get_metrics(trainer, trainer.lightning_module).items():
            shown = f"{float(value):.4g}" if isinstance(value, (int, float, Tensor)) else str(value)
            parts.append(f"{name.removeprefix('train/')} (batch) {shown}" if name in marked else f"{name} {shown}")
        bar.done, bar.total = trainer.global_step, min(steps, by_epochs)
        bar.draw(f"epoch {number}/{trainer.max_epochs}" if known else f"epoch {number}", [*parts, more])

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """Without the end of the run's name, which was printed at the start."""
        return {name: value for name, value in super().get_metrics(trainer, pl_module).items() if name != "v_num"}

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start("step", "steps", "a first look at the validation split")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start("step", "steps", "the first step", at_once=True)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._bar is not None and self._bar.due():
            self._draw_fit(self._bar, trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._bar is not None and self._enabled:
            self._draw_fit(self._bar, trainer)
        self._stop()

    # -- validation, within a fit too; test, prediction ------------------------------------------------------------

    def _start_batches(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn not in (None, "fit"):
            self._start(trainer.state.fn.value, "batches")

    def _draw_batches(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        totals = trainer.num_test_batches if trainer.testing else trainer.num_val_batches
        totals = trainer.num_predict_batches if trainer.predicting else totals
        total, done = totals[dataloader_idx] if isinstance(totals, list) else totals, batch_idx + 1
        bar = self._bar
        # No bar stays short of its end.
        if bar is None or trainer.sanity_checking or not (bar.due() or bar.is_drawn and done == total):
            return
        if trainer.state.fn == "fit":
            self._draw_fit(bar, trainer, f"validating {done:,}" + (f"/{int(total):,}" if total < math.inf else ""))
        else:
            bar.done, bar.total = done, total
            bar.draw(f"of loader {dataloader_idx}" if isinstance(totals, list) and len(totals) > 1 else "")

    def _stop_batches(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn != "fit":
            self._stop()

    on_validation_start = on_test_start = on_predict_start = _start_batches
    on_validation_batch_end = on_test_batch_end = on_predict_batch_end = _draw_batches
    on_validation_end = on_test_end = on_predict_end = _stop_batches
    on_exception = teardown = _stop


def _are_metrics(part: nn.Module) -> bool:
    """Whether it is a metric, or holds metrics by name, or none."""
    return isinstance(part, Metric) or isinstance(part, nn.ModuleDict) and all(map(_are_metrics, part.values()))


class ShowModel(ModelSummary):
    """Prints the model's parts and their parameters at the start of a fit; metrics, which have none, are left out.

    Args:
        max_depth: how deep parts of parts are shown; 0 prints nothing.
    """

    def __init__(self, max_depth: int = 2) -> None:
        super().__init__(max_depth)

    @rank_zero_only
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._max_depth:
            return
        found = self._summary(trainer, pl_module)
        rows = [
            (name, kind, f"{count:,}")
            for name, kind, count in zip(found.layer_names, found.layer_types, found.param_nums, strict=True)
            if not _are_metrics(pl_module.get_submodule(name))
        ]
        trained, total = found.trainable_parameters, found.total_parameters
        print(table(("part", "class", "parameters"), rows, 2, terminal_width()))
        print(f"{total:,} parameters, {'all' if trained == total else f'{trained:,}'} of them trained", flush=True)
