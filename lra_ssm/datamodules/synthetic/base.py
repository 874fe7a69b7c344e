"""Data that is made as it is read: example i of a split is a function of (seed, split, i), so that nothing is stored.

Whichever worker or rank asks for an example, in whatever batch, after whichever resumption, gets the same one.

B batch, L length, K outputs.
"""

from abc import abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from lra_ssm.datamodules.loading.batches import Batch, BatchDataset
from lra_ssm.datamodules.loading.module import LoadedDataModule
from lra_ssm.datamodules.loading.random_words import random_words
from lra_ssm.datamodules.storage.arrays import IntArray

FloatArray = npt.NDArray[np.floating[Any]]
SPLITS = ("train", "val", "test")  # a split's place here is a part of what its examples depend on


@dataclass(frozen=True)
class Draws:
    """The random numbers of a batch: row i of everything depends on seed, split, examples[i], stream and column.

    Streams are for what must be independent within an example: one for each kind of thing that is drawn.
    """

    seed: int
    split: int
    examples: IntArray  # (B,)

    def words(self, stream: int, count: int) -> npt.NDArray[np.uint64]:
        """(B, count) words of 64 random bits."""
        return random_words(self.seed, self.split, self.examples[:, None], stream, np.arange(count))

    def integers(self, stream: int, count: int, high: int) -> npt.NDArray[np.int64]:
        """(B, count) from 0 … high − 1, each as likely as the others to 2⁻³² · high."""
        return (((self.words(stream, count) >> np.uint64(32)) * np.uint64(high)) >> np.uint64(32)).astype(np.int64)

    def normal(self, stream: int, count: int) -> npt.NDArray[np.float64]:
        """(B, count) independent N(0, 1): the normal quantile of 52 uniform bits, whose ends it leaves out."""
        uniform = ((self.words(stream, count) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
        return torch.special.ndtri(torch.from_numpy(uniform)).numpy()


class GeneratedDataset(BatchDataset):
    """Batches of a module's examples; features and real targets in float32.

    Args:
        data: makes them.
        name: of the split.
    """

    def __init__(self, data: "SyntheticDataModule", name: str) -> None:
        self.data, self.name = data, name
        self.num_examples: int = getattr(data, f"num_{name}")
        self.resample = data.resample and name == "train"

    def __reduce__(self) -> tuple[Any, ...]:  # to a worker process go settings alone, no trainer
        settings = {setting.name: getattr(self.data, setting.name) for setting in fields(self.data) if setting.init}
        return _dataset, (type(self.data), settings, self.name)

    def __len__(self) -> int:
        return self.num_examples

    def batch(self, examples: IntArray, epoch: int) -> Batch:
        numbers = examples + epoch * len(self) if self.resample else examples
        inputs, labels = self.data.make(Draws(self.data.generator_seed, SPLITS.index(self.name), numbers))
        return Batch(_tensor(inputs), None, _tensor(labels))


def _dataset(module: "type[SyntheticDataModule]", settings: dict[str, Any], name: str) -> GeneratedDataset:
    return GeneratedDataset(module(**settings), name)


def _tensor(values: npt.NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32 if values.dtype.kind == "f" else np.int64))


@dataclass(kw_only=True, eq=False, repr=False)
class SyntheticDataModule(LoadedDataModule):
    """A task whose examples are made as they are read: there is nothing to prepare and nothing on the disk.

    A task's module, a dataclass too, gives `dataset`, what its batches are (`vocab_size` or `d_input`, `num_classes` or
    `num_outputs`), its own settings, and `make`. Every one has what a `LoadedDataModule` has, and these settings, some
    with other defaults.

    Args:
        num_train: training examples in an epoch.
        num_val: validation examples.
        num_test: test examples.
        resample: whether every epoch has other training examples, never seen before, or the same ones.
        generator_seed: of the examples; the run's seed does not change them.

    Raises:
        InputError: settings that cannot be met.
    """

    dataset: ClassVar[str]
    version: ClassVar[int] = 1  # of what the same settings make

    num_train: int = 10_000
    num_val: int = 1_000
    num_test: int = 1_000
    resample: bool = False
    generator_seed: int = 0
    batch_size: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        for split in SPLITS:
            self.require(getattr(self, f"num_{split}") >= 1, f"num_{split}", "must be at least 1")

    @abstractmethod
    def make(self, draws: Draws) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Inputs (B, L) integer tokens or (B, L, features), and labels: (B,) integers, (B, K) or (B, L, K) floats."""

    def open_split(self, name: str) -> GeneratedDataset:
        return GeneratedDataset(self, name)

    def content_settings(self) -> dict[str, Any]:
        """Everything that decides the examples."""
        counts = {name: getattr(self, f"num_{name}") for name in SPLITS}
        common = {"generator_seed": self.generator_seed, "resample": self.resample, "examples": counts}
        of_all = {setting.name for setting in fields(SyntheticDataModule) if setting.init}
        own = {s.name: getattr(self, s.name) for s in fields(self) if s.init and s.name not in of_all}
        return {"version": self.version, **own, **common}

    def identity(self) -> dict[str, Any]:
        """What of this data decides a run's result."""
        return {"dataset": self.dataset, "content": self.content_settings(), "batches": self.order_settings()}

    def manifest(self) -> dict[str, Any]:
        """For a run's record, in the form that prepared data has."""
        counts = self.content_settings()["examples"]
        splits = {name: {"examples": count, "arrays": {}} for name, count in counts.items()}
        source = {"kind": "generated", **self.content_settings()}
        return {"dataset": self.dataset, "inputs": self._inputs(), "source": source, "splits": splits}

    def provenance(self) -> dict[str, Any]:
        """What a result must say about its data."""
        source = {"kind": "generated", **self.content_settings()}
        examples = source.pop("examples")
        return {"dataset": self.dataset, "batches": {"inputs": self._inputs()}, "source": source, "examples": examples}

    def describe(self) -> str:
        """One line on the examples."""
        counts = ", ".join(f"{name} {count:,}" for name, count in self.content_settings()["examples"].items())
        again = ", other training examples in every epoch" if self.resample else ""
        return f"{self.dataset}, made as it is read: {counts}{again}; inputs as {self._inputs()}"

    def _inputs(self) -> str:
        return "tokens" if self.vocab_size is not None else "features"
