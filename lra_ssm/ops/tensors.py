"""What every operation asks of the tensors that it is given, whatever their shapes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def check_dense(**tensors: Tensor | None) -> None:
    """ValueError, naming the argument, for sparse and nested tensors: nothing here looks at what they hold."""
    for name, x in tensors.items():
        if isinstance(x, Tensor) and (x.is_nested or x.layout != torch.strided):
            kind = "nested" if x.is_nested else str(x.layout).removeprefix("torch.")
            instead = ", with the sequences padded to one length" if x.is_nested else ""
            raise ValueError(f"{name}: a {kind} tensor; expected a dense one{instead}")


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Arithmetic in the dtypes that the code names; on the meta device, which has no autocast, nothing to do."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


def is_clean(*tensors: Tensor | None) -> bool:
    """Whether all are known to be finite. Not known, hence False, on a GPU, which would have to be waited for, and to
    torch.compile."""
    given = [x for x in tensors if x is not None]
    if torch.compiler.is_compiling() or any(x.device.type != "cpu" for x in given):
        return False
    return all(bool(x.isfinite().all()) for x in given)


def without_nonfinite(x: Tensor) -> Tensor:
    """x with 0 in place of inf and NaN."""
    return x.nan_to_num(0.0, 0.0, 0.0)


def is_nonfinite(x: Tensor) -> Tensor:
    """Where x is inf or NaN, in two launches: x - x is NaN there, which is not equal to 0."""
    return (x - x) != 0


def read_later(x: Tensor) -> Callable[[], Tensor]:
    """Sends x to the CPU; what it returns waits until x is there, and gives it. On a CPU it is x itself.

    Read a step later, when the device has long computed it, nothing waits.
    """
    if x.device.type != "cuda":
        return lambda: x
    there = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    there.copy_(x, non_blocking=True)
    sent = torch.cuda.Event()
    sent.record()

    def read() -> Tensor:
        sent.synchronize()
        return there

    return read
