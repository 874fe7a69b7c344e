"""The network for regression: real outputs for a sequence, or for each of its positions.

Shapes: B batch, L length, D channels, V vocabulary, K outputs.
"""

from torch import Tensor

from lra_ssm.layers import HeadSpec, PoolingSpec, S4Block, mask_padding
from lra_ssm.layers.spec import Blocks, EmbeddingFactory, HeadFactory, LayerFactory, Layers
from lra_ssm.models.backbone import Backbone, Padding
from lra_ssm.models.heads import LinearHead
from lra_ssm.models.pooling import LastPooling
from lra_ssm.models.pretrained import Pretrained


class Regressor(Pretrained):
    """A `Backbone`, optionally pooling over the real positions, and a head.

    Args:
        layer: a specification, which each block builds at the width it needs, or a list of them, repeated over the
            depth.
        num_outputs: K.
        vocab_size: V: inputs are token ids (B, L). Give either vocab_size or d_input.
        d_input: inputs are features (B, L, d_input).
        d_model: D, the width of the backbone.
        n_layers: the number of blocks.
        block: a specification, built as `block(D, layer)`, or a list as for layers.
        pooling: a specification, built as `pooling(D)`: K outputs per sequence; null for K outputs at every position.
        head: a specification, built as `head(D, K)`; without pooling its input is (B, L, D).
        padding: whether blocks and norms read padding: "masked", or "seen" as in S5's public code; see `Backbone`.
        embedding_std: standard deviation of the tokens' embedding at initialization; None is 1.
        embedding: a specification, built as `embedding(vocab_size or d_input, D)`; see models/embeddings.py. None is
            nn.Embedding for tokens and nn.Linear for features.

    Raises:
        ValueError: as `Backbone`.
    """

    per_example = 1  # how many sequences an example has; the data is checked against it

    def __init__(
        self,
        layer: Layers,
        num_outputs: int,
        vocab_size: int | None = None,
        d_input: int | None = None,
        d_model: int = 128,
        n_layers: int = 8,
        block: Blocks = S4Block,
        pooling: LayerFactory | None = LastPooling,
        head: HeadFactory = LinearHead,
        padding: Padding = "masked",
        embedding_std: float | None = None,
        embedding: EmbeddingFactory | None = None,
    ) -> None:
        super().__init__()
        self.backbone = Backbone(
            layer=layer, vocab_size=vocab_size, d_input=d_input, d_model=d_model, n_layers=n_layers, block=block,
            padding=padding, embedding_std=embedding_std, embedding=embedding,
        )  # fmt: skip
        self.pooling = None if pooling is None else PoolingSpec.of(pooling)(d_model)
        self.head = HeadSpec.of(head)(d_model, num_outputs)

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Map inputs (B, L) int64 or (B, L, d_input) float and lengths (B,) to (B, K), or (B, L, K), 0 at padding."""
        x = self.backbone(inputs, lengths)
        if self.pooling is not None:
            return self.head(self.pooling(x, lengths))
        return mask_padding(self.head(x), lengths)
