"""Metrics over a whole split: sums that are as exact in a network of lower precision as in any other."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torchmetrics
from torch import Tensor, nn

from lra_ssm.errors import InputError
from lra_ssm.layers.spec import ModuleSpec

MetricFactory = Callable[[], torchmetrics.Metric]
Metrics = dict[str, MetricFactory]  # by the name that each is logged under


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


class MetricSpec(ModuleSpec):
    """A metric of torchmetrics, or of one's own: `MetricSpec(MulticlassF1Score, num_classes=10)`."""

    kind, builder_gives = "metric", ()


def metric_specs(metrics: Mapping[str, Any] | None, taken: Sequence[str]) -> dict[str, MetricSpec]:
    """Specifications by name. taken: names that the task logs anyway. Raises InputError for one of these."""
    specs = {name: MetricSpec.of(metric) for name, metric in (metrics or {}).items()}
    for name in specs:
        if name in taken or not name.isidentifier() or hasattr(nn.ModuleDict, name):
            why = "which the task logs itself" if name in taken else "which is no name such as f1"
            raise InputError(f"model.metrics has {name!r}, {why}")
    return specs


def built(specs: Mapping[str, MetricSpec]) -> nn.ModuleDict:
    """Metrics of one split, by name. Raises InputError for one that is not a torchmetrics.Metric."""
    found = nn.ModuleDict({name: spec() for name, spec in specs.items()})
    for name, metric in found.items():
        if not isinstance(metric, torchmetrics.Metric):
            raise InputError(f"model.metrics.{name} is a {type(metric).__name__}, no torchmetrics.Metric")
    return found
