"""The backbone: a vector per position with any block, steps, documents; what a part lacks is named."""

import pytest
import torch
from torch import nn

from lra_ssm.layers import LRU, S4D, S6, BlockSpec, LayerSpec, MambaBlock, PlainBlock, RMSNorm, S4Block, StableSSM
from lra_ssm.models import Backbone
from tests import helpers

PRENORM = BlockSpec(S4Block, norm="layer", prenorm=True)
STACKS = {
    "s4-pre": (LayerSpec(S4D, d_state=4), PRENORM),
    "s4-post": (LayerSpec(StableSSM, d_state=3, form="real"), BlockSpec(S4Block, norm="rms")),
    "mamba": (LayerSpec(S6, d_state=3), BlockSpec(MambaBlock, expand=1.5)),
    "plain": (LayerSpec(S4D, d_state=4), PlainBlock),
    "two kinds": ([LayerSpec(S6, d_state=3), LayerSpec(LRU, d_state=2)], [MambaBlock, PRENORM]),
}


def build(layer, block, **settings):
    torch.manual_seed(0)
    return Backbone(layer, **{"vocab_size": 9, "d_model": 4, "n_layers": 2, "block": block, **settings}).double()


def ids(B=2, L=8):
    return torch.randint(0, 9, (B, L), generator=torch.Generator().manual_seed(1))


def test_layers_and_blocks_of_a_list_are_repeated_over_the_depth():
    model = build([S6, S6, LayerSpec(LRU, d_state=3)], [MambaBlock, S4Block], n_layers=8)
    assert [type(block.layer).__name__ for block in model.blocks] == ["S6", "S6", "LRU"] * 2 + ["S6", "S6"]
    assert [type(block) for block in model.blocks] == [MambaBlock, S4Block] * 4


def test_the_block_decides_how_the_stack_ends_and_whether_the_residual_is_float32():
    for block, norm in ((PRENORM, nn.LayerNorm), (MambaBlock, RMSNorm), (S4Block, None)):
        model = build(S6, block, residual_in_float32=True)
        assert isinstance(model.norm, norm or type(None)) and model.residual_in_float32 == (norm is not None)
    assert not build(S6, [MambaBlock, S4Block], residual_in_float32=True).residual_in_float32  # one is post-norm
    assert not build(S6, helpers.PlainBlock, residual_in_float32=True).residual_in_float32  # it has no `prenorm`


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
def test_steps_documents_and_padding_equal_the_whole(stack):
    model, tokens = build(*stack), ids()
    whole = model(tokens)
    assert whole.shape == (2, 8, 4)
    y, state = model(tokens[:, :3], return_last_state=True)
    torch.testing.assert_close(torch.cat([y, model(tokens[:, 3:], initial_state=state)], 1), whole)
    state = model.initial_state(2)
    for t in range(8):
        y, state = model.step(tokens[:, t], state)
        torch.testing.assert_close(y, whole[:, t])
    reset = torch.zeros(2, 8, dtype=torch.bool)
    reset[:, 5] = True
    apart = torch.cat([model(tokens[:, :5]), model(tokens[:, 5:])], 1)
    torch.testing.assert_close(model(tokens, reset=reset), apart)
    y = model(tokens, torch.tensor([8, 3]))
    torch.testing.assert_close(y[1:, :3], model(tokens[1:, :3]))
    assert (y[1, 3:] == 0).all()


@pytest.mark.parametrize("norm", ["batch", "layer"])
@pytest.mark.parametrize("prenorm", [False, True])
def test_padding_that_is_seen_is_read_as_further_positions(norm, prenorm):
    """In statistics and in the reversed direction; the output is 0 at padding."""
    layer, block = LayerSpec(S4D, d_state=4, bidirectional=True), BlockSpec(S4Block, norm=norm, prenorm=prenorm)
    seen, masked = (build(layer, block, padding=padding) for padding in ("seen", "masked"))
    tokens, lengths = ids(), torch.tensor([8, 3])
    y, whole = seen(tokens, lengths), masked(tokens)
    torch.testing.assert_close(y[0], whole[0])
    torch.testing.assert_close(y[1, :3], whole[1, :3])
    assert (y[1, 3:] == 0).all() and not torch.allclose(y[1, :3], masked(tokens, lengths)[1, :3], rtol=1e-3)
    with pytest.raises(ValueError, match="lengths: 9 among them"):
        seen(tokens, torch.tensor([9, 3]))


@pytest.mark.parametrize("prenorm", [False, True])
def test_padding_that_norms_count_goes_through_every_block(prenorm):
    """Only the backbone's output is 0 there."""
    model = build(LayerSpec(S4D, d_state=4), BlockSpec(S4Block, norm="batch_padded", prenorm=prenorm))
    tokens, lengths = ids(), torch.tensor([8, 3])
    x = model.embedding(tokens)
    for block in model.blocks:
        x = block(x, lengths)
    x = model.norm(x) if prenorm else x
    assert x[1, 3:].abs().min() > 0
    y = model(tokens, lengths)
    torch.testing.assert_close(y, x * (torch.arange(8) < lengths[:, None])[..., None])
    tokens[1, 3:] = (tokens[1, 3:] + 1) % 9
    assert not torch.allclose(model(tokens, lengths)[0], y[0])  # through the statistics


def test_the_embeddings_standard_deviation_is_a_setting():
    wide, narrow = (build(S4D, S4Block, vocab_size=2000, d_model=16, embedding_std=std) for std in (None, 0.1))
    assert wide.embedding.weight.std().item() == pytest.approx(1, rel=0.02)
    assert narrow.embedding.weight.std().item() == pytest.approx(0.1, rel=0.02)


def test_a_users_block_only_needs_forward_and_is_named_where_it_lacks_something():
    model, tokens = build(helpers.Smooth, BlockSpec(helpers.PlainBlock, scale=0.5)), ids()
    y = model(tokens, torch.tensor([8, 3]))
    assert y.shape == (2, 8, 4) and model.blocks[1].scale == 0.5 and model.norm is None
    y.sum().backward()
    with pytest.raises(ValueError, match="PlainBlock.forward takes no `reset`"):
        model(tokens, reset=torch.zeros(2, 8, dtype=torch.bool))
    with pytest.raises(ValueError, match="PlainBlock has no `initial_state`"):
        model.initial_state(2)


def test_features_have_steps_too():
    model = build(S4D, MambaBlock, vocab_size=None, d_input=3)
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    whole, state = model(x), model.initial_state(2)
    for t in range(5):
        y, state = model.step(x[:, t], state)
        torch.testing.assert_close(y, whole[:, t])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"padding": "kept"}, "^padding is 'kept'; it must be masked or seen"),
        ({"embedding_std": 0.0}, "^embedding_std is 0.0; it must be above 0, and needs vocab_size"),
        ({"embedding_std": 0.1, "vocab_size": None, "d_input": 3}, "^embedding_std is 0.1; it must be above 0, and"),
        ({"vocab_size": None}, "vocab_size for token inputs or d_input"),
        ({"d_input": 3}, "not both"),
        ({"d_model": -8}, "d_model is -8"),
        ({"n_layers": 0}, "n_layers is 0"),
    ],
)
def test_wrong_settings_are_one_line(settings, message):
    with pytest.raises(ValueError, match=message):
        build(S4D, S4Block, **settings)
