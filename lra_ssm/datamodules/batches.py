"""Batches in the form that models take, made from the memory-mapped arrays of a split.

B batch, L length of the longest sequence, C features per position, K targets.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset

from lra_ssm.datamodules.storage import Array, IntArray

SPLITS = ("train", "val", "test")  # random numbers depend on a split's index here
NOT_SCORED = -100  # the target where nothing is scored: torch's cross entropy ignores it by default


class Batch(NamedTuple):
    """Examples with a class or real targets each, padded with 0 on the right to the longest."""

    inputs: torch.Tensor  # (B, L) int64 tokens, (B, 2, L) pairs of sequences, (B, L, C) float32 features
    lengths: torch.Tensor | None  # (B,) int64, (B, 2) for pairs, None if all have the length L
    labels: torch.Tensor  # (B,) int64 classes; or float32 targets: (B, K), or (B, L, K) with K at every position


class TokenBatch(NamedTuple):
    """Tokens with a target each. Padding, on the right, has token 0 and target NOT_SCORED (−100)."""

    inputs: torch.Tensor  # (B, L) int64 tokens, or (B, L, C) float32 features
    # The target of each position: (B, L) int64, or (B, L, C) float32; NOT_SCORED or NaN where nothing is scored
    targets: torch.Tensor
    reset: torch.Tensor | None  # (B, L) bool, true where a document starts; None if each row is one
    lengths: torch.Tensor | None  # (B,) int64, None if all have the length L


AnyBatch = Batch | TokenBatch


class BatchIndex(NamedTuple):
    """The examples and the epoch of a batch, which the loader requests from a dataset."""

    examples: list[int]
    epoch: int


class BatchDataset(Dataset[AnyBatch], ABC):
    """A dataset that returns whole batches."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of examples."""

    @abstractmethod
    def batch(self, examples: IntArray, epoch: int) -> AnyBatch:
        """Return the batch of these examples (B,), in this order, as it is in an epoch."""

    @property
    def lengths(self) -> IntArray | None:
        """Lengths (number of examples,) by which batches are bucketed; None if all are equal."""
        return None

    def pixel_values(self, examples: IntArray) -> torch.Tensor | None:
        """Return the pixels of these examples as classes, (B, L) int64 from 0 to 255; None for other inputs."""
        return None

    def __getitem__(self, index: int) -> AnyBatch:
        return self.batch(np.array([index]), 0)

    def __getitems__(self, index: BatchIndex) -> AnyBatch:
        return self.batch(np.asarray(index.examples), index.epoch)


def pad(values: Array, starts: IntArray, ends: IntArray, padding: int) -> torch.Tensor:
    """Return the rows values[starts[i]:ends[i]] as one tensor (B, L, …), integers as int64, floats as float32."""
    dtype = np.float32 if values.dtype.kind == "f" else np.int64
    rows = np.full((len(starts), int((ends - starts).max()), *values.shape[1:]), padding, dtype=dtype)
    for row, start, end in zip(rows, starts, ends, strict=True):
        row[: end - start] = values[start:end]
    return torch.from_numpy(rows)
