"""Operations per token, counted by hand, and the usual estimate of 6 for each weight of a product."""

import pytest
import torch
from torch import nn

from lra_ssm.analysis.flops import training_flops_per_token
from lra_ssm.layers import B2S6, LRU, S4D, S6, LayerSpec, S4Block
from lra_ssm.models import LanguageModel

D, E, V, N, R, H = 16, 32, 24, 4, 2, 2  # E = 2 D in Mamba's block, R = ceil(E / 16), V a multiple of 8


def on_meta(layer, n_layers, **settings):
    with torch.device("meta"):
        return LanguageModel(layer, **{"vocab_size": V, "d_model": D, "n_layers": n_layers, **settings})


def block(*products, states):
    """Forward of a block: in_proj and out_proj, the layer's products (sizes of their weights), its recurrence."""
    return 2 * (D * 2 * E + E * D + sum(products)) + states


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        # Δ of rank R, and B and C for each position; 8 operations for each of E · N real states
        (LayerSpec(S6, d_state=N), block(E * R, R * E, E * N, E * N, states=8 * E * N)),
        # For each block of E / H channels Δ's w, N complex B and N real C; 20 for each complex state
        (LayerSpec(B2S6, num_blocks=H, d_state=2 * N), block(E, 2 * E * N, E * N, states=20 * E * N)),
        (LayerSpec(S4D, d_state=2 * N), block(states=20 * E * N)),
        (LayerSpec(LRU, d_state=N), block(2 * E * N, 2 * E * N, states=20 * N)),
    ],
    ids=["S6", "B2S6", "S4D", "LRU"],
)
def test_products_and_recurrences_are_counted(layer, expected):
    """Three times forward; the head is a product, tied or not, the lookup is not."""
    for tied, length in ((True, 7), (False, 64)):
        found = training_flops_per_token(on_meta(layer, n_layers=2, tie_embeddings=tied), length)
        assert found == pytest.approx(3 * (2 * expected + 2 * D * V))


def test_other_blocks_other_networks_and_the_usual_estimate():
    with torch.device("meta"):
        own = nn.Sequential(nn.Embedding(V, D), nn.Linear(D, V))
    assert training_flops_per_token(own, 5) == 6 * D * V
    s4 = training_flops_per_token(on_meta(LayerSpec(S6, d_state=N), n_layers=1, block=S4Block), 5)
    assert s4 == 3 * (2 * (D + D + 2 * D * N + D * 2 * D) + 8 * D * N + 2 * D * V)
    large = on_meta(LayerSpec(S6), 4, vocab_size=1000, d_model=96, activation_checkpointing=True)
    weights, recurrence = sum(p.numel() for p in large.parameters()), 3 * 4 * 8 * 192 * 16
    assert training_flops_per_token(large, 32) - recurrence == pytest.approx(6 * weights, rel=0.05)
