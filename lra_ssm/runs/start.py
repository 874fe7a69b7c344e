"""What comes before the Trainer runs: checks, weights and data. Fits, notebooks and scores take the same steps."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule, Trainer

from lra_ssm.errors import InputError
from lra_ssm.runs.checkpoints import load_checkpoint
from lra_ssm.runs.checks import (
    check_batches,
    check_checkpoint,
    check_data,
    check_layers,
    check_strategy,
    check_tokenizer,
    check_vocabulary,
    try_network,
)
from lra_ssm.runs.cost import warn_of_memory
from lra_ssm.runs.identity import differences, what_counts

CONFIG = "lra_ssm_config"  # in a checkpoint: the run's resolved configuration


def make_ready(
    trainer: Trainer,
    task: LightningModule,
    data: LightningDataModule | None,
    checkpoint: Path | None = None,
    weights: Any = None,
    prepare: Callable[[], None] | None = None,
    source: Mapping[str, str] | None = None,
    strict: bool = False,
    resuming: bool = True,
) -> None:
    """Check what fits together before a task is fitted or scored, load weights and prepare the data.

    Args:
        checkpoint: that the Trainer is going to load; weights: what the task loads without one.
        prepare: prepares the data, if not `data.prepare_data`.
        source, strict, resuming: as of `check_checkpoint`.

    Raises:
        InputError: something does not fit together.
    """
    check_strategy(trainer)
    check_data(task, data)
    if checkpoint is not None:
        check_checkpoint(checkpoint, task, strict, resuming, source)
    elif weights is not None:
        weights.load(task)
    if data is None:
        return
    # By every process: the others wait for the first one here, where nothing times out, and a node with a data root of
    # its own prepares it.
    (prepare or data.prepare_data)()
    check_vocabulary(task, data)
    if checkpoint is not None:
        check_tokenizer(checkpoint, data)
    elif weights is not None:
        weights.check_tokenizer(data)


def check_before_fit(
    trainer: Trainer, task: LightningModule, data: LightningDataModule | None, check_layer: bool = True
) -> None:
    """Check that the batches fit the Trainer and that the network takes them; warn if a step needs too much memory.

    Raises InputError.
    """
    check_batches(trainer, data)
    try_network(task, data, trainer)
    if check_layer:
        check_layers(task, data, trainer)
    warn_of_memory(trainer, task, data)


def check_begun_from(checkpoint: Path, config: Mapping[str, Any], neutral: Mapping[str, Sequence[str]]) -> Path:
    """Return the checkpoint of another run if it was made with the same task and data settings.

    Raises InputError if the file does not exist, or if the settings differ.
    """
    if not checkpoint.is_file():
        raise InputError(f"checkpoint {checkpoint} does not exist")
    before = load_checkpoint(checkpoint).get(CONFIG)
    if isinstance(before, dict):
        theirs, ours = (what_counts({"trainer": {}, **each}, neutral) for each in (before, config))
        changed = [
            line for name in ("model", "data") for line in differences(theirs.get(name), ours.get(name), name=name)
        ]
        if changed:
            raise InputError(
                f"{checkpoint} was made with other settings: {', '.join(changed)}; give the same to go on with it, or"
                " --init_from to start from its weights"
            )
    return checkpoint
