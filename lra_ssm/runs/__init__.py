"""A run: its identity, directory, lock, record, checkpoints and callbacks; for the commands and for a notebook.

With a Trainer of one's own, after `lightning.seed_everything`:

    run = Run("runs/mine/a")
    trainer = Trainer(**run.trainer_arguments(max_epochs=3))
    metrics = run.fit(trainer, task, data)

Importing this package loads no lightning; `Run` and `CheckpointSettings` do, on first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lra_ssm.runs.checkpoints import CheckpointSettings
    from lra_ssm.runs.run import Run

__all__ = ["CheckpointSettings", "Run"]


def __getattr__(name: str) -> Any:
    if name == "CheckpointSettings":
        from lra_ssm.runs.checkpoints import CheckpointSettings

        return CheckpointSettings
    if name == "Run":
        from lra_ssm.runs.run import Run

        return Run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
