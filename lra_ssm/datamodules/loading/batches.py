"""Batches as models take them, straight from the memory-mapped arrays of a split.

B batch, L length, C channels.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from lra_ssm.datamodules.storage.arrays import IntArray
from lra_ssm.datamodules.storage.format import NOT_SCORED, ImageSplit, SequenceSplit
from lra_ssm.errors import InputError

# Makes model inputs (B, L) int64 or (B, L, C) float32 of images (B, height, width, C) uint8. The examples' numbers
# (B,) and the epoch are there for augmentation: whatever is random must depend on them (and a seed) alone.
Transform = Callable[[npt.NDArray[np.uint8], IntArray, int], npt.NDArray[np.int64] | npt.NDArray[np.float32]]


class Batch(NamedTuple):
    """One batch of examples with a class or real targets each: tokens are padded with 0 on the right to the longest."""

    inputs: torch.Tensor  # (B, L) int64 tokens, (B, 2, L) pairs of sequences, (B, L, C) float32 features
    lengths: torch.Tensor | None  # (B,) int64, (B, 2) for pairs, None where all have the length L
    labels: torch.Tensor  # (B,) int64 classes; or float32 targets: (B, K), or (B, L, K) with K at every position


class TokenBatch(NamedTuple):
    """One batch of tokens with a target each. Padding, on the right, has token 0 and target NOT_SCORED (−100)."""

    inputs: torch.Tensor  # (B, L) int64 tokens
    targets: torch.Tensor  # (B, L) int64: what is to be told at each position, NOT_SCORED where nothing is
    reset: torch.Tensor | None  # (B, L) bool, true where a document starts; None where each row is one
    lengths: torch.Tensor | None  # (B,) int64, None where all have the length L


AnyBatch = Batch | TokenBatch


class BatchIndex(NamedTuple):
    """What a worker is asked for."""

    examples: list[int]
    epoch: int


class BatchDataset(Dataset[AnyBatch], ABC):
    """A dataset of which torch's DataLoader takes whole batches."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of examples."""

    @abstractmethod
    def batch(self, examples: IntArray, epoch: int) -> AnyBatch:
        """The batch of these examples (B,), in this order, as it is in an epoch."""

    @property
    def lengths(self) -> IntArray | None:
        """By which batches are bucketed (len(self),); None where all are equally long."""
        return None

    def settings(self) -> dict[str, Any]:
        """What, besides the examples' order, decides a batch, for checkpoints."""
        return {}

    def __getitem__(self, index: int) -> AnyBatch:
        return self.batch(np.array([index]), 0)

    def __getitems__(self, index: BatchIndex) -> AnyBatch:
        return self.batch(np.asarray(index.examples), index.epoch)


class StoredDataset(BatchDataset):
    """Batches of an opened split; `split` is where from."""

    split: SequenceSplit | ImageSplit

    def __len__(self) -> int:
        return len(self.split)

    def labels(self, examples: IntArray) -> torch.Tensor:
        """Classes (B,) int64 of these examples."""
        labels = self.split.labels[examples]
        self.split.check("labels", labels, self.split.num_classes)
        return torch.from_numpy(labels)


def padded(values: IntArray, starts: IntArray, ends: IntArray, padding: int) -> torch.Tensor:
    """Rows values[starts[i]:ends[i]] as (B, L) int64, L the longest of them."""
    rows = np.full((len(starts), int((ends - starts).max())), padding, dtype=np.int64)
    for row, start, end in zip(rows, starts, ends, strict=True):
        row[: end - start] = values[start:end]
    return torch.from_numpy(rows)


class _Sequences(StoredDataset):
    split: SequenceSplit

    def __init__(self, split: SequenceSplit) -> None:
        self.split = split

    def bounds(self, sequences: IntArray) -> tuple[IntArray, IntArray]:
        """Where sequences (n,) begin and end."""
        split, offsets = self.split, self.split.offsets
        starts, ends = offsets[sequences], offsets[sequences + 1]
        split.check("offsets", starts, len(split.tokens) + 1)
        split.check("offsets", ends - starts, split.entry["length"]["max"] + 1)
        split.check("offsets", ends, len(split.tokens) + 1)
        return starts, ends

    def tokens(self, starts: IntArray, ends: IntArray) -> torch.Tensor:
        """Padded tokens (B, L) int64."""
        tokens = padded(self.split.tokens, starts, ends, 0)
        self.split.check("tokens", tokens.numpy(), self.split.vocab_size)
        return tokens

    @property
    def lengths(self) -> IntArray:
        return self.split.lengths.max(1)


class SequenceDataset(_Sequences):
    """Padded token sequences with a class, or pairs of them.

    Args:
        split: where from.
    """

    def batch(self, examples: IntArray, epoch: int) -> Batch:
        per_example = self.split.per_example
        chosen = (examples[:, None] * per_example + np.arange(per_example)).ravel()
        starts, ends = self.bounds(chosen)
        inputs, lengths = self.tokens(starts, ends), torch.from_numpy(ends - starts)
        if per_example != 1:
            groups = (len(examples), per_example)
            inputs, lengths = inputs.unflatten(0, groups), lengths.unflatten(0, groups)
        return Batch(inputs, lengths, self.labels(examples))


class TokenDataset(_Sequences):
    """Padded token sequences with a target at each position: the stored one, or the next token where none is stored.

    Args:
        split: where from; without labels.

    Raises:
        InputError: a sequence is too short to have a next token.
    """

    def __init__(self, split: SequenceSplit) -> None:
        super().__init__(split)
        shortest = split.entry["length"]["min"]
        if not split.has_targets and shortest < 2:
            raise InputError(f"{split.folder}: its shortest sequence has length {shortest}; a next token needs 2")

    def batch(self, examples: IntArray, epoch: int) -> TokenBatch:
        split = self.split
        starts, ends = self.bounds(examples)
        if split.has_targets:
            targets = padded(split.targets, starts, ends, NOT_SCORED)
            split.check("targets", np.where(targets.numpy() == NOT_SCORED, 0, targets.numpy()), split.num_classes)
        else:
            targets = padded(split.tokens, starts + 1, ends, NOT_SCORED)
            ends = ends - 1
            split.check("tokens", split.tokens[ends], split.vocab_size)  # of the others, inputs are made too
        inputs = self.tokens(starts, ends)
        return TokenBatch(inputs, targets, None, torch.from_numpy(ends - starts))


class ImageDataset(StoredDataset):
    """Images as sequences of pixels.

    Args:
        split: where from.
        transform: makes model inputs of uint8 images. It is sent to worker processes.
    """

    split: ImageSplit

    def __init__(self, split: ImageSplit, transform: Transform) -> None:
        self.split, self.transform = split, transform

    def batch(self, examples: IntArray, epoch: int) -> Batch:
        inputs = self.transform(self.split.images[examples], examples, epoch)
        return Batch(torch.from_numpy(inputs), None, self.labels(examples))
