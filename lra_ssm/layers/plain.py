"""The plain block: a layer and a nonlinearity, as theory studies it.

Shapes: B batch, L length, D channels.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from lra_ssm.layers.blocks import Block, RunPart
from lra_ssm.layers.roles import WidthRole
from lra_ssm.layers.spec import LayerFactory, LayerSpec

Nonlinearity = Literal["none", "relu", "gelu", "tanh"]
NONLINEARITIES = {"none": nn.Identity, "relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}


class PlainBlock(Block):
    """σ(Γ(x) + θ) at every position, the inside of the network of Yu & Erichson 2025, eq. 5; Γ is any layer.

    There is no norm, residual or dropout. `models.PlainNetwork` puts the linear maps M and N around such blocks.

    Args:
        d_model: D.
        layer: Γ, built as `layer(D)`.
        nonlinearity: σ; "none" is the identity.
        bias: whether there is a θ.

    Raises:
        ValueError: there is no such nonlinearity.
    """

    def __init__(
        self, d_model: int, layer: LayerFactory, nonlinearity: Nonlinearity = "gelu", bias: bool = True
    ) -> None:
        super().__init__(d_model, norm=None, prenorm=False)
        self.layer = LayerSpec.of(layer)(d_model)
        self.bias = nn.Parameter(torch.zeros(d_model)) if bias else None
        self.nonlinearity = NONLINEARITIES[nonlinearity]()

    def body(self, x: Tensor, run_part: RunPart, lengths: Tensor | None = None) -> Tensor:
        """See `Block.body`."""
        y = run_part("layer", x)
        return self.nonlinearity(y if self.bias is None else y + self.bias)

    def width_roles(self) -> dict[str, WidthRole]:
        return {"bias": "vector"}
