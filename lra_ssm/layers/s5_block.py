"""S5's block: S4's block with half of its gated linear unit, or all of it.

Shapes: B batch, L length, D channels.
Source: Smith et al. 2023, "Simplified State Space Layers for Sequence Modeling", and its public code,
lindermanlab/S5, s5/layers.py.
"""

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from lra_ssm.layers.blocks import RunPart, S4Block
from lra_ssm.layers.norms import BatchNorm, NormName
from lra_ssm.layers.spec import LayerFactory


class S5Block(S4Block):
    """S4's block with half of its gated linear unit, or all of it, and no norm after the last block.

    mixer(x) = dropout(h · sigmoid(linear(g))) with g = dropout(GELU(y)), y the layer's output, and h one of g, y and
    another linear map of g. GELU is approximated by tanh, which is Flax's default.

    Args:
        d_model: D.
        layer: built as `layer(D)`.
        activation: h, by the public code's names: "half_glu1" is g; "half_glu2" is y; "full_glu" is a linear map of g,
            as in minimal-LRU, which builds on this code.
        norm: "batch", "batch_padded", "layer" or "rms".
        norm_momentum: the share of a batch norm's running statistics that a step keeps; torch's own BatchNorm keeps
            0.9, Flax's, and so minimal-LRU, 0.99.
        prenorm: the norm is applied before the mixer; otherwise after the residual.
        dropout: its probability; tied over length.

    Raises:
        ValueError: there is no such activation, or norm_momentum is not between 0 and 1.
    """

    def __init__(
        self,
        d_model: int,
        layer: LayerFactory,
        activation: Literal["half_glu1", "half_glu2", "full_glu"] = "half_glu1",
        norm: NormName = "batch",
        norm_momentum: float = 0.95,
        prenorm: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(d_model, layer, norm, prenorm, dropout)
        if not 0 <= norm_momentum <= 1:
            raise ValueError(f"S5Block norm_momentum is {norm_momentum}; it must be from 0 to 1")
        self.activation = activation
        if activation != "full_glu":
            self.glu = nn.Linear(d_model, d_model)
        if isinstance(self.norm, BatchNorm):
            self.norm.norm.momentum = 1 - norm_momentum  # torch's momentum is the share of the new batch

    def mixer(self, x: Tensor, run_part: RunPart) -> Tensor:
        y = run_part("layer", x)
        g = self.dropout(F.gelu(y, approximate="tanh"))
        if self.activation == "full_glu":
            return self.dropout(F.glu(self.glu(g), dim=-1))
        return self.dropout((g if self.activation == "half_glu1" else y) * self.glu(g).sigmoid())

    def final_norm(self, d_model: int) -> None:
        """Return None: the stack ends with the residual itself."""
        return None
