"""The coordinate check: the sizes of activations, their updates and gradients at several widths, over a few steps.

Source: Yang et al. 2021, "Tensor Programs V", appendix D.1, and the public microsoft/mup's coord_check. Sizes here are
root mean squares, whose exponents the theory of `parameterizations` gives.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lra_ssm.layers.dropout import TiedDropout
from lra_ssm.layers.roles import width_roles
from lra_ssm.width.parameterizations import Optimizer, gradient_exponent, without_multipliers
from lra_ssm.width.scaling import WidthSettings, layer_of, tied_multipliers

Row = dict[str, Any]  # width, step, what ("activation", "update" or "gradient"), name, rms
LOGITS = "logits"
_NOT_RECORDED = (nn.Dropout, nn.Identity, nn.ModuleList, nn.Sequential, TiedDropout)


def rms(x: Tensor) -> float:
    """Return the root mean square."""
    return float(x.detach().abs().double().square().mean().sqrt())  # float32 squares overflow at 2e19


def measure(
    network: nn.Module,
    probe: Callable[[], Tensor],
    loss: Callable[[int], Tensor],
    optimizer: torch.optim.Optimizer,
    steps: int,
) -> Iterator[Row]:
    """Yield rows of one width, without the column `width`, before the first step and after each.

    Args:
        network: the network to train; its modules' outputs are the activations.
        probe: returns the network's outputs for inputs that stay the same.
        loss: returns the loss of a step's batch.
        optimizer: over the network's parameters.
        steps: the number of steps.
    """
    network.train()
    first = _activations(network, probe)
    for step in range(steps + 1):
        now = _activations(network, probe) if step else first
        for name, value in now.items():
            yield {"step": step, "what": "activation", "name": name, "rms": rms(value)}
            if step:
                yield {"step": step, "what": "update", "name": name, "rms": rms(value - first[name])}
        if step == steps:
            return
        optimizer.zero_grad()
        loss(step).backward()
        for name, parameter in network.named_parameters():
            if parameter.grad is not None:
                yield {"step": step, "what": "gradient", "name": name, "rms": rms(parameter.grad)}
        optimizer.step()


@torch.no_grad()
def _activations(network: nn.Module, probe: Callable[[], Tensor]) -> dict[str, Tensor]:
    """Return every module's last output by its name, and the network's."""
    outputs: dict[str, Tensor] = {}
    with _recording(network, outputs), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the same dropout
        outputs[LOGITS] = probe().clone()
    return outputs


@contextmanager
def _recording(network: nn.Module, outputs: dict[str, Tensor]) -> Iterator[None]:
    def hook(name: str) -> Callable[..., None]:
        def record(module: nn.Module, inputs: Any, output: Any) -> None:
            value = output[0] if isinstance(output, tuple) else output
            if isinstance(value, Tensor) and value.is_floating_point():
                outputs[name] = value.clone()
            sizes = getattr(module, "step_sizes", None)  # a layer's Δ
            if sizes is not None and inputs:
                outputs[f"{name}.Δ"] = sizes(inputs[0]).clone()

        return record

    with ExitStack() as stack:
        for name, module in network.named_modules():
            if name and not isinstance(module, _NOT_RECORDED):
                stack.callback(module.register_forward_hook(hook(name)).remove)
        yield


class Slope(NamedTuple):
    """The power of the width with which an activation, an update or a gradient grows."""

    name: str
    what: str  # "activation" or "gradient" at the start, "activation" or "update" after the steps
    step: int
    measured: float  # slope of log RMS over log width; infinite if a value is not finite, NaN if one is 0
    promised: float | None

    def verdict(self, tolerance: float) -> str:
        """Return "diverges" if a value is not finite, "grows" or "shrinks" if it is off by more than the tolerance, or
        "".
        """
        if self.measured == math.inf:
            return "diverges"
        if self.promised is None or math.isnan(self.measured) or abs(self.measured - self.promised) <= tolerance:
            return ""
        return "grows" if self.measured > self.promised else "shrinks"


def slopes(rows: Iterable[Row], promises: Mapping[tuple[str, str, str], float]) -> list[Slope]:
    """Return the slopes at the first and the last step, in the order of the rows; RMS is averaged over the rest,
    such as seeds.

    promises: by (what, "first" or "last", name), where name may be "*".
    """
    series: dict[tuple[str, int, str], dict[int, list[float]]] = {}
    for row in rows:
        series.setdefault((row["what"], row["step"], row["name"]), {}).setdefault(row["width"], []).append(row["rms"])
    last = max(step for _, step, _ in series)
    fitted = []
    for (what, step, name), values in series.items():
        if step not in (0, last) or len(values) < 2:
            continue
        when = "last" if step else "first"
        promised = promises.get((what, when, name), promises.get((what, when, "*")))
        fitted.append(Slope(name, what, step, log_slope(values), promised))
    return fitted


def log_slope(values: Mapping[int, Sequence[float]]) -> float:
    """Return the slope of log mean over log width, by least squares.

    It is infinite if a value is not finite, otherwise NaN if one is 0.
    """
    means = np.array([np.mean(rms_values) for rms_values in values.values()])
    if not np.isfinite(means).all():
        return math.inf
    if not (means > 0).all():
        return math.nan
    return float(np.polyfit(np.log(list(values)), np.log(means), 1)[0])


def promises(
    network: nn.Module, settings: WidthSettings | None, optimizer: Optimizer
) -> dict[tuple[str, str, str], float]:
    """Return the slopes that `slopes` compares with.

    Activations and their updates should not change with the width, which is the aim of each parameterization and the
    measure for a model without one. Logits may start smaller, and gradients follow (10).
    """
    expected = {("activation", "first", "*"): 0.0, ("activation", "last", "*"): 0.0, ("update", "last", "*"): 0.0}
    if settings is None:
        return expected
    exponents = settings.exponents(optimizer)
    readout = exponents["readout"]
    expected["activation", "first", LOGITS] = 0.5 - readout.a - readout.b
    folded = without_multipliers(exponents, optimizer)
    for name, (kind, _) in width_roles(network).items():
        layer = layer_of(kind, settings)
        if layer is not None and kind in ("embedding", "hidden", "vector", "readout"):
            expected["gradient", "first", name] = -gradient_exponent(folded, layer)
    for name, a in tied_multipliers(network, folded, optimizer).items():
        expected["gradient", "first", name] = 0.0
        parts = name.split(".")[:-1]  # the norm, and the modules whose output is the norm's
        for module in (".".join(parts[:i]) for i in range(1, len(parts) + 1)):
            for key in (("activation", "first"), ("activation", "last"), ("update", "last")):
                expected[*key, module] = -a
    return expected
