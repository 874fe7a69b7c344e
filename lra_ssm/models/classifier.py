"""The sequence classifier of the LRA tasks.

Shapes: B batch, L length, D channels, V vocabulary.
"""

from collections.abc import Callable

from torch import Tensor, nn

from lra_ssm.layers import LayerSpec, ModuleSpec, S4Block
from lra_ssm.layers.spec import BlockFactory, LayerFactory
from lra_ssm.models.backbone import Backbone
from lra_ssm.models.heads import LinearHead
from lra_ssm.models.pooling import MeanPooling

HeadFactory = Callable[[int, int], nn.Module]  # d_model, num_classes ->


class Classifier(nn.Module):
    """A `Backbone`, pooling over the real positions, and a head.

    layer, vocab_size, d_input, d_model, n_layers, block: the backbone's. pooling: built as `pooling(d_model)`, see
    models/pooling.py. head: built as `head(d_model, num_classes)`, see models/heads.py; None is `default_head`.
    Raises ValueError where not exactly one of vocab_size and d_input is given.
    """

    per_example = 1  # sequences of an example; the data is checked against it
    default_head: HeadFactory = LinearHead

    def __init__(
        self,
        layer: LayerFactory,
        num_classes: int,
        vocab_size: int | None = None,
        d_input: int | None = None,
        d_model: int = 128,
        n_layers: int = 8,
        block: BlockFactory = S4Block,
        pooling: LayerFactory = MeanPooling,
        head: HeadFactory | None = None,
    ) -> None:
        super().__init__()
        if num_classes < 1:
            raise ValueError(f"num_classes is {num_classes}; it must be at least 1")
        self.backbone = Backbone(layer, vocab_size, d_input, d_model, n_layers, block)
        self.pooling = LayerSpec.of(pooling)(d_model)
        self.head = ModuleSpec.of(head or self.default_head)(d_model, num_classes)

    def encode(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """inputs (B, L) int64 or (B, L, d_input) float, lengths (B,) -> one vector per sequence (B, D)."""
        return self.pooling(self.backbone(inputs, lengths), lengths)

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """inputs (B, L) int64 or (B, L, d_input) float, lengths (B,) -> logits (B, num_classes)."""
        return self.head(self.encode(inputs, lengths))
