"""What Image, sCIFAR and MNIST share: image datasets that are published with a training and a test set."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from lra_ssm.datamodules.base import PreparedDataModule, file_stats
from lra_ssm.datamodules.fetch.download import RemoteFile, download
from lra_ssm.datamodules.fetch.sources import download_folder, named_source
from lra_ssm.datamodules.images import huggingface
from lra_ssm.datamodules.images.builder import READER_VERSION, build_images
from lra_ssm.datamodules.images.files import Pixels
from lra_ssm.datamodules.images.own_files import Form, own_pixels
from lra_ssm.datamodules.images.transforms import CropFlip, PixelSequence
from lra_ssm.datamodules.loading.batches import BatchDataset, ImageDataset
from lra_ssm.datamodules.loading.own_files import OwnExamples
from lra_ssm.datamodules.storage.format import AnySplit, ImageSplit
from lra_ssm.errors import InputError


class PublishedImages(PreparedDataModule):
    """Reads published files once; gives pixels as sequences.

    A dataset gives the class attributes, `stored_settings`, `convert` and `transform`.

    Args:
        root, source, batch_size, eval_batch_size, shuffle_seed, num_workers, pin_memory: as in the datasets.
        split_seed: of the choice of validation images.
        limit: at most so many images in a split; None for all.
        augment: none or crop_flip.

    Raises:
        InputError: settings that cannot be met.
    """

    command: str  # of `lra-ssm prepare`
    files: ModuleType  # locate, watched_files, read, USUAL_PLACES, HUGGINGFACE_NAME, …_REVISION, PUBLISHED_COUNTS
    downloads: tuple[RemoteFile, ...]
    class_names: tuple[str, ...]
    sources = ("original", "huggingface")
    image_size: tuple[int, int]  # height, width
    published_mode: Literal["L", "RGB"]  # of the files' images, as PIL calls it
    num_classes: int = 10

    def __init__(
        self,
        root: str | None,
        source: str,
        batch_size: int,
        eval_batch_size: int | None,
        split_seed: int,
        shuffle_seed: int | None,
        num_workers: int,
        pin_memory: bool | None,
        limit: int | None,
        augment: Literal["none", "crop_flip"] = "none",
    ) -> None:
        super().__init__(root, source, batch_size, eval_batch_size, shuffle_seed, num_workers, pin_memory, limit=limit)
        self.split_seed, self.augment = split_seed, augment
        self.require(0 <= split_seed < 1 << 63, "split_seed", "must be from 0 to 2^63 - 1")
        self.require(augment in ("none", "crop_flip"), "augment", "must be none or crop_flip")

    @abstractmethod
    def stored_settings(self) -> dict[str, Any]:
        """How stored pixels are made of the files': for folder name and manifest."""

    @abstractmethod
    def transform(self, augment: CropFlip | None) -> PixelSequence:
        """What makes inputs of stored images."""

    def convert(self, images: Pixels) -> Pixels:
        """The files' images (n, H, W, C) to stored ones (n, H, W, C'), both uint8."""
        return images

    def batch_settings(self) -> dict[str, Any]:
        return {"augment": self.augment}

    def make_dataset(self, split: AnySplit, name: str) -> BatchDataset:
        assert isinstance(split, ImageSplit)
        augmented = self.augment == "crop_flip" and name == "train"
        return ImageDataset(split, self.transform(CropFlip(self._resolved_shuffle_seed()) if augmented else None))

    def own_forms(self) -> dict[Form, Callable[[Pixels], Pixels]]:
        """What images of a user's own may be, with what makes stored ones of them."""
        return {Form(self.published_mode, self.files.SIZE): self.convert}

    def own_examples(self, paths: Sequence[Path], vocabulary: Sequence[str] | None = None) -> OwnExamples:
        return own_pixels(paths, self.own_forms(), self.transform(None), self.image_size[0] * self.image_size[1])

    # -- preparation -----------------------------------------------------------------------------------------------

    def content_settings(self) -> dict[str, Any]:
        files = {"files": file_stats(self.files.watched_files(self._path()))} if self.kind() == "files" else {}
        settings = {"version": READER_VERSION, "split_seed": self.split_seed, "limit": self.limit}
        return settings | files | self.stored_settings()

    def build(self, folder: Path) -> None:
        path = self._path()
        hub = {"revision": "unknown"} if self.source == "huggingface" else {}
        if path == self._download / self._hub_folder:
            hub = {"repository": self.files.HUGGINGFACE_NAME, "revision": self.files.HUGGINGFACE_REVISION}
        build_images(
            folder,
            self.files.read(path),
            where=path,
            dataset=self.dataset,
            class_names=self.class_names,
            published_counts=self.files.PUBLISHED_COUNTS,
            split_seed=self.split_seed,
            limit=self.limit,
            source={"kind": self.kind()} | hub | self.stored_settings(),
            convert=self.convert,
        )

    def fetch(self) -> None:
        """Downloads what `source` needs below the root, unless it is there: for original and huggingface."""
        if self.kind() == "files" or self._usual_path() is not None:
            return
        with download_folder(self.root, f"{self.dataset}/download") as folder:
            if self.source == "huggingface":
                hub = self.files.HUGGINGFACE_NAME, self.files.HUGGINGFACE_REVISION
                huggingface.save(*hub, folder, self.files.HUGGINGFACE_BYTES)
            else:
                for file in self.downloads:
                    download(file, folder)

    @property
    def _download(self) -> Path:
        return self.root / self.dataset / "download"

    @property
    def _hub_folder(self) -> str:
        return huggingface.folder_name(self.files.HUGGINGFACE_NAME, self.files.HUGGINGFACE_REVISION)

    def _path(self) -> Path:
        """The located archive or folder of the source."""
        if self.kind() == "files":
            path = named_source(type(self).__name__, self.source, "original, huggingface")
            try:
                found: Path = self.files.locate(path)
            except OSError as error:  # a folder that may not be looked into
                raise InputError(f"{path}: cannot be read ({error.strerror})") from error
            return found
        usual = self._usual_path()
        if usual is None:
            raise InputError(
                f"{self.root}: holds no {self.dataset} ({self.source}) in the usual places; `lra-ssm prepare"
                f" {self.command} --source={self.source} --root={self.root}` downloads it, or give your own as source"
            )
        return usual

    def _usual_path(self) -> Path | None:
        if self.source == "huggingface":
            # The second is for what a user has saved, on a machine that reaches the Hub or of another revision.
            saved = (self._download / self._hub_folder, self.root / self.dataset / "huggingface")
            return next((path for path in saved if huggingface.is_saved(path)), None)
        for place in self.files.USUAL_PLACES:
            path = self.root / place
            if path.is_file() or (path.is_dir() and self._holds(path)):
                return path
        return None

    @abstractmethod
    def _holds(self, folder: Path) -> bool:
        """Whether an existing folder in a usual place has the published files."""
