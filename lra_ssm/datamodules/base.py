"""Data modules: settings that say what they affect, data that is prepared once, loaders that resume.

`DataModule` loads batches in an order that depends on seed and epoch. `PreparedData` first stores the arrays from which
batches are made.
"""

import hashlib
import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args, get_origin
from weakref import WeakSet

import numpy as np
import torch
from lightning import LightningDataModule

from lra_ssm.datamodules.batches import SPLITS, AnyBatch, Batch, BatchDataset
from lra_ssm.datamodules.loader import EpochBatches, ResumableLoader
from lra_ssm.datamodules.pretraining import PIXEL_VALUES, Pretraining, PretrainingDataset
from lra_ssm.datamodules.settings import SettingsDataclass, setting
from lra_ssm.datamodules.storage import (
    FORMAT,
    MANIFEST,
    Array,
    Prepared,
    Split,
    count_examples,
    fingerprint,
    load,
    num_examples,
    prepare,
    resolve_root,
    save_split,
    visible_files,
    write_manifest,
)
from lra_ssm.errors import InputError


class DataModule(SettingsDataclass, LightningDataModule, ABC):
    """Splits as datasets of batches, and their loaders.

    Args:
        batch_size: examples per optimizer batch over all devices together.
        eval_batch_size: the same for validation, test and prediction; None for batch_size.
        shuffle_seed: decides the order of training examples; None for the run's seed (seed_everything), else 0.
        num_workers: processes that load ahead; 0 is enough for most models.
        pin_memory: copy batches to pinned memory; None copies them if a CUDA device exists.
        pretrain: predict the inputs themselves, hidden or shifted, in place of the labels; a `Pretraining` or its
            values by name.

    Raises:
        InputError: a setting is invalid.
    """

    batch_size: int = setting(default=32, affects="order")
    eval_batch_size: int | None = setting(default=None, affects="nothing")
    shuffle_seed: int | None = setting(default=None, affects="order")
    num_workers: int = setting(default=0, affects="nothing")
    pin_memory: bool | None = setting(default=None, affects="nothing")
    pretrain: Pretraining | None = setting(default=None, affects="batches")

    dataset: str = field(default="", init=False)  # its folder below the root; "" for the class's name in lower case
    # What batches hold: class attributes of a dataset, or set when a module is made.
    num_classes: int | None = field(default=None, init=False)  # of examples or of targets
    class_names: tuple[str, ...] | None = field(default=None, init=False)
    num_outputs: int | None = field(default=None, init=False)  # real targets per example, or per position
    vocab_size: int | None = field(default=None, init=False)  # None for features, or if only prepared data knows it
    d_input: int | None = field(default=None, init=False)  # features per position; None for tokens
    per_example: int = field(default=1, init=False)  # sequences per example: 2 for pairs
    inputs: str = field(default="tokens", init=False)  # tokens, characters, bytes; of pixels unit, normalized, …
    shuffles: bool = field(default=True, init=False)  # whether training examples come in another order in every epoch
    pads: bool = field(default=False, init=False)  # whether sequences have different lengths
    predict_split: str = field(default="val", init=False)  # what `predict` loads; test only on request
    bucket_batches: int = field(default=1, init=False)  # a setting of datasets whose examples differ in length

    def __post_init__(self) -> None:
        LightningDataModule.__init__(self)
        if isinstance(self.pretrain, Mapping):
            self.pretrain = Pretraining(**self.pretrain)
        self.dataset = self.dataset or type(self).__name__.lower()
        self._datasets: dict[str, BatchDataset] = {}
        self._loaders: WeakSet[ResumableLoader] = WeakSet()  # loaders that are still in use
        for each in fields(self):
            if get_origin(each.type) is Literal and each.init:
                known = ", ".join(map(str, get_args(each.type)))
                self.require(getattr(self, each.name) in get_args(each.type), each.name, f"must be one of {known}")
        for name, minimum in {"batch_size": 1, "eval_batch_size": 1, "bucket_batches": 1, "num_workers": 0}.items():
            value = getattr(self, name)
            self.require(value is None or value >= minimum, name, f"must be at least {minimum}")

    @abstractmethod
    def open_split(self, name: str) -> BatchDataset:
        """Return the batches of train, val or test."""

    @abstractmethod
    def manifest(self) -> dict[str, Any]:
        """Return what a run records of its data: `dataset`, `inputs`, `batches`, `source`, and `splits` by name."""

    @abstractmethod
    def describe(self) -> str:
        """Return one line about the data."""

    def require(self, holds: bool, name: str, what: str) -> None:
        """Raise InputError naming a setting and its value unless `holds`."""
        if not holds:
            raise InputError(f"{type(self).__name__} {name} {getattr(self, name)!r}: {what}")

    def record(self) -> dict[str, Any]:
        """Return everything that decides the batches: {"dataset", "data", "batches", "order"}, settings by effect."""
        kinds: dict[str, dict[str, Any]] = {"data": {}, "batches": {}, "order": {}}
        for name, kind in self.affects.items():
            if kind in kinds and name != "pretrain":
                kinds[kind][name] = getattr(self, name)
        if self.pretrain is not None:
            kinds["batches"]["pretrain"] = asdict(self.pretrain)
        return {"dataset": self.dataset, **kinds}

    def provenance(self) -> dict[str, Any]:
        """Return what a result must say about its data: the manifest with counts in place of its splits."""
        manifest = self.manifest()
        examples = {name: num_examples(split) for name, split in manifest["splits"].items()}
        return {**{key: manifest[key] for key in ("dataset", "inputs", "batches", "source")}, "examples": examples}

    @property
    def evaluation_batch_size(self) -> int:
        """`eval_batch_size`, or its default."""
        return self.batch_size if self.eval_batch_size is None else self.eval_batch_size

    @property
    def longest(self) -> int | None:
        """The number of positions of the longest possible sequence; None if it depends on the data."""
        return None

    def setup(self, stage: str | None = None) -> None:
        """Open the splits of a stage, or all splits. Raises InputError if one is not prepared or does not exist."""
        stages = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",), "predict": (self.predict_split,)}
        for name in stages[stage] if stage else ("train", "val", "test"):
            self._get_dataset(name)

    def teardown(self, stage: str | None = None) -> None:
        """End the worker processes of all loaders."""
        for loader in list(self._loaders):
            loader.close()

    def model_sizes(self) -> dict[str, int | None]:
        """Return what a network must fit: vocab_size, d_input, num_classes, num_outputs and per_example."""
        sizes = {name: getattr(self, name) for name in ("vocab_size", "d_input", "num_classes", "num_outputs")}
        if self.pretrain is None:
            return {**sizes, "per_example": self.per_example}
        by_value = self.pretrain.targets == "values"
        outputs = self.d_input if by_value else (self.vocab_size or (PIXEL_VALUES if self.d_input else None))
        if self.d_input is not None and self.pretrain.objective == "masked":
            sizes["d_input"] = self.d_input + 1  # where features are hidden
        return {**sizes, "num_classes": None, "num_outputs": outputs, "per_example": 1}

    def sample(self, count: int) -> AnyBatch:
        """Return the first training examples, at most a batch of them."""
        train = self._get_dataset("train")
        return train.batch(np.arange(min(count, self.batch_size, len(train))), 0)

    def largest_batch(self) -> AnyBatch:
        """Return a training batch of the largest size: zeros if `longest` is known, else examples of the data."""
        if self.longest is None:
            return self.sample(self.batch_size)
        rows = (self.batch_size, self.per_example) if self.per_example > 1 else (self.batch_size,)
        tokens = torch.zeros(*rows, self.longest, dtype=torch.int64)
        inputs = tokens if self.d_input is None else torch.zeros(*rows, self.longest, self.d_input)
        lengths = torch.full(rows, self.longest) if self.pads else None
        batch = Batch(inputs, lengths, torch.zeros(self.batch_size, dtype=torch.int64))
        if self.pretrain is None:
            return batch
        pixels = torch.zeros(inputs.shape[:2], dtype=torch.int64) if self.d_input == 1 else None
        return self.pretrain.with_targets(batch, SPLITS.index("train"), np.arange(self.batch_size), 0, pixels)

    def train_batches(self, world_size: int = 1) -> int:
        """Return the number of batches of an epoch of prepared data. Raises InputError if devices cannot share them."""
        return len(EpochBatches(len(self._get_dataset("train")), self.batch_size, world_size=world_size))

    def train_dataloader(self) -> ResumableLoader:
        """Load every example once per epoch, in an order of (shuffle_seed, epoch); see `ResumableLoader`."""
        seed = None
        # Overfitting means the same batches in every epoch, and in the same order.
        if self.shuffles and not getattr(self.trainer, "overfit_batches", 0):
            run_seed = int(os.environ.get("PL_GLOBAL_SEED", 0))
            seed = run_seed if self.shuffle_seed is None else self.shuffle_seed
        trained = self._batches_trained if self.trainer is not None else None
        return self._loader(self._get_dataset("train"), self.batch_size, self.bucket_batches, seed, trained)

    def val_dataloader(self) -> ResumableLoader:
        """Load every validation example once: in order, or with bucket_batches the longest first."""
        return self._loader(self._get_dataset("val"), self.evaluation_batch_size, self.bucket_batches)

    def test_dataloader(self) -> ResumableLoader:
        """Load every test example once, in the same way."""
        return self._loader(self._get_dataset("test"), self.evaluation_batch_size, self.bucket_batches)

    def predict_dataloader(self) -> ResumableLoader:
        """Load every example of `predict_split` once, in order."""
        return self._loader(self._get_dataset(self.predict_split), self.evaluation_batch_size)

    def _get_dataset(self, split: str) -> BatchDataset:
        if split not in self._datasets:
            self._datasets[split] = self.for_pretraining(self.open_split(split), split)
        return self._datasets[split]

    def for_pretraining(self, dataset: BatchDataset, split: str) -> BatchDataset:
        """Return the dataset of a split; with `pretrain`, its targets are the inputs."""
        return dataset if self.pretrain is None else PretrainingDataset(dataset, self.pretrain, SPLITS.index(split))

    def _loader(
        self, dataset: BatchDataset, batch_size: int, pool: int = 1, seed: int | None = None, trained: Any = None
    ) -> ResumableLoader:
        rank, world_size = (self.trainer.global_rank, self.trainer.world_size) if self.trainer is not None else (0, 1)
        lengths = dataset.lengths if pool > 1 else None
        order = EpochBatches(len(dataset), batch_size, seed, rank, world_size, lengths, pool)
        loader = ResumableLoader(dataset, order, self.num_workers, self.pin_memory, trained)
        self._loaders.add(loader)
        return loader

    def _batches_trained(self) -> int | None:
        """Return the trainer's count while it trains, else None."""
        assert self.trainer is not None
        if not self.trainer.training:
            return None
        trained = self.trainer.fit_loop.epoch_loop.batch_progress.total.completed
        overfits = getattr(self.trainer, "overfit_batches", 0)
        return trained % int(self.trainer.num_training_batches) if overfits else trained


class PreparedData(DataModule):
    """A dataset that is prepared once into `<root>/<dataset>/<kind>-<hash of everything that decides its content>`.

    Args:
        root: data root; None for LRA_SSM_DATA, else ./data.
        source: origin of the data: one of `sources`, or a path.
        limit: keep only the first examples of each split, at most this many, for trials; None for all.
    """

    sources: ClassVar[tuple[str, ...]] = ()  # names that are not paths
    content_version: ClassVar[int] = 1  # increase it when the same settings produce other data than before

    root: str | None = setting(default=None, affects="nothing")
    source: str
    limit: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.limit is None or self.limit >= 1, "limit", "must be at least 1")

    # -- what a dataset defines ------------------------------------------------------------------------------------

    @abstractmethod
    def build(self, folder: Path) -> None:
        """Write the splits and the manifest into a new folder. Raises InputError if the source is not as published."""

    @abstractmethod
    def make_dataset(self, split: Split, name: str) -> BatchDataset:
        """Return the batches of an opened split."""

    def files(self) -> list[Path]:
        """Return the files of a user's `source`: the file itself, or all files below the folder that are not hidden.

        Raises:
            InputError: the path does not exist.
        """
        path = self.source_path()
        files = [path] if path.is_file() else visible_files(path)
        prepared = {each.parent for each in files if each.name == MANIFEST}  # the root may lie below the source
        return [each for each in files if each.parent not in prepared]

    def missing(self, what: str, command: str = "", how: str = "downloads them") -> InputError:
        """Return the error for missing source files, with the `lra-ssm prepare` command that gets them."""
        is_path = self.kind == "files"
        where, source = (self.source_path(), self.sources[-1]) if is_path else (self.data_root, self.source)
        command = f"lra-ssm prepare {command or type(self).__name__.lower()} --source={source} --root={self.data_root}"
        return InputError(f"{where}: no {what} below it; `{command}` {how}")

    def fetch(self) -> None:
        """Download the source's files below the root, if needed. Only `lra-ssm prepare` calls it: a fit never does."""

    # -- preparation -----------------------------------------------------------------------------------------------

    @property
    def kind(self) -> str:
        """The source in one word ("files" for a path), which begins the prepared folder's name."""
        return self.source if self.source in self.sources else "files"

    @property
    def data_root(self) -> Path:
        """The folder in which datasets are stored."""
        return resolve_root(self.root)

    def source_path(self) -> Path:
        """Return the existing path that `source` names. Raises InputError if it does not exist."""
        path = Path(os.path.expanduser(self.source)).absolute()
        if not self.source.strip() or not path.exists():
            words = f"one of {', '.join(self.sources)}, or " if self.sources else ""
            raise InputError(f"{type(self).__name__} source {self.source!r}: must be {words}an existing file or folder")
        return path

    def source_digests(self) -> dict[str, str]:
        """Return a fingerprint (sizes, times) of the user's files by the name that the user gave them."""
        return {self.source: fingerprint(self.files())} if self.kind == "files" else {}

    @property
    def prepared_folder(self) -> Path:
        """The folder of the prepared data, existing or not. Raises InputError if the user's files are missing."""
        identity = [FORMAT, self.content_version, self.record()["data"], self.source_digests()]
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        return self.data_root / self.dataset / f"{self.kind}-{digest[:12]}"

    @property
    def parts_folder(self) -> Path:
        """The folder of the parts of an unfinished preparation (`parts.Parts`)."""
        return self.prepared_folder.with_name(f".parts-{self.prepared_folder.name}")

    def is_prepared(self) -> bool:
        """Return whether the data is prepared."""
        try:
            return (self.prepared_folder / MANIFEST).is_file()
        except InputError:  # its files are missing
            return False

    def prepare_data(self) -> None:
        """Generate or read the data into `prepared_folder`, once; other processes wait for it.

        Raises:
            InputError: the root cannot be used, files are missing or not as published, or a setting is invalid.
        """
        prepare(self.data_root, self.dataset, self.prepared_folder.name, self.build)
        shutil.rmtree(self.parts_folder, ignore_errors=True)

    def facts(self) -> dict[str, Any]:
        """Return the entries of the manifest other than the splits."""
        classes = {} if self.num_classes is None else {"num_classes": self.num_classes}
        return {"source": {"kind": self.kind, **self.record()["data"]}, **classes}

    # -- prepared data ---------------------------------------------------------------------------------------------

    @cached_property
    def prepared(self) -> Prepared:
        """The prepared data. Raises InputError if it is missing or damaged."""
        return load(self.prepared_folder)

    def open_split(self, name: str) -> BatchDataset:
        return self.make_dataset(self.prepared.split(name), name)

    def manifest(self) -> dict[str, Any]:
        names = {"class_names": list(self.class_names)} if self.class_names else {}
        return {"inputs": self.inputs, "batches": self.record()["batches"], **names, **self.prepared.manifest}

    def describe(self) -> str:
        splits = self.prepared.manifest["splits"]
        counts = ", ".join(f"{num_examples(entry):,} {name}" for name, entry in splits.items())
        counts += " documents" if "documents" in splits["train"] else ""
        parts = [f"{self.dataset} ({self.kind}): {counts}", *self.details()]
        parts += [f"from {self.source}"] if self.kind == "files" else []
        parts += [f"limit {self.limit}"] if self.limit is not None else []
        parts += [self.pretrain.describe()] if self.pretrain is not None else []
        return "; ".join(parts)

    def details(self) -> list[str]:
        """Return what `describe` says about the examples."""
        first = next(iter(self.prepared.manifest["splits"].values()))
        parts = ["lengths {min} to {max}, mean {mean:.0f}".format(**first["length"])]
        if "class_counts" in first:
            majority = max(first["class_counts"]) / first["examples"]
            parts.append(f"{self.num_classes} classes, most frequent {majority:.1%}")
        return [*parts, f"inputs as {self.inputs}"]


class ArrayData(PreparedData):
    """Prepared data whose splits are dicts of arrays."""

    @abstractmethod
    def arrays(self, folder: Path) -> dict[str, dict[str, Array]]:
        """Return the arrays of each split: see `SequenceDataset` and `ImageDataset`.

        Large ones may be mapped from files in `folder` (`storage.write_array`).

        Raises:
            InputError: the source's files are missing or not as published.
        """

    def build(self, folder: Path) -> None:
        entries = {}
        for name, arrays in self.arrays(folder).items():
            counts = count_examples(arrays, self.per_example, self.num_classes, f"{type(self).__name__}: split {name}")
            entries[name] = {**counts, "arrays": save_split(folder, name, arrays)}
        write_manifest(folder, {"dataset": self.dataset, **self.facts(), "splits": entries})
