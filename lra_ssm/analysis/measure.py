"""The measurements that `lra-ssm inspect` shows.

Shapes: L length, D channels, S states, P positions.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from lra_ssm.analysis.gradients import Ratio, gradient_over_weight, jacobian_norms, relative_gradient
from lra_ssm.analysis.memory import by_lag, effective_memory_length
from lra_ssm.analysis.network import Example, inputs_of, layers_of, loss_of
from lra_ssm.analysis.spectrum import eigenvalues, mean_timescales, step_sizes
from lra_ssm.tables import table

SCALES = (1.0, 10.0, 100.0)  # factors of the one large input
PROBES = 16  # random directions from which a Jacobian's norm is estimated
POSITIONS = 48  # where eigenvalues are taken: a selective layer's differ from position to position


@dataclass
class LayerMeasures:
    """Measurements of one layer in its network. Averages are over the examples."""

    name: str
    kind: str
    memory: Tensor  # share of ‖J‖ by lag (L,)
    memory_length: float  # positions that hold 95 % of it
    causal: bool
    eigenvalues: Tensor | None  # (P, S) complex; None if they cannot be measured
    timescales: Tensor | None  # (S,) positions
    delta: Tensor | None  # Δ (L, D) on the first example
    scaled: dict[float, Tensor]  # by factor of the input in the middle: S_k (L,) of the last output
    gradient: Tensor = field(default_factory=lambda: torch.zeros(0))  # ‖∂loss/∂x_k‖ at its input (L,), first example
    ratios: dict[str, Ratio] = field(default_factory=dict)

    @property
    def forgetting(self) -> float:
        """The factor by which the share of all inputs before the middle falls when the input there becomes 100 times
        as large; NaN if that share was 0 from the start."""
        middle = len(self.scaled[SCALES[0]]) // 2
        before = [float(self.scaled[scale][:middle].sum()) for scale in (SCALES[0], SCALES[-1])]
        return before[0] / max(before[1], 1e-30) if before[0] > 0 else math.nan

    @property
    def delta_range(self) -> float | None:
        """The ratio of a channel's 95th to its 5th percentile of Δ over the sequence, the median of all channels; None
        without Δ."""
        if self.delta is None:
            return None
        low, high = torch.quantile(self.delta, torch.tensor([0.05, 0.95]), dim=0)
        return float((high / low.clamp(min=1e-30)).median())

    @property
    def stability_margin(self) -> float | None:
        """1 - |λ| of the slowest state, the smallest over the positions; negative if that state grows."""
        return None if self.eigenvalues is None else float(1 - self.eigenvalues.abs().max())


@dataclass
class Measures:
    """Measurements of a whole network."""

    title: str
    facts: list[str]
    layers: list[LayerMeasures]
    length: int  # of the first example

    @property
    def finite(self) -> bool:
        """Return whether all gradients are finite."""
        return all(bool(layer.gradient.isfinite().all()) for layer in self.layers)


def count_ticks(network: nn.Module, examples: Sequence[Example]) -> int:
    """Return how often `measure` calls `tick`."""
    return len(examples) * (1 + len(layers_of(network))) + 2 * len(layers_of(network))


def measure(
    network: nn.Module,
    examples: Sequence[Example],
    title: str,
    facts: list[str],
    tick: Callable[[], None] | None = None,
) -> Measures:
    """Measure a copy of a network, in evaluation mode, on a few examples; call `tick` after each step of the work.

    Raises InputError if it has no layers.
    """
    network = copy.deepcopy(network).eval().requires_grad_()
    layers, tick = layers_of(network), tick or (lambda: None)
    generator = torch.Generator().manual_seed(0)
    inputs, gradients = [], []
    network.zero_grad()
    for example in examples:
        layer_inputs, layer_gradients = _backward(network, layers, example, len(examples))
        inputs.append(layer_inputs)
        gradients.append(layer_gradients)
        tick()
    measures = []
    for name, layer in layers.items():
        shares, causal = [], True
        for layer_inputs in inputs:
            share, causal = _memory(layer, layer_inputs[name], generator)
            shares.append(share)
            tick()
        length = max(len(share) for share in shares)
        memory = torch.stack([nn.functional.pad(share, (0, length - len(share))) for share in shares]).mean(0)
        x = inputs[0][name][0]
        spectrum = eigenvalues(layer, x[torch.linspace(0, len(x) - 1, min(POSITIONS, len(x))).long()])
        delta = step_sizes(layer, x[None])
        tick()
        measures.append(
            LayerMeasures(
                name=name,
                kind=type(layer).__name__,
                memory=memory,
                memory_length=float(effective_memory_length(memory)),
                causal=causal,
                eigenvalues=spectrum,
                timescales=None if spectrum is None else mean_timescales(spectrum),
                delta=None if delta is None else delta[0].detach(),
                scaled={scale: _scaled(layer, x, scale) for scale in SCALES},
                gradient=gradients[0][name],
                ratios=gradient_over_weight(layer),
            )
        )
        tick()
    return Measures(title, facts, measures, len(measures[0].gradient))


def _backward(
    network: nn.Module, layers: dict[str, nn.Module], example: Example, count: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Add an example's share to the parameters' gradients.

    Returns, by layer, its input (1, L, D) without padding, and the norm of the input's gradient by position (L,).
    """
    with inputs_of(layers) as layer_inputs:
        (loss_of(network, example) / count).backward()
    length = None if example.lengths is None else int(example.lengths.flatten()[0])
    gradients = {}
    for name, x in layer_inputs.items():
        grad = torch.zeros_like(x) if x.grad is None else x.grad
        gradients[name] = count * grad[0, :length].norm(dim=-1)
    return {name: x.detach()[:1, :length] for name, x in layer_inputs.items()}, gradients


def _memory(layer: nn.Module, x: Tensor, generator: torch.Generator) -> tuple[Tensor, bool]:
    """Return S by lag (L,) of a causal layer's last output or another's middle output, and whether it is causal."""
    middle = x.shape[1] // 2
    norms = jacobian_norms(layer, x, middle, 1, generator)[0]
    causal = float(norms[middle + 1 :].sum()) < 1e-4 * float(norms.sum())
    position = x.shape[1] - 1 if causal else middle
    return by_lag(relative_gradient(layer, x, position, PROBES, generator)[0], position), causal


def _scaled(layer: nn.Module, x: Tensor, scale: float) -> Tensor:
    """Return S_k (L,) of the last output with the middle input `scale` times as large (B2S6, theorems 2 and 5)."""
    x = x.clone()
    x[len(x) // 2] *= scale
    generator = torch.Generator().manual_seed(0)  # the same directions at every scale: a linear layer's S is the same
    return relative_gradient(layer, x[None], probes=PROBES, generator=generator)[0]


COLUMNS = ("layer", "memory", "longest timescale", "outlive", "Δ", "Δ range", "least 1 − |λ|", "forgetting",
           "‖∂loss/∂x‖", "largest gradient/weight")  # fmt: skip


def summary(measures: Measures, width: int | None = None) -> str:
    """Return a table with a row for each layer; docs/inspect.md explains its columns. width: of the terminal."""
    rows = [_row(i + 1, layer, measures.length) for i, layer in enumerate(measures.layers)]
    return table(COLUMNS, rows, width=width)


def _row(number: int, layer: LayerMeasures, length: int) -> list[str]:
    def cell(value: float | None, form: str) -> str:
        return "–" if value is None else form.format(format_value(value))

    longest = outlive = None
    if layer.timescales is not None:
        longest, outlive = float(layer.timescales.max()), 100 * float((layer.timescales > length).float().mean())
    name, ratio = max(layer.ratios.items(), key=lambda pair: pair[1].norm, default=("", None))
    return [
        f"{number} {layer.kind}" + ("" if layer.causal else ", both directions"),
        f"{layer.memory_length:,.0f}",
        cell(longest, "{}"),
        cell(outlive, "{} %"),
        cell(None if layer.delta is None else float(layer.delta.median()), "{}"),
        cell(layer.delta_range, "×{}"),
        cell(layer.stability_margin, "{}"),
        cell(layer.forgetting, "÷{}"),
        cell(float(layer.gradient.double().norm()), "{}"),
        cell(ratio and ratio.norm, f"{name} {{}}"),
    ]


def format_value(value: float) -> str:
    """Format a number with three digits, without a power of ten from 1,000 to a million."""
    return f"{value:,.0f}" if 1000 <= value < 1e6 else f"{value:.3g}"
