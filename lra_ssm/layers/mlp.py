"""The MLP of a Transformer's block, blocks of two sublayers (a mixer, then an MLP), and the Transformer's own.

Shapes: B batch, L length, D channels, F channels of the MLP.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from lra_ssm.layers.blocks import Block, RunPart, inner_width
from lra_ssm.layers.norms import NormName, make_norm
from lra_ssm.layers.roles import channel_maps
from lra_ssm.layers.spec import LayerFactory, LayerSpec

Activation = Literal["gelu", "geglu", "swiglu"]
GATES: dict[str, Callable[[Tensor], Tensor]] = {"geglu": partial(F.gelu, approximate="tanh"), "swiglu": F.silu}


class MLP(nn.Module):
    """fc2(GELU(fc1(x))), or with "geglu" fc2(GELU(a) · b), "swiglu" fc2(SiLU(a) · b), (a, b) = fc1(x). (…, D) -> same.

    GELU is in its tanh form. Source of the gated forms: Shazeer 2020, "GLU Variants Improve Transformer", eq. 6.

    Args:
        d_model: D.
        width: F.
        activation: "gelu", "geglu" or "swiglu".
        bias: of both linear maps.
        dropout: of the F channels, position by position.
    """

    def __init__(self, d_model: int, width: int, activation: Activation, bias: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.activation = activation
        self.fc1 = nn.Linear(d_model, width * (2 if activation in GATES else 1), bias=bias)
        self.fc2 = nn.Linear(width, d_model, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc1(x)
        if self.activation in GATES:
            a, b = y.chunk(2, dim=-1)
            y = GATES[self.activation](a) * b
        else:
            y = F.gelu(y, approximate="tanh")
        return self.fc2(self.dropout(y))

    width_roles = channel_maps  # F grows with the channels


class MLPBlock(Block):
    """Two sublayers, the mixer and an MLP, each with its own norm, dropout and residual.

    A subclass implements `mixer`, sets `dropout`, and calls `add_mlp` at the end of its constructor.
    """

    norm2: nn.Module | None
    mlp: MLP | None
    dropout: nn.Module

    def add_mlp(
        self, d_model: int, factor: float, bias: bool, activation: Activation = "gelu", dropout: float = 0.0
    ) -> None:
        """Add the second sublayer, with F = factor · D; no second sublayer if the factor is 0.

        Raises ValueError if F is not a whole number.
        """
        self.norm2 = self.mlp = None
        if factor:
            width = inner_width(f"{type(self).__name__} mlp_factor", factor, d_model)
            assert self.norm_name is not None
            self.norm2 = make_norm(self.norm_name, d_model)
            self.mlp, self.num_sublayers = MLP(d_model, width, activation, bias, dropout), 2

    def body(self, x: Tensor, run_part: RunPart, lengths: Tensor | None = None) -> Tensor:
        """See `Block.body`."""
        x = self.sublayer(x, self.norm, lambda u: self.dropout(self.mixer(u, run_part)), lengths)
        if (mlp := self.mlp) is not None:
            x = self.sublayer(x, self.norm2, lambda u: self.dropout(mlp(u)), lengths)
        return x


class TransformerBlock(MLPBlock):
    """x + Γ(norm(x)), then x + MLP(norm2(x)); Γ is any layer.

    With `Attention` as Γ it is the Transformer's block (Vaswani et al. 2017, section 3; with the norms in front, Xiong
    et al. 2020, "On Layer Normalization in the Transformer Architecture").

    Args:
        d_model: D.
        layer: Γ, built as `layer(D)`.
        mlp_factor: the MLP's width / D, such that the width is a whole number; 0 for a block without MLP.
        mlp_activation: "gelu", "geglu" or "swiglu".
        norm: "batch", "batch_padded", "layer" or "rms".
        prenorm: the norms are applied before Γ and the MLP; otherwise after the residuals, as in Vaswani et al.
        dropout: before both residuals, of single positions.
        mlp_dropout: between the MLP's two linear maps.
        bias: of the MLP's linear maps.

    Raises:
        ValueError: the MLP's width is not a whole number, or there is no such activation.
    """

    residual_maps = ("layer.out_proj", "mlp.fc2")  # the first is Attention's

    def __init__(
        self,
        d_model: int,
        layer: LayerFactory,
        mlp_factor: float = 4.0,
        mlp_activation: Activation = "gelu",
        norm: NormName = "layer",
        prenorm: bool = True,
        dropout: float = 0.0,
        mlp_dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__(d_model, norm, prenorm)
        self.layer = LayerSpec.of(layer)(d_model)
        self.dropout = nn.Dropout(dropout)
        self.add_mlp(d_model, mlp_factor, bias, mlp_activation, mlp_dropout)

    def mixer(self, x: Tensor, run_part: RunPart) -> Tensor:
        return run_part("layer", x)
