"""Mamba-2's block.

Shapes: B batch, L length, D channels, E = expand · D inner channels, W taps of the convolution; S features that the
block makes for the layer through the convolution, and H features that bypass it.
"""

import torch
from torch import Tensor, nn

from lra_ssm.layers.blocks import Block, RunPart, apply_linear, inner_width
from lra_ssm.layers.convolution import ShortConvolution
from lra_ssm.layers.dropout import TiedDropout
from lra_ssm.layers.norms import GatedRMSNorm, NormName
from lra_ssm.layers.roles import Role, channel_maps
from lra_ssm.layers.spec import LayerFactory, LayerSpec


class Mamba2Block(Block):
    """Mamba-2's block: mixer(x) = out_proj(RMSNorm(Γ(SiLU(conv(u)), Δ) · SiLU(z))).

    Here (z, u) = in_proj(x) and Δ = delta_proj(x).

    Γ is `SSD`, which reads x, B and C, all three contained in u, and Δ. All are projections of the block's input, so
    none has to wait for another (Dao & Gu 2024, section 7.1, "parallel"). Γ may also be any other layer: then u is just
    its input, and there is no Δ. A layer requests the other features by a method `use_external_projections`, see SSD's.
    Δ has its own linear map, which is the last rows of in_proj in Mamba's code, so that the optimizer can treat it
    separately.

    Sources: Dao & Gu 2024, figure 6, and its public code (modules/mamba2.py).

    Args:
        d_model: D.
        layer: Γ, built as `layer(E)`.
        expand: E / D, such that E is a whole number.
        d_conv: W, the taps of the depthwise convolution, which is causal whatever Γ is.
        norm: "batch", "batch_padded", "layer" or "rms", which is Mamba's.
        prenorm: the norm is applied before the mixer, as in Mamba; otherwise after the residual.
        dropout: before the residual, tied over length; Mamba has none.
        bias: of the projections.
        conv_bias: of the convolution.

    Raises:
        ValueError: E is not a whole number, or there is no tap.
    """

    stateful = ("conv1d", "layer")
    residual_maps = ("out_proj",)

    def __init__(
        self,
        d_model: int,
        layer: LayerFactory,
        expand: float = 2.0,
        d_conv: int = 4,
        norm: NormName = "rms",
        prenorm: bool = True,
        dropout: float = 0.0,
        bias: bool = False,
        conv_bias: bool = True,
    ) -> None:
        super().__init__(d_model, norm, prenorm)
        E = inner_width("Mamba2Block expand", expand, d_model)
        self.layer = LayerSpec.of(layer)(E)
        use_external_projections = getattr(self.layer, "use_external_projections", None)
        S, H = (0, 0) if use_external_projections is None else use_external_projections()
        self.E = E
        self.in_proj = nn.Linear(d_model, 2 * E + S, bias=bias)
        self.delta_proj = nn.Linear(d_model, H, bias=bias) if H else None
        self.conv1d = ShortConvolution(E + S, d_conv, bias=conv_bias, silu=True)
        self.gated_norm = GatedRMSNorm(E, getattr(self.layer, "n_groups", 1))
        self.out_proj = nn.Linear(E, d_model, bias=bias)
        self.dropout = TiedDropout(dropout)

    def mixer(self, x: Tensor, run_part: RunPart) -> Tensor:
        z, u = apply_linear(self.in_proj, x).split([self.E, self.in_proj.out_features - self.E], dim=-1)
        v = run_part("conv1d", u)
        if self.delta_proj is not None:
            v = torch.cat([v, apply_linear(self.delta_proj, x)], dim=-1)
        y = run_part("layer", v, width=self.E)
        return self.dropout(apply_linear(self.out_proj, self.gated_norm(y, z)))

    def optim_roles(self) -> dict[str, Role]:
        return {"delta_proj.weight": "delta", "delta_proj.bias": "delta"}

    width_roles = channel_maps  # in_proj's rows for B and C, which map to states, are scaled as its rows for channels
