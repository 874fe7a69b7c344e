"""A fit, step by step, in this order; `lightning fit` and `Run.fit` in a notebook take the same steps.

Before it `Run.of_config` finds identity and directory, and `Run.trainer_arguments` gives the Trainer its callbacks.
What scores a checkpoint takes the steps of `make_ready`; `ending.py` has how all of them end.
"""

import inspect
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule, Trainer

from lra_ssm.errors import InputError
from lra_ssm.progress import wait_for_no_bar
from lra_ssm.runs.checks import (
    check_batches,
    check_checkpoint,
    check_data,
    check_strategy,
    check_tokenizer,
    check_vocabulary,
    try_network,
)
from lra_ssm.runs.cost import warn_of_memory
from lra_ssm.runs.signals import Signals


def check_before_fit(trainer: Trainer, task: LightningModule, data: LightningDataModule | None) -> None:
    """Raises InputError if the batches do not fit the Trainer, or the network does not take them."""
    check_batches(trainer, data)
    try_network(task, data, trainer)
    warn_of_memory(trainer, task, data)


def train(trainer: Trainer, task: LightningModule, data: LightningDataModule | None, checkpoint: Path | None) -> None:
    """Train, from a checkpoint if there is one."""
    wait_for_no_bar(trainer)
    with restoring(checkpoint):
        trainer.fit(task, datamodule=data, ckpt_path=checkpoint and str(checkpoint), **tensors_alone(trainer.fit))


def make_ready(
    trainer: Trainer,
    task: LightningModule,
    data: LightningDataModule | None,
    signals: Signals,
    run: Any = None,
    checkpoint: Path | None = None,
    weights: Any = None,
    prepare: Callable[[], None] | None = None,
    source: dict[str, str] | None = None,
    strict: bool = False,
    resuming: bool = True,
) -> None:
    """All that is checked before a task is fitted or scored; brings the processes of a run together, loads weights that
    are no checkpoint's and prepares the data.

    Args:
        checkpoint: that the Trainer is going to load; weights: what the task takes without one.
        prepare: prepares the data, if not `data.prepare_data`.
        source, strict, resuming: as of `check_checkpoint`.

    Raises:
        InputError: something does not fit together.
    """
    check_strategy(trainer)
    check_data(task, data)
    signals.watch(trainer, run)
    if signals.command is not None:
        signals.meet()  # before what takes long: weights that are fetched, data that is prepared
    if checkpoint is not None:
        check_checkpoint(checkpoint, task, strict, resuming, source)
    elif weights is not None:
        weights.load(task)
    if data is None:
        return
    # By every process: those that come second wait for the first here, where nothing times out, and a node with a data
    # root of its own prepares it.
    (prepare or data.prepare_data)()
    check_vocabulary(task, data)
    if checkpoint is not None:
        check_tokenizer(checkpoint, data)
    elif weights is not None:
        weights.check_tokenizer(data)


def tensors_alone(method: Callable[..., Any]) -> dict[str, bool]:
    """The Trainer's option to read no other objects from a checkpoint, which Lightning has from 2.6 on."""
    return {"weights_only": True} if "weights_only" in inspect.signature(method).parameters else {}


@contextmanager
def restoring(checkpoint: Path | None) -> Iterator[None]:
    """What Lightning cannot take up of the checkpoint is one line, in the words of what failed."""
    try:
        yield
    except Exception as error:
        names = {frame.f_code.co_name.lstrip("_") for frame, _ in traceback.walk_tb(error.__traceback__)}
        restores = any(name.startswith(("restore", "resume_start")) for name in names)
        # Want of memory, and the end of a process beside this one, are RuntimeErrors too.
        other = isinstance(error, RuntimeError) and not str(error).startswith("Error(s) in loading state_dict")
        if other or isinstance(error, (InputError, OSError)) or not restores:
            raise
        said = f"checkpoint {checkpoint} does not fit: {type(error).__name__}: {error}"
        raise InputError(f"{said}; --init_from starts from its weights") from error
