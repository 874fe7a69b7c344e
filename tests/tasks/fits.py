"""A trainer that computes and does nothing else, for tests of what a task does in it."""

from typing import Any

from lightning.pytorch import Trainer


def trainer(**settings: Any) -> Trainer:
    return Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, num_sanity_val_steps=0, **settings,
    )  # fmt: skip
