"""Small networks: language models of several layers, and every network of ours with inputs."""

from typing import Any

import torch
from torch import Tensor, nn

from lra_ssm import layers, models
from lra_ssm.layers import S4D, S6, Attention, BlockSpec, EmbeddingSpec, LayerSpec, MambaBlock, S4Block
from lra_ssm.models import Classifier, DualEncoder, LanguageModel, PlainNetwork, PositionEmbedding, Regressor
from lra_ssm.models.embeddings import FeaturePositionEmbedding

LAYERS = {
    "S6": LayerSpec(S6, d_state=4),
    "S4D": LayerSpec(S4D, d_state=4),
    "B2S6": LayerSpec(layers.B2S6, num_blocks=2, d_state=4),
    "LRU": LayerSpec(layers.LRU, d_state=4),
    "SSD": LayerSpec(layers.SSD, d_state=4, head_dim=4),
    "S6 and attention": [LayerSpec(S6, d_state=4), LayerSpec(Attention, n_heads=2, window=5)],
}
PRENORM = BlockSpec(S4Block, norm="layer", prenorm=True)
STACKS = {
    "mamba": MambaBlock,
    "mamba-2": layers.Mamba2Block,
    "s4": PRENORM,
    "s4, post-norm": BlockSpec(S4Block, norm="rms"),
    "two kinds": [BlockSpec(MambaBlock, expand=1.5), PRENORM],
}


def model(layer: str = "S6", seed: int = 0, **settings: Any) -> LanguageModel:
    torch.manual_seed(seed)
    sizes = {"vocab_size": 13, "d_model": 8, "n_layers": 2, "pad_vocab_size_multiple": 8}
    return LanguageModel(LAYERS[layer], **{**sizes, **settings}).eval()


def tokens(batch: int = 3, length: int = 11, seed: int = 1) -> Tensor:
    return torch.randint(13, (batch, length), generator=torch.Generator().manual_seed(seed))


class Turn(nn.Module):
    """A user's layer with complex weights and a table that is not saved."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(d_model, d_model, dtype=torch.complex64))
        self.register_buffer("table", torch.arange(1.0, 8.0)[:, None], persistent=False)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return (x.cumsum(1).to(self.w.dtype) @ self.w).real / self.table[: x.shape[1]]


IDS = torch.randint(5, (2, 7), generator=torch.Generator().manual_seed(0))
PAIRS = torch.stack([IDS, IDS.flip(0, 1)], 1)
ATTEND, LEARN = LayerSpec(Attention, n_heads=1, window=37), LayerSpec(Attention, positions="learned", max_length=501)
ENCODE = LayerSpec(Attention, n_heads=2, causal=False, positions="none")
LEARNED = EmbeddingSpec(PositionEmbedding, max_length=41, positions="learned", class_token=True)
BOTH_WAYS = LayerSpec(layers.B2S6, num_blocks=2, d_state=4, bidirectional=True)
SIZES: dict[str, Any] = {"d_model": 8, "n_layers": 1, "vocab_size": 5}
NETWORKS: dict[str, tuple[models.Pretrained, Tensor]] = {
    "classifier, more layers than blocks": (
        Classifier([LayerSpec(S6), LayerSpec(S4D, d_state=34), ATTEND], 3, **SIZES), IDS),
    "classifier, lists": (
        Classifier([S6, ATTEND], 3, d_input=3, d_model=8, n_layers=3,
                   block=[S4Block, BlockSpec(layers.TransformerBlock, mlp_factor=2.5)]),
        torch.randn(2, 7, 3)),
    "both directions": (Classifier(BOTH_WAYS, 3, **SIZES | {"n_layers": 2}), IDS),
    "pairs": (DualEncoder(S6, 2, head=models.LRAPairHead, **SIZES), PAIRS),
    "scalar embedding": (
        Classifier(LayerSpec(layers.S5, d_state=14, num_blocks=7), 3, embedding=models.ScalarEmbedding, **SIZES), IDS),
    "positions": (Classifier(ATTEND, 3, embedding=EmbeddingSpec(PositionEmbedding, max_length=1003), **SIZES), IDS),
    "learned positions": (Classifier(ENCODE, 3, embedding=LEARNED, pooling=models.FirstPooling, **SIZES), IDS),
    "positions of features": (
        Classifier(ATTEND, 3, d_input=3, d_model=8, n_layers=1,
                   embedding=EmbeddingSpec(FeaturePositionEmbedding, max_length=7)),
        torch.randn(2, 7, 3)),
    "pairs with positions": (DualEncoder(ENCODE, 3, embedding=LEARNED, **SIZES), PAIRS),
    "regressor": (Regressor(LEARN, 3, pooling=None, **SIZES), IDS),
    "language model": (LanguageModel(LEARN, **SIZES), IDS),
    "plain": (PlainNetwork(LayerSpec(S4D, d_state=6), 3, d_input=2, d_model=7, n_layers=3), torch.randn(2, 7, 2)),
    "plain, mean": (PlainNetwork(BOTH_WAYS, 3, pooling=models.MeanPooling, **SIZES), IDS),
    "plain, positions": (PlainNetwork(LayerSpec(S4D, d_state=6), 3, pooling=None, **SIZES), IDS),
    "a user's layer": (LanguageModel(LayerSpec(Turn), **SIZES), IDS),
}  # fmt: skip
