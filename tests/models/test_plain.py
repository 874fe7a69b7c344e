"""The network of theory: its equation, and that it has nothing else."""

import pytest
import torch

from lra_ssm.layers import S4D, LayerSpec
from lra_ssm.models import LastPooling, MeanPooling, PlainNetwork


def test_it_is_the_papers_equation_5():
    model = PlainNetwork(LayerSpec(S4D, d_state=4), num_outputs=3, d_input=2, d_model=4, nonlinearity="tanh").double()
    u = torch.randn(2, 9, 2, dtype=torch.float64)
    block = model.blocks[0]
    block.bias.data.normal_()
    wanted = (block.layer(u @ model.encoder.weight.T)[:, -1] + block.bias).tanh() @ model.decoder.weight.T
    torch.testing.assert_close(model(u), wanted)
    others = {name for name, _ in model.named_parameters() if not name.startswith("blocks.0.layer.")}
    assert others == {"encoder.weight", "blocks.0.bias", "decoder.weight"}


@pytest.mark.parametrize("pooling", [LastPooling, MeanPooling, None])
def test_padding_changes_nothing_with_and_without_pooling(pooling):
    model = PlainNetwork(LayerSpec(S4D, d_state=4), 3, vocab_size=5, d_model=4, n_layers=2, pooling=pooling)
    ids, lengths = torch.randint(5, (2, 6)), torch.tensor([6, 4])
    y, alone = model(ids, lengths), model(ids[1:, :4])
    torch.testing.assert_close(y[1:] if pooling else y[1:, :4], alone, rtol=1e-4, atol=1e-6)
    assert y.shape == ((2, 3) if pooling else (2, 6, 3))


def test_without_a_nonlinearity_it_is_linear_and_it_needs_a_size_of_its_inputs():
    model = PlainNetwork(LayerSpec(S4D, d_state=4), 1, d_input=1, d_model=4, nonlinearity="none", bias=False).double()
    a, b = torch.randn(2, 1, 20, 1, dtype=torch.float64)
    torch.testing.assert_close(model(2 * a + b), 2 * model(a) + model(b))
    with pytest.raises(ValueError, match="give vocab_size"):
        PlainNetwork(S4D, 1)
