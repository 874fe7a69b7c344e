"""A checkpoint as a file."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from lra_ssm.files import replacing


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its place and renames it: whoever reads it finds the old one or the new one, whole.

    (Lightning's own write goes through the system's temporary folder, and is a copy where that is another disk.)
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with replacing(Path(path), "wb") as file:
            torch.save(checkpoint, file)
