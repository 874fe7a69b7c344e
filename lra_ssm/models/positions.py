"""Networks of tokens that know where each stands, for layers that do not: absolute positions added to the embedding.

The Transformer of LRA (Tay et al. 2021) has them, and on some tasks a token of its own in front, whose vector is what
the head sees (Devlin et al. 2019, "BERT").

Shapes: B batch, L length, D channels, V vocabulary, M longest sequence.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from lra_ssm.layers import S4Block, WidthRole
from lra_ssm.layers.spec import Blocks, HeadFactory, LayerFactory, Layers
from lra_ssm.models.classifier import Classifier
from lra_ssm.models.dual_encoder import DualEncoder
from lra_ssm.models.pooling import MeanPooling

Positions = Literal["sinusoidal", "learned"]


class PositionEmbedding(nn.Embedding):
    """ids (B, L) -> dropout(embedding + positions), (B, L, D), or (B, 1 + L, D) with a class token in front.

    Args:
        vocab_size: V.
        d_model: D, even for sinusoidal positions.
        max_length: M, the class token not counted.
        positions: "sinusoidal" (Vaswani et al. 2017, section 3.5), which are fixed, or "learned".
        class_token: a learned vector stands at position 0. It starts at 0.
        dropout: of the sum, position by position.
    """

    positions: Tensor

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        max_length: int,
        positions: Positions = "sinusoidal",
        class_token: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(vocab_size, d_model)
        if max_length < 1:
            raise ValueError(f"max_length is {max_length}; it must be at least 1")
        if positions not in ("sinusoidal", "learned"):
            raise ValueError(f"positions is {positions!r}; it must be sinusoidal or learned")
        if not 0 <= dropout < 1:
            raise ValueError(f"embedding_dropout is {dropout}; it must be at least 0 and below 1")
        self.max_length, self.dropout = max_length, nn.Dropout(dropout)
        self.class_token = nn.Parameter(torch.zeros(d_model)) if class_token else None
        M = max_length + class_token
        if positions == "learned":
            self.positions = nn.Parameter(torch.randn(M, d_model) * 0.02)
        else:
            self.register_buffer("positions", sinusoids(M, d_model), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Raises ValueError for more than max_length ids."""
        if ids.shape[1] > self.max_length:
            raise ValueError(f"inputs have {ids.shape[1]} positions, and max_length is {self.max_length}")
        x = super().forward(ids)
        if self.class_token is not None:
            x = torch.cat([self.class_token.expand(len(x), 1, -1), x], 1)
        return self.dropout(x + self.positions[: x.shape[1]])

    def width_roles(self) -> dict[str, WidthRole]:
        return {name: "embedding" for name, _ in self.named_parameters()}


def sinusoids(length: int, d_model: int) -> Tensor:
    """(length, D): sin and cos of t · 10000^(−2i/D) at channels 2i and 2i + 1. Raises ValueError for an odd D."""
    if d_model % 2:
        raise ValueError(f"d_model is {d_model}; sinusoidal positions need an even number")
    rates = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * (-math.log(10_000) / d_model))
    angles = torch.arange(length, dtype=torch.float64)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1).float()


class PositionClassifier(Classifier):
    """A `Classifier` of tokens with positions.

    Args:
        vocab_size: V.
        positions: "sinusoidal" or "learned".
        max_length: the longest sequence, without the class token.
        class_token: one more position, in front; `FirstPooling` takes its vector.
        embedding_dropout: behind the positions.

    The others, and errors, are a `Classifier`'s.
    """

    def __init__(
        self,
        layer: Layers,
        num_classes: int,
        vocab_size: int,
        max_length: int,
        positions: Positions = "sinusoidal",
        class_token: bool = False,
        embedding_dropout: float = 0.0,
        d_model: int = 128,
        n_layers: int = 4,
        block: Blocks = S4Block,
        pooling: LayerFactory = MeanPooling,
        head: HeadFactory | None = None,
    ) -> None:
        super().__init__(
            layer, num_classes, vocab_size=vocab_size, d_model=d_model, n_layers=n_layers, block=block,
            pooling=pooling, head=head,
        )  # fmt: skip
        self.extra = int(class_token)
        self.backbone.embedding = PositionEmbedding(
            vocab_size, d_model, max_length, positions, class_token, embedding_dropout
        )

    def encode(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """inputs (B, L) int64, lengths (B,) -> one vector per sequence (B, D). Raises ValueError beyond max_length."""
        return super().encode(inputs, None if lengths is None else lengths + self.extra)


class PositionDualEncoder(PositionClassifier, DualEncoder):
    """A `DualEncoder` of tokens with positions."""
