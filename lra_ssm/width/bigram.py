"""The model of the theory: embedding, hidden layers, readout, each with its multiplier (eq. 1 of the note).

Shapes: B batch, D width, V vocabulary.
Source: see `lra_ssm.width.parameterizations`.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lra_ssm.width.parameterizations import Layer, Optimizer, Parameterization

Nonlinearity = Literal["none", "relu", "tanh"]
_NONLINEARITIES = {"none": lambda x: x, "relu": torch.relu, "tanh": torch.tanh}


class Bigram(nn.Module):
    """Predicts the next token from one token: ids (B,) int64 -> logits (B, V). h_{l+1} = φ(N(d^-a W_l h_l)).

    N is an RMSNorm without weight, or the identity (appendix A.1.3 of the note), φ a nonlinearity or the identity
    (appendix C); the readout has neither. Weights at width `base` have a fixed scale, and wider ones that scale times a
    power of width / base, so that at width `base` all parameterizations are the same model.

    Args:
        width: D.
        vocab_size: V.
        parameterization: exponents a and b of its layers; powers are of width / base.
        depth: L, the number of hidden layers.
        rms_norm: whether N is an RMSNorm.
        nonlinearity: φ.
        base: the width of which powers are taken; with 1 they are powers of d.
        generator: draws the initial values.
    """

    def __init__(
        self,
        width: int,
        vocab_size: int,
        parameterization: Parameterization,
        depth: int = 2,
        rms_norm: bool = False,
        nonlinearity: Nonlinearity = "none",
        base: int = 1,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.kinds: list[Layer] = ["embedding", *["hidden"] * depth, "readout"]  # type: ignore[list-item]
        self.ratio, self.parameterization, self.rms_norm = width / base, parameterization, rms_norm
        self.multipliers = [self.ratio ** -parameterization[kind].a for kind in self.kinds]
        self.apply_nonlinearity = _NONLINEARITIES[nonlinearity]
        sizes = [vocab_size, *[width] * (depth + 1), vocab_size]
        self.weights = nn.ParameterList()
        for kind, fan_in, fan_out in zip(self.kinds, sizes[:-1], sizes[1:], strict=True):
            # At the base width a stable start: 1 for the embedding, 1/√D for the others.
            deviation = (1.0 if kind == "embedding" else base**-0.5) * self.ratio ** -parameterization[kind].b
            draw = torch.randn(fan_out, fan_in, generator=generator, dtype=torch.float64)
            self.weights.append(nn.Parameter((deviation * draw).to(dtype)))

    def activations(self, ids: Tensor) -> list[Tensor]:
        """Return h_1 … h_{L+2} for tokens ids (B,), each (B, D), the logits last (B, V)."""
        embedding, *others = self.weights
        h, activations = embedding.T[ids] * self.multipliers[0], list[Tensor]()
        for weight, multiplier in zip(others, self.multipliers[1:], strict=True):
            h = self._normalize(h)
            activations.append(h)
            h = multiplier * F.linear(h, weight)
        return [*activations, h]

    def _normalize(self, h: Tensor) -> Tensor:
        h = F.rms_norm(h, h.shape[-1:], eps=0.0) if self.rms_norm else h
        return self.apply_nonlinearity(h)

    def forward(self, ids: Tensor) -> Tensor:
        return self.activations(ids)[-1]

    def groups(self, lr: float) -> Iterator[dict[str, Any]]:
        """Yield optimizer groups, one per layer, with its rate lr · (width / base)^-c."""
        for kind, weight in zip(self.kinds, self.weights, strict=True):
            yield {"params": [weight], "lr": lr * self.ratio ** -self.parameterization[kind].c}


class FirstOrder:
    """SGD, and Adam and Adafactor without memory, by their updates of eq. 12.

    An update is −lr times the gradient (SGD), its sign (Adam), or its sign times RMS(W) (Adafactor).
    """

    def __init__(self, groups: Sequence[dict[str, Any]], optimizer: Optimizer = "adam") -> None:
        self.groups, self.optimizer = groups, optimizer

    @torch.no_grad()
    def step(self) -> None:
        for group in self.groups:
            for weight in group["params"]:
                update = weight.grad if self.optimizer == "sgd" else weight.grad.sign()
                size = weight.square().mean().sqrt() if self.optimizer == "adafactor" else 1.0
                weight -= group["lr"] * size * update
                weight.grad = None
