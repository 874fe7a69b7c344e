"""The plain block: a layer between two linear maps, as theory studies it.

Shapes: B batch, L length, D channels.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lra_ssm.layers.blocks import Block, RunPart
from lra_ssm.layers.dropout import TiedDropout
from lra_ssm.layers.norms import NormName
from lra_ssm.layers.roles import WidthRole, linear_roles
from lra_ssm.layers.spec import LayerFactory, LayerSpec

Nonlinearity = Literal["none", "relu", "gelu", "tanh"]
NONLINEARITIES = {"none": nn.Identity, "relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}


class PlainBlock(Block):
    """N σ(Γ(M x) + θ) at every position, the network of Yu & Erichson 2025, eq. 5; Γ is any layer.

    Args:
        d_model: D.
        layer: Γ, built as `layer(D)`.
        nonlinearity: σ; "none" is the identity.
        linear_in: whether there is an M; without it Γ reads x.
        linear_out: whether there is an N.
        bias: whether there is a θ.
        glu: N is a gated linear unit, as in `S4Block`.
        norm: before M; None for none.
        residual: x is added.
        dropout: tied over length, before N and before the residual.

    Raises:
        ValueError: there is no such nonlinearity, or glu without linear_out.
    """

    def __init__(
        self,
        d_model: int,
        layer: LayerFactory,
        nonlinearity: Nonlinearity = "gelu",
        linear_in: bool = True,
        linear_out: bool = True,
        bias: bool = True,
        glu: bool = False,
        norm: NormName | None = None,
        residual: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(d_model, norm, prenorm=False)  # the stack has neither a float32 residual nor a final norm
        if nonlinearity not in NONLINEARITIES:
            known = ", ".join(NONLINEARITIES)
            raise ValueError(f"PlainBlock nonlinearity is {nonlinearity!r}; it must be one of {known}")
        if glu and not linear_out:
            raise ValueError("PlainBlock glu is true and linear_out is false: the GLU is a form of linear_out")
        self.linear_in = nn.Linear(d_model, d_model, bias=False) if linear_in else None
        self.layer = LayerSpec.of(layer)(d_model)
        self.bias = nn.Parameter(torch.zeros(d_model)) if bias else None
        self.nonlinearity = NONLINEARITIES[nonlinearity]()
        self.linear_out = nn.Linear(d_model, d_model * (2 if glu else 1), bias=False) if linear_out else None
        self.glu, self.residual, self.dropout = glu, residual, TiedDropout(dropout)

    def mixer(self, x: Tensor, run_part: RunPart) -> Tensor:
        y = run_part("layer", x if self.linear_in is None else self.linear_in(x))
        y = self.dropout(self.nonlinearity(y if self.bias is None else y + self.bias))
        if self.linear_out is not None:
            y = self.linear_out(y)
            y = self.dropout(F.glu(y, dim=-1) if self.glu else y)
        return y

    def body(self, x: Tensor, run_part: RunPart, lengths: Tensor | None = None) -> Tensor:
        """See `Block.body`."""
        y = self.mixer(x if self.norm is None else self.norm(x, lengths), run_part)
        return x + y if self.residual else y

    def extra_repr(self) -> str:
        return f"residual={self.residual}"

    def width_roles(self) -> dict[str, WidthRole]:
        roles = linear_roles(linear_in=(self.linear_in, "hidden"), linear_out=(self.linear_out, "hidden"))
        return roles if self.bias is None else {**roles, "bias": "vector"}
