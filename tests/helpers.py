"""Classes that tests name by class_path."""

import os
import resource
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from torch import nn


class Smooth(nn.Module):
    """A layer of a user's own: forward(x, lengths=None) and nothing else."""

    def __init__(self, d_model: int, width: int = 3) -> None:
        super().__init__()
        self.mix = nn.Conv1d(d_model, d_model, width, padding="same")

    def forward(self, x: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        return self.mix(x.transpose(1, 2)).transpose(1, 2)


class PlainBlock(nn.Module):
    """A block of a user's own: d_model, layer, and forward(x, lengths=None)."""

    def __init__(self, d_model: int, layer: Callable[[int], nn.Module], scale: float = 1.0) -> None:
        super().__init__()
        self.layer, self.scale = layer(d_model), scale

    def forward(self, x: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        return x + self.scale * self.layer(x, lengths)


class Bag(nn.Module):
    """A network of a user's own: forward(inputs, lengths) -> logits. It builds its layer itself."""

    def __init__(self, layer: Callable[[int], nn.Module], num_classes: int, vocab_size: int, width: int = 4) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(vocab_size, width), layer(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, inputs: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embedding(inputs), lengths).mean(1))


class KillMe(Callback):
    """SIGKILL to its own process at the event and the number in KILL_AT, as in "train_batch_start:5"; without, nothing.

    KILL_WITH names another signal, KILL_RANK the one process of several that is sent it. Instead of a signal, FULL_AT
    makes every file full from that many bytes on, and RUN a command of the shell. COPY_TO is a folder that gets the
    runs as they are at every event, by "event:number": what a kill would leave.
    """

    def __init__(self) -> None:
        event, _, number = os.environ.get("KILL_AT", ":").partition(":")
        self.event, self.number, self.seen = event, int(number or 0), Counter[str]()

    def _at(self, event: str) -> None:
        self.seen[event] += 1
        if (copies := os.environ.get("COPY_TO")) and Path("runs").is_dir():
            shutil.copytree("runs", f"{copies}/{event}:{self.seen[event]}")
        rank = os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0"))
        if (event, self.seen[event]) != (self.event, self.number) or os.environ.get("KILL_RANK", rank) != rank:
            return
        if full := os.environ.get("FULL_AT"):
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(full), resource.RLIM_INFINITY))
        elif command := os.environ.get("RUN"):
            os.system(command)
        else:
            os.kill(os.getpid(), signal.Signals[os.environ.get("KILL_WITH", "SIGKILL")])

    def setup(self, *args: Any, **kwargs: Any) -> None:
        self._at("setup")


for _event in (
    "sanity_check_start", "train_start", "train_end", "train_epoch_start", "train_epoch_end", "train_batch_start",
    "train_batch_end", "validation_batch_start", "validation_batch_end", "validation_end",
    "save_checkpoint",
):  # fmt: skip
    setattr(KillMe, f"on_{_event}", lambda self, *_, event=_event: self._at(event))
