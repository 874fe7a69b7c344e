"""What LRA Image and sCIFAR share: both are CIFAR-10."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar, Literal

from lra_ssm.datamodules.cifar10 import reader as cifar_files
from lra_ssm.datamodules.images.files import Pixels
from lra_ssm.datamodules.images.own_files import Form
from lra_ssm.datamodules.images.published import PublishedImages
from lra_ssm.datamodules.images.transforms import lra_luma, luma, mean_pooled

# What is stored: colors, gray as PIL makes it, gray as TensorFlow makes it.
Stored = Literal["rgb", "gray", "gray-lra"]


@dataclass(kw_only=True, eq=False, repr=False)
class Cifar10(PublishedImages):
    """CIFAR-10's files and splits; `Image` and `SCIFAR` say what becomes of the pixels."""

    dataset = "cifar10"
    files: ClassVar[ModuleType] = cifar_files
    downloads = (cifar_files.ARCHIVE,)
    class_names = cifar_files.CLASS_NAMES
    image_size = cifar_files.SIZE
    published_mode = "RGB"

    stored: Stored = field(init=False)
    resolution: int = field(default=32, init=False)

    def stored_settings(self) -> dict[str, Any]:
        smaller = {} if self.resolution == 32 else {"resolution": self.resolution}
        return {"pixels": self.stored} | smaller

    def convert(self, images: Pixels) -> Pixels:
        if self.stored != "rgb":
            images = luma(images) if self.stored == "gray" else lra_luma(images)
        return mean_pooled(images, 32 // self.resolution)

    def own_forms(self) -> dict[Form, Callable[[Pixels], Pixels]]:
        """Images as published, or as they are stored."""
        stored = Form("RGB" if self.stored == "rgb" else "L", self.image_size)
        return super().own_forms() | {stored: lambda images: images}
