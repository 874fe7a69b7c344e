"""Metrics over a whole split, whose sums are exact in networks of any precision."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
import torchmetrics
from torch import Tensor, nn

from lra_ssm.errors import InputError
from lra_ssm.layers.spec import ModuleSpec

MetricFactory = Callable[[], torchmetrics.Metric]
Metrics = dict[str, MetricFactory]  # by the name under which each is logged


class _Exact(torchmetrics.Metric):
    """A metric whose sums keep their precision when a task is cast to another (`precision: bf16-true`).

    A sum of bfloat16 stops growing at 256 times what is added. (torchmetrics guards `.bfloat16()`, but not the `.to`
    that Lightning calls.)
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> nn.Module:
        return super()._apply(lambda x: x.to(fn(x).device), exclude_state)


class Mean(_Exact, torchmetrics.MeanMetric):
    """The weighted mean of all values."""


class TokenLoss(_Exact):
    """The sum of −log p, in float64, and the number of tokens in it."""

    nll: Tensor
    tokens: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("nll", torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("tokens", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, nll: Tensor, scored: Tensor) -> None:
        """Add nll (…) float, 0 where not scored; scored (…) bool."""
        self.nll += nll.sum(dtype=torch.float64)
        self.tokens += scored.sum()

    def compute(self) -> tuple[Tensor, Tensor]:
        return self.nll, self.tokens


class RelativeError(_Exact):
    """The mean norm of errors divided by the root mean square of the targets' norms."""

    errors: Tensor
    squares: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("errors", "squares", "count"):
            self.add_state(name, torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, errors: Tensor, targets: Tensor) -> None:
        """Add the norms (n,) of errors and targets."""
        self.errors += errors.sum()
        self.squares += targets.square().sum()
        self.count += len(errors)

    def compute(self) -> Tensor:
        return self.errors / (self.squares * self.count).sqrt()


class MetricSpec(ModuleSpec):
    """A metric of torchmetrics or a user's: `MetricSpec(MulticlassF1Score, num_classes=10)`."""

    kind, builder_gives = "metric", ()


def metric_specs(metrics: Mapping[str, Any] | None, taken: Collection[str]) -> dict[str, MetricSpec]:
    """Return specifications by name. Raises InputError for a name in `taken`, which the task logs itself."""
    specs = {name: MetricSpec.of(metric) for name, metric in (metrics or {}).items()}
    for name in specs:
        if name in taken:
            raise InputError(f"model.metrics has {name!r}, which the task logs itself")
    return specs


def build_metrics(specs: Mapping[str, MetricSpec]) -> nn.ModuleDict:
    """Build one split's metrics, by name. Raises InputError for one that is not a torchmetrics.Metric."""
    metrics = nn.ModuleDict({name: spec() for name, spec in specs.items()})
    for name, metric in metrics.items():
        if not isinstance(metric, torchmetrics.Metric):
            raise InputError(f"model.metrics.{name} is a {type(metric).__name__}, not a torchmetrics.Metric")
    return metrics
