"""Networks of tokens with absolute positions: their values, the class token, padding, lengths, roles."""

import math

import pytest
import torch

from lra_ssm.layers import Attention, BlockSpec, HeadSpec, LayerSpec, TransformerBlock, parameter_roles
from lra_ssm.models import (
    FirstPooling,
    LRAPairHead,
    MeanPooling,
    MLPHead,
    PositionClassifier,
    PositionDualEncoder,
)  # fmt: skip
from lra_ssm.models.positions import PositionEmbedding, sinusoids

LAYER = LayerSpec(Attention, n_heads=2, causal=False, positions="none")
SMALL = {"num_classes": 3, "vocab_size": 9, "max_length": 7, "d_model": 8, "n_layers": 2}


def build(kind=PositionClassifier, **settings):
    torch.manual_seed(0)
    return kind(LAYER, **{**SMALL, "block": BlockSpec(TransformerBlock, mlp_factor=1.0), **settings}).double()


def ids(B=3, L=7):
    return torch.randint(1, 9, (B, L), generator=torch.Generator().manual_seed(1))


def test_sinusoids_are_the_papers():
    found = sinusoids(50, 8)
    for t in (0, 1, 49):
        for i in range(4):
            angle = t / 10_000 ** (2 * i / 8)
            assert found[t, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert found[t, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("class_token", [False, True])
def test_positions_are_added_once_the_class_token_in_front(positions, class_token):
    network, x = build(positions=positions, class_token=class_token), ids()
    embedding = network.backbone.embedding
    torch.nn.init.normal_(embedding.class_token) if class_token else None
    rows = embedding.weight[x]
    if class_token:
        rows = torch.cat([embedding.class_token.expand(3, 1, 8), rows], 1)
    table = sinusoids(8, 8).double() if positions == "sinusoidal" else embedding.positions
    torch.testing.assert_close(embedding(x), rows + table[: rows.shape[1]])
    names = {name for name, _ in network.named_parameters() if name.startswith("backbone.embedding")}
    own = {"class_token": class_token, "positions": positions == "learned", "weight": True}
    assert names == {f"backbone.embedding.{name}" for name, there in own.items() if there}
    roles = parameter_roles(network)
    assert roles["backbone.embedding.weight"] == "embedding"
    assert {roles[name] for name in names} <= {"embedding", "base"}


@pytest.mark.parametrize("class_token, pooling", [(True, FirstPooling), (False, FirstPooling), (False, MeanPooling)])
def test_padding_does_not_matter_and_order_does(class_token, pooling):
    network = build(class_token=class_token, pooling=pooling).eval()
    x, lengths = ids(), torch.tensor([7, 2, 4])
    logits = network(x, lengths)
    for i, n in enumerate(lengths):
        torch.testing.assert_close(network(x[i : i + 1, :n]), logits[i : i + 1])
    turned = x.flip(1)
    assert (network(turned) - network(x)).abs().min() > 1e-6
    vector = network.encode(x, lengths)
    states = network.backbone(x, lengths + class_token)
    expected = states[:, 0] if pooling is FirstPooling else states.sum(1) / lengths[:, None]
    torch.testing.assert_close(vector, expected)


def test_pairs_go_through_one_encoder_and_lras_head():
    network = build(PositionDualEncoder, pooling=FirstPooling, head=HeadSpec(LRAPairHead, width=6))
    pairs, lengths = ids(6).view(3, 2, 7), torch.tensor([[7, 3], [1, 5], [4, 4]])
    x, y = (network.encode(pairs[:, j], lengths[:, j]) for j in (0, 1))
    torch.testing.assert_close(network(pairs, lengths), network.head(x, y))
    assert [tuple(p.shape) for p in network.head.parameters() if p.dim() > 1] == [(6, 16), (3, 6), (3, 3)]


def test_the_head_is_an_mlp():
    head, x = MLPHead(8, 3, width=5), torch.randn(2, 8)
    first, _, last = head
    expected = (x @ first.weight.T + first.bias).clamp(min=0) @ last.weight.T + last.bias
    torch.testing.assert_close(head(x), expected)
    assert MLPHead(8, 3)[0].out_features == 8


def test_the_class_token_and_positions_are_trained():
    network, x = build(class_token=True, pooling=FirstPooling, positions="learned", head=MLPHead), ids()
    network(x).square().sum().backward()
    embedding = network.backbone.embedding
    for parameter in (embedding.class_token, embedding.positions, embedding.weight):
        assert parameter.grad.abs().sum() > 0


@pytest.mark.parametrize("call, message", [
    (lambda: build()(ids(L=8)), "inputs have 8 positions, and max_length is 7"),
    (lambda: build(max_length=0), "max_length is 0"),
    (lambda: build(positions="rope"), "positions is 'rope'; it must be sinusoidal or learned"),
    (lambda: build(embedding_dropout=1.0), "embedding_dropout is 1.0"),
    (lambda: PositionEmbedding(4, 7, 3), "d_model is 7; sinusoidal positions need an even number"),
    (lambda: MLPHead(8, 3, width=0), "head width is 0"),
])  # fmt: skip
def test_what_cannot_be_is_one_line(call, message):
    with pytest.raises(ValueError, match=message):
        call()
