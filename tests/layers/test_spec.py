"""Specifications within specifications: plain dicts that build what they say."""

import pytest
import torch
from torch import nn

from lra_ssm.layers import S4D, BlockSpec, LayerSpec, MambaBlock, NetworkSpec
from lra_ssm.models import Classifier, LastPooling


class Takes(nn.Module):
    """A network of a user's own: one part it builds itself, one it is given."""

    def __init__(self, layer, body: nn.Module, width: int = 3) -> None:
        super().__init__()
        self.layer, self.body = layer(width), body


def test_a_network_is_one_plain_dict_with_every_default():
    block = BlockSpec(MambaBlock, expand=1.5)
    spec = NetworkSpec(Classifier, layer=S4D, num_classes=3, vocab_size=5, d_model=4, block=block, pooling=LastPooling)
    stored = spec.as_dict()
    arguments = stored["init_args"]
    assert stored["class_path"] == "lra_ssm.models.Classifier"
    assert arguments["layer"]["class_path"] == "lra_ssm.layers.S4D"
    assert arguments["block"]["init_args"]["expand"] == 1.5 and arguments["block"]["init_args"]["d_conv"] == 4
    assert arguments["pooling"] == {"class_path": "lra_ssm.models.LastPooling", "init_args": {}}
    assert arguments["head"] is None and arguments["n_layers"] == 8
    again = NetworkSpec.of(stored)
    assert again.as_dict() == stored
    assert {k: v.shape for k, v in again().state_dict().items()} == {k: v.shape for k, v in spec().state_dict().items()}


def test_parts_reach_a_network_of_ones_own_as_it_takes_them():
    parts = {
        "layer": {"class_path": "lra_ssm.layers.S4D", "init_args": {"d_state": 8}},
        "body": {"class_path": "torch.nn.Linear", "init_args": {"in_features": 2, "out_features": 5}},
    }
    for given in (parts, {**parts, "layer": LayerSpec(S4D, d_state=8)}):
        network = NetworkSpec(Takes, **given)()
        assert network.layer.A_log.shape == (3, 4)
        assert isinstance(network.body, nn.Linear) and network.body(torch.zeros(1, 2)).shape == (1, 5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: BlockSpec(nn.GELU), "is no block: it must be a class or function that takes d_model and layer"),
        (lambda: NetworkSpec("lra_ssm.models.Clasifier"), "network class_path 'lra_ssm.models.Clasifier' cannot"),
        (lambda: NetworkSpec(Classifier, n_layer=3), "takes no argument 'n_layer'; did you mean 'n_layers'"),
        (lambda: NetworkSpec.of({"init_args": {}}), "a network is given as class_path and init_args"),
    ],
)
def test_specifications_that_mean_nothing(call, message):
    with pytest.raises(ValueError, match=message):
        call()
