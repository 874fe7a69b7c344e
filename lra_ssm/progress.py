"""What a Trainer shows: the model's parts, and how far it is: a bar in a terminal, plain lines in a job's log."""

import logging
import math
import sys
import time
from collections import deque
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelSummary, ProgressBar
from lightning.pytorch.utilities import rank_zero_only
from torchmetrics import Metric

from lra_ssm.tables import table, terminal_width

_OF_A_STEP = ("training_step", "on_before_optimizer_step")  # hooks that log of one batch, or one optimizer step

if TYPE_CHECKING:
    from rich.progress import Progress as Bar


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
        self._task: Any = None
        self._drawn_at = -math.inf
        self._marks: deque[tuple[float, int]] = deque(maxlen=50)  # when it was drawn, and how much was done
        self._streams: list[tuple[Any, Any]] = []

    def disable(self) -> None:
        self._stop()
        self._enabled = False

    def enable(self) -> None:
        self._enabled = True

    # -- what is shown ---------------------------------------------------------------------------------------------

    def _start(self, what: str, at_once: bool = False) -> None:
        self._drawn_at = -math.inf if at_once else time.monotonic()
        self._marks.clear()
        if not self._enabled or self._bar is not None or terminal_width() is None:
            return
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar
        from rich.table import Column

        text = TextColumn("{task.description}", "none", table_column=Column(no_wrap=True, overflow="ellipsis"))
        self._bar = Bar(BarColumn(None), text, console=Console(), auto_refresh=False, expand=True)
        self._task = self._bar.add_task(what, total=None)
        self._bar.start()
        # Lightning's messages go to the stream that it found first, into the bar's line; now they stand above the bar.
        for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
            for handler in logging.getLogger(name).handlers:
                if isinstance(handler, logging.StreamHandler) and handler.stream is sys.__stderr__:
                    self._streams.append((handler, handler.setStream(sys.stderr)))

    def _stop(self) -> None:
        for handler, stream in self._streams:
            handler.setStream(stream)
        self._streams.clear()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _due(self) -> bool:
        every = self.bar_every_s if self._bar else self.line_every_s
        return self._enabled and time.monotonic() - self._drawn_at >= every

    def _draw(self, what: str, done: int, total: float, more: list[str]) -> None:
        """Draws the bar, or prints a line: `done` steps or batches of `total`, which is infinite where nobody knows."""
        self._drawn_at = clock = time.monotonic()
        self._marks.append((clock, done))
        before, at = self._marks[0]
        rate = (done - at) / (clock - before) if done > at and clock > before else None
        known = math.isfinite(total)
        parts = [f"{done:,}/{int(total):,}" if known else f"{done:,}", *more[:1]]
        if rate:
            parts.append(f"{rate:.{1 if rate < 100 else 0}f} {'steps' if what == 'step' else 'batches'}/s")
            if known and done < total:
                parts.append(f"{timedelta(seconds=round((total - done) / rate))} left")
        parts += more[1:]
        if self._bar is None:
            print(f"{what} {', '.join(parts)}", flush=True)
        else:
            from rich.markup import escape

            total_or_none = int(total) if known else None
            self._bar.update(self._task, completed=done, total=total_or_none, description=escape("  ".join(parts)))
            self._bar.refresh()

    # -- a fit -----------------------------------------------------------------------------------------------------

    def _draw_fit(self, trainer: Trainer, more: str = "") -> None:
        marked = of_one_batch(trainer)
        steps, by_epochs = ends(trainer)
        # The epoch that is trained or was trained last, from 1; the last one is known where it is not max_steps' end.
        number = trainer.fit_loop.epoch_progress.current.ready
        known = by_epochs <= steps and by_epochs < math.inf
        parts = [f"epoch {number}/{trainer.max_epochs}" if known else f"epoch {number}"]
        for name, value in self.get_metrics(trainer, trainer.lightning_module).items():
            shown = f"{float(value):.4g}" if isinstance(value, (int, float)) else str(value)
            parts.append(f"{name.removeprefix('train/')} (batch) {shown}" if name in marked else f"{name} {shown}")
        self._draw("step", trainer.global_step, min(steps, by_epochs), [*parts, *([more] if more else [])])

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """Without the end of the run's name, which was printed at the start."""
        return {name: value for name, value in super().get_metrics(trainer, pl_module).items() if name != "v_num"}

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start("a first look at the validation split")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start("the first step", at_once=True)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._due():
            self._draw_fit(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._enabled:
            self._draw_fit(trainer)
        self._stop()

    # -- validation, within a fit too; test, prediction ------------------------------------------------------------

    def _draw_batches(self, trainer: Trainer, done: int, totals: Any, index: int) -> None:
        total = totals[index] if isinstance(totals, list) else totals
        whole = self._bar is not None and done == total  # no bar stays short of its end
        if trainer.sanity_checking or not (self._due() or whole):
            return
        of = f"{done:,}/{int(total):,}" if total < math.inf else f"{done:,}"
        if trainer.state.fn != "fit":
            more = [f"of loader {index}"] if isinstance(totals, list) and len(totals) > 1 else []
            self._draw(str(trainer.state.fn.value) if trainer.state.fn else "", done, total, more)
        else:
            self._draw_fit(trainer, f"validating {of}")

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn != "fit":
            self._start("validate")

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        self._draw_batches(trainer, batch_idx + 1, trainer.num_val_batches, dataloader_idx)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn != "fit":
            self._stop()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start("test")

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        self._draw_batches(trainer, batch_idx + 1, trainer.num_test_batches, dataloader_idx)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop()

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start("predict")

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        self._draw_batches(trainer, batch_idx + 1, trainer.num_predict_batches, dataloader_idx)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._stop()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._stop()


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
            if not isinstance(pl_module.get_submodule(name), Metric)
        ]
        trained, total = found.trainable_parameters, found.total_parameters
        print(table(("part", "class", "parameters"), rows, 2, terminal_width()))
        print(f"{total:,} parameters, {'all' if trained == total else f'{trained:,}'} of them trained", flush=True)
