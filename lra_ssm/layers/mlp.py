"""A block's second half: an MLP behind the layer, with a norm and a residual of its own.

Shapes: B batch, L length, D channels, F channels of the MLP.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lra_ssm.layers.blocks import Block, inner_width
from lra_ssm.layers.norms import make_norm
from lra_ssm.layers.roles import WidthRole, linear_roles

Activation = Literal["gelu", "swiglu"]


class MLPBlock(Block):
    """`Block`, and then x + MLP(norm2(x)) with `prenorm`, norm2(x + MLP(x)) without, where `add_mlp` was called.

    MLP(x) is fc2(GELU(fc1(x))), GELU in its tanh form, or with "swiglu" fc2(SiLU(a) · b), (a, b) = fc1(x) (Shazeer
    2020, "GLU Variants Improve Transformer", eq. 6). A subclass sets `dropout`, which stands before the residual.
    """

    norm2: nn.Module | None
    dropout: nn.Module

    def add_mlp(
        self, d_model: int, factor: float, bias: bool, activation: Activation = "gelu", dropout: float = 0.0
    ) -> None:
        """factor: F / D, such that F is a whole number; 0 for no MLP. dropout: of the F channels, position by position.
        Raises ValueError where F is none."""
        if activation not in ("gelu", "swiglu"):
            raise ValueError(f"{type(self).__name__} mlp_activation is {activation!r}; it must be gelu or swiglu")
        self._gated = activation == "swiglu"
        self.norm2 = None
        if factor:
            width = inner_width(f"{type(self).__name__} mlp_factor", factor, d_model)
            assert self.norm_name is not None
            self.norm2 = make_norm(self.norm_name, d_model)
            self.fc1 = nn.Linear(d_model, width * (2 if self._gated else 1), bias=bias)
            self.fc2 = nn.Linear(width, d_model, bias=bias)
            self.mlp_dropout = nn.Dropout(dropout)

    def behind(self, y: Tensor, lengths: Tensor | None = None) -> Tensor:
        x = super().behind(y, lengths)
        if self.norm2 is None:
            return x
        y = self.fc1(self.norm2(x, lengths) if self.prenorm else x)
        if self._gated:
            a, b = y.chunk(2, dim=-1)
            y = F.silu(a) * b
        else:
            y = F.gelu(y, approximate="tanh")
        y = x + self.dropout(self.fc2(self.mlp_dropout(y)))
        return y if self.prenorm else self.norm2(y, lengths)

    @torch.no_grad()
    def scale_residual(self, factor: float) -> None:
        """Scales what both parts add to the residual at initialization, by 1/√2 more where there are two."""
        if self.norm2 is not None:
            factor *= 2**-0.5
            self.fc2.weight *= factor
        self.scale_inner(factor)

    def scale_inner(self, factor: float) -> None:
        """The same of the layer's part alone, without gradients."""

    def width_roles(self) -> dict[str, WidthRole]:
        """The MLP's; its width grows with the channels."""
        return {} if self.norm2 is None else linear_roles(fc1=(self.fc1, "hidden"), fc2=(self.fc2, "hidden"))
