"""Data modules: a file or a folder for each dataset; base, sequences, images, batches, loader, storage are shared.

Data modules are imported on first use. A dataset of your own is a `SequenceData` (docs/extending.md).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lra_ssm.datamodules.base import DataModule as DataModule
    from lra_ssm.datamodules.cifar10 import SCIFAR as SCIFAR
    from lra_ssm.datamodules.cifar10 import Image as Image
    from lra_ssm.datamodules.corpus import Corpus as Corpus
    from lra_ssm.datamodules.images import ImageData as ImageData
    from lra_ssm.datamodules.listops import ListOps as ListOps
    from lra_ssm.datamodules.mnist import MNIST as MNIST
    from lra_ssm.datamodules.pathfinder.module import Pathfinder as Pathfinder
    from lra_ssm.datamodules.retrieval import Retrieval as Retrieval
    from lra_ssm.datamodules.sequences import SequenceData as SequenceData
    from lra_ssm.datamodules.settings import setting as setting
    from lra_ssm.datamodules.slimpajama import SlimPajama as SlimPajama
    from lra_ssm.datamodules.synthetic.associative_recall import AssociativeRecall as AssociativeRecall
    from lra_ssm.datamodules.synthetic.correlated_noise import CorrelatedNoise as CorrelatedNoise
    from lra_ssm.datamodules.synthetic.first_token import FirstToken as FirstToken
    from lra_ssm.datamodules.synthetic.linear_functional import LinearFunctional as LinearFunctional
    from lra_ssm.datamodules.synthetic.mqar import MQAR as MQAR
    from lra_ssm.datamodules.synthetic.noisy_cosines import NoisyCosines as NoisyCosines
    from lra_ssm.datamodules.synthetic.state_tracking import StateTracking as StateTracking
    from lra_ssm.datamodules.synthetic.teacher_student import TeacherStudent as TeacherStudent
    from lra_ssm.datamodules.text import Text as Text
    from lra_ssm.datamodules.wikitext import WikiText as WikiText

_MODULES = {
    "AssociativeRecall": "synthetic.associative_recall",
    "CorrelatedNoise": "synthetic.correlated_noise",
    "FirstToken": "synthetic.first_token",
    "Image": "cifar10",
    "LinearFunctional": "synthetic.linear_functional",
    "ListOps": "listops",
    "MNIST": "mnist",
    "Corpus": "corpus",
    "SlimPajama": "slimpajama",
    "WikiText": "wikitext",
    "MQAR": "synthetic.mqar",
    "NoisyCosines": "synthetic.noisy_cosines",
    "Pathfinder": "pathfinder.module",
    "Retrieval": "retrieval",
    "SCIFAR": "cifar10",
    "StateTracking": "synthetic.state_tracking",
    "TeacherStudent": "synthetic.teacher_student",
    "Text": "text",
}
__all__ = [*_MODULES]
_MODULES |= {"DataModule": "base", "ImageData": "images", "SequenceData": "sequences", "setting": "settings"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
