"""One checkpoint measured: what `lra-ssm inspect` shows, as numbers.

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

SCALES = (1.0, 10.0, 100.0)  # by how much one input is made larger
PROBES = 16  # random directions that a Jacobian's norm is taken in
POSITIONS = 48  # of the spectrum: a selective layer has another at each
Tick = Callable[[str], None]


@dataclass
class LayerMeasures:
    """Of one layer, in its place in the network. Averages are over the examples."""

    name: str
    kind: str
    memory: Tensor  # share of ‖J‖ by lag (L,)
    effective: float  # positions that hold 95 % of it
    causal: bool
    eigenvalues: Tensor | None  # (P, S) complex; None where the layer has none to show
    timescales: Tensor | None  # (S,) positions
    delta: Tensor | None  # Δ (L, D) on the first example
    scaled: dict[float, Tensor]  # S_k (L,) of the last output with the input in the middle so many times as large
    gradient: Tensor = field(default_factory=lambda: torch.zeros(0))  # ‖∂loss/∂x_k‖ at its input (L,), first example
    ratios: dict[str, Ratio] = field(default_factory=dict)

    @property
    def forgotten(self) -> float:
        """How many times the share of what stands before the middle falls when the input there is made 100 times as
        large; NaN where it was 0 to begin with."""
        middle = len(self.scaled[SCALES[0]]) // 2
        before = [float(self.scaled[scale][:middle].sum()) for scale in (SCALES[0], SCALES[-1])]
        return before[0] / max(before[1], 1e-30) if before[0] > 0 else math.nan

    @property
    def movement(self) -> float | None:
        """By what factor a channel's Δ moves over the sequence: its 95th over its 5th percentile, the median of the
        channels. None without Δ."""
        if self.delta is None:
            return None
        low, high = torch.quantile(self.delta, torch.tensor([0.05, 0.95]), dim=0)
        return float((high / low.clamp(min=1e-30)).median())

    @property
    def distance(self) -> float | None:
        """1 - |λ| of the slowest state at the position where it is least; below 0 it grows."""
        return None if self.eigenvalues is None else float(1 - self.eigenvalues.abs().max())


@dataclass
class Measures:
    """Of a whole network."""

    title: str
    facts: list[str]
    layers: list[LayerMeasures]
    length: int  # of the first example


def steps(network: nn.Module, examples: Sequence[Example]) -> int:
    """How often `measure` will tick."""
    return len(examples) * (1 + len(layers_of(network))) + 2 * len(layers_of(network))


def measure(
    network: nn.Module, examples: Sequence[Example], title: str, facts: list[str], tick: Tick = lambda text: None
) -> Measures:
    """Measures a network in evaluation mode on a few examples; its gradients are taken afterwards as they were before.

    Raises InputError where it has no layers.
    """
    network = copy.deepcopy(network).eval().requires_grad_()
    layers = layers_of(network)
    generator = torch.Generator().manual_seed(0)
    inputs, gradients = [], []
    network.zero_grad()
    for number, example in enumerate(examples):
        tick(f"gradients of example {number + 1}")
        seen, came_back = _backward(network, layers, example, len(examples))
        inputs.append(seen)
        gradients.append(came_back)
    found = []
    for i, (name, layer) in enumerate(layers.items()):
        shares, causal = [], True
        for number, seen in enumerate(inputs):
            tick(f"layer {i + 1}: memory on example {number + 1}")
            share, causal = _memory(layer, seen[name], generator)
            shares.append(share)
        length = max(len(share) for share in shares)
        memory = torch.stack([nn.functional.pad(share, (0, length - len(share))) for share in shares]).mean(0)
        tick(f"layer {i + 1}: spectrum")
        x = inputs[0][name][0]
        spectrum = eigenvalues(layer, x[torch.linspace(0, len(x) - 1, min(POSITIONS, len(x))).long()])
        delta = step_sizes(layer, x[None])
        tick(f"layer {i + 1}: one input made larger")
        found.append(
            LayerMeasures(
                name=name,
                kind=type(layer).__name__,
                memory=memory,
                effective=float(effective_memory_length(memory)),
                causal=causal,
                eigenvalues=spectrum,
                timescales=None if spectrum is None else mean_timescales(spectrum),
                delta=None if delta is None else delta[0].detach(),
                scaled={scale: _scaled(layer, x, scale) for scale in SCALES},
                gradient=gradients[0][name],
                ratios=gradient_over_weight(layer),
            )
        )
    return Measures(title, facts, found, len(found[0].gradient))


def _backward(
    network: nn.Module, layers: dict[str, nn.Module], example: Example, count: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Adds an example's share to the parameters' gradients; what came into every layer (1, L, D), without padding, and
    the norm of what came back, by position (L,)."""
    with inputs_of(layers) as seen:
        (loss_of(network, example) / count).backward()
    length = None if example.lengths is None else int(example.lengths.flatten()[0])
    inputs = {name: x.detach()[:1, :length] for name, x in seen.items()}
    back = {}
    for name, x in seen.items():
        grad = torch.zeros_like(x) if x.grad is None else x.grad
        back[name] = count * grad[0, :length].norm(dim=-1)
    return inputs, back


def _memory(layer: nn.Module, x: Tensor, generator: torch.Generator) -> tuple[Tensor, bool]:
    """S by distance (L,), and whether the layer looks back alone: seen from the last position, or from the middle."""
    middle = x.shape[1] // 2
    looks = jacobian_norms(layer, x, middle, 1, generator)[0]
    causal = float(looks[middle + 1 :].sum()) < 1e-4 * float(looks.sum())
    position = x.shape[1] - 1 if causal else middle
    return by_lag(relative_gradient(layer, x, position, PROBES, generator)[0], position), causal


def _scaled(layer: nn.Module, x: Tensor, scale: float) -> Tensor:
    """S_k (L,) of the last output, the input in the middle `scale` times as large: theorems 2 and 5 of B2S6."""
    x = x.clone()
    x[len(x) // 2] *= scale
    generator = torch.Generator().manual_seed(0)  # the same directions at every scale: a linear layer's S is the same
    return relative_gradient(layer, x[None], probes=PROBES, generator=generator)[0]
