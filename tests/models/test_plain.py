"""The network of theory: what it computes, and that nothing else is in it."""

import pytest
import torch

from lra_ssm.layers import S4D, LayerSpec, PlainBlock
from lra_ssm.models import LastPooling, MeanPooling, PlainNetwork


def test_it_is_the_papers_equation_5():
    model = PlainNetwork(LayerSpec(S4D, d_state=4), num_outputs=3, d_input=2, d_model=4, nonlinearity="tanh").double()
    u = torch.randn(2, 9, 2, dtype=torch.float64)
    block = model.blocks[0]
    block.bias.data.normal_()
    wanted = (block.layer(u @ model.encoder.weight.T)[:, -1] + block.bias).tanh() @ model.decoder.weight.T
    torch.testing.assert_close(model(u), wanted)
    layer = {name: p.shape for name, p in block.layer.named_parameters()}
    others = dict(model.named_parameters()).keys() - {f"blocks.0.layer.{name}" for name in layer}
    assert others == {"encoder.weight", "blocks.0.bias", "decoder.weight"}


def test_padding_changes_nothing_and_it_gives_outputs_at_each_position():
    for pooling in (LastPooling, MeanPooling, None):
        model = PlainNetwork(LayerSpec(S4D, d_state=4), 3, vocab_size=5, d_model=4, n_layers=2, pooling=pooling)
        ids, lengths = torch.randint(5, (2, 6)), torch.tensor([6, 4])
        y, alone = model(ids, lengths), model(ids[1:, :4])
        padded = y[1:] if pooling else y[1:, :4]
        torch.testing.assert_close(padded, alone, rtol=1e-4, atol=1e-6)
        assert y.shape == ((2, 3) if pooling else (2, 6, 3))


def test_without_a_nonlinearity_it_is_linear(tmp_path):
    model = PlainNetwork(LayerSpec(S4D, d_state=4), 1, d_input=1, d_model=4, nonlinearity="none", bias=False).double()
    a, b = torch.randn(2, 1, 20, 1, dtype=torch.float64)
    torch.testing.assert_close(model(2 * a + b), 2 * model(a) + model(b))
    model.float().save_pretrained(tmp_path / "model")
    again = PlainNetwork.from_pretrained(tmp_path / "model")
    torch.testing.assert_close(again(a.float()), model(a.float()))


def test_what_it_cannot_be_is_said():
    with pytest.raises(ValueError, match="nonlinearity is 'sigmoid'; it must be one of none, relu, gelu, tanh"):
        PlainBlock(4, S4D, nonlinearity="sigmoid")
    with pytest.raises(ValueError, match="PlainBlock glu is true and linear_out is false"):
        PlainBlock(4, S4D, linear_out=False, glu=True)
    with pytest.raises(ValueError, match="give vocab_size"):
        PlainNetwork(S4D, 1)
