"""Embeddings other than a table of tokens or a linear map of features, for a `Backbone`.

An embedding is built as `Embedding(size, d_model)`, where size is the network's vocab_size or d_input, and maps ids
(B, L) or features (B, L, d_input) to (B, L, D). With an attribute `extra_positions` it puts so many positions in front;
with `needs_whole_sequences` it cannot be used with documents, states or steps.

Shapes: B batch, L length, D channels, V vocabulary, M longest sequence.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from lra_ssm.layers.arguments import KeepsArguments
from lra_ssm.layers.roles import WidthRole


class ScalarEmbedding(nn.Linear):
    """A linear map of a token's id, read as a number. ids (B, L) or (B,) -> (…, D).

    The published S6 row of LRA is believed to come from networks with it (docs/reproduction.md). Source: the public
    code jsie7/ssm-benchmark.

    Args:
        vocab_size: V; without effect, any id is a number.
        d_model: D.
    """

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__(1, d_model)

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids.unsqueeze(-1).to(self.weight.dtype))


class PositionEmbedding(KeepsArguments, nn.Embedding):
    """dropout(embedding + positions) of ids (B, L) -> (B, L, D), or (B, 1 + L, D) with a class token in front.

    For layers that do not know where a token is. LRA's Transformer has it (Tay et al. 2021), on some tasks with a class
    token, whose vector the head reads (Devlin et al. 2019, "BERT"): `FirstPooling`.

    Args:
        vocab_size: V.
        d_model: D, even for sinusoidal positions.
        max_length: M, not counting the class token.
        positions: "sinusoidal" (Vaswani et al. 2017, section 3.5), which are fixed, or "learned".
        class_token: put a learned vector, which starts at 0, at position 0.
        embedding_dropout: of the sum, position by position.

    Raises:
        ValueError: there are no such positions, or d_model is odd for sinusoidal ones.
    """

    positions: Tensor
    needs_whole_sequences = True  # positions are counted from the start of the input

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        max_length: int,
        positions: Literal["sinusoidal", "learned"] = "sinusoidal",
        class_token: bool = False,
        embedding_dropout: float = 0.0,
    ) -> None:
        super().__init__(vocab_size, d_model)
        self.max_length, self.extra_positions = max_length, int(class_token)
        self.dropout = nn.Dropout(embedding_dropout)
        self.class_token = nn.Parameter(torch.zeros(d_model)) if class_token else None
        M = max_length + self.extra_positions
        if positions == "learned":
            self.positions = nn.Parameter(torch.randn(M, d_model) * 0.02)
        else:
            self.register_buffer("positions", sinusoids(M, d_model), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Embed ids and add positions. Raises ValueError for more than max_length ids."""
        if ids.shape[1] > self.max_length:
            raise ValueError(f"inputs have {ids.shape[1]} positions, and max_length is {self.max_length}")
        x = super().forward(ids)
        if self.class_token is not None:
            x = torch.cat([self.class_token.expand(len(x), 1, -1), x], 1)
        return self.dropout(x + self.positions[: x.shape[1]])

    def width_roles(self) -> dict[str, WidthRole]:
        return {name: "embedding" for name, _ in self.named_parameters()}


class FeaturePositionEmbedding(nn.Linear):
    """A linear map of features plus fixed sinusoidal positions: (B, L, d_input) -> (B, L, D).

    Source: Amos, Berant & Gupta 2024, public code not-from-scratch, for the pixels of LRA's images.

    Args:
        d_input: features per position.
        d_model: D, even.
        max_length: M.
    """

    positions: Tensor
    needs_whole_sequences = True  # positions are counted from the start of the input

    def __init__(self, d_input: int, d_model: int, max_length: int) -> None:
        super().__init__(d_input, d_model)
        self.register_buffer("positions", sinusoids(max_length, d_model), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Map features and add positions. Raises ValueError for more than max_length positions."""
        if (L := features.shape[1]) > len(self.positions):
            raise ValueError(f"inputs have {L} positions, and max_length is {len(self.positions)}")
        return super().forward(features) + self.positions[:L]

    def width_roles(self) -> dict[str, WidthRole]:
        return {name: "embedding" if name == "weight" else "vector" for name, _ in self.named_parameters()}


def sinusoids(length: int, d_model: int) -> Tensor:
    """Return sin and cos of t · 10000^(−2i/D) at channels 2i and 2i + 1: (length, D). Raises ValueError for odd D."""
    if d_model % 2:
        raise ValueError(f"d_model is {d_model}; sinusoidal positions need an even number")
    rates = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * (-math.log(10_000) / d_model))
    angles = torch.arange(length, dtype=torch.float64)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1).float()
