"""Which examples make up which batch, and a loader that resumes in the middle of an epoch."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader

from lra_ssm.datamodules.batches import AnyBatch, BatchDataset, BatchIndex
from lra_ssm.datamodules.storage import IntArray
from lra_ssm.errors import InputError


class EpochBatches:
    """Which examples make up which batch on one rank: a pure function of the arguments and the epoch.

    Every epoch takes every example once. If the last batch would be smaller than half a batch, the last two batches
    share their examples evenly, so that no rank is without work and the number of ranks does not change the batches.
    (If half a batch is less than one example per rank, the last two batches become one.)

    Args:
        num_examples: examples are 0 … num_examples − 1.
        batch_size: size of the global batch, over all ranks.
        seed: decides the order; None for the same order in every epoch: the dataset's, or with lengths the longest
            first.
        rank: which share of each global batch.
        world_size: number of ranks.
        lengths: of the examples (num_examples,): batches then hold examples of similar length.
        pool: number of consecutive batches of a random order that are sorted by length among themselves; 1 sorts
            nothing. A larger pool means less padding and less random batches.

    Raises:
        InputError: the batch cannot be divided among the ranks.
    """

    def __init__(
        self,
        num_examples: int,
        batch_size: int,
        seed: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        lengths: IntArray | None = None,
        pool: int = 1,
    ) -> None:
        if batch_size < 1 or batch_size % world_size:
            raise InputError(
                f"batch_size {batch_size}: it is the global batch, so it must be a positive multiple of the number of"
                f" devices, {world_size}"
            )
        if num_examples < world_size:
            raise InputError(f"{num_examples} examples cannot be divided among {world_size} devices")
        self.num_examples, self.batch_size, self.seed = num_examples, batch_size, seed
        self.rank, self.world_size = rank, world_size
        self.lengths, self.pool = lengths, pool if lengths is not None else 1
        self.epoch = 0
        self._ends = np.cumsum(_sizes(num_examples, batch_size, world_size))

    @property
    def sampler(self) -> "EpochBatches":
        """This object: Lightning calls `batch_sampler.sampler.set_epoch` at every epoch."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration."""
        self.epoch = epoch

    def order(self, epoch: int) -> npt.NDArray[np.int64]:
        """Return all examples in the order of an epoch (num_examples,)."""
        if self.seed is None:
            if self.pool == 1 or self.lengths is None:
                return np.arange(self.num_examples)
            return np.argsort(-self.lengths, kind="stable")
        # RandomState, because its stream never changes (NEP 19); default_rng's may.
        random = np.random.RandomState((self.seed & 0xFFFFFFFF, (self.seed >> 32) & 0xFFFFFFFF, epoch))
        order = random.permutation(self.num_examples)
        return order if self.pool == 1 else self._bucketed(order, random)

    def _bucketed(self, order: npt.NDArray[np.int64], random: np.random.RandomState) -> npt.NDArray[np.int64]:
        """Sort pools of batches by length, then shuffle the batches except a smaller last one."""
        assert self.lengths is not None
        pools = np.split(order, range(self.pool * self.batch_size, len(order), self.pool * self.batch_size))
        sorted_pools = np.concatenate([pool[np.argsort(-self.lengths[pool], kind="stable")] for pool in pools])
        whole = len(order) // self.batch_size
        batches = sorted_pools[: whole * self.batch_size].reshape(whole, self.batch_size)
        return np.concatenate([batches[random.permutation(whole)].ravel(), sorted_pools[whole * self.batch_size :]])

    def __len__(self) -> int:
        """Return the number of batches of an epoch, the same on every rank."""
        return len(self._ends)

    def __iter__(self) -> Iterator[list[int]]:
        return self.batches(self.epoch)

    def batches(self, epoch: int, start: int = 0) -> Iterator[list[int]]:
        """Yield this rank's examples of global batches start, start + 1, … of an epoch."""
        order, begin = self.order(epoch), int(self._ends[start - 1]) if start else 0
        for end in self._ends[start:].tolist():
            yield order[begin:end][self.rank :: self.world_size].tolist()
            begin = end


def _sizes(num_examples: int, batch_size: int, world_size: int) -> list[int]:
    """Return the sizes of an epoch's batches."""
    whole, tail = divmod(num_examples, batch_size)
    sizes = [batch_size] * whole
    if 2 * tail >= max(batch_size, 2 * world_size) or not whole:
        return [*sizes, tail] if tail else sizes
    if not tail:
        return sizes
    rest = sizes.pop() + tail
    half = rest // 2
    return [*sizes, rest - half, half] if half >= world_size else [*sizes, rest]


class _EpochSampler:
    """Yields as many batches as an epoch has, from batch number `first` of the run on."""

    def __init__(self, batches: EpochBatches) -> None:
        self.batches, self.first = batches, 0

    def __iter__(self) -> Iterator[BatchIndex]:
        epoch, start = divmod(self.first, len(self.batches))
        for examples in self.batches.batches(epoch, start):
            yield BatchIndex(examples, epoch)
        for examples in islice(self.batches.batches(epoch + 1), start):
            yield BatchIndex(examples, epoch + 1)


def _identity(batch: Any) -> AnyBatch:
    return cast(AnyBatch, batch)  # __getitems__ has already made the batch


def _ignore_signals(worker: int) -> None:
    """Make a worker ignore the signals that Ctrl-C or Slurm sends to all processes: only the trainer ends its workers.

    They must live until the trainer has finished and saved its step.
    """
    trainer = os.getppid()
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU):
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    def wait() -> None:
        while signal.sigwaitinfo([signal.SIGTERM]).si_pid != trainer:
            pass
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


class ResumableLoader:
    """Loads the batches of a dataset. In training, the next batch depends on how many the run has trained on.

    The trainer keeps that count and stores it in its checkpoints; the loader has no count of its own. So a resumed run
    continues with the next batch, however the trainer numbers its epochs.

    In a plain loop every pass over a shuffled loader is the next epoch, from 0 on, also after an abandoned pass.
    `set_epoch` chooses the epoch of the next pass, for a script that resumes.

    This owns a torch DataLoader instead of being one: Lightning rebuilds DataLoaders when several devices train or
    predict, with samplers that repeat examples. Iterating draws nothing from the global random generators. Worker
    processes live as long as the loader; as in any DataLoader, a new pass ends an unfinished one.

    Args:
        dataset: returns the batch for a list of examples.
        batch_sampler: the examples of each batch.
        num_workers: processes that load ahead; 0 loads in this one. Does not change the batches.
        pin_memory: copy batches to pinned memory; None for yes if there is a CUDA device.
        trained: returns the number of batches that the run has trained on, over all epochs; None, or returning None,
            outside a run.
    """

    def __init__(
        self,
        dataset: BatchDataset,
        batch_sampler: EpochBatches,
        num_workers: int = 0,
        pin_memory: bool | None = False,
        trained: Callable[[], int | None] | None = None,
    ) -> None:
        self.dataset, self.batch_sampler, self.trained = dataset, batch_sampler, trained
        self._epoch = _EpochSampler(batch_sampler)
        self._new_loader = partial(
            DataLoader,
            dataset,
            batch_sampler=self._epoch,  # type: ignore[arg-type]  # DataLoader only iterates over it
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            collate_fn=_identity,
            pin_memory=torch.cuda.is_available() if pin_memory is None else pin_memory,
            worker_init_fn=_ignore_signals,
            generator=torch.Generator(),  # a separate one: DataLoader draws a seed for its workers at every start
        )
        self._loader = self._new_loader()

    def close(self) -> None:
        """End the worker processes; the next pass starts new ones.

        If the garbage collector ends them (loaders form cycles with a trainer), torch waits five seconds for each
        worker: the collector closes their queues first, and nothing tells the workers to end.
        """
        self._loader = self._new_loader()

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return len(self.batch_sampler)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass where no trainer does."""
        self.batch_sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[AnyBatch]:
        # A generator: nothing happens before the first batch is requested. Lightning creates the iterator of the
        # first epoch (and of the one it resumes in) before its counts are right.
        batches = self.batch_sampler
        trained = self.trained() if self.trained is not None else None
        if trained is None:
            trained = batches.epoch * len(batches)
            if batches.seed is not None:
                batches.set_epoch(batches.epoch + 1)  # for the next pass, unless set_epoch chooses another
        self._epoch.first = trained
        yield from self._loader

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the trainer's count is enough. Lightning warns of loaders without these two methods."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing."""
