"""A recurrent layer of a user's own has all that ours have (test_contract.py), and stands in any block."""

import torch

from lra_ssm.layers import LayerSpec, MambaBlock
from lra_ssm.models import Backbone
from tests.layers.cases import Leaky, build, sequences


def test_lengths_of_any_integer_type():
    layer, x = build("a user's own", bidirectional=True), sequences(L=300)
    lengths = torch.tensor([255, 3])
    torch.testing.assert_close(layer(x, lengths.to(torch.uint8)), layer(x, lengths))


def test_it_stands_in_any_block():
    torch.manual_seed(0)
    model = Backbone(LayerSpec(Leaky), vocab_size=5, d_model=4, n_layers=2, block=MambaBlock).double()
    ids = torch.randint(0, 5, (2, 6))
    y, state = model(ids[:, :5], torch.tensor([5, 2]), return_last_state=True)
    torch.testing.assert_close(model.step(ids[:, 5], state)[0][0], model(ids)[0, 5])
    torch.testing.assert_close(model.step(ids[:, 2], state)[0][1], model(ids)[1, 2])
