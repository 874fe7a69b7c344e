"""Networks that read a token's id as a number, without an embedding.

The published S6 row of LRA is believed to come from such networks (docs/reproduction.md); nothing else wants them.

Shapes: B batch, L length, D channels.
"""

from torch import Tensor

from lra_ssm.layers import S4Block
from lra_ssm.layers.spec import Blocks, HeadFactory, LayerFactory, Layers
from lra_ssm.models.backbone import check_inputs
from lra_ssm.models.classifier import Classifier
from lra_ssm.models.dual_encoder import DualEncoder
from lra_ssm.models.pooling import MeanPooling


class NumberClassifier(Classifier):
    """A `Classifier` of token ids taken as numbers. Its first layer is a linear map of the id itself, Linear(1, D).

    Source: the public code jsie7/ssm-benchmark. Arguments and errors are a `Classifier`'s; no vocabulary, any ids.
    """

    def __init__(
        self,
        layer: Layers,
        num_classes: int,
        d_model: int = 128,
        n_layers: int = 8,
        block: Blocks = S4Block,
        pooling: LayerFactory = MeanPooling,
        head: HeadFactory | None = None,
    ) -> None:
        super().__init__(
            layer, num_classes, d_input=1, d_model=d_model, n_layers=n_layers, block=block, pooling=pooling, head=head
        )

    def encode(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """inputs (B, L) int64, lengths (B,) -> one vector per sequence (B, D)."""
        check_inputs(inputs, None)
        numbers = inputs.unsqueeze(-1).to(next(self.backbone.embedding.parameters()).dtype)
        return super().encode(numbers, lengths)


class NumberDualEncoder(NumberClassifier, DualEncoder):
    """The same for pairs, with a `DualEncoder`'s heads."""
