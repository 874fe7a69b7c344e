"""The Transformer's block around any layer.

Shapes: B batch, L length, D channels.
"""

from torch import Tensor, nn

from lra_ssm.layers.blocks import RunPart
from lra_ssm.layers.mlp import Activation, MLPBlock
from lra_ssm.layers.norms import NormName
from lra_ssm.layers.spec import LayerFactory, LayerSpec


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
