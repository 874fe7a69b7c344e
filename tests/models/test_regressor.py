"""The network of regressions: with a pooling an output per sequence, without one per position."""

import pytest
import torch

from lra_ssm.layers import S4D, BlockSpec, LayerSpec, S4Block, parameter_roles
from lra_ssm.models import MeanPooling, Regressor

SPEC = LayerSpec(S4D, d_state=4)


def model(**settings):
    torch.manual_seed(0)
    block = BlockSpec(S4Block, norm="layer")
    return Regressor(SPEC, **{"num_outputs": 3, "d_input": 2, "d_model": 6, "n_layers": 1, "block": block, **settings})


def test_shapes():
    x = torch.randn(4, 7, 2)
    assert model()(x).shape == (4, 3)
    assert model(pooling=MeanPooling)(x).shape == (4, 3)
    assert model(pooling=None)(x).shape == (4, 7, 3)
    assert model(vocab_size=5, d_input=None)(torch.randint(0, 5, (4, 7))).shape == (4, 3)


def test_the_last_output_is_the_last_position_s():
    x = torch.randn(4, 7, 2)
    torch.testing.assert_close(model()(x), model(pooling=None)(x)[:, -1])


@pytest.mark.parametrize("pooling", [None, MeanPooling])
def test_a_batch_in_any_padding_gives_the_same(pooling):
    x, lengths = torch.randn(3, 8, 2), torch.tensor([8, 3, 1])
    wider = torch.cat([x, torch.randn(3, 4, 2)], 1)
    network = model(pooling=pooling)
    own, more = network(x, lengths), network(wider, lengths)
    torch.testing.assert_close(own, more if pooling else more[:, :8], rtol=1e-4, atol=1e-5)
    if pooling is None:
        assert not own[1, 3:].any() and not more[:, 8:].any()


def test_every_parameter_has_a_role_and_errors_say_what():
    roles = parameter_roles(model())
    assert roles["head.weight"] == "base" and roles["head.bias"] == "no_decay"
    with pytest.raises(ValueError, match="num_outputs is 0; it must be at least 1"):
        model(num_outputs=0)
