"""Metrics over a whole split: sums that are as exact in a network of lower precision as in any other."""

from collections.abc import Callable, Sequence

import torch
import torchmetrics
from torch import Tensor, nn


class _Exact(torchmetrics.Metric):
    """Its sums keep their precision when a task is cast to another (`precision: bf16-true`): one of bfloat16 stops
    growing at 256 times what is added. (torchmetrics guards `.bfloat16()`, not the `.to` that Lightning calls.)"""

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> nn.Module:
        return super()._apply(lambda x: x.to(fn(x).device), exclude_state)


class Mean(_Exact, torchmetrics.MeanMetric):
    """The mean of all values, each with its weight."""


class TokenLoss(_Exact):
    """Sum of −log p, in float64, and how many tokens it is of."""

    nll: Tensor
    tokens: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("nll", torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("tokens", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, nll: Tensor, scored: Tensor) -> None:
        """nll (…) float, 0 where not scored; scored (…) bool."""
        self.nll += nll.sum(dtype=torch.float64)
        self.tokens += scored.sum()

    def compute(self) -> tuple[Tensor, Tensor]:
        return self.nll, self.tokens


class RelativeError(_Exact):
    """The mean norm of errors over the root mean square of the targets' norms."""

    errors: Tensor
    squares: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("errors", "squares", "count"):
            self.add_state(name, torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, errors: Tensor, targets: Tensor) -> None:
        """Norms (n,) both."""
        self.errors += errors.sum()
        self.squares += targets.square().sum()
        self.count += len(errors)

    def compute(self) -> Tensor:
        return self.errors / (self.squares * self.count).sqrt()
