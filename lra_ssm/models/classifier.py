"""The classifier of sequences, and the dual encoder of LRA's Retrieval: do two documents belong together?

Shapes: B batch, L length, D channels, V vocabulary.
"""

from torch import Tensor

from lra_ssm.layers import HeadSpec, PoolingSpec, S4Block
from lra_ssm.layers.contract import check_call, check_output
from lra_ssm.layers.spec import Blocks, EmbeddingFactory, HeadFactory, LayerFactory, Layers
from lra_ssm.models.backbone import Backbone, Padding
from lra_ssm.models.heads import LinearHead, NLIHead
from lra_ssm.models.pooling import MeanPooling
from lra_ssm.models.pretrained import Pretrained


class Classifier(Pretrained):
    """A `Backbone`, pooling over the real positions, and a head.

    Args:
        layer: a specification, which each block builds at the width it needs, or a list of them, repeated over the
            depth.
        num_classes: the number of classes.
        vocab_size: V: inputs are token ids (B, L). Give either vocab_size or d_input.
        d_input: inputs are features (B, L, d_input).
        d_model: D, the width of the backbone.
        n_layers: the number of blocks.
        block: a specification, built as `block(D, layer)`, or a list as for layers.
        pooling: a specification, built as `pooling(D)`; see models/pooling.py.
        head: a specification, built as `head(D, num_classes)`; see models/heads.py. None is `default_head`.
        padding: whether blocks and norms read padding: "masked", or "seen" as in S5's public code; see `Backbone`.
        embedding_std: standard deviation of the tokens' embedding at initialization; None is 1.
        embedding: a specification, built as `embedding(vocab_size or d_input, D)`; see models/embeddings.py. None is
            nn.Embedding for tokens and nn.Linear for features.

    Raises:
        ValueError: as `Backbone`, or the head takes another number of vectors.
    """

    per_example = 1  # how many sequences an example has; the data is checked against it
    default_head: HeadFactory = LinearHead

    def __init__(
        self,
        layer: Layers,
        num_classes: int,
        vocab_size: int | None = None,
        d_input: int | None = None,
        d_model: int = 128,
        n_layers: int = 8,
        block: Blocks = S4Block,
        pooling: LayerFactory = MeanPooling,
        head: HeadFactory | None = None,
        padding: Padding = "masked",
        embedding_std: float | None = None,
        embedding: EmbeddingFactory | None = None,
    ) -> None:
        super().__init__()
        self.backbone = Backbone(
            layer=layer, vocab_size=vocab_size, d_input=d_input, d_model=d_model, n_layers=n_layers, block=block,
            padding=padding, embedding_std=embedding_std, embedding=embedding,
        )  # fmt: skip
        self.pooling = PoolingSpec.of(pooling)(d_model)
        self.head = HeadSpec.of(head or type(self).default_head)(d_model, num_classes)
        head_takes = getattr(self.head, "per_example", self.per_example)
        if head_takes != self.per_example:
            network_name, head_name = type(self).__name__, type(self.head).__name__
            raise ValueError(
                f"{network_name} has {self.per_example} vector(s) per example, {head_name} takes {head_takes}"
            )
        check_call(self.head, "head", *("x", "y")[: self.per_example])
        self.d_model, self.num_classes = d_model, num_classes

    def encode(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return one vector per sequence (B, D), for inputs (B, L) int64 or (B, L, d_input) float and lengths (B,)."""
        x = self.backbone(inputs, lengths)
        vector = self.pooling(x, self.backbone.output_lengths(lengths))
        check_output(self.pooling, vector, (len(x), self.d_model), x, "a pooling gives (batch, d_model)")
        return vector

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Map inputs (B, L) int64 or (B, L, d_input) float and lengths (B,) to logits (B, num_classes)."""
        return self.logits(self.encode(inputs, lengths))

    def logits(self, *vectors: Tensor) -> Tensor:
        """Apply the head to the vectors (B, D) of an example's sequences: (B, num_classes)."""
        logits = self.head(*vectors)
        shape = (len(vectors[0]), self.num_classes)
        check_output(self.head, logits, shape, vectors[0], f"this head gives (batch, num_classes) {shape}")
        return logits


class DualEncoder(Classifier):
    """One backbone and pooling for both sequences of a pair, and a head on the two vectors.

    Arguments and errors as in `Classifier`; head: `NLIHead`, the public S4 code's, or `LRAPairHead`, LRA's own.
    """

    per_example = 2
    default_head = NLIHead

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Map inputs (B, 2, L) int64 or (B, 2, L, d_input) float and lengths (B, 2) to logits (B, num_classes).

        Raises ValueError if the inputs are not pairs.
        """
        if inputs.dim() < 3 or inputs.shape[1] != 2:
            raise ValueError(f"inputs {tuple(inputs.shape)}: a dual encoder takes pairs (batch, 2, length)")
        vectors = self.encode(inputs.flatten(0, 1), None if lengths is None else lengths.flatten())
        x, y = vectors.unflatten(0, (-1, 2)).unbind(1)
        return self.logits(x, y)
