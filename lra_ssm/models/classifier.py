"""The sequence classifier of the LRA tasks.

Shapes: B batch, L length, D channels, V vocabulary.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from lra_ssm.layers import LayerSpec, Role
from lra_ssm.layers.norms import NormName
from lra_ssm.models.encoder import Pooling, SequenceEncoder, check_num_classes


class Classifier(SequenceEncoder):
    """A `SequenceEncoder`, whose arguments are its own but for num_classes, and a linear head.

    Raises ValueError where not exactly one of vocab_size and d_input is given.
    """

    def __init__(
        self,
        layer: LayerSpec | Mapping[str, Any] | Callable[[int], nn.Module],
        num_classes: int,
        vocab_size: int | None = None,
        d_input: int | None = None,
        d_model: int = 128,
        n_layers: int = 8,
        norm: NormName = "batch",
        prenorm: bool = False,
        dropout: float = 0.0,
        pooling: Pooling = "mean",
    ) -> None:
        check_num_classes(num_classes)
        super().__init__(layer, vocab_size, d_input, d_model, n_layers, norm, prenorm, dropout, pooling)
        self.head = nn.Linear(d_model, num_classes)

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """inputs (B, L) int64 or (B, L, d_input) float, lengths (B,) -> logits (B, num_classes)."""
        return self.head(self.encode(inputs, lengths))

    def optim_roles(self) -> dict[str, Role]:
        return {**super().optim_roles(), "head.bias": "no_decay"}
