"""What is measured: a `Work` is a small picklable description that builds inputs and calls, here or in a child process.

Everything random in a build is seeded, so that a child process, another contender and the float64 truth have the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from lra_ssm.ops import scan_backends
from lra_ssm.ops.backends import AUTO

FORWARD, BOTH, STEP = "forward", "forward+backward", "step"


@dataclass
class Prepared:
    """calls: mode -> what is timed; results: the tensors that say whether it computed the right thing."""

    calls: dict[str, Callable[[], Any]]
    results: Callable[[], dict[str, Tensor]]


class Work(Protocol):
    """Hashable and picklable."""

    def build(self) -> Prepared: ...

    def smaller(self) -> Work:
        """The same at a tiny size: it loads what the first call loads before memory is measured."""

    def bytes_needed(self) -> float:
        """A rough upper bound of the memory of forward and backward; what does not fit is not tried."""


@dataclass(frozen=True)
class Shape:
    """B batch, D channels, N states (conjugate pairs where complex), L length."""

    batch: int
    channels: int
    states: int
    length: int

    @property
    def elements(self) -> int:
        """Of one tensor with a state for every position, (B, D, N, L)."""
        return self.batch * self.channels * self.states * self.length

    def __str__(self) -> str:
        return f"batch {self.batch}, D = {self.channels}, N = {self.states}, L = {self.length}"


def prepare(run: Callable[..., Tensor], inputs: Mapping[str, Tensor], y_grad: Callable[[Tensor], Tensor]) -> Prepared:
    """Forward without recorded gradients, and forward with the gradient of every input, of `run(**inputs)`."""
    leaves = {name: x.detach().requires_grad_() for name, x in inputs.items()}
    with torch.no_grad():
        weights = y_grad(run(**inputs))

    def forward() -> Tensor:
        with torch.no_grad():
            return run(**inputs)

    def both() -> tuple[Tensor, ...]:
        return torch.autograd.grad(run(**leaves), list(leaves.values()), weights, allow_unused=True)

    def results() -> dict[str, Tensor]:
        y = run(**leaves)
        grads = torch.autograd.grad(y, list(leaves.values()), weights, allow_unused=True)
        named = {f"gradient of {n}": g for n, g in zip(leaves, grads, strict=True) if g is not None}
        return {"y": y.detach(), **named}

    return Prepared({FORWARD: forward, BOTH: both}, results)


def generator(seed: int = 0, device: torch.device | str = "cpu") -> torch.Generator:
    """On the CPU the numbers are the same on every machine; a GPU draws its own, gigabytes in no time."""
    return torch.Generator(device).manual_seed(seed)


def random_like(y: Tensor) -> Tensor:
    """Fixed weights of y, the same values for float32 and float64, in y's memory layout."""
    weights = torch.randn(y.shape, generator=generator(1, y.device), device=y.device)
    return torch.empty_like(y).copy_(weights)


def auto_backends(device: torch.device) -> list[str]:
    """The backends that run on a device, in the order in which "auto" tries them."""
    reasons = scan_backends(device)
    return [name for name in AUTO.get(device.type, ("eager",)) if reasons[name] is None]
