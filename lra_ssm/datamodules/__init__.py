"""Datasets: one LightningDataModule per file, with its readers and generators beside it.

The data modules are imported on first use, so that readers, generators and `prepare` run without torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lra_ssm.datamodules.listops import ListOps

__all__ = ["ListOps"]


def __getattr__(name: str) -> Any:
    if name == "ListOps":
        from lra_ssm.datamodules.listops import ListOps

        return ListOps
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
