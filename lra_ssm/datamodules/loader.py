"""Batches of padded sequences, and a loader that resumes exactly where a checkpoint was written.

B batch, L length.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from lra_ssm.datamodules.storage import SequenceSplit
from lra_ssm.errors import InputError


class Batch(NamedTuple):
    """Sequences, padded with 0 on the right to the longest of the batch."""

    inputs: torch.Tensor  # (B, L) int64
    lengths: torch.Tensor  # (B,) int64
    labels: torch.Tensor  # (B,) int64


class SequenceDataset(Dataset[Batch]):
    """Batches straight from the memory-mapped arrays of a split.

    Args:
        split: where from.
    """

    def __init__(self, split: SequenceSplit) -> None:
        self.split = split

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> Batch:
        return self.__getitems__([index])

    def __getitems__(self, indices: list[int]) -> Batch:
        """The batch of these examples, in this order. torch's DataLoader calls this with a whole batch."""
        split, chosen = self.split, np.asarray(indices)
        starts, ends = split.offsets[chosen], split.offsets[chosen + 1]
        lengths = ends - starts
        inputs = np.zeros((len(chosen), int(lengths.max())), dtype=np.int64)
        for row, start, end in zip(inputs, starts, ends, strict=True):
            row[: end - start] = split.tokens[start:end]
        return Batch(torch.from_numpy(inputs), torch.from_numpy(lengths), torch.from_numpy(split.labels[chosen]))


class EpochBatches:
    """Which examples make up which batch, for one rank: a pure function of the arguments and the epoch.

    Every epoch takes every example once. The last batch may be smaller; where it has fewer examples than there are
    ranks it is joined to the one before, so that no rank is ever without work.

    Args:
        num_examples: they are 0 … num_examples − 1.
        batch_size: of the global batch, over all ranks.
        seed: of the order; None for the order of the dataset in every epoch.
        rank: which share of each global batch.
        world_size: number of ranks.

    Raises:
        InputError: the batch cannot be shared out.
    """

    def __init__(
        self, num_examples: int, batch_size: int, seed: int | None = None, rank: int = 0, world_size: int = 1
    ) -> None:
        if batch_size < 1 or batch_size % world_size:
            raise InputError(
                f"batch_size {batch_size}: it is the global batch, so it must be a positive multiple of the number of"
                f" devices, {world_size}"
            )
        if num_examples < world_size:
            raise InputError(f"{num_examples} examples cannot be shared out among {world_size} devices")
        self.num_examples, self.batch_size, self.seed = num_examples, batch_size, seed
        self.rank, self.world_size = rank, world_size
        self.epoch = 0
        whole, tail = divmod(num_examples, batch_size)
        self._num_batches = max(whole + (tail >= world_size), 1)

    @property
    def sampler(self) -> "EpochBatches":
        """Itself: Lightning calls `loader.batch_sampler.sampler.set_epoch` at the start of every epoch."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch that the next iteration runs over."""
        self.epoch = epoch

    def order(self, epoch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """All examples in the order of an epoch (num_examples,)."""
        if self.seed is None:
            return np.arange(self.num_examples)
        # RandomState, for its stream is frozen for ever (NEP 19); default_rng's may change with numpy's version.
        words = (self.seed & 0xFFFFFFFF, (self.seed >> 32) & 0xFFFFFFFF, epoch)
        return np.random.RandomState(words).permutation(self.num_examples)

    def __len__(self) -> int:
        """The number of batches of a whole epoch, the same on every rank."""
        return self._num_batches

    def __iter__(self) -> Iterator[list[int]]:
        return self.batches(self.epoch)

    def batches(self, epoch: int, start: int = 0) -> Iterator[list[int]]:
        """This rank's examples of global batches start, start + 1, … of an epoch."""
        order = self.order(epoch)
        for number in range(start, len(self)):
            end = (number + 1) * self.batch_size if number + 1 < len(self) else self.num_examples
            yield order[number * self.batch_size : end][self.rank :: self.world_size].tolist()


class _Pass:
    """The batches number first, first + 1, … of a run, a whole epoch's worth, as DataLoader wants its batch sampler."""

    def __init__(self, batches: EpochBatches, first: int) -> None:
        self.batches, self.first = batches, first

    def __iter__(self) -> Iterator[list[int]]:
        epoch, start = divmod(self.first, len(self.batches))
        yield from self.batches.batches(epoch, start)
        yield from islice(self.batches.batches(epoch + 1), start)


def _unchanged(batch: Any) -> Batch:
    return cast(Batch, batch)  # __getitems__ has made a batch of it already


class ResumableLoader:
    """Loads the batches of a dataset. In training, which batch comes next depends on how many the run has trained on.

    That count is the trainer's, and in its checkpoints; the loader keeps none of its own. A run resumed anywhere,
    however the trainer numbers its epochs then, goes on with the next batch.

    Not a subclass of torch's DataLoader but the owner of one per pass: Lightning rebuilds DataLoaders when several
    devices train or predict, with samplers that repeat examples until all ranks have the same number. It takes any
    other iterable as it is. Iterating draws nothing from the global random generators.

    Args:
        dataset: gives a batch for a list of examples.
        batch_sampler: which batches.
        num_workers: processes that load ahead; 0 loads in this one. Does not change the batches.
        pin_memory: copy batches to pinned memory.
        trained: gives the number of batches that the run has trained on, over all epochs; None for a loader whose
            passes run over the batch sampler's current epoch.
    """

    def __init__(
        self,
        dataset: SequenceDataset,
        batch_sampler: EpochBatches,
        num_workers: int = 0,
        pin_memory: bool = False,
        trained: Callable[[], int] | None = None,
    ) -> None:
        self.dataset, self.batch_sampler = dataset, batch_sampler
        self.num_workers, self.pin_memory, self.trained = num_workers, pin_memory, trained

    def __len__(self) -> int:
        """The number of batches of a pass: an epoch."""
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[Batch]:
        # A generator: nothing happens before the first batch is asked for. Lightning creates the iterator of the
        # first epoch (and of the one it resumes in) before its counts are right.
        batches = self.batch_sampler
        first = self.trained() if self.trained is not None else batches.epoch * len(batches)
        yield from DataLoader(
            self.dataset,
            batch_sampler=_Pass(batches, first),
            num_workers=self.num_workers,
            collate_fn=_unchanged,
            pin_memory=self.pin_memory,
            generator=torch.Generator(),  # its own: DataLoader draws a seed for its workers at every start
        )

    def state_dict(self) -> dict[str, Any]:
        """What a count of batches is a count of. Lightning stores it in every checkpoint."""
        batches = self.batch_sampler
        return {"num_examples": batches.num_examples, "batch_size": batches.batch_size, "shuffle_seed": batches.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Checks that the checkpoint's run had the same batches.

        Raises:
            InputError: another dataset, batch size or order.
        """
        for key, value in self.state_dict().items():
            if state[key] != value:
                raise InputError(
                    f"cannot resume in the middle of the data: the checkpoint was written with {key} {state[key]}, this"
                    f" run has {value}; resume with the same settings or start anew"
                )
