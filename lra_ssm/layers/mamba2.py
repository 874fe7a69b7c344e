"""Mamba-2's block.

Shapes: B batch, L length, D channels, E = expand · D inner channels, W taps of the convolution; S and H features of the
selection, through the convolution and beside it.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lra_ssm.layers.blocks import Block, apply_linear, inner_width
from lra_ssm.layers.convolution import ShortConvolution
from lra_ssm.layers.dropout import TiedDropout
from lra_ssm.layers.norms import GatedRMSNorm, NormName
from lra_ssm.layers.roles import Role, WidthRole, linear_roles
from lra_ssm.layers.spec import LayerFactory, LayerSpec


class Mamba2Block(Block):
    """Mamba-2's block: f(x) = out_proj(RMSNorm(Γ(SiLU(conv(u)), Δ) · SiLU(z))), (z, u) = in_proj(x), Δ = delta_proj(x).

    Γ is `SSD`, which reads x, B and C, all three of u, and Δ; made of the block's input, they need not wait for each
    other (Dao & Gu 2024, section 7.1, "parallel"). Γ may be any other layer too: then u is its input alone and there is
    no Δ. A layer asks for more by a method `expect_selection`, see SSD's. Δ has a map of its own, which Mamba's code
    has as in_proj's last rows, so that the optimizer may treat it apart.

    Sources: Dao & Gu 2024, figure 6, and its public code (modules/mamba2.py).

    Args:
        d_model: D.
        layer: Γ, built as `layer(E)`.
        expand: E / D, such that E is a whole number.
        d_conv: W, the taps of the depthwise convolution, which is causal whatever Γ is.
        norm: "batch", "layer" or "rms", which is Mamba's.
        prenorm: the norm stands before f, as in Mamba; else after the residual.
        dropout: before the residual, tied over length; Mamba has none.
        bias: of the projections.
        conv_bias: of the convolution.

    Raises:
        ValueError: E is no whole number, or there is no tap.
    """

    stateful = ("conv1d", "layer")

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
        if d_conv < 1:
            raise ValueError(f"Mamba2Block d_conv is {d_conv}; it must be at least 1")
        self.layer = LayerSpec.of(layer)(E)
        expect_selection = getattr(self.layer, "expect_selection", None)
        S, H = (0, 0) if expect_selection is None else expect_selection()
        self.E = E
        self.in_proj = nn.Linear(d_model, 2 * E + S, bias=bias)
        self.delta_proj = nn.Linear(d_model, H, bias=bias) if H else None
        self.conv1d = ShortConvolution(E + S, d_conv, bias=conv_bias, silu=True)
        self.gated_norm = GatedRMSNorm(E, getattr(self.layer, "n_groups", 1))
        self.out_proj = nn.Linear(E, d_model, bias=bias)
        self.dropout = TiedDropout(dropout)

    def f(self, x: Tensor, through: Callable[..., Tensor]) -> Tensor:
        z, u = apply_linear(self.in_proj, x).tensor_split([self.E], dim=-1)
        v = through(self.conv1d, u)
        if self.delta_proj is not None:
            v = torch.cat([v, apply_linear(self.delta_proj, x)], dim=-1)
        y = through(self.layer, v, width=self.E)
        return self.dropout(apply_linear(self.out_proj, self.gated_norm(y, z)))

    @torch.no_grad()
    def scale_residual(self, factor: float) -> None:
        """Scales what f adds to the residual at initialization, where many blocks add up."""
        self.out_proj.weight *= factor

    def optim_roles(self) -> dict[str, Role]:
        own = ("in_proj.bias", "conv1d.bias", "out_proj.bias")
        roles: dict[str, Role] = {name: "no_decay" for name, _ in self.named_parameters() if name in own}
        return roles | {name: "delta" for name, _ in self.named_parameters() if name.startswith("delta_proj.")}

    def width_roles(self) -> dict[str, WidthRole]:
        """in_proj's rows for B and C are maps to states, which are scaled as those to channels are."""
        maps: dict[str, tuple[nn.Module | None, WidthRole]] = {
            name: (getattr(self, name), "hidden") for name in ("in_proj", "delta_proj", "out_proj")
        }
        return linear_roles(**maps)
