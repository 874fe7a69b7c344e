"""Batches as models take them, straight from the memory-mapped arrays of a split.

B batch, L length, C channels.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from lra_ssm.datamodules.storage.format import ImageSplit, IntArray, SequenceSplit

# Makes model inputs (B, L) int64 or (B, L, C) float32 of images (B, height, width, C) uint8. The examples' numbers
# (B,) and the epoch are there for augmentation: whatever is random must depend on them (and a seed) alone.
Transform = Callable[[npt.NDArray[np.uint8], IntArray, int], npt.NDArray[np.int64] | npt.NDArray[np.float32]]


class Batch(NamedTuple):
    """One batch: tokens are padded with 0 on the right to the longest of the batch."""

    inputs: torch.Tensor  # (B, L) int64 tokens, (B, 2, L) pairs of sequences, (B, L, C) float32 features
    lengths: torch.Tensor | None  # (B,) int64, (B, 2) for pairs, None where all have the length L
    labels: torch.Tensor  # (B,) int64


class BatchIndex(NamedTuple):
    """What a worker is asked for."""

    examples: list[int]
    epoch: int


class BatchDataset(Dataset[Batch], ABC):
    """A dataset of which torch's DataLoader takes whole batches."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def batch(self, examples: IntArray, epoch: int) -> Batch:
        """The batch of these examples (B,), in this order, as it is in an epoch."""

    def __getitem__(self, index: int) -> Batch:
        return self.batch(np.array([index]), 0)

    def __getitems__(self, index: BatchIndex) -> Batch:
        return self.batch(np.asarray(index.examples), index.epoch)


class SequenceDataset(BatchDataset):
    """Padded token sequences, or pairs of them.

    Args:
        split: where from.
    """

    def __init__(self, split: SequenceSplit) -> None:
        self.split = split

    def __len__(self) -> int:
        return len(self.split)

    def batch(self, examples: IntArray, epoch: int) -> Batch:
        split, per_example = self.split, self.split.per_example
        chosen = (examples[:, None] * per_example + np.arange(per_example)).ravel()
        offsets = split.offsets
        starts, ends = offsets[chosen], offsets[chosen + 1]
        lengths = ends - starts
        inputs = np.zeros((len(chosen), int(lengths.max())), dtype=np.int64)
        for row, start, end in zip(inputs, starts, ends, strict=True):
            row[: end - start] = split.tokens[start:end]
        batch = Batch(torch.from_numpy(inputs), torch.from_numpy(lengths), torch.from_numpy(split.labels[examples]))
        if per_example == 1:
            return batch
        groups = (len(examples), per_example)
        return Batch(batch.inputs.unflatten(0, groups), torch.from_numpy(lengths.reshape(groups)), batch.labels)


class ImageDataset(BatchDataset):
    """Images as sequences of pixels.

    Args:
        split: where from.
        transform: makes model inputs of uint8 images. It is sent to worker processes.
    """

    def __init__(self, split: ImageSplit, transform: Transform) -> None:
        self.split, self.transform = split, transform

    def __len__(self) -> int:
        return len(self.split)

    def batch(self, examples: IntArray, epoch: int) -> Batch:
        inputs = self.transform(self.split.images[examples], examples, epoch)
        return Batch(torch.from_numpy(inputs), None, torch.from_numpy(self.split.labels[examples]))
