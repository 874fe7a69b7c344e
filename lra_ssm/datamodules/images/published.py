"""What Image, sCIFAR and MNIST share: published training and test sets."""

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from lra_ssm.datamodules.base import file_stats
from lra_ssm.datamodules.fetch.download import RemoteFile, download
from lra_ssm.datamodules.fetch.hub import HubDataset, is_hub_dataset
from lra_ssm.datamodules.fetch.sources import download_folder, named_source
from lra_ssm.datamodules.images.files import ImageFiles, Mode, Pixels
from lra_ssm.datamodules.images.module import ImageDataModule, SplitImages
from lra_ssm.datamodules.images.own_files import Form
from lra_ssm.datamodules.images.splits import Indices, part_sizes, random_split
from lra_ssm.errors import InputError

log = logging.getLogger(__name__)

VAL_FRACTION = 0.1  # of the training images, as in the public S4 code
CHUNK = 1000  # images converted at a time
# Raise when the same files and settings would give other prepared data than before.
READER_VERSION = 1


@dataclass(kw_only=True, eq=False, repr=False)
class PublishedImages(ImageDataModule):
    """Reads published files once; gives pixels as sequences.

    A dataset gives the class attributes, `stored_settings`, `convert` and `transform`.
    """

    command: ClassVar[str]  # of `lra-ssm prepare`
    # is_published, locate, watched_files, read, SIZE, USUAL_PLACES, HUB, PUBLISHED_COUNTS
    files: ClassVar[ModuleType]
    downloads: ClassVar[tuple[RemoteFile, ...]]
    published_mode: ClassVar[Mode]  # of the files' images
    sources = ("original", "huggingface")
    num_classes = 10

    source: str = "original"
    batch_size: int = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.augment in ("none", "crop_flip"), "augment", "must be none or crop_flip")

    @abstractmethod
    def stored_settings(self) -> dict[str, Any]:
        """How stored pixels are made of the files': for folder name and manifest."""

    def convert(self, images: Pixels) -> Pixels:
        """The files' images (n, H, W, C) to stored ones (n, H, W, C'), both uint8."""
        return images

    def batch_settings(self) -> dict[str, Any]:
        return {"augment": self.augment}

    def own_forms(self) -> dict[Form, Callable[[Pixels], Pixels]]:
        return {Form(self.published_mode, self.files.SIZE): self.convert}

    def content_settings(self) -> dict[str, Any]:
        files = {"files": file_stats(self.files.watched_files(self._path()))} if self.kind() == "files" else {}
        settings = {"version": READER_VERSION, "split_seed": self.split_seed, "limit": self.limit}
        return settings | files | self.stored_settings()

    def build(self, folder: Path) -> None:
        path = self._path()
        files: ImageFiles = self.files.read(path)
        counts = {"train": len(files.train.labels), "test": len(files.test.labels) if files.test else 0}
        published = counts == self.files.PUBLISHED_COUNTS
        if not published and self.limit is None:
            log.warning("%s: holds %s images instead of %s", path, counts, self.files.PUBLISHED_COUNTS)
        if files.test is None:
            log.warning("%s: holds no test images, so a part of the training images stands in for them", path)
        indices = split_indices(counts["train"], files.test is not None, self.split_seed)
        parts = {name: (files.train, chosen) for name, chosen in indices.items()}
        if files.test is not None:
            parts["test"] = files.test, np.arange(counts["test"])
        splits = {
            name: SplitImages(chosen, part.labels, partial(self._converted, part.images))
            for name, (part, chosen) in parts.items()
        }
        source = {
            "kind": self.kind(),
            **self._origin(path),
            **self.stored_settings(),
            "published_counts": published,
            "published_test": files.test is not None,  # else a score on "test" is no published number
            "split": {},
        }
        channels = self.convert(files.train.images[:1]).shape[-1]
        self.write_splits(folder, path, channels, splits, source | files.manifest_entry)

    def _converted(self, images: Pixels, numbers: Indices) -> Iterator[Pixels]:
        for start in range(0, len(numbers), CHUNK):
            yield np.ascontiguousarray(self.convert(images[numbers[start : start + CHUNK]]))

    def _origin(self, path: Path) -> dict[str, Any]:
        """What is known of a dataset of the Hub."""
        if self.source != "huggingface":
            return {}
        hub: HubDataset = self.files.HUB
        return hub.origin if path == self.data_root / hub.below else {"revision": "unknown"}

    def fetch(self) -> None:
        """Downloads what `source` needs below the root, unless it is there."""
        if self.kind() == "files" or self._usual_path() is not None:
            return
        if self.source == "huggingface":
            self.files.HUB.fetch(self.data_root)
            return
        with download_folder(self.data_root, f"{self.dataset}/download") as folder:
            for file in self.downloads:
                download(file, folder)

    def _path(self) -> Path:
        """The located archive or folder of the source."""
        if self.kind() == "files":
            path = named_source(type(self).__name__, self.source, "original, huggingface")
            found: Path = self.files.locate(path)
            return found
        usual = self._usual_path()
        if usual is None:
            command = f"lra-ssm prepare {self.command} --source={self.source} --root={self.data_root}"
            raise InputError(
                f"{self.data_root}: holds no {self.dataset} ({self.source}) in the usual places; `{command}` downloads"
                " it, or give your own as source"
            )
        return usual

    def _usual_path(self) -> Path | None:
        """Where the source's files are below the root; None if they are not."""
        if self.source == "huggingface":
            # The second is for what a user has saved, on a machine that reaches the Hub or of another revision.
            own = self.data_root / self.dataset / "huggingface"
            return self.files.HUB.there(self.data_root) or (own if is_hub_dataset(own) else None)
        places = (self.data_root / place for place in self.files.USUAL_PLACES)
        return next((place for place in places if self.files.is_published(place)), None)


def split_indices(num_train: int, has_test: bool, seed: int) -> dict[str, Indices]:
    """Which training images are for training and for validation; where there is no test set, which stand in for it.

    Raises:
        InputError: too few images.
    """
    if has_test:
        kept = int(num_train * (1 - VAL_FRACTION))
        sizes = [kept, num_train - kept]
    else:  # 45,000 to 5,000 to 10,000, as with all images
        sizes = part_sizes(num_train, 1 / 12, 1 / 6)
    return dict(zip(("train", "val", "test"), random_split(sizes, seed), strict=False))
