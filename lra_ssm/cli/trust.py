"""What a saved model's configuration may name: it would be imported."""

import importlib.util
from collections.abc import Collection
from typing import Any

from lightning.pytorch import Callback, LightningDataModule
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins import CheckpointIO, ClusterEnvironment, LayerSync, Precision
from lightning.pytorch.profilers import Profiler
from lightning.pytorch.strategies import Strategy
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lra_ssm.checkpoints import RUN_CONFIG
from lra_ssm.errors import InputError
from lra_ssm.models.pretrained import import_paths, is_known, one_of_known

# What configurations name by class_path; LightningModules and metrics are nn.Modules.
_OF_A_RUN = (
    nn.Module, Optimizer, LRScheduler, LightningDataModule, Callback, Logger, Profiler, Strategy, Accelerator,
    Precision, CheckpointIO, ClusterEnvironment, LayerSync,
)  # fmt: skip


def check_trusted(name: str, config: Any, trust: Collection[str]) -> None:
    """Raises InputError: a saved model's configuration names something that could be imported, is not trusted, and is
    no class that lra_ssm, lightning, torch or torchmetrics has for a run."""
    for said in import_paths(config):
        if said not in trust and _could_be_imported(said) and not is_known(said, _OF_A_RUN):
            unknown = f"{said}, which is no class that {one_of_known()} has for a run, and would be imported"
            raise InputError(f"{name}: its {RUN_CONFIG} names {unknown}: if it is to be trusted, give --trust {said}")


def _could_be_imported(path: str) -> bool:
    """Whether a text names a package that is here: a file's name has the same form."""
    try:
        return importlib.util.find_spec(path.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return True
