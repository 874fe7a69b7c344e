"""Datasets of sequences: a generator of examples, stored as arrays, padded to batches.

class Promoters(SequenceData):
    num_classes, vocabulary = 2, ("<pad>", *"ACGT")
    max_length: int = 200

    def examples(self):
        ...
        yield "train", tokens, label
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lra_ssm.datamodules.base import ArrayData
from lra_ssm.datamodules.batches import NOT_SCORED, SPLITS, AnyBatch, Batch, BatchDataset, TokenBatch, pad
from lra_ssm.datamodules.settings import setting
from lra_ssm.datamodules.storage import Array, Growing, IntArray, Split, token_dtype
from lra_ssm.errors import InputError


class SequenceData(ArrayData):
    """A dataset of sequences, or pairs of them (`per_example` 2), made by a generator of examples.

    A dataset has class attributes: `vocabulary`, tokens in the order of their ids, the first of which pads (or only
    `vocab_size`), or `d_input` for real features; `num_classes`, or `num_outputs` for real targets.

    Args:
        bucket_batches: batches of sequences of similar length, by sorting within pools of this many; 1 does not sort.
    """

    pads = True

    bucket_batches: int = setting(default=1, affects="order")
    vocabulary: tuple[str, ...] | None = field(default=None, init=False)
    max_length: int | None = field(default=None, init=False)  # a setting of most datasets

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocabulary is not None:
            self.vocab_size = len(self.vocabulary)

    @abstractmethod
    def examples(self) -> Iterator[tuple[str, Any, Any]]:
        """Yield (split, inputs, answer) of each example.

        Inputs are token ids (L,), features (L,) or (L, d_input), or a tuple of two such for pairs. The answer is a
        class; with `num_outputs` real targets (num_outputs,); an array (L,) of a class, or NOT_SCORED, at each
        position; or None, which asks for the next token. A dataset whose vocabulary depends on the data sets
        `vocabulary` before the first example.

        Raises:
            InputError: files are missing or not as expected; names file and line.
        """

    @property
    def longest(self) -> int | None:
        return self.max_length

    def make_dataset(self, split: Split, name: str) -> BatchDataset:
        return SequenceDataset(split, self.per_example)

    def facts(self) -> dict[str, Any]:
        if self.vocabulary is not None:
            return super().facts() | {"vocabulary": list(self.vocabulary)}
        return super().facts() | ({} if self.vocab_size is None else {"vocab_size": self.vocab_size})

    def arrays(self, folder: Path) -> dict[str, dict[str, Array]]:
        writers: dict[str, _SequenceWriter] = {}
        for name, inputs, answer in self.examples():
            if name not in writers:
                if name not in SPLITS:
                    raise InputError(f"{type(self).__name__}: {name!r} is not a split; they are train, val and test")
                writers[name] = _SequenceWriter(self, folder, name)
            if self.limit is None or len(writers[name].answers) < self.limit:
                writers[name].add(inputs if self.per_example > 1 else (inputs,), answer)
        if "train" not in writers:
            raise InputError(f"{type(self).__name__}: there are no training examples")
        return {name: writers[name].arrays() for name in SPLITS if name in writers}


class _SequenceWriter:
    """Collects the examples of a split and checks each one."""

    def __init__(self, data: SequenceData, folder: Path, split: str) -> None:
        self.data, self.split = data, split
        self.vocab_size = data.vocab_size if data.vocabulary is None else len(data.vocabulary)
        if self.vocab_size is None:
            self.inputs = Growing(folder, np.float32, (data.d_input or 1,))
        else:
            self.inputs = Growing(folder, token_dtype(self.vocab_size))
        self.ends, self.answers = [0], list[Any]()

    def add(self, sequences: tuple[Any, ...], answer: Any) -> None:
        """Append an example. Raises InputError, which names the example, if a value is invalid."""
        for values in map(np.asarray, sequences):
            if not len(values):
                raise self.error("an empty sequence")
            if self.data.max_length is not None and len(values) > self.data.max_length:
                raise self.error(f"{len(values)} positions; max_length is {self.data.max_length}")
            if answer is None and len(values) < 2:
                raise self.error("one position; it has no next token to predict")
            if self.vocab_size is not None:
                self.check(values, self.vocab_size, "token")
            else:
                values = values.reshape(len(values), -1)
                if values.shape[1] != self.data.d_input:
                    raise self.error(f"{values.shape[1]} features per position; d_input is {self.data.d_input}")
            self.inputs.append(values)
            self.ends.append(len(self.inputs))
        if answer is not None and self.data.num_outputs is None:
            answer, positions = np.asarray(answer), self.ends[-1] - self.ends[-2]
            if answer.ndim and len(answer) != positions:
                raise self.error(f"{len(answer)} targets for {positions} positions")
            scored = np.where(answer == NOT_SCORED, 0, answer) if answer.ndim else answer
            self.check(scored, self.data.num_classes or 0, "target" if answer.ndim else "label")
        self.answers.append(answer)

    def check(self, values: Array, size: int, what: str) -> None:
        if values.dtype.kind not in "iu":
            raise self.error(f"{what}s are {values.dtype}; they must be integers")
        if (low := values.min()) < 0 or (high := values.max()) >= size:
            raise self.error(f"{what} {low if low < 0 else high} is not one of 0 to {size - 1}")

    def error(self, what: str) -> InputError:
        return InputError(f"{type(self.data).__name__}: split {self.split}, example {len(self.answers)}: {what}")

    def arrays(self) -> dict[str, Array]:
        """Return all examples; the inputs are mapped from a temporary file."""
        name = "features" if self.vocab_size is None else "tokens"
        arrays = {name: self.inputs.array(), "offsets": np.array(self.ends)}
        if self.answers[0] is None:
            return arrays
        if self.data.num_outputs is not None:
            return arrays | {"labels": np.array(self.answers, np.float32).reshape(len(self.answers), -1)}
        if np.ndim(self.answers[0]):
            return arrays | {"targets": np.concatenate(self.answers).astype(np.int32)}
        return arrays | {"labels": np.array(self.answers, np.int64)}


class SequenceDataset(BatchDataset):
    """Padded sequences, or pairs of them, with a class or real targets: `Batch`. With a target at each position, or
    none, which means the next token: `TokenBatch`.

    Args:
        split: `tokens` (all tokens one after another, unsigned) or `features` (all positions, C, float32); `offsets`
            (sequences + 1,) int64, where sequences begin and end; `labels` (examples, …) or `targets` (all tokens,)
            int32, or neither.
        per_example: sequences that make up an example: 2 for pairs.
    """

    def __init__(self, split: Split, per_example: int = 1) -> None:
        self.split, self.per_example = split, per_example
        self.values = split["tokens" if "tokens" in split else "features"]
        self.offsets = split["offsets"]

    def __len__(self) -> int:
        return (len(self.offsets) - 1) // self.per_example

    @property
    def lengths(self) -> IntArray:
        return np.diff(self.offsets).reshape(-1, self.per_example).max(1)

    def batch(self, examples: IntArray, epoch: int) -> AnyBatch:
        sequences = (examples[:, None] * self.per_example + np.arange(self.per_example)).ravel()
        starts, ends = self.offsets[sequences], self.offsets[sequences + 1]
        if "labels" not in self.split:
            return self._with_targets(starts, ends)
        inputs, lengths = pad(self.values, starts, ends, 0), torch.from_numpy(ends - starts)
        if self.per_example != 1:
            groups = (len(examples), self.per_example)
            inputs, lengths = inputs.unflatten(0, groups), lengths.unflatten(0, groups)
        return Batch(inputs, lengths, torch.from_numpy(self.split["labels"][examples]))

    def _with_targets(self, starts: IntArray, ends: IntArray) -> TokenBatch:
        if "targets" in self.split:
            targets = pad(self.split["targets"], starts, ends, NOT_SCORED)
        else:
            targets = pad(self.values, starts + 1, ends, NOT_SCORED)
            ends = ends - 1
        return TokenBatch(pad(self.values, starts, ends, 0), targets, None, torch.from_numpy(ends - starts))
