"""Small data in the published layouts, and a tiny prepared dataset."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch

from lra_ssm.datamodules import SequenceData
from lra_ssm.datamodules.listops.trees import CLOSE, OPERATORS
from lra_ssm.datamodules.storage import Prepared, Split

# Expressions as LRA writes them, with their values.
LINES = {
    "train": ["( ( ( [MAX 2 ) 9 ) ] )\t9", "( ( ( [SM 7 ) ( ( ( [MIN 5 ) 8 ) ] ) ) ] )\t2"],
    "val": ["( ( ( ( [MED 1 ) 4 ) 5 ) ] )\t4"],
    "test": ["( ( ( [MED 3 ) 6 ) ] )\t4"],
}


def write_tsv(folder: Path, lines: Mapping[str, Sequence[str]] = LINES, header: str = "Source\tTarget") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in lines.items():
        (folder / f"basic_{split}.tsv").write_text("\n".join([header, *rows]) + "\n")
    return folder


def sequences(split: Split) -> list[list[int]]:
    """The sequences of a split, which are stored one after another."""
    return [part.tolist() for part in np.split(split["tokens"], split["offsets"][1:-1])]


def evaluate(tokens: Sequence[str]) -> int:
    """The value of an expression without parentheses: `["[MAX", "2", "9", "]"]`."""
    found: list[list[Any]] = [[]]
    for token in tokens:
        if token in OPERATORS:
            found.append([token])
        elif token == CLOSE:
            operator, *values = found.pop()
            found[-1].append(OPERATORS[operator](values))
        else:
            found[-1].append(int(token))
    ((value,),) = found
    return value


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


class Tiny(SequenceData):
    """Sequences of lengths 1 to 7 whose label is their index."""

    sources = ("made",)
    source: str = "made"
    num_classes, vocabulary = 26, tuple("abcde")
    num_train: int = 26
    num_val: int = 6

    def examples(self):
        for name, count in (("train", self.num_train), ("val", self.num_val)):
            for index in range(count):
                yield name, [1 + index % 4] * (1 + index % 7), index


def tiny_dataset(root: Path, **settings: Any) -> Prepared:
    data = Tiny(root=str(root), **settings)
    data.prepare_data()
    return data.prepared


class Recorder(L.LightningModule):
    """Keeps the batches that it is trained and validated on; its weight depends on their order."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.batches, self.validated = list[Any](), list[Any]()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.batches.append(batch)
        return (self.weight * batch[-1 if hasattr(batch, "labels") else 0].double().mean()).sin()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.validated.append(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def trainer(**settings: Any) -> L.Trainer:
    silent = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return L.Trainer(accelerator="cpu", enable_checkpointing=False, num_sanity_val_steps=0, **silent, **settings)
