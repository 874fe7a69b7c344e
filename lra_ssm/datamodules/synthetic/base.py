"""Data that is generated while it is read: example i of a split is a function of (seed, split, i).

An example is the same in any worker, on any rank, in any batch, after any resumption.

B batch, L length, K outputs.
"""

from abc import abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from lra_ssm.datamodules.base import DataModule
from lra_ssm.datamodules.batches import SPLITS, AnyBatch, Batch, BatchDataset, TokenBatch
from lra_ssm.datamodules.counter_random import counter_random
from lra_ssm.datamodules.storage import IntArray

FloatArray = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class ExampleRandom:
    """Random numbers of a batch: row i depends only on seed, split, examples[i], stream and column.

    Each quantity that is drawn for an example has a separate stream, so that they are independent.
    """

    seed: int
    split: int
    examples: IntArray  # (B,)

    def words(self, stream: int, count: int) -> npt.NDArray[np.uint64]:
        """Return (B, count) words of 64 random bits."""
        return counter_random(self.seed, self.split, self.examples[:, None], stream, np.arange(count))

    def integers(self, stream: int, count: int, high: int) -> npt.NDArray[np.int64]:
        """Return (B, count) from 0 … high − 1, equally likely up to 2⁻³² · high."""
        return (((self.words(stream, count) >> np.uint64(32)) * np.uint64(high)) >> np.uint64(32)).astype(np.int64)

    def normal(self, stream: int, count: int) -> npt.NDArray[np.float64]:
        """Return (B, count) independent N(0, 1): the normal quantile of 52 uniform bits, without the ends."""
        uniform = ((self.words(stream, count) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
        return torch.special.ndtri(torch.from_numpy(uniform)).numpy()


class GeneratedDataset(BatchDataset):
    """Batches of a module's examples; features and real targets in float32.

    Args:
        data: module that makes the examples.
        name: name of the split.
    """

    def __init__(self, data: "SyntheticData", name: str) -> None:
        self.data, self.name = data, name
        self.num_examples: int = getattr(data, f"num_{name}")
        self.resample = data.resample and name == "train"

    def __reduce__(self) -> tuple[Any, ...]:  # worker processes get only the settings, not a trainer
        settings = {setting.name: getattr(self.data, setting.name) for setting in fields(self.data) if setting.init}
        return _dataset, (type(self.data), settings, self.name)

    def __len__(self) -> int:
        return self.num_examples

    def batch(self, examples: IntArray, epoch: int) -> AnyBatch:
        numbers = examples + epoch * len(self) if self.resample else examples
        inputs, labels = self.data.make(ExampleRandom(self.data.generator_seed, SPLITS.index(self.name), numbers))
        if labels.ndim == 2 and labels.dtype.kind == "i":
            return TokenBatch(_tensor(inputs), _tensor(labels), None, None)
        return Batch(_tensor(inputs), None, _tensor(labels))


def _dataset(module: "type[SyntheticData]", settings: dict[str, Any], name: str) -> GeneratedDataset:
    return GeneratedDataset(module(**settings), name)


def _tensor(values: npt.NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32 if values.dtype.kind == "f" else np.int64))


class SyntheticData(DataModule):
    """A task whose examples are generated while they are read: nothing is stored.

    A task defines `dataset`, what its batches hold (`vocab_size` or `d_input`, `num_classes` or `num_outputs`), its own
    settings, and `make`.

    Args:
        num_train: training examples in an epoch.
        num_val: validation examples.
        num_test: test examples.
        resample: whether every epoch has new training examples.
        generator_seed: seed of the examples; the run's seed does not change them.
    """

    version: ClassVar[int] = 1  # increase it when the same settings make other examples than before

    num_train: int = 10_000
    num_val: int = 1_000
    num_test: int = 1_000
    resample: bool = False
    generator_seed: int = 0
    batch_size: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        self.inputs = "tokens" if self.vocab_size is not None else "features"

    @abstractmethod
    def make(self, draws: ExampleRandom) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return inputs, (B, L) tokens or (B, L, features), and labels: (B,) classes, (B, L) classes of positions, or
        (B, K) or (B, L, K) floats."""

    def open_split(self, name: str) -> GeneratedDataset:
        return GeneratedDataset(self, name)

    def manifest(self) -> dict[str, Any]:
        record = self.record()
        source = {"kind": "generated", "version": self.version, **record["data"]}
        splits = {name: {"examples": getattr(self, f"num_{name}"), "arrays": {}} for name in SPLITS}
        return {**record, "inputs": self.inputs, "source": source, "splits": splits}

    def describe(self) -> str:
        counts = ", ".join(f"{name} {getattr(self, f'num_{name}'):,}" for name in SPLITS)
        resampled = ", other training examples in every epoch" if self.resample else ""
        return f"{self.dataset}, made as it is read: {counts}{resampled}; inputs as {self.inputs}"
