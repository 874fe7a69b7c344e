"""Goes with the last dataset that is not on `base.py` yet: pathfinder and language."""

import hashlib
import json
import logging
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from lra_ssm.datamodules.base import PreparedData
from lra_ssm.datamodules.batches import BatchDataset
from lra_ssm.datamodules.old_storage.format import FORMAT, AnySplit, PreparedDataset, open_prepared
from lra_ssm.datamodules.old_storage.intact import check_intact
from lra_ssm.datamodules.storage import MANIFEST, Array, Split, prepare
from lra_ssm.errors import InputError

log = logging.getLogger(__name__)


class PreparedDataModule(PreparedData):
    def __post_init__(self) -> None:
        super().__post_init__()
        self._old: PreparedDataset | None = None

    def arrays(self, folder: Path) -> dict[str, dict[str, Array]]:
        raise NotImplementedError

    def make_dataset(self, split: Split, name: str) -> BatchDataset:
        raise NotImplementedError

    def content_settings(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self) if each.init}

    @abstractmethod
    def build(self, folder: Path) -> None: ...

    def batch_settings(self) -> dict[str, Any]:
        return {}

    def order_settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("batch_size", "shuffle_seed", "bucket_batches")}

    def record(self) -> dict[str, Any]:
        batches = {"inputs": self.inputs, **self.batch_settings()}
        return {"dataset": self.dataset, "data": self.content_settings(), "batches": batches,
                "order": self.order_settings()}  # fmt: skip

    @property
    def prepared_folder(self) -> Path:
        settings = {"prepared format": FORMAT, **self.content_settings()}
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
        return self.data_root / self.dataset / f"{self.kind}-{digest[:12]}"

    def source_digests(self) -> dict[str, str]:
        if self.kind != "files":
            return {}
        settings = self.content_settings()
        stamps = {key: settings.get(key) for key in ("files", "stamp")}
        return {self.source: hashlib.sha256(json.dumps(stamps, sort_keys=True).encode()).hexdigest()[:12]}

    def prepare_data(self) -> None:
        self._prepare(self.build)

    def _prepare(self, build: Callable[[Path], None]) -> bool:
        is_new = not self.is_prepared()
        prepare(self.data_root, self.dataset, self.prepared_folder.name, build)
        return is_new

    def open_old_split(self, name: str, split: AnySplit) -> BatchDataset:
        raise NotImplementedError

    def open_split(self, name: str) -> BatchDataset:
        split = self._open().split(name)
        check_intact(split)
        return self.open_old_split(name, split)

    def manifest(self) -> dict[str, Any]:
        names = {"class_names": list(self.class_names)} if self.class_names else {}
        return {"inputs": self.inputs, "batches": self.batch_settings(), **names, **self._open().manifest}

    def describe(self) -> str:
        origin = "" if self.source in self.sources else f"; from {self.source}"
        limit = "" if self.limit is None else f"; limit {self.limit}"
        return f"{self._open().summary()}; inputs as {self.inputs}{origin}{limit}"

    def _open(self) -> PreparedDataset:
        if self._old is None:
            self._old = open_prepared(self.prepared_folder)
        return self._old


def file_stats(paths: list[Path]) -> dict[str, Any]:
    """What stands for the content of files that a user names: sizes and times of change."""
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in paths}


__all__ = ["InputError", "MANIFEST", "PreparedDataModule", "file_stats"]
