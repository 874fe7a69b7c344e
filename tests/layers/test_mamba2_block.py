"""Mamba-2's block around SSD, S6 and S4D: its equations as a loop, states, padding, documents."""

import pytest
import torch

from lra_ssm.layers import S4D, S6, SSD, LayerSpec, Mamba2Block, parameter_roles
from tests.each import each
from tests.helpers import Smooth
from tests.layers import contract_checks as contract
from tests.layers import naive
from tests.layers.contract_checks import assert_same, sequences
from tests.pairwise import pairwise

D = 4
LAYERS = {
    "ssd": lambda **k: LayerSpec(SSD, d_state=3, head_dim=2, **k),
    "ssd-groups": lambda **k: LayerSpec(SSD, d_state=2, head_dim=2, n_groups=2, chunk_size=4, **k),
    "s6": lambda **k: LayerSpec(S6, d_state=3, delta_rank=2, **k),
    "s4d": lambda **k: LayerSpec(S4D, d_state=4, **k),
}
every_layer = each("name", LAYERS)


def build(name, bidirectional=False, **settings):
    torch.manual_seed(0)
    # Larger Δ than at initialization, so that states forget within a test's length.
    layer = LAYERS[name](bidirectional=bidirectional, delta_min=0.05, delta_max=0.5)
    block = Mamba2Block(D, layer, **settings).double()
    for norm in (block.norm, block.gated_norm):
        torch.nn.init.normal_(norm.weight, 1, 0.1)
    return block


@each(*pairwise(name=LAYERS, settings=[{}, {"bidirectional": True}], L=[1, 2, 63], rest=False).args)
def test_equals_the_equations_with_every_gradient(name, settings, L):
    contract.check_equations(build(name, **settings), naive.mamba2_block, L)


@every_layer
@each("settings", [{}, {"expand": 3.0, "d_conv": 1}, {"norm": "layer", "prenorm": False, "bias": True}])
def test_steps_equal_the_parallel_form_with_gradients(name, settings):
    settings = settings | ({"expand": 2.0} if "groups" in name else {})
    contract.check_steps(build(name, **settings), sequences(L=9))


@every_layer
@each("cut", [1, 2, 5])
def test_a_prefix_and_its_state_go_on_as_the_whole(name, cut):
    contract.check_prefix(build(name), cut)


@every_layer
@each("bidirectional", [False, True])
def test_padding_never_leaks(name, bidirectional):
    block, x, lengths = build(name, bidirectional), sequences(B=3, L=9), torch.tensor([9, 4, 1])
    x[1, 4:], x[2, 1:] = 1e3, torch.nan
    y = block(x, lengths)
    for i, n in enumerate(lengths.tolist()):
        assert_same(y[i, :n], block(x[i : i + 1, :n])[0])
        assert (y[i, n:] == 0).all()


@every_layer
def test_the_last_state_is_the_one_after_the_last_real_position(name):
    contract.check_last_state(build(name))


@every_layer
@each("bidirectional", [False, True])
def test_a_reset_separates_documents_through_scan_and_convolution(name, bidirectional):
    contract.check_reset(build(name, bidirectional), bidirectional)


@every_layer
def test_chunks_of_one_with_lengths_resets_and_a_state(name):
    contract.check_chunks(build(name))


def test_a_layer_of_ones_own_needs_forward_alone():
    block, x = Mamba2Block(D, Smooth), sequences().float()
    assert block(x, torch.tensor([7, 3])).shape == x.shape
    assert block.layer.mix.in_channels == 2 * D and block.delta_proj is None
    with pytest.raises(ValueError, match="Smooth has no `step`: it cannot run step by step"):
        block.step(x[:, 0], (torch.zeros(2, 8, 3), None))


def test_sizes_and_roles():
    block = Mamba2Block(4, LayerSpec(SSD, d_state=3, head_dim=2, n_groups=3), expand=3, d_conv=3, bias=True)
    assert block.in_proj.weight.shape == (2 * 12 + 2 * 3 * 3, 4) and block.delta_proj.weight.shape == (6, 4)
    assert block.conv1d.weight.shape == (12 + 18, 1, 3) and block.gated_norm.groups == 3
    assert {name for name, _ in block.layer.named_parameters()} == {"A_log", "delta_bias", "D"}
    assert parameter_roles(block) == {
        "norm.weight": "norm", "gated_norm.weight": "norm", "layer.A_log": "recurrent", "layer.delta_bias": "delta",
        "layer.D": "no_decay", "in_proj.weight": "base", "in_proj.bias": "no_decay", "delta_proj.weight": "delta",
        "delta_proj.bias": "delta", "conv1d.weight": "base", "conv1d.bias": "no_decay", "out_proj.weight": "base",
        "out_proj.bias": "no_decay",
    }  # fmt: skip
    assert Mamba2Block(4, S6).in_proj.weight.shape == (16, 4)
    assert isinstance(Mamba2Block(4, S6).final_norm(4), torch.nn.RMSNorm)
    for settings, message in (
        ({"expand": 1.3}, "Mamba2Block expand 1.3: times d_model 4"),
        ({"d_conv": 0}, "d_conv is 0"),
    ):
        with pytest.raises(ValueError, match=message):
            Mamba2Block(4, S6, **settings)


def test_bfloat16_autocast_stays_near_float32():
    for name in LAYERS:
        block, x = build(name).float(), sequences(L=32).float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = block(x)
        assert (low.float() - block(x)).norm() < 0.05 * block(x).norm()


@pytest.mark.slow
def test_compiles_as_one_graph():
    torch._dynamo.reset()
    block, x = build("ssd"), sequences()
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), block(x))
    own, theirs = (torch.autograd.grad(f(x).square().sum(), list(block.parameters())) for f in (block, compiled))
    torch.testing.assert_close(theirs, own)
