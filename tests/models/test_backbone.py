"""The backbone and its embeddings: depth, norms, padding that is seen, positions; what a part lacks is named."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from lra_ssm.layers import LRU, S4D, S6, BlockSpec, EmbeddingSpec, LayerSpec, MambaBlock, RMSNorm, S4Block
from lra_ssm.layers.roles import parameter_roles, width_roles
from lra_ssm.models import Backbone, PositionEmbedding, ScalarEmbedding
from lra_ssm.models.embeddings import sinusoids
from tests import helpers
from tests.models.cases import PRENORM

LENGTHS = torch.tensor([8, 3])
PLAIN = BlockSpec(helpers.PlainBlock, scale=0.5)
WITH_POSITIONS = {"embedding": EmbeddingSpec(PositionEmbedding, max_length=7)}


def build(layer=S4D, block=S4Block, **settings):
    torch.manual_seed(0)
    return Backbone(layer, **{"vocab_size": 9, "d_model": 4, "n_layers": 2, "block": block, **settings}).double()


def ids(B=2, L=8):
    return torch.randint(0, 9, (B, L), generator=torch.Generator().manual_seed(1))


def test_layers_and_blocks_of_a_list_are_repeated_over_the_depth_and_built_once_each():
    model = build([S6, S6, LayerSpec(LRU, d_state=3)], [MambaBlock, S4Block], n_layers=8)
    assert [type(block.layer).__name__ for block in model.blocks] == ["S6", "S6", "LRU"] * 2 + ["S6", "S6"]
    assert [type(block) for block in model.blocks] == [MambaBlock, S4Block] * 4
    assert len({id(module) for block in model.blocks for module in (block, block.layer)}) == 16


def test_the_block_decides_how_the_stack_ends_and_whether_the_residual_is_float32():
    for block, norm in ((PRENORM, nn.LayerNorm), (MambaBlock, RMSNorm), (S4Block, None)):
        model = build(S6, block, residual_in_float32=True)
        assert isinstance(model.norm, norm or type(None)) and model.residual_in_float32 == (norm is not None)
    assert not build(S6, [MambaBlock, S4Block], residual_in_float32=True).residual_in_float32  # one is post-norm
    assert not build(S6, helpers.PlainBlock, residual_in_float32=True).residual_in_float32  # it has no `prenorm`


@pytest.mark.parametrize("norm", ["batch", "layer"])
@pytest.mark.parametrize("prenorm", [False, True])
def test_padding_that_is_seen_is_read_as_further_positions(norm, prenorm):
    """In statistics and in the reversed direction; the output is 0 at padding."""
    layer, block = LayerSpec(S4D, d_state=4, bidirectional=True), BlockSpec(S4Block, norm=norm, prenorm=prenorm)
    seen, masked = (build(layer, block, padding=padding) for padding in ("seen", "masked"))
    y, whole = seen(ids(), LENGTHS), masked(ids())
    torch.testing.assert_close(y[0], whole[0])
    torch.testing.assert_close(y[1, :3], whole[1, :3])
    assert (y[1, 3:] == 0).all() and not torch.allclose(y[1, :3], masked(ids(), LENGTHS)[1, :3], rtol=1e-3)
    with pytest.raises(ValueError, match="lengths: 9 among them"):
        seen(ids(), LENGTHS + 1)


@pytest.mark.parametrize("prenorm", [False, True])
def test_padding_that_norms_count_goes_through_every_block(prenorm):
    """As state-spaces/s4 computes it: layers read zeros at padding, and nothing else is masked but the output."""
    layer = LayerSpec(S4D, d_state=4, bidirectional=True)
    model, tokens = build(layer, BlockSpec(S4Block, norm="batch_padded", prenorm=prenorm)), ids()
    real = (torch.arange(8) < LENGTHS[:, None])[..., None]

    def norm(x):
        return functional.batch_norm(x.flatten(0, 1), None, None, training=True).view_as(x)

    x = model.embedding(tokens)
    for block in model.blocks:
        y = block.layer((norm(x) if prenorm else x) * real)
        x = x + functional.glu(block.glu(functional.gelu(y)), dim=-1)
        x = x if prenorm else norm(x)
    x = norm(x) if prenorm else x
    assert x[1, 3:].abs().min() > 0
    y = model(tokens, LENGTHS)
    torch.testing.assert_close(y, x * real)
    tokens[1, 3:] = (tokens[1, 3:] + 1) % 9
    assert not torch.allclose(model(tokens, LENGTHS)[0], y[0])  # through the statistics


@pytest.mark.parametrize("block, name", [(PLAIN, "PlainBlock"), (MambaBlock, "Smooth")])
def test_a_users_layer_or_block_only_needs_forward_and_is_named_where_it_lacks_something(block, name):
    model, reset = build(helpers.Smooth, block), torch.zeros(2, 8, dtype=torch.bool)
    y = model(ids(), LENGTHS)
    assert y.shape == (2, 8, 4) and getattr(model.blocks[1], "scale", 0.5) == 0.5
    y.sum().backward()
    states = [(block.conv1d.initial_state(2), None) if name == "Smooth" else None for block in model.blocks]
    for call, message in [
        (lambda: model(ids(), reset=reset), ".forward takes no `reset`: documents cannot be packed"),
        (lambda: model(ids(), return_last_state=True), ".forward takes no `return_last_state`"),
        (lambda: model.step(ids()[:, 0], states), " has no `step`: it cannot run step by step"),
        (lambda: model.initial_state(2), " has no `initial_state`: it cannot run step by step"),
    ]:
        with pytest.raises(ValueError, match=name + message):
            call()


@pytest.mark.parametrize("settings, x", [
    ({"d_input": 3, "vocab_size": None}, torch.randn(2, 5, 3, dtype=torch.float64)),
    ({"embedding": ScalarEmbedding}, ids(L=5)),
])  # fmt: skip
def test_features_and_scalars_have_steps_too(settings, x):
    model = build(S4D, MambaBlock, **settings)
    whole, state = model(x), model.initial_state(2)
    for t in range(5):
        y, state = model.step(x[:, t], state)
        torch.testing.assert_close(y, whole[:, t])


def test_the_embeddings_standard_deviation_is_a_setting():
    for given, std in ((None, 1), (0.1, 0.1)):
        weight = build(vocab_size=2000, d_model=16, embedding_std=given).embedding.weight
        assert weight.std().item() == pytest.approx(std, rel=0.02)


def test_sinusoids_are_the_papers():
    table = sinusoids(50, 8)
    angles = torch.tensor([[t / 10_000 ** (2 * i / 8) for i in range(4)] for t in range(50)])
    torch.testing.assert_close(table[:, ::2], angles.sin(), rtol=0, atol=1e-5)
    torch.testing.assert_close(table[:, 1::2], angles.cos(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("class_token", [False, True])
def test_positions_are_added_once_with_the_class_token_in_front(positions, class_token):
    spec = EmbeddingSpec(PositionEmbedding, max_length=8, positions=positions, class_token=class_token)
    network, x = build(embedding=spec), ids()
    embedding = network.embedding
    rows = embedding.weight[x]
    if class_token:
        nn.init.normal_(embedding.class_token)
        rows = torch.cat([embedding.class_token.expand(2, 1, 4), rows], 1)
    table = sinusoids(9, 4).double() if positions == "sinusoidal" else embedding.positions
    torch.testing.assert_close(embedding(x), rows + table[: rows.shape[1]])
    assert positions == "sinusoidal" or 0.01 < embedding.positions.std() < 0.03
    present = {"class_token": class_token, "positions": positions == "learned", "weight": True}
    names = {f"embedding.{name}" for name, here in present.items() if here}
    assert {name for name, _ in network.named_parameters() if name.startswith("embedding.")} == names
    assert {width_roles(network)[name][0] for name in names} == {"embedding"}
    network(x).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in embedding.parameters())


def test_a_scalar_embedding_reads_the_number_of_an_id():
    """It is the network of one feature that holds the id, roles included."""
    scalars, features = build(vocab_size=300, embedding=ScalarEmbedding), build(vocab_size=None, d_input=1)
    features.load_state_dict(scalars.state_dict())
    assert parameter_roles(scalars) == parameter_roles(features) and width_roles(scalars) == width_roles(features)
    x = torch.randint(0, 300, (2, 8))
    torch.testing.assert_close(scalars(x, LENGTHS), features(x[..., None].double(), LENGTHS))
    assert scalars.embedding.weight.shape == (4, 1)


class Short(nn.Embedding):
    """An embedding of a user's that loses a position."""

    def forward(self, ids):
        return super().forward(ids[:, 1:])


WHOLE = "PositionEmbedding needs whole sequences: with it there are no packed documents"


@pytest.mark.parametrize("settings, use, message", [
    ({"padding": "kept"}, None, "^Backbone padding is 'kept'; it must be one of masked, seen"),
    ({"embedding_std": 0.0}, None, "^embedding_std is 0.0; it must be above 0, and needs vocab_size"),
    ({"embedding_std": 0.1, "embedding": ScalarEmbedding}, None, "give it or embedding, not both"),
    ({"vocab_size": None}, None, "vocab_size for token inputs or d_input"),
    ({"d_input": 3}, None, "not both"),
    ({"d_model": -8}, None, "d_model is -8"),
    ({"n_layers": 0}, None, "n_layers is 0"),
    ({**WITH_POSITIONS, "d_model": 7}, None, "d_model is 7; sinusoidal positions need an even number"),
    (WITH_POSITIONS, lambda model: model(ids()), "inputs have 8 positions, and max_length is 7"),
    (WITH_POSITIONS, lambda model: model(ids(), reset=ids() > 9), WHOLE),
    (WITH_POSITIONS, lambda model: model.initial_state(3), WHOLE),
    (WITH_POSITIONS, lambda model: model.step(ids()[:, 0], ()), WHOLE),
    ({"embedding": Short}, lambda model: model(ids()),
     r"Short returned \(2, 7, 4\) .*: an embedding gives \(batch, length, d_model\) \(2, 8, 4\)"),
])  # fmt: skip
def test_wrong_settings_and_uses_are_one_line(settings, use, message):
    with pytest.raises(ValueError, match=message):
        model = build(**settings)
        if use is not None:
            use(model)
