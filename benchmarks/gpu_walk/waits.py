"""Counts where the processor waits for a device, and calls with tensors of several devices; for fake tensors too."""

import sys
from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from lra_ssm.runs.step_cost import CountStep

_NEEDS_VALUE = ("aten::_local_scalar_dense", "aten::equal", "aten::nonzero", "aten::masked_select", "aten::_unique2")


class CountWaits(CountStep):
    """A `CountStep` that also counts waits and mixed devices, by operator and place."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.waits: Counter[str] = Counter()
        self.mixed: Counter[str] = Counter()

    def reset(self) -> None:
        super().reset()
        self.waits.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.name().partition(".")[0]
        if self._waits(name, args, kwargs):
            self.waits[f"{name} {_place()}"] += 1
            if any(isinstance(x, FakeTensor) for x in tree_leaves(args)):
                return self._invent_value(name, func, args, kwargs)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _count(self, name: str, func: Any, args: Any, kwargs: Any, out: Any, tensors: list[Tensor]) -> None:
        if len({x.device.type for x in tensors}) > 1 and name not in ("aten::_to_copy", "aten::copy_"):
            if any(x.device.type != self.device.type and x.dim() for x in tensors):
                self.mixed[f"{name} {_place()}"] += 1
        super()._count(name, func, args, kwargs, out, tensors)

    def _waits(self, name: str, args: Any, kwargs: Any) -> bool:
        """Whether the processor needs a value that the device computes."""
        if not any(isinstance(x, Tensor) and x.device.type == self.device.type for x in tree_leaves(args)):
            return False
        if name == "aten::_to_copy":
            return torch.device(kwargs.get("device") or self.device).type == "cpu" and not kwargs.get("non_blocking")
        if name == "aten::copy_":
            return args[0].device.type == "cpu" and not (kwargs.get("non_blocking") or True in args[2:])
        return name in _NEEDS_VALUE or _has_mask(name, args)

    def _invent_value(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """Return a stand-in for a value that fake tensors do not have; an unknown number of entries is the largest."""
        x = args[0]
        if name == "aten::_local_scalar_dense":
            return True if x.dtype == torch.bool else 1.0 if x.is_floating_point() else 1
        if name == "aten::equal":
            return True
        if name == "aten::nonzero":
            return x.new_empty((x.numel(), x.dim()), dtype=torch.int64)
        if _has_mask(name, args):
            self._add("aten::nonzero", 3, 0, 0, None)
            return func(x, _mask_to_index(args[1]), *args[2:], **kwargs)
        return func(*args, **kwargs)


def _has_mask(name: str, args: Any) -> bool:
    indices = args[1] if name.startswith(("aten::index", "aten::_index_put")) and len(args) > 1 else ()
    return isinstance(indices, (list, tuple)) and any(isinstance(i, Tensor) and i.dtype == torch.bool for i in indices)


def _mask_to_index(indices: Any) -> list[Tensor | None]:
    result: list[Tensor | None] = []
    for index in indices:
        mask = isinstance(index, Tensor) and index.dtype == torch.bool
        result += [index.new_empty(index.numel(), dtype=torch.int64)] * index.dim() if mask else [index]
    return result


def _place() -> str:
    """Return the line of this package or of Lightning that is being executed."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        for package in ("lra_ssm", "lightning"):
            if f"/{package}/" in name and frame.f_code.co_name != "__torch_dispatch__":
                return f"{package}/{name.rpartition(f'/{package}/')[2]}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "?"
