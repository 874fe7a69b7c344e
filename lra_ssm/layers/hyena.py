"""Hyena's block of order 2, with any layer as its long filter: the language model of StableSSM's experiments.

Shapes: B batch, L length, D channels, W taps of the short convolution, F channels of the MLP.
Sources: Poli et al. 2023, "Hyena Hierarchy", section 3 and algorithms 1 and 3, for the operator, and its public code,
HazyResearch/safari, for the operator and for norms, MLP and dropout around it; Wang & Li 2024 (StableSSM), section 4.2
and appendix F.2, for a real diagonal state-space model in place of the implicit filter.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lra_ssm.layers.blocks import RunPart
from lra_ssm.layers.convolution import ShortConvolution
from lra_ssm.layers.mlp import MLPBlock
from lra_ssm.layers.norms import NormName
from lra_ssm.layers.roles import Role, WidthRole, channel_maps
from lra_ssm.layers.spec import LayerFactory, LayerSpec


class HalfGLU(nn.Module):
    """y · σ(W GELU(y) + bias), "half_glu2" of S5's public code. y (…, D) -> (…, D)."""

    def __init__(self, d_model: int, bias: bool = True) -> None:
        super().__init__()
        self.gate = nn.Linear(d_model, d_model, bias=bias)

    def forward(self, y: Tensor) -> Tensor:
        gate: Tensor = self.gate(F.gelu(y))
        return y * gate.sigmoid()

    width_roles = channel_maps


class HyenaBlock(MLPBlock):
    """Hyena's operator around any layer, then an MLP.

    The operator is mixer(x) = out_proj(q · φ(Γ(k · v) + D k · v)) with (q, k, v) = conv(in_proj(x)); Γ, the long
    filter, is any layer. The MLP is fc2(GELU(fc1(x))) with GELU in its tanh form, as in the public code.

    Wang & Li use S5 with real weights as the filter: `StableSSM(form="real", readout="identity")`, which is linear and
    has states that all channels share. With it and activation="gelu" this is the block of S5's public code for
    WikiText-103 (lindermanlab/S5, branch development), which their settings resemble; `skip` is S5's D. For
    associative recall that code has "half_glu2" around `S5`, which has its own D.

    Args:
        d_model: D.
        layer: Γ, built as `layer(D)`.
        d_conv: W, the taps of the depthwise convolution of q, k and v.
        activation: φ, "identity", Hyena's, or S5's "gelu" or "half_glu2", y · σ(W GELU(y)).
        skip: adds Γ's input, times a factor D per channel that starts normal, to its output: the bias of Hyena's
            filter, S5's D. Layers with their own D do not need it.
        mlp_factor: F / D, such that F is a whole number; 0 for a block without MLP.
        norm: "batch", "batch_padded", "layer", which is Hyena's, or "rms".
        prenorm: the norms are applied before the operator and the MLP, as in Hyena; otherwise after the residuals.
        dropout: before both residuals; of single positions, not tied over length, as in the public code.
        gate_dropout: of k · v, likewise.
        bias: of the linear maps and the convolution.

    Raises:
        ValueError: F is not a whole number, there is no tap, or there is no such activation.
    """

    stateful = ("conv1d", "layer")
    residual_maps = ("out_proj", "mlp.fc2")

    def __init__(
        self,
        d_model: int,
        layer: LayerFactory,
        d_conv: int = 3,
        activation: Literal["identity", "gelu", "half_glu2"] = "identity",
        skip: bool = True,
        mlp_factor: float = 4.0,
        norm: NormName = "layer",
        prenorm: bool = True,
        dropout: float = 0.0,
        gate_dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__(d_model, norm, prenorm)
        self.in_proj = nn.Linear(d_model, 3 * d_model, bias=bias)
        self.conv1d = ShortConvolution(3 * d_model, d_conv, bias=bias)
        self.layer = LayerSpec.of(layer)(d_model)
        self.activation: nn.Module = nn.Identity()
        if activation != "identity":
            self.activation = nn.GELU() if activation == "gelu" else HalfGLU(d_model, bias)
        self.D = nn.Parameter(torch.randn(d_model)) if skip else None
        self.out_proj = nn.Linear(d_model, d_model, bias=bias)
        self.dropout, self.gate_dropout = nn.Dropout(dropout), nn.Dropout(gate_dropout)
        self.add_mlp(d_model, mlp_factor, bias)

    def mixer(self, x: Tensor, run_part: RunPart) -> Tensor:
        q, k, v = run_part("conv1d", self.in_proj(x)).chunk(3, dim=-1)
        v = self.gate_dropout(k * v)
        y = run_part("layer", v)
        y = y if self.D is None else y + self.D.to(v.dtype) * v
        return self.out_proj(q * self.activation(y))

    def optim_roles(self) -> dict[str, Role]:
        return {"D": "no_decay"}

    def width_roles(self) -> dict[str, WidthRole]:
        return {**channel_maps(self), "D": "vector"}
