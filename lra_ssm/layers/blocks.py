"""The residual block of the published LRA models: norm, sequence layer, GELU, GLU, dropout, residual.

Shapes: B batch, L length, D channels.
"""

import inspect

from torch import Tensor, nn
from torch.nn import functional as F

from lra_ssm.layers.dropout import TiedDropout
from lra_ssm.layers.masking import mask_padding
from lra_ssm.layers.norms import NormName, make_norm
from lra_ssm.layers.spec import Role


class ResidualBlock(nn.Module):
    """x + f(norm(x)) with `prenorm`, norm(x + f(x)) without, f = dropout ∘ GLU(linear) ∘ dropout ∘ GELU ∘ layer.

    Dropout is tied over length and stands twice, after the GELU and before the residual, as in the public S4 code.
    `layer` maps (B, L, D) to (B, L, D) and is called as `layer(x, lengths)`. Output is 0 at padded positions.
    """

    def __init__(
        self, d_model: int, layer: nn.Module, norm: NormName = "batch", prenorm: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.layer = layer
        self.takes_reset = "reset" in inspect.signature(layer.forward).parameters
        self.norm = make_norm(norm, d_model)
        self.prenorm = prenorm
        self.dropout = TiedDropout(dropout)
        self.glu = nn.Linear(d_model, 2 * d_model)

    def forward(self, x: Tensor, lengths: Tensor | None = None, *, reset: Tensor | None = None) -> Tensor:
        """x (B, L, D), lengths (B,), reset (B, L) bool, true where a new document starts -> (B, L, D)."""
        y = self.norm(x, lengths) if self.prenorm else x
        if reset is None:
            y = self.layer(y, lengths)
        elif self.takes_reset:
            y = self.layer(y, lengths, reset=reset)
        else:
            raise ValueError(
                f"{type(self.layer).__name__}.forward takes no `reset`: documents cannot be packed with it"
            )
        y = self.dropout(F.gelu(y))
        y = x + self.dropout(F.glu(self.glu(y), dim=-1))
        if not self.prenorm:
            y = self.norm(y, lengths)
        return mask_padding(y, lengths)

    def optim_roles(self) -> dict[str, Role]:
        return {"glu.bias": "no_decay"}
