"""What is specific to Mamba's and Mamba-2's blocks; test_contract.py has what all blocks share."""

import pytest
import torch

from lra_ssm.layers import S6, SSD, LayerSpec, Mamba2Block, MambaBlock, parameter_roles
from tests.helpers import Smooth
from tests.layers.cases import sequences


def test_sizes_and_roles():
    block = MambaBlock(4, LayerSpec(S6, d_state=3), expand=1.5, d_conv=3, bias=True)
    assert block.in_proj.weight.shape == (12, 4) and block.conv1d.weight.shape == (6, 1, 3)
    assert block.layer.A_log.shape == (6, 3) and block.out_proj.weight.shape == (4, 6)
    roles = parameter_roles(block)
    biases = {name for name, role in roles.items() if role == "no_decay" and not name.startswith("layer.")}
    assert biases == {"in_proj.bias", "conv1d.bias", "out_proj.bias"} and roles["norm.weight"] == "norm"
    assert isinstance(block.final_norm(4), torch.nn.RMSNorm)
    assert MambaBlock(4, S6, prenorm=False).final_norm(4) is None
    for expand, d_model in ((2.3, 100), (2.2, 25), (1.1, 50)):  # products that floats only nearly hold
        assert MambaBlock(d_model, Smooth, expand=expand).out_proj.in_features == round(expand * d_model)


def test_sizes_and_roles_of_mamba2():
    block = Mamba2Block(4, LayerSpec(SSD, d_state=3, head_dim=2, n_groups=3), expand=3, d_conv=3, bias=True)
    assert block.in_proj.weight.shape == (2 * 12 + 2 * 3 * 3, 4) and block.delta_proj.weight.shape == (6, 4)
    assert block.conv1d.weight.shape == (12 + 18, 1, 3) and block.gated_norm.groups == 3
    assert parameter_roles(block) == {
        "norm.weight": "norm", "gated_norm.weight": "norm", "layer.A_log": "recurrent", "layer.delta_bias": "delta",
        "layer.D": "no_decay", "in_proj.weight": "base", "in_proj.bias": "no_decay", "delta_proj.weight": "delta",
        "delta_proj.bias": "delta", "conv1d.weight": "base", "conv1d.bias": "no_decay", "out_proj.weight": "base",
        "out_proj.bias": "no_decay",
    }  # fmt: skip
    assert Mamba2Block(4, S6).in_proj.weight.shape == (16, 4)


@pytest.mark.slow
def test_a_wrapped_or_compiled_layer_is_accepted():
    class Wrapped(torch.nn.Module):
        def __init__(self, d_model: int) -> None:
            super().__init__()
            self.inner = S6(d_model)

        def forward(self, x, lengths=None, **given):
            return self.inner(x, lengths, **given)

    x = sequences(D=4).float()
    assert len(MambaBlock(4, Wrapped)(x, return_last_state=True)) == 2
    block = MambaBlock(4, S6)
    block.layer = torch.compile(block.layer, backend="eager")
    y, (taps, state) = block(x, return_last_state=True)
    assert y.shape == x.shape and state.shape == (2, 8, 16)


@pytest.mark.parametrize("block", [MambaBlock, Mamba2Block])
@pytest.mark.parametrize("settings, message", [
    ({"expand": 1.3}, "expand 1.3: times d_model 4 it must be a positive whole number"),
    ({"expand": 0}, "expand 0"),
    ({"expand": float("nan")}, "expand nan"),
    ({"d_conv": 0}, "d_conv is 0"),
])  # fmt: skip
def test_wrong_settings_are_named(block, settings, message):
    with pytest.raises(ValueError, match=f"^{block.__name__} {message}"):
        block(4, S6, **settings)
