"""What every data module has: splits opened by stage, loaded in an order of seed and epoch."""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakSet

import numpy as np
import torch
from lightning import LightningDataModule

from lra_ssm.datamodules.loading.batches import AnyBatch, Batch, BatchDataset
from lra_ssm.datamodules.loading.loader import EpochBatches, ResumableLoader
from lra_ssm.datamodules.loading.own_files import ARRAYS, OwnExamples, own_arrays, own_files
from lra_ssm.errors import InputError, hint

STAGES = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",)}


@dataclass(kw_only=True, eq=False, repr=False)
class LoadedDataModule(LightningDataModule, ABC):
    """Splits as datasets of batches, and their loaders.

    A data module is a dataclass: its settings are its fields, which it inherits with what is said of them.

    Args:
        batch_size: examples per optimizer batch over all devices together.
        eval_batch_size: the same for validation, test and prediction; None for batch_size.
        shuffle_seed: of the order of training examples; None for the run's seed (seed_everything), else 0.
        num_workers: processes that load ahead; 0 is enough for most models.
        pin_memory: copy batches to pinned memory; None where there is a CUDA device.

    Raises:
        InputError: settings that cannot be met.
    """

    neutral_settings: ClassVar[tuple[str, ...]] = ("eval_batch_size", "num_workers", "pin_memory")  # change no result

    batch_size: int = 32
    eval_batch_size: int | None = None
    shuffle_seed: int | None = None
    num_workers: int = 0
    pin_memory: bool | None = None

    # What batches hold: said by a class, or known once a module is made, or prepared.
    num_classes: int | None = field(default=None, init=False)  # of examples, or of targets; None for neither
    class_names: tuple[str, ...] | None = field(default=None, init=False)  # by class, where they have names
    num_outputs: int | None = field(default=None, init=False)  # real targets per example, or position; None for classes
    vocab_size: int | None = field(default=None, init=False)  # None for features
    d_input: int | None = field(default=None, init=False)  # features per position; None for tokens
    per_example: int = field(default=1, init=False)  # sequences per example: 2 for pairs
    predict_split: str = field(default="val", init=False)  # what `predict` takes; test never unless it is asked for
    bucket_batches: int = field(default=1, init=False)  # a setting where examples are of different lengths

    def __post_init__(self) -> None:
        LightningDataModule.__init__(self)
        self._datasets: dict[str, BatchDataset] = {}
        self._loaders: WeakSet[ResumableLoader] = WeakSet()  # those that somebody still uses
        for name in ("batch_size", "bucket_batches"):
            self.require(getattr(self, name) >= 1, name, "must be at least 1")
        self.require(self.evaluation_batch_size >= 1, "eval_batch_size", "must be at least 1")
        self.require(self.num_workers >= 0, "num_workers", "must be at least 0")

    @property
    def evaluation_batch_size(self) -> int:
        """`eval_batch_size`, or what stands for it."""
        return self.batch_size if self.eval_batch_size is None else self.eval_batch_size

    def require(self, holds: bool, name: str, what: str) -> None:
        """Raises InputError naming the setting and its value unless `holds`."""
        if not holds:
            raise InputError(f"{type(self).__name__} {name} {getattr(self, name)!r}: {what}")

    @abstractmethod
    def open_split(self, name: str) -> BatchDataset:
        """The batches of train, val or test."""

    @property
    def shuffles(self) -> bool:
        """Whether training examples come in another order in every epoch."""
        return True

    def order_settings(self) -> dict[str, Any]:
        """What decides which examples make up which batch."""
        return {name: getattr(self, name) for name in ("batch_size", "shuffle_seed", "bucket_batches")}

    def setup(self, stage: str | None = None) -> None:
        """Opens the splits that a stage needs; None: all. Raises InputError: one cannot be opened; no such stage."""
        stages = {**STAGES, "predict": (self.predict_split,)}
        if stage is not None and stage not in stages:
            raise InputError(f"{type(self).__name__}.setup: unknown stage {stage!r}; {hint(stage, stages)}")
        for name in stages[stage] if stage is not None else ("train", "val", "test"):
            if name not in self._datasets:
                self._datasets[name] = self.open_split(name)

    def teardown(self, stage: str | None = None) -> None:
        """Ends the worker processes of all loaders."""
        for loader in list(self._loaders):
            loader.close()

    def sample(self, count: int) -> AnyBatch:
        """The first training examples, at most a batch of them."""
        self.setup("fit")
        train = self._datasets["train"]
        return train.batch(np.arange(min(count, self.batch_size, len(train))), 0)

    @property
    def longest(self) -> int | None:
        """Positions of the longest sequence that there can be; None where the data alone knows."""
        return None

    def largest_batch(self) -> AnyBatch:
        """A training batch of the largest size: of zeros where `longest` is known, without the data.

        Raises InputError: it is not known, and the data not prepared."""
        if self.longest is None:
            train = self.open_split("train")
            return train.batch(np.arange(min(self.batch_size, len(train))), 0)
        rows = (self.batch_size, self.per_example) if self.per_example > 1 else (self.batch_size,)
        if self.d_input is None:
            inputs = torch.zeros(*rows, self.longest, dtype=torch.int64)
        else:
            inputs = torch.zeros(*rows, self.longest, self.d_input)
        return Batch(inputs, None, torch.zeros(self.batch_size, dtype=torch.int64))

    def own_examples(self, paths: Sequence[Path], vocabulary: Sequence[str] | None = None) -> OwnExamples:
        """Examples of a user's own files, made into inputs as those of the data are; here arrays of features.

        Args:
            paths: files, or folders of them.
            vocabulary: of the data that the network was trained on, where that was counted in it.

        Raises:
            InputError: a file cannot be read, or is not such data.
        """
        if self.d_input is None:
            raise InputError(f"{type(self).__name__} reads no files of your own")
        files, notes = own_files(paths, ARRAYS, " or ".join(ARRAYS))
        return own_arrays(files, self.d_input, notes=notes)

    # -- loaders ---------------------------------------------------------------------------------------------------

    def train_dataloader(self) -> ResumableLoader:
        """Every example once per epoch, in an order of (shuffle_seed, epoch); resumable: see `ResumableLoader`."""
        # Overfitting means the same batches in every epoch, and in the same order.
        shuffle = self.shuffles and not getattr(self.trainer, "overfit_batches", 0)
        seed = self._resolved_shuffle_seed() if shuffle else None
        trained = self._batches_trained if self.trainer is not None else None
        dataset = self._opened("train")
        return self._loader(dataset, self._training_order(dataset, seed, *self._rank()), trained)

    def train_batches(self, world_size: int = 1) -> int:
        """Batches of a training epoch, once prepared. Raises InputError: so many devices cannot share them."""
        self.setup("fit")
        return len(self._training_order(self._datasets["train"], None, 0, world_size))

    def val_dataloader(self) -> ResumableLoader:
        """Every validation example once: in order, or with bucket_batches the longest first."""
        return self._evaluation_loader(self._opened("val"), self.bucket_batches)

    def test_dataloader(self) -> ResumableLoader:
        """Every test example, the same way."""
        return self._evaluation_loader(self._opened("test"), self.bucket_batches)

    def predict_dataloader(self) -> ResumableLoader:
        """Every example of `predict_split` once, in order."""
        return self._evaluation_loader(self._opened(self.predict_split))

    def _opened(self, split: str) -> BatchDataset:
        if split not in self._datasets:
            stage = next(name for name, splits in STAGES.items() if split in splits)
            name = type(self).__name__
            raise InputError(f"{name}: {split} is not open; call prepare_data() and setup({stage!r}) first")
        return self._datasets[split]

    def _rank(self) -> tuple[int, int]:
        """This process' number, and how many there are."""
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer is not None else (0, 1)

    def _training_order(self, dataset: BatchDataset, seed: int | None, rank: int, world_size: int) -> EpochBatches:
        lengths = dataset.lengths if self.bucket_batches > 1 else None
        return EpochBatches(len(dataset), self.batch_size, seed, rank, world_size, lengths, self.bucket_batches)

    def _evaluation_loader(self, dataset: BatchDataset, pool: int = 1) -> ResumableLoader:
        lengths = dataset.lengths if pool > 1 else None
        order = EpochBatches(len(dataset), self.evaluation_batch_size, None, *self._rank(), lengths, pool)
        return self._loader(dataset, order)

    def _loader(self, dataset: BatchDataset, order: EpochBatches, trained: Any = None) -> ResumableLoader:
        loader = ResumableLoader(dataset, order, self.num_workers, self.pin_memory, trained)
        self._loaders.add(loader)
        return loader

    def _batches_trained(self) -> int | None:
        """By the trainer that is training just now; None in a loop of somebody's own."""
        assert self.trainer is not None
        if not self.trainer.training:
            return None
        trained = self.trainer.fit_loop.epoch_loop.batch_progress.total.completed
        if getattr(self.trainer, "overfit_batches", 0):
            return trained % int(self.trainer.num_training_batches)
        return trained

    def _resolved_shuffle_seed(self) -> int:
        if self.shuffle_seed is not None:
            return self.shuffle_seed
        return int(os.environ.get("PL_GLOBAL_SEED", 0))
