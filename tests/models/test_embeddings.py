"""Embeddings of positions and of token ids as numbers: values, the class token, padding, roles; LRA's heads."""

import math

import pytest
import torch
from torch import nn

from lra_ssm.layers import (
    S4D,
    Attention,
    BlockSpec,
    EmbeddingSpec,
    LayerSpec,
    S4Block,
    TransformerBlock,
    parameter_roles,
)
from lra_ssm.layers.roles import width_roles
from lra_ssm.models import (
    Classifier,
    DualEncoder,
    FirstPooling,
    LogitPairHead,
    LRAPairHead,
    MeanPooling,
    MLPHead,
    PositionEmbedding,
    ScalarEmbedding,
)
from lra_ssm.models.embeddings import sinusoids

LAYER = LayerSpec(Attention, n_heads=2, causal=False, positions="none")
SMALL = {"num_classes": 3, "vocab_size": 9, "d_model": 8, "n_layers": 2}


def build(kind=Classifier, pooling=MeanPooling, head=None, **settings):
    torch.manual_seed(0)
    embedding = EmbeddingSpec(PositionEmbedding, **{"max_length": 7, **settings})
    block = BlockSpec(TransformerBlock, mlp_factor=1.0)
    return kind(LAYER, embedding=embedding, block=block, pooling=pooling, head=head, **SMALL).double()


def ids(B=3, L=7):
    return torch.randint(1, 9, (B, L), generator=torch.Generator().manual_seed(1))


def test_sinusoids_are_the_papers():
    table = sinusoids(50, 8)
    for t in (0, 1, 49):
        for i in range(4):
            angle = t / 10_000 ** (2 * i / 8)
            assert table[t, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[t, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("class_token", [False, True])
def test_positions_are_added_once_with_the_class_token_in_front(positions, class_token):
    network, x = build(positions=positions, class_token=class_token), ids()
    embedding = network.backbone.embedding
    torch.nn.init.normal_(embedding.class_token) if class_token else None
    rows = embedding.weight[x]
    if class_token:
        rows = torch.cat([embedding.class_token.expand(3, 1, 8), rows], 1)
    table = sinusoids(8, 8).double() if positions == "sinusoidal" else embedding.positions
    torch.testing.assert_close(embedding(x), rows + table[: rows.shape[1]])
    assert positions == "sinusoidal" or 0.01 < embedding.positions.std() < 0.03
    names = {name for name, _ in network.named_parameters() if name.startswith("backbone.embedding")}
    present = {"class_token": class_token, "positions": positions == "learned", "weight": True}
    assert names == {f"backbone.embedding.{name}" for name, here in present.items() if here}
    roles = parameter_roles(network)
    assert roles["backbone.embedding.weight"] == "embedding"
    assert {roles[name] for name in names} <= {"embedding", "base"}
    assert {width_roles(network)[name][0] for name in names} == {"embedding"}
    network(x).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in embedding.parameters())


@pytest.mark.parametrize("class_token, pooling", [(True, FirstPooling), (False, FirstPooling), (False, MeanPooling)])
def test_padding_does_not_matter_and_order_does(class_token, pooling):
    network = build(class_token=class_token, pooling=pooling).eval()
    x, lengths = ids(), torch.tensor([7, 2, 4])
    logits = network(x, lengths)
    for i, n in enumerate(lengths):
        torch.testing.assert_close(network(x[i : i + 1, :n]), logits[i : i + 1])
    assert (network(x.flip(1)) - network(x)).abs().min() > 1e-6
    vector = network.encode(x, lengths)
    states = network.backbone(x, lengths)
    assert states.shape == (3, 7 + class_token, 8) and (states[1, 2 + class_token :] == 0).all()
    expected = states[:, 0] if pooling is FirstPooling else states.sum(1) / lengths[:, None]
    torch.testing.assert_close(vector, expected)


def test_lras_heads_may_have_a_width_of_their_own():
    pair, head, x = LRAPairHead(8, 3, width=6), MLPHead(8, 3, width=5), torch.randn(2, 8)
    assert [tuple(p.shape) for p in pair.parameters() if p.dim() > 1] == [(6, 16), (3, 6), (3, 3)]
    first, _, last = head
    torch.testing.assert_close(head(x), (x @ first.weight.T + first.bias).clamp(min=0) @ last.weight.T + last.bias)
    assert MLPHead(8, 3)[0].out_features == 8


@pytest.mark.parametrize("kind, head", [(Classifier, None), (DualEncoder, LogitPairHead)])
def test_a_scalar_embedding_reads_the_number_of_an_id(kind, head):
    """It is the network of one feature that holds the id, roles included."""
    settings = {"num_classes": 3, "d_model": 6, "n_layers": 1, "block": BlockSpec(S4Block, norm="layer"), "head": head}
    layer = LayerSpec(S4D, d_state=4)
    scalars = kind(layer, vocab_size=300, embedding=ScalarEmbedding, **settings)
    features = kind(layer, d_input=1, **settings)
    features.load_state_dict(scalars.state_dict())
    assert parameter_roles(scalars) == parameter_roles(features) and width_roles(scalars) == width_roles(features)
    shape = (3, 2, 7) if kind is DualEncoder else (3, 7)
    x = torch.randint(0, 300, shape, generator=torch.Generator().manual_seed(1))
    lengths = torch.full(shape[:-1], 5)
    logits = scalars(x, lengths)
    torch.testing.assert_close(logits, features(x[..., None].float(), lengths))
    assert scalars.backbone.embedding.weight.shape == (6, 1)
    if kind is Classifier:
        state, whole = scalars.backbone.initial_state(3), scalars.backbone(x)
        for t in range(7):
            y, state = scalars.backbone.step(x[:, t], state)
            torch.testing.assert_close(y, whole[:, t], rtol=1e-4, atol=1e-5)


class Short(nn.Module):
    """An embedding of a user's that loses a position."""

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, d_model)

    def forward(self, ids):
        return self.table(ids[:, 1:])


def features_of(x):
    return build().backbone(x, reset=torch.zeros(x.shape, dtype=torch.bool))


@pytest.mark.parametrize("call, message", [
    (lambda: build()(ids(L=8)), "inputs have 8 positions, and max_length is 7"),
    (lambda: build(max_length=0), "max_length is 0"),
    (lambda: build(positions="rope"), "positions is 'rope'; it must be sinusoidal or learned"),
    (lambda: build(embedding_dropout=1.0), "embedding_dropout is 1.0"),
    (lambda: PositionEmbedding(4, 7, 3), "d_model is 7; sinusoidal positions need an even number"),
    (lambda: MLPHead(8, 3, width=0), "head width is 0"),
    (lambda: features_of(ids()), "PositionEmbedding needs whole sequences: with it there are no packed documents"),
    (lambda: build().backbone(ids(), return_last_state=True), "PositionEmbedding needs whole sequences"),
    (lambda: build().backbone.initial_state(3), "PositionEmbedding needs whole sequences"),
    (lambda: build().backbone.step(ids()[:, 0], ()), "PositionEmbedding needs whole sequences"),
    (lambda: Classifier(LAYER, **SMALL, embedding=Short)(ids()),
     r"Short returned \(3, 6, 8\) .*: an embedding gives \(batch, length, d_model\) \(3, 7, 8\)"),
    (lambda: Classifier(LAYER, **SMALL, embedding=ScalarEmbedding, embedding_std=0.1), "give it or embedding, not bo"),
])  # fmt: skip
def test_wrong_settings_and_uses_are_one_line(call, message):
    with pytest.raises(ValueError, match=message):
        call()
