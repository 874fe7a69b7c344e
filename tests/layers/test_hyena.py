"""Hyena's block: its equations as a loop, states, padding, documents; it learns."""

import pytest
import torch

from lra_ssm.layers import S4D, HyenaBlock, LayerSpec, StableSSM, parameter_roles
from tests.each import each
from tests.helpers import Smooth
from tests.layers import contract_checks as contract
from tests.layers import naive
from tests.layers.contract_checks import assert_same, sequences

D = 4
LAYERS = {
    "stable": lambda **k: LayerSpec(StableSSM, d_state=5, form="real", readout="identity", **k),
    "s4d": lambda **k: LayerSpec(S4D, d_state=4, delta_min=0.05, delta_max=0.5, **k),
}
S5 = {"activation": "gelu", "mlp_factor": 1.5}  # the form of Wang & Li's experiments, with a small MLP
RECALL = {"activation": "half_glu2", "skip": False, "mlp_factor": 1.5}  # S5's form for associative recall
every_layer = each("name", LAYERS)


def build(name, bidirectional=False, **settings):
    torch.manual_seed(0)
    block = HyenaBlock(D, LAYERS[name](bidirectional=bidirectional), **settings).double()
    for parameter in block.norm.parameters():
        torch.nn.init.normal_(parameter, 1, 0.1)
    return block


@every_layer
@each("settings", [S5, RECALL, {"skip": False, "mlp_factor": 0}, {"bidirectional": True}])
@each("L", [1, 2, 63])
def test_equals_the_equations_with_every_gradient(name, settings, L):
    contract.check_equations(build(name, **settings), naive.hyena_block, L)


@every_layer
@each("settings", [S5, RECALL, {"mlp_factor": 0, "d_conv": 1}, {"norm": "rms", "prenorm": False, "bias": False}])
def test_steps_equal_the_parallel_form_with_gradients(name, settings):
    contract.check_steps(build(name, **settings), sequences(L=9))


@every_layer
@each("cut", [1, 2, 5])
def test_a_prefix_and_its_state_go_on_as_the_whole(name, cut):
    contract.check_prefix(build(name, **S5), cut)


@every_layer
@each("settings", [S5, {"bidirectional": True}, {"prenorm": False, "norm": "batch"}])
def test_padding_never_leaks(name, settings):
    block, x, lengths = build(name, **settings), sequences(B=3, L=9), torch.tensor([9, 4, 1])
    x[1, 4:], x[2, 1:] = 1e3, 0
    y = block.eval()(x, lengths)
    for i, n in enumerate(lengths.tolist()):
        assert_same(y[i, :n], block(x[i : i + 1, :n])[0])
        assert (y[i, n:] == 0).all()
    wider = block.train()(torch.cat([x, x + 7], 1), lengths)  # norms of a batch take no padding in
    assert_same(wider[:, :9], block(x, lengths))


@every_layer
def test_the_last_state_is_the_one_after_the_last_real_position(name):
    contract.check_last_state(build(name))


@every_layer
@each("bidirectional", [False, True])
def test_a_reset_separates_documents_through_scan_and_convolution(name, bidirectional):
    contract.check_reset(build(name, bidirectional), bidirectional)


def test_chunks_of_one_with_lengths_resets_and_a_state():
    contract.check_chunks(build("stable", **S5))


def test_a_layer_of_ones_own_needs_forward_alone_and_is_named_where_it_lacks_something():
    block, x = HyenaBlock(D, Smooth), sequences().float()
    assert block(x, torch.tensor([7, 3])).shape == x.shape and block.layer.mix.in_channels == D
    with pytest.raises(ValueError, match="Smooth.forward takes no `reset`: documents cannot be packed with it"):
        block(x, reset=torch.zeros(2, 7, dtype=torch.bool))
    with pytest.raises(ValueError, match="Smooth has no `step`: it cannot run step by step"):
        block.step(x[:, 0], (torch.zeros(2, 12, 2), None))
    with pytest.raises(ValueError, match="S4D is bidirectional"):
        build("s4d", bidirectional=True).initial_state(2)


def test_sizes_and_roles():
    block = HyenaBlock(4, LAYERS["stable"](), mlp_factor=2.5, d_conv=2)
    assert block.in_proj.weight.shape == (12, 4) and block.conv1d.weight.shape == (12, 1, 2)
    assert block.layer.system.C.shape == (4, 5) and block.fc1.weight.shape == (10, 4)
    roles = parameter_roles(block)
    assert {name for name, role in roles.items() if role == "recurrent"} == {"layer.system.eigenvalue_weight"}
    no_decay = {"in_proj.bias", "conv1d.bias", "out_proj.bias", "fc1.bias", "fc2.bias", "D", "layer.system.b"}
    assert {name for name, role in roles.items() if role == "no_decay"} == no_decay | {"norm.bias", "norm2.bias"}
    assert {name for name, role in roles.items() if role == "norm"} == {"norm.weight", "norm2.weight"}
    assert isinstance(block.final_norm(4), torch.nn.LayerNorm)
    gate = parameter_roles(HyenaBlock(4, LAYERS["stable"](), **RECALL))
    assert (gate["activation.gate.weight"], gate["activation.gate.bias"]) == ("base", "no_decay")
    bare = HyenaBlock(4, LAYERS["stable"](), skip=False, mlp_factor=0, bias=False)
    assert not {"D", "fc1.weight", "norm2.weight", "in_proj.bias", "conv1d.bias"} & dict(bare.named_parameters()).keys()


def test_what_is_added_to_the_residual_is_scaled_at_initialization():
    for settings, share in (({}, 2**-0.5), ({"mlp_factor": 0}, 1)):
        block, scaled = build("stable", **settings), build("stable", **settings)
        scaled.scale_residual(0.5)
        for (name, before), after in zip(block.named_parameters(), scaled.parameters(), strict=True):
            factor = 0.5 * share if name in ("out_proj.weight", "fc2.weight") else 1
            torch.testing.assert_close(after, factor * before)


@each(
    ("settings", "message"),
    [
        ({"mlp_factor": 1.3}, "mlp_factor 1.3: times d_model 4 it must be a positive whole number"),
        ({"mlp_factor": -1}, "mlp_factor -1: times"),
        ({"d_conv": 0}, "d_conv is 0; it must be at least 1"),
        ({"activation": "tanh"}, "activation is 'tanh'; it must be one of identity, gelu, half_glu2"),
        ({"dropout": 1}, "HyenaBlock dropout is 1; it must be at least 0 and below 1"),
        ({"gate_dropout": -0.1}, "gate_dropout is -0.1"),
    ],
)
def test_settings_that_mean_nothing(settings, message):
    with pytest.raises(ValueError, match=message):
        HyenaBlock(4, S4D, **settings)


def test_dropout_is_of_single_positions_before_the_mixer_and_both_residuals():
    block, x = build("stable", skip=False, gate_dropout=0.5), torch.ones(1, 64, D, dtype=torch.float64)
    seen = []
    block.layer.register_forward_hook(lambda module, given, out: seen.append(given[0]))
    block(x)
    dropped = seen[0] == 0
    assert 0.3 < dropped.double().mean() < 0.7 and 0 < dropped[0, :, 0].sum() < 64
    torch.testing.assert_close(block.eval()(x), build("stable", skip=False).eval()(x))
    block = build("stable", dropout=0.5)
    torch.manual_seed(3)
    moved = (block(x) - x)[0]
    assert 0.1 < (moved == 0).double().mean() < 0.4  # where both branches were dropped


def test_bfloat16_stays_near_float32_under_autocast_and_with_a_float32_residual():
    for name in LAYERS:
        block, x = build(name, **S5).float(), sequences(L=32).float()
        y = block(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = block(x)
        assert (low.float() - y).norm() < 0.05 * y.norm()
        low = block.bfloat16()(x)
        assert low.dtype == torch.float32 and (low - y).norm() < 0.05 * y.norm()


@pytest.mark.slow
def test_compiles_as_one_graph():
    torch._dynamo.reset()
    block, x = build("stable", **S5), sequences()
    torch.testing.assert_close(torch.compile(block, backend="eager", fullgraph=True)(x), block(x))
