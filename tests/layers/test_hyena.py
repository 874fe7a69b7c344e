"""What is specific to Hyena's block; test_contract.py has what all blocks share."""

import pytest
import torch

from lra_ssm.layers import S4D, HyenaBlock, LayerSpec, StableSSM, parameter_roles
from tests.layers import cases

STABLE = LayerSpec(StableSSM, **cases.OF_REAL)


def build(**settings):
    torch.manual_seed(0)
    return HyenaBlock(4, STABLE, **settings).double()


def test_sizes_and_roles():
    block = build(mlp_factor=2.5, d_conv=2)
    assert block.in_proj.weight.shape == (12, 4) and block.conv1d.weight.shape == (12, 1, 2)
    assert block.layer.system.C.shape == (4, 5) and block.mlp.fc1.weight.shape == (10, 4)
    roles = parameter_roles(block)
    assert (roles["layer.system.eigenvalue_weight"], roles["D"], roles["conv1d.bias"], roles["norm2.weight"]) == (
        "recurrent", "no_decay", "no_decay", "norm",
    )  # fmt: skip
    assert isinstance(block.final_norm(4), torch.nn.LayerNorm)
    bare = build(skip=False, mlp_factor=0, bias=False)
    assert not {"D", "mlp.fc1.weight", "norm2.weight", "in_proj.bias"} & dict(bare.named_parameters()).keys()


@pytest.mark.parametrize(("settings", "share"), [({}, 2**-0.5), ({"mlp_factor": 0}, 1)])
def test_what_is_added_to_the_residual_is_scaled_at_initialization(settings, share):
    block, scaled = build(**settings), build(**settings)
    scaled.scale_residual(0.5)
    for (name, before), after in zip(block.named_parameters(), scaled.parameters(), strict=True):
        factor = 0.5 * share if name in ("out_proj.weight", "mlp.fc2.weight") else 1
        torch.testing.assert_close(after, factor * before)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mlp_factor": 1.3}, "mlp_factor 1.3: times d_model 4 it must be a positive whole number"),
        ({"d_conv": 0}, "d_conv is 0; it must be at least 1"),
        ({"activation": "tanh"}, "activation is 'tanh'; it must be one of identity, gelu, half_glu2"),
        ({"dropout": 1}, "HyenaBlock dropout is 1; it must be at least 0 and below 1"),
        ({"gate_dropout": -0.1}, "gate_dropout is -0.1"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        HyenaBlock(4, S4D, **settings)


def test_dropout_is_of_single_positions_before_the_mixer_and_both_residuals():
    block, x = build(skip=False, gate_dropout=0.5), torch.ones(1, 64, 4, dtype=torch.float64)
    seen = []
    block.layer.register_forward_hook(lambda module, given, out: seen.append(given[0]))
    block(x)
    dropped = seen[0] == 0
    assert 0.3 < dropped.double().mean() < 0.7 and 0 < dropped[0, :, 0].sum() < 64
    torch.testing.assert_close(block.eval()(x), build(skip=False).eval()(x))
    block = build(dropout=0.5)
    torch.manual_seed(3)
    assert 0.1 < ((block(x) - x)[0] == 0).double().mean() < 0.4  # where both sublayers were dropped


def test_a_float32_residual_stays_in_a_model_of_bfloat16():
    block, x = cases.build("hyena-recall").float(), cases.sequences(L=32, D=4).float()
    y = block(x)
    low = block.bfloat16()(x)
    assert low.dtype == torch.float32 and (low - y).norm() < 0.05 * y.norm()
