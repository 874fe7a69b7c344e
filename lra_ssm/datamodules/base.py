"""What the data modules of stored data share: it is prepared once."""

import hashlib
import json
import logging
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

import torch

from lra_ssm.datamodules.fetch.sources import named_source
from lra_ssm.datamodules.loading.batches import AnyBatch, BatchDataset, SequenceDataset, TokenDataset
from lra_ssm.datamodules.loading.module import LoadedDataModule
from lra_ssm.datamodules.storage.format import (
    FORMAT,
    MANIFEST,
    AnySplit,
    PreparedDataset,
    SequenceSplit,
    num_examples,
    open_prepared,
)
from lra_ssm.datamodules.storage.intact import check_intact
from lra_ssm.datamodules.storage.prepare import prepare
from lra_ssm.datamodules.storage.root import resolve_root
from lra_ssm.errors import InputError

log = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False, repr=False)
class PreparedDataModule(LoadedDataModule):
    """A dataset that is prepared once into `<root>/<dataset>/<kind>-<hash of what decides its content>`.

    A dataset gives `dataset`, its settings as fields, `build`, and what its batches hold (`num_classes`, `vocab_size`
    or `d_input`). Everything else has a default: `sources` and `fetch` where files can be generated or downloaded,
    `content_settings` where some setting decides nothing, `make_dataset` for other batches than of sequences.

    Args:
        root: data root; None for LRA_SSM_DATA, else ./data.
        source: where the data comes from.
    """

    sources: ClassVar[tuple[str, ...]] = ()  # by name; any other source is a path
    content_version: ClassVar[int] = 1  # raised when the same settings would give other data than before
    neutral_settings: ClassVar[tuple[str, ...]] = ("root", *LoadedDataModule.neutral_settings)

    root: str | None = None
    source: str
    dataset: str = field(init=False)  # the name of its folder below the root
    # What batches hold: tokens, characters, bytes; of pixels unit, symmetric, normalized, integers.
    inputs: str = field(default="tokens", init=False)
    limit: int | None = field(default=None, init=False)  # a setting of most: at most so many examples in each split

    def __post_init__(self) -> None:
        super().__post_init__()
        self._prepared: PreparedDataset | None = None
        self.require(self.limit is None or self.limit >= 1, "limit", "must be at least 1")

    @property
    def data_root(self) -> Path:
        """Where datasets live."""
        return resolve_root(self.root)

    def kind(self) -> str:
        """The source in one word, "files" for a path: the first part of the prepared folder's name."""
        return self.source if self.source in self.sources else "files"

    # -- what a dataset gives --------------------------------------------------------------------------------------

    def content_settings(self) -> dict[str, Any]:
        """Everything that decides what the prepared data is, as plain values: its hash is in the folder's name.

        Here the version and all settings of the dataset's own, and what stands for a user's files.
        """
        common = {"bucket_batches", *(setting.name for setting in fields(PreparedDataModule) if setting.init)}
        own = {s.name: getattr(self, s.name) for s in fields(self) if s.init and s.name not in common}
        files = {"files": file_stats(self.source_files())} if self.kind() == "files" else {}
        return {"version": self.content_version, **own, **files}

    def source_files(self) -> list[Path]:
        """The files that a user's own `source` stands for. Raises InputError: they are missing."""
        return [named_source(type(self).__name__, self.source, ", ".join(self.sources))]

    @abstractmethod
    def build(self, folder: Path) -> None:
        """Writes the prepared data into an empty folder.

        Raises:
            InputError: the source's files are missing or not as published.
        """

    def fetch(self) -> None:
        """Downloads the source's files below the root, if needed.

        `lra-ssm prepare` alone calls it: a fit never downloads. The caller need not hold a lock.
        """

    def batch_settings(self) -> dict[str, Any]:
        """Settings that change what the model sees: permutation, augmentation."""
        return {}

    def make_dataset(self, split: AnySplit, name: str) -> BatchDataset:
        """Batches of an opened split; datasets of images say how they are transformed.

        `Batch` where examples have labels, else `TokenBatch`: with the targets of the positions, or the next tokens.
        """
        assert isinstance(split, SequenceSplit)
        return SequenceDataset(split) if split.has_labels else TokenDataset(split)

    # -- preparation -----------------------------------------------------------------------------------------------

    @property
    def prepared_folder(self) -> Path:
        """Where the prepared data is, or will be. Raises InputError: the source's files are missing."""
        return self._folder_of({"prepared format": FORMAT, **self.content_settings()})

    def _folder_of(self, settings: dict[str, Any]) -> Path:
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
        return self.data_root / self.dataset / f"{self.kind()}-{digest[:12]}"

    def source_digests(self) -> dict[str, str]:
        """What a user names of this data -> what stands for its content: files by sizes and times."""
        if self.kind() != "files":
            return {}
        settings = self.content_settings()
        stamps = {key: settings.get(key) for key in ("files", "stamp")}
        return {self.source: hashlib.sha256(json.dumps(stamps, sort_keys=True).encode()).hexdigest()[:12]}

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
        self._prepare(self.build)

    def _prepare(self, build: Callable[[Path], None]) -> bool:
        """`prepare`, into `prepared_folder`; returns whether it was not there."""
        is_new, older = not self.is_prepared(), self._folder_of(self.content_settings())
        if is_new and (older / MANIFEST).is_file():
            log.warning("%s: an older version prepared it; it is prepared anew beside it, so it can be deleted", older)
        prepare(self.data_root, self.dataset, self.prepared_folder.name, build)
        return is_new

    def open_split(self, name: str) -> BatchDataset:
        """Raises InputError: not prepared, or damaged."""
        split = self._open().split(name)
        check_intact(split)
        return self.make_dataset(split, name)

    def manifest(self) -> dict[str, Any]:
        """The prepared folder's manifest, with `inputs` and `batch_settings`."""
        names = {"class_names": list(self.class_names)} if self.class_names else {}
        return {"inputs": self.inputs, "batches": self.batch_settings(), **names, **self._open().manifest}

    def provenance(self) -> dict[str, Any]:
        """What a result must say about its data: the manifest without its details."""
        manifest = self.manifest()
        source = {key: value for key, value in manifest["source"].items() if key not in ("files", "class_names")}
        examples = {name: num_examples(split) for name, split in manifest["splits"].items()}
        batches = {"inputs": self.inputs, **self.batch_settings()}
        return {"dataset": self.dataset, "batches": batches, "source": source, "examples": examples}

    def identity(self) -> dict[str, Any]:
        """What of this data decides a run's result; not where it lies."""
        batches = {"inputs": self.inputs, **self.batch_settings(), **self.order_settings()}
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


@dataclass(kw_only=True, eq=False, repr=False)
class SequenceDataModule(PreparedDataModule):
    """A prepared dataset of sequences of different lengths.

    Args:
        bucket_batches: batches of sequences of similar length, by sorting within pools of this many; 1 does not.
        limit: at most this many examples in each split, for trying out; None for all.
    """

    bucket_batches: int = 1
    limit: int | None = None
    max_length: int = field(init=False)  # a setting of most

    @property
    def longest(self) -> int:
        return self.max_length

    def largest_batch(self) -> AnyBatch:
        batch = super().largest_batch()
        return batch._replace(lengths=torch.full(batch.inputs.shape[:-1], self.longest))


def file_stats(paths: list[Path]) -> dict[str, Any]:
    """What stands for the content of files that a user names: sizes and times of change."""
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in paths}
