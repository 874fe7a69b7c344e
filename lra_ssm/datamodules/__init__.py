"""Datasets: one LightningDataModule per file, with its readers and generators beside it.

The data modules are imported on first use, so that readers, generators and `prepare` run without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lra_ssm.datamodules.image import Image
    from lra_ssm.datamodules.listops import ListOps
    from lra_ssm.datamodules.mnist import MNIST
    from lra_ssm.datamodules.pathfinder import Pathfinder
    from lra_ssm.datamodules.retrieval import Retrieval
    from lra_ssm.datamodules.scifar import SCIFAR
    from lra_ssm.datamodules.text import Text

__all__ = ["MNIST", "SCIFAR", "Image", "ListOps", "Pathfinder", "Retrieval", "Text"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"{__name__}.{name.lower()}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
