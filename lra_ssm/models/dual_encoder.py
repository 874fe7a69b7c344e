"""The dual encoder of LRA's Retrieval: do two documents belong together?

Shapes: B batch, L length, D channels, V vocabulary.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lra_ssm.layers import LayerSpec, Role
from lra_ssm.layers.norms import NormName
from lra_ssm.models.encoder import Pooling, SequenceEncoder, check_num_classes

PairHead = Literal["nli", "lra"]


class DualEncoder(SequenceEncoder):
    """One `SequenceEncoder` for both sequences of a pair, and a head on the two vectors x and y.

    head: "nli": [x, y, x − y, x · y] (4D) -> D -> GELU -> num_classes, the public S4 code's;
        "lra": [x, y] (2D) -> D -> ReLU -> D/2 -> ReLU -> num_classes, LRA's own.
    Raises ValueError where not exactly one of vocab_size and d_input is given.
    """

    def __init__(
        self,
        layer: LayerSpec | Mapping[str, Any] | Callable[[int], nn.Module],
        num_classes: int = 2,
        vocab_size: int | None = None,
        d_input: int | None = None,
        d_model: int = 128,
        n_layers: int = 8,
        norm: NormName = "batch",
        prenorm: bool = False,
        dropout: float = 0.0,
        pooling: Pooling = "mean",
        head: PairHead = "nli",
    ) -> None:
        check_num_classes(num_classes)
        super().__init__(layer, vocab_size, d_input, d_model, n_layers, norm, prenorm, dropout, pooling)
        D = d_model
        if head == "nli":
            self.head = nn.Sequential(nn.Linear(4 * D, D), nn.GELU(), nn.Linear(D, num_classes))
        elif head == "lra":
            half = nn.Linear(D, D // 2), nn.ReLU(), nn.Linear(D // 2, num_classes)
            self.head = nn.Sequential(nn.Linear(2 * D, D), nn.ReLU(), *half)
        else:
            raise ValueError(f"head is {head!r}; it must be nli or lra")
        self.head_name = head

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """inputs (B, 2, L) int64 or (B, 2, L, d_input) float, lengths (B, 2) -> logits (B, num_classes).

        Raises ValueError where the inputs are no pairs.
        """
        if inputs.dim() < 3 or inputs.shape[1] != 2:
            raise ValueError(f"inputs {tuple(inputs.shape)}: a dual encoder takes pairs (batch, 2, length)")
        vectors = self.encode(inputs.flatten(0, 1), None if lengths is None else lengths.flatten())
        x, y = vectors.unflatten(0, (-1, 2)).unbind(1)
        return self.head(torch.cat([x, y, x - y, x * y] if self.head_name == "nli" else [x, y], -1))

    def optim_roles(self) -> dict[str, Role]:
        biases: dict[str, Role] = {
            f"head.{name}": "no_decay" for name, _ in self.head.named_parameters() if "bias" in name
        }
        return {**super().optim_roles(), **biases}
