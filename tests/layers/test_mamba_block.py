"""Mamba's block around S6, S4D and B2S6: its equations as a loop, states, padding, documents."""

import pytest
import torch

from lra_ssm.layers import B2S6, S4D, S6, SSD, LayerSpec, MambaBlock
from tests.each import each
from tests.helpers import Smooth
from tests.layers import contract_checks as contract
from tests.layers import naive
from tests.layers.contract_checks import assert_same, sequences
from tests.pairwise import pairwise

D = 4
LAYERS = {
    "s6": lambda **k: LayerSpec(S6, d_state=3, delta_rank=2, **k),
    "s4d": lambda **k: LayerSpec(S4D, d_state=4, **k),
    "ssd": lambda **k: LayerSpec(SSD, d_state=3, head_dim=2, **k),
    "b2s6": lambda **k: LayerSpec(B2S6, num_blocks=2, d_state=4, **k),
}
every_layer = each("name", LAYERS)


def build(name, bidirectional=False, **settings):
    torch.manual_seed(0)
    # Larger Δ than at initialization, so that states forget within a test's length.
    layer = LAYERS[name](bidirectional=bidirectional, delta_min=0.05, delta_max=0.5)
    block = MambaBlock(D, layer, **settings).double()
    torch.nn.init.normal_(block.norm.weight, 1, 0.1)
    return block


@each(*pairwise(name=LAYERS, settings=[{}, {"bidirectional": True}, {"glu": True}], L=[1, 2, 63], rest=False).args)
def test_equals_the_equations_with_every_gradient(name, settings, L):
    contract.check_equations(build(name, **settings), naive.mamba_block, L)


@every_layer
@each("settings", [{}, {"expand": 1.5, "d_conv": 1}, {"norm": "layer", "prenorm": False, "bias": True, "glu": True}])
def test_steps_equal_the_parallel_form_with_gradients(name, settings):
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


def test_a_bidirectional_layer_refuses_states():
    block = build("s6", bidirectional=True)
    for call in (
        lambda: block(sequences(), return_last_state=True),
        lambda: block.initial_state(2),
        lambda: block.step(sequences()[:, 0], (torch.zeros(2, 8, 3), None)),
    ):
        with pytest.raises(ValueError, match="S6 is bidirectional"):
            call()


def test_a_layer_of_ones_own_needs_forward_alone_and_is_named_where_it_lacks_something():
    block, x = MambaBlock(D, Smooth), sequences().float()
    assert block(x, torch.tensor([7, 3])).shape == x.shape
    assert block.layer.mix.in_channels == 2 * D
    with pytest.raises(ValueError, match="Smooth.forward takes no `reset`: documents cannot be packed with it"):
        block(x, reset=torch.zeros(2, 7, dtype=torch.bool))
    with pytest.raises(ValueError, match="Smooth.forward takes no `return_last_state`"):
        block(x, return_last_state=True)
    with pytest.raises(ValueError, match="Smooth has no `step`: it cannot run step by step"):
        block.step(x[:, 0], (torch.zeros(2, 8, 3), None))


def test_sizes_and_roles():
    block = MambaBlock(4, LayerSpec(S6, d_state=3), expand=1.5, d_conv=3, bias=True)
    assert block.in_proj.weight.shape == (12, 4) and block.conv1d.weight.shape == (6, 1, 3)
    assert block.layer.A_log.shape == (6, 3) and block.out_proj.weight.shape == (4, 6)
    assert block.optim_roles() == dict.fromkeys(["in_proj.bias", "conv1d.bias", "out_proj.bias"], "no_decay")
    assert MambaBlock(4, S6).optim_roles() == {"conv1d.bias": "no_decay"}
    assert isinstance(MambaBlock(4, S6).final_norm(4), torch.nn.RMSNorm)
    assert MambaBlock(4, S6, prenorm=False).final_norm(4) is None
    for settings, message in (
        ({"expand": 1.3}, "expand 1.3: times d_model 4 it must be a positive whole number"),
        ({"expand": 0}, "expand 0"),
        ({"d_conv": 0}, "d_conv is 0"),
    ):
        with pytest.raises(ValueError, match=message):
            MambaBlock(4, S6, **settings)


def test_bfloat16_autocast_stays_near_float32():
    for name in LAYERS:
        block, x = build(name).float(), sequences(L=32).float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = block(x)
        assert (low.float() - block(x)).norm() < 0.05 * block(x).norm()


@pytest.mark.slow
def test_compiles_as_one_graph():
    torch._dynamo.reset()
    block, x = build("s6"), sequences()
    torch.testing.assert_close(torch.compile(block, backend="eager", fullgraph=True)(x), block(x))


@pytest.mark.slow
def test_what_a_wrapper_or_a_compiled_layer_takes_is_not_refused():
    class Wrapped(torch.nn.Module):
        def __init__(self, d_model: int) -> None:
            super().__init__()
            self.inner = S6(d_model)

        def forward(self, x, lengths=None, **given):
            return self.inner(x, lengths, **given)

    x = sequences().float()
    assert len(MambaBlock(D, Wrapped)(x, return_last_state=True)) == 2
    block = MambaBlock(D, S6)
    block.layer = torch.compile(block.layer, backend="eager")
    y, (taps, state) = block(x, return_last_state=True)
    assert y.shape == x.shape and state.shape == (2, 8, 16)


def test_chunks_of_one_with_lengths_resets_and_a_state():
    contract.check_chunks(build("b2s6"))


@each(("expand", "d_model"), [(2.3, 100), (2.2, 25), (1.1, 50), (0.5, 8)])
def test_fractions_that_floats_only_nearly_hold(expand, d_model):
    assert MambaBlock(d_model, Smooth, expand=expand).out_proj.in_features == round(expand * d_model)


def test_no_number_is_no_expansion():
    with pytest.raises(ValueError, match="expand nan"):
        MambaBlock(4, S6, expand=float("nan"))
