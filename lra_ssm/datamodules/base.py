"""What the data modules share: prepared once, opened by stage, loaded in an order that seed and epoch decide."""

import hashlib
import json
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
from lightning import LightningDataModule

from lra_ssm.datamodules.loading.batches import AnyBatch, BatchDataset, SequenceDataset, TokenDataset
from lra_ssm.datamodules.loading.loader import EpochBatches, ResumableLoader
from lra_ssm.datamodules.storage.format import MANIFEST, ImageSplit, PreparedDataset, SequenceSplit, open_prepared
from lra_ssm.datamodules.storage.intact import check_intact
from lra_ssm.datamodules.storage.prepare import prepare
from lra_ssm.datamodules.storage.root import resolve_root
from lra_ssm.errors import InputError, hint

STAGES = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",)}


class PreparedDataModule(LightningDataModule, ABC):
    """A dataset that is prepared once into `<root>/<dataset>/<kind>-<hash of what decides its content>`.

    A dataset gives `dataset`, `sources`, `content_settings` and `build`, and `fetch` where its files can be downloaded.

    Args:
        root: data root; None for LRA_SSM_DATA, else ./data.
        source: where the data comes from.
        batch_size: examples per optimizer batch over all devices together.
        eval_batch_size: the same for validation, test and prediction; None for batch_size.
        shuffle_seed: of the order of training examples; None for the run's seed (PL_GLOBAL_SEED, which
            seed_everything sets), else 0.
        num_workers: processes that load ahead.
        pin_memory: copy batches to pinned memory; None where there is a CUDA device.
        bucket_batches: batches of sequences of similar length, by sorting within pools of this many; 1 does not.
        limit: at most so many examples in each split; None for all.

    Raises:
        InputError: settings that cannot be met.
    """

    dataset: str
    sources: tuple[str, ...]  # by name; any other source is a path
    num_classes: int | None = None  # of examples, or of positions where the data has targets; None for neither
    vocab_size: int | None = None  # None also where it is known only once the data is prepared
    d_input: int | None = None  # features per position; None for tokens
    per_example: int = 1  # sequences per example: 2 for pairs
    predict_split: str = "val"  # which one `predict` takes; the test split never unless it is asked for
    neutral_settings = ("root", "eval_batch_size", "num_workers", "pin_memory")  # cannot change what a run learns
    inputs: str = "tokens"  # what batches hold; or characters, bytes; of pixels unit, symmetric, normalized, integers

    def __init__(
        self,
        root: str | None,
        source: str,
        batch_size: int,
        eval_batch_size: int | None,
        shuffle_seed: int | None,
        num_workers: int,
        pin_memory: bool | None,
        bucket_batches: int = 1,
        limit: int | None = None,
    ) -> None:
        super().__init__()
        self.root = resolve_root(root)
        self.source = source
        self.batch_size = batch_size
        self.eval_batch_size = batch_size if eval_batch_size is None else eval_batch_size
        self.shuffle_seed = shuffle_seed
        self.num_workers = num_workers
        self.pin_memory = pin_memory
        self.bucket_batches, self.limit = bucket_batches, limit
        self._datasets: dict[str, BatchDataset] = {}
        self._loaders: WeakSet[ResumableLoader] = WeakSet()  # those that somebody still uses
        self._prepared: PreparedDataset | None = None
        for name in ("batch_size", "eval_batch_size", "bucket_batches"):
            self.require(getattr(self, name) >= 1, name, "must be at least 1")
        self.require(num_workers >= 0, "num_workers", "must be at least 0")
        self.require(limit is None or limit >= 1, "limit", "must be at least 1")

    def require(self, holds: bool, name: str, what: str) -> None:
        """Raises InputError naming the setting and its value unless `holds`."""
        if not holds:
            raise InputError(f"{type(self).__name__} {name} {getattr(self, name)!r}: {what}")

    def kind(self) -> str:
        """The source in one word, "files" for a path: the first part of the prepared folder's name."""
        return self.source if self.source in self.sources else "files"

    # -- what a dataset gives --------------------------------------------------------------------------------------

    @abstractmethod
    def content_settings(self) -> dict[str, Any]:
        """Everything that decides what the prepared data is, as plain values: its hash is in the folder's name.

        Raises:
            InputError: files that the user names are missing.
        """

    @abstractmethod
    def build(self, folder: Path) -> None:
        """Writes the prepared data into an empty folder.

        Raises:
            InputError: the source's files are missing or not as published.
        """

    def fetch(self) -> None:
        """Downloads the source's files below the root, where they can be downloaded and are not there yet.

        `lra-ssm prepare` alone calls it: a fit never downloads. The caller need not hold a lock.
        """

    def batch_settings(self) -> dict[str, Any]:
        """Settings that change what the model sees of the prepared data: permutation, augmentation."""
        return {}

    def make_dataset(self, split: SequenceSplit | ImageSplit, name: str) -> BatchDataset:
        """Batches of an opened split; datasets of images say how they are transformed.

        `Batch` where examples have labels, else `TokenBatch`: with the targets of the positions, or the next tokens.
        """
        assert isinstance(split, SequenceSplit)
        return SequenceDataset(split) if split.has_labels else TokenDataset(split)

    # -- preparation -----------------------------------------------------------------------------------------------

    @property
    def prepared_folder(self) -> Path:
        """Where the prepared data is, or will be.

        Raises:
            InputError: the source's files are missing.
        """
        digest = hashlib.sha256(json.dumps(self.content_settings(), sort_keys=True).encode()).hexdigest()
        return self.root / self.dataset / f"{self.kind()}-{digest[:12]}"

    def is_prepared(self) -> bool:
        """Whether nothing is left to prepare."""
        try:
            return (self.prepared_folder / MANIFEST).is_file()
        except InputError:  # its files are missing
            return False

    def prepare_data(self) -> None:
        """Generates or reads the data into `prepared_folder`, once; other processes wait for it.

        Raises:
            InputError: the root cannot be used, files are missing or not as published, or settings cannot be met.
        """
        prepare(self.root, self.dataset, self.prepared_folder.name, self.build)

    def setup(self, stage: str | None = None) -> None:
        """Opens the splits that a stage needs: fit train and val, validate val, test test, predict `predict_split`;
        None all.

        Raises:
            InputError: not prepared, or damaged; no such stage.
        """
        stages = {**STAGES, "predict": (self.predict_split,)}
        if stage is not None and stage not in stages:
            raise InputError(f"{type(self).__name__}.setup: unknown stage {stage!r}; {hint(stage, stages)}")
        prepared = self._open()
        for name in stages[stage] if stage is not None else ("train", "val", "test"):
            if name not in self._datasets:
                split = prepared.split(name)
                check_intact(split)
                self._datasets[name] = self.make_dataset(split, name)

    def teardown(self, stage: str | None = None) -> None:
        """Ends the worker processes of all loaders; Lightning calls it when a stage is over."""
        for loader in list(self._loaders):
            loader.close()

    def manifest(self) -> dict[str, Any]:
        """The prepared folder's manifest: source, counts, lengths, classes, vocabulary and digests, as far as the data
        has them; and what batches make of it: `inputs` and `batch_settings`."""
        return {"inputs": self.inputs, "batches": self.batch_settings(), **self._open().manifest}

    def provenance(self) -> dict[str, Any]:
        """What a result must say about its data: dataset, inputs, source, counts; the manifest without its details."""
        manifest = self.manifest()
        source = {key: value for key, value in manifest["source"].items() if key not in ("files", "class_names")}
        examples = {name: split["examples"] for name, split in manifest["splits"].items()}
        batches = {"inputs": self.inputs, **self.batch_settings()}
        return {"dataset": self.dataset, "batches": batches, "source": source, "examples": examples}

    def identity(self) -> dict[str, Any]:
        """What of this data decides a run's result: the data, the batches and their order; not where it lies."""
        order = {name: getattr(self, name) for name in ("batch_size", "shuffle_seed", "bucket_batches")}
        batches = {"inputs": self.inputs, **self.batch_settings(), **order}
        return {"dataset": self.dataset, "kind": self.kind(), "content": self.content_settings(), "batches": batches}

    def describe(self) -> str:
        """One line on the prepared data."""
        origin = "" if self.source in self.sources else f"; from {self.source}"
        limit = "" if self.limit is None else f"; limit {self.limit}"
        return f"{self._open().summary()}; inputs as {self.inputs}{origin}{limit}"

    def _open(self) -> PreparedDataset:
        if self._prepared is None:
            self._prepared = open_prepared(self.prepared_folder)
        return self._prepared

    def sample(self, count: int) -> AnyBatch:
        """The first training examples, at most a batch of them, as a batch of the first epoch; loads no more."""
        self.setup("fit")
        train = self._datasets["train"]
        return train.batch(np.arange(min(count, self.batch_size, len(train))), 0)

    # -- loaders ---------------------------------------------------------------------------------------------------

    def train_dataloader(self) -> ResumableLoader:
        """Shuffled by (shuffle_seed, epoch), every example once per epoch, resumable at every batch.

        In a plain loop each pass over one loader is the next epoch; see `ResumableLoader`.
        """
        # Overfitting means the same batches in every epoch, and in the same order.
        shuffle = not getattr(self.trainer, "overfit_batches", 0)
        seed = self._resolved_shuffle_seed() if shuffle else None
        trained = self._batches_trained if self.trainer is not None else None
        return self._loader("train", self.batch_size, seed, self.bucket_batches, trained)

    def train_batches(self, world_size: int = 1) -> int:
        """Batches of a training epoch, once prepared: as long as `train_dataloader` is.

        Raises InputError where they cannot be shared out among so many devices."""
        examples = self._open().manifest["splits"]["train"]["examples"]
        return len(EpochBatches(examples, self.batch_size, world_size=world_size))

    def val_dataloader(self) -> ResumableLoader:
        """Every validation example once: in order, or with bucket_batches the longest first."""
        return self._loader("val", self.eval_batch_size, pool=self.bucket_batches)

    def test_dataloader(self) -> ResumableLoader:
        """Every test example once: in order, or with bucket_batches the longest first."""
        return self._loader("test", self.eval_batch_size, pool=self.bucket_batches)

    def predict_dataloader(self) -> ResumableLoader:
        """Every example of `predict_split` once, in order."""
        return self._loader(self.predict_split, self.eval_batch_size)

    def _loader(
        self, split: str, batch_size: int, seed: int | None = None, pool: int = 1, trained: Any = None
    ) -> ResumableLoader:
        if split not in self._datasets:
            stage = next(name for name, splits in STAGES.items() if split in splits)
            raise InputError(
                f"{type(self).__name__}: the {split} split is not open; call prepare_data() and setup({stage!r}) first"
            )
        dataset, trainer = self._datasets[split], self.trainer
        rank, world_size = (trainer.global_rank, trainer.world_size) if trainer is not None else (0, 1)
        lengths = dataset.lengths if pool > 1 else None
        batches = EpochBatches(len(dataset), batch_size, seed, rank, world_size, lengths, pool)
        loader = ResumableLoader(dataset, batches, self.num_workers, self.pin_memory, trained)
        self._loaders.add(loader)
        return loader

    def _batches_trained(self) -> int | None:
        """By the trainer that is training just now; None in a loop of somebody's own, after a fit too."""
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


def file_stats(paths: list[Path]) -> dict[str, Any]:
    """What stands for the content of files that a user names, which takes long to hash: sizes and times of change.

    A changed file gives other prepared data then. A publisher's files below the root are not looked at: what was
    prepared of them serves without them, wherever the root is moved to.
    """
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in paths}
