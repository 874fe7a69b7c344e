"""What a classifier and a dual encoder share: from a sequence to one vector.

Shapes: B batch, L length, D channels, V vocabulary.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lra_ssm.layers import LayerSpec, ResidualBlock, Role, make_norm, mask_padding, valid_mask
from lra_ssm.layers.norms import NormName

Pooling = Literal["mean", "last", "max"]


class SequenceEncoder(nn.Module):
    """Embedding of tokens or linear map of features, residual blocks, pooling over real positions.

    layer: built once per block as `layer(d_model)`; a LayerSpec, its plain dict, or a layer class.
    vocab_size: inputs are token ids (B, L); None where they are features (B, L, d_input).
    A last norm stands before pooling with `prenorm`, as in the public S4 code.
    Raises ValueError where not exactly one of vocab_size and d_input is given.
    """

    def __init__(
        self,
        layer: LayerSpec | Mapping[str, Any] | Callable[[int], nn.Module],
        vocab_size: int | None = None,
        d_input: int | None = None,
        d_model: int = 128,
        n_layers: int = 8,
        norm: NormName = "batch",
        prenorm: bool = False,
        dropout: float = 0.0,
        pooling: Pooling = "mean",
    ) -> None:
        super().__init__()
        if (vocab_size is None) == (d_input is None):
            raise ValueError("give vocab_size for token inputs or d_input for feature inputs, and not both")
        if pooling not in ("mean", "last", "max"):
            raise ValueError(f"pooling is {pooling!r}; it must be mean, last or max")
        for name, value in {"d_model": d_model, "n_layers": n_layers}.items():
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        spec = LayerSpec.of(layer)
        self.encoder: nn.Module
        if vocab_size is not None:
            self.encoder = nn.Embedding(vocab_size, d_model)
        elif d_input is not None:
            self.encoder = nn.Linear(d_input, d_model)
        self.blocks = nn.ModuleList(
            ResidualBlock(d_model, spec(d_model), norm, prenorm, dropout) for _ in range(n_layers)
        )
        self.norm = make_norm(norm, d_model) if prenorm else None
        self.pooling = pooling

    def encode(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """inputs (B, L) int64 or (B, L, d_input) float, lengths (B,) -> one vector per sequence (B, D)."""
        x = mask_padding(self.encoder(inputs), lengths)
        for block in self.blocks:
            x = block(x, lengths)
        if self.norm is not None:
            x = mask_padding(self.norm(x, lengths), lengths)
        return pool(x, lengths, self.pooling)

    def optim_roles(self) -> dict[str, Role]:
        return {"encoder.bias": "no_decay"} if isinstance(self.encoder, nn.Linear) else {}


def pool(x: Tensor, lengths: Tensor | None, pooling: Pooling) -> Tensor:
    """x (B, L, D), 0 at padding -> (B, D), over real positions alone."""
    B, L, _ = x.shape
    if lengths is None:
        lengths = torch.full((B,), L, device=x.device)
    if pooling == "mean":
        return x.sum(1) / lengths[:, None]
    if pooling == "last":
        return x[torch.arange(B, device=x.device), lengths - 1]
    return x.masked_fill(~valid_mask(lengths, L), -torch.inf).amax(1)


def check_num_classes(num_classes: int) -> None:
    if num_classes < 1:
        raise ValueError(f"num_classes is {num_classes}; it must be at least 1")
