"""The network of theory and small experiments: a linear map, layers with or without a nonlinearity, a linear map.

Shapes: B batch, L length, D channels, V vocabulary, K outputs.
"""

from torch import Tensor, nn

from lra_ssm.layers import PlainBlock, PoolingSpec, mask_padding
from lra_ssm.layers.plain import Nonlinearity
from lra_ssm.layers.roles import WidthRole
from lra_ssm.layers.spec import LayerFactory, Layers, LayerSpec
from lra_ssm.models.backbone import check_inputs
from lra_ssm.models.pooling import LastPooling
from lra_ssm.models.pretrained import Pretrained


class PlainNetwork(Pretrained):
    """N σ(Γ(M u) + θ) with any layer as Γ (Yu & Erichson 2025, eq. 5), or several x -> σ(Γ(x) + θ) between M and N.

    There is no norm, gate, residual or dropout, and neither M nor N has a bias.

    Args:
        layer: Γ, a specification, or a list of them, repeated over the depth.
        num_outputs: K, the outputs of a regression, or the classes.
        vocab_size: V: inputs are token ids (B, L), and M is their embedding. Give either vocab_size or d_input.
        d_input: inputs are features (B, L, d_input).
        d_model: D.
        n_layers: the number of x -> σ(Γ(x) + θ).
        nonlinearity: σ; "none" is the identity.
        bias: whether there is a θ.
        pooling: a specification, built as `pooling(D)`, before N: K outputs per sequence; null for K outputs at every
            position.

    Raises:
        ValueError: not exactly one of vocab_size and d_input is given, or there is no such nonlinearity.
    """

    per_example = 1  # how many sequences an example has; the data is checked against it

    def __init__(
        self,
        layer: Layers,
        num_outputs: int,
        vocab_size: int | None = None,
        d_input: int | None = None,
        d_model: int = 32,
        n_layers: int = 1,
        nonlinearity: Nonlinearity = "gelu",
        bias: bool = True,
        pooling: LayerFactory | None = LastPooling,
    ) -> None:
        super().__init__()
        if (vocab_size is None) == (d_input is None):
            raise ValueError("give vocab_size for token inputs or d_input for feature inputs, and not both")
        self.d_input = d_input
        self.encoder: nn.Module
        if vocab_size is not None:
            self.encoder = nn.Embedding(vocab_size, d_model)
        elif d_input is not None:
            self.encoder = nn.Linear(d_input, d_model, bias=False)
        self.blocks = nn.ModuleList(
            PlainBlock(d_model, spec, nonlinearity, bias) for spec in LayerSpec.each(layer, n_layers)
        )
        self.pooling = None if pooling is None else PoolingSpec.of(pooling)(d_model)
        self.decoder = nn.Linear(d_model, num_outputs, bias=False)

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Map inputs (B, L) int64 or (B, L, d_input) float and lengths (B,) to (B, K), or (B, L, K), 0 at padding."""
        check_inputs(inputs, self.d_input)
        x = mask_padding(self.encoder(inputs), lengths)
        for block in self.blocks:
            x = block(x, lengths)
        return self.decoder(x if self.pooling is None else self.pooling(x, lengths))

    def width_roles(self) -> dict[str, WidthRole]:
        return {"encoder.weight": "embedding", "decoder.weight": "readout"}
