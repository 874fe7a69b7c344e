"""Datasets: a folder for each (module, reader, builder, generator), beside what they share: fetch, images, storage,
loading and base.

The data modules are imported on first use, so that readers, generators and `prepare` run without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lra_ssm.datamodules.cifar10.image import Image
    from lra_ssm.datamodules.cifar10.scifar import SCIFAR
    from lra_ssm.datamodules.listops.module import ListOps
    from lra_ssm.datamodules.mnist.module import MNIST
    from lra_ssm.datamodules.pathfinder.module import Pathfinder
    from lra_ssm.datamodules.retrieval.module import Retrieval
    from lra_ssm.datamodules.text.module import Text

_MODULES = {
    "MNIST": "mnist.module",
    "SCIFAR": "cifar10.scifar",
    "Image": "cifar10.image",
    "ListOps": "listops.module",
    "Pathfinder": "pathfinder.module",
    "Retrieval": "retrieval.module",
    "Text": "text.module",
}
__all__ = ["MNIST", "SCIFAR", "Image", "ListOps", "Pathfinder", "Retrieval", "Text"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
