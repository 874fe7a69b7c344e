"""A run: its identity, directory, lock, record, checkpoints and callbacks; for the commands and for a notebook (`Run`).

Importing this package loads no lightning; `Run` and `CheckpointSettings` do, on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lra_ssm.runs.checkpoints import CheckpointSettings
    from lra_ssm.runs.run import Run

__all__ = ["CheckpointSettings", "Run"]


_HOMES = {"CheckpointSettings": "checkpoints", "Run": "run"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
