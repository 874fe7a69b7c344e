"""What is specific to each layer, and all wrong settings; test_contract.py has what all layers and blocks share."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import softplus

from lra_ssm import layers
from lra_ssm.layers import B2S6, LRU, RGLRU, S4D, S5, S6, SSD, DeepLinearSSM, Mamba3, StableSSM, parameter_roles
from lra_ssm.ops import hippo_legs_normal
from tests.layers.cases import LAYERS, sequences


def test_s5_starts_as_real_matrices_in_the_basis_of_blocks_of_hippo():
    """Its B and C are one half of what the real system has: with the conjugates they give it back."""
    torch.manual_seed(0)
    unit = S5(40, d_state=48, num_blocks=3)
    A, V = hippo_legs_normal(8)
    torch.testing.assert_close(torch.complex(unit.A_weight, unit.A_imag).to(A), A.repeat(3), rtol=1e-6, atol=0)
    B, C = torch.view_as_complex(unit.B.detach()).to(V), torch.view_as_complex(unit.C.detach()).to(V)[0]
    blocks = torch.block_diag(V, V, V)
    real_B = 2 * (blocks @ B).real  # (48, 40)
    torch.testing.assert_close(blocks.mH @ real_B.to(V), B, rtol=1e-5, atol=1e-6)
    assert real_B.var().item() == pytest.approx(1 / 48, rel=0.1) and real_B.abs().max() < 2.3 * 48**-0.5
    assert C.real.var().item() == pytest.approx(1 / 48, rel=0.15)  # a real and an imaginary part, half of each
    assert unit.log_delta.exp().min() >= 1e-3 and unit.log_delta.exp().max() <= 0.1


@pytest.mark.parametrize(("build", "rank"), [
    (lambda: S4D(8, d_state=32, tie_A=True), 8),
    (lambda: B2S6(8, 1, 32, bias=False, complex_A=False), 1),  # S6
    (lambda: B2S6(8, d_state=32, num_blocks=2, bias=False), 2),
    (lambda: B2S6(8, d_state=32, num_blocks=1), 8),
])  # fmt: skip
def test_how_many_different_numbers_the_channels_compute(build, rank):
    """Yu & Erichson 2025, theorems 1 and 4: the rank of the last outputs over inputs, with Δ fixed and u_L = 1.

    All 8 channels of S6 end in the same quadratic form of the inputs; each block of B2S6, and each channel with its
    bias, has its own.
    """
    fixed = {"D": 0.0, "delta_weight": 0.0, "log_delta": math.log(0.1), "delta_bias": math.log(math.expm1(0.1))}
    for seed in range(3):
        torch.manual_seed(seed)
        layer = build().double()
        for name, weight in layer.named_parameters():
            if name in fixed:
                nn.init.constant_(weight, fixed[name])
            elif name in ("B", "C", "B_weight", "B_bias"):
                nn.init.normal_(weight)
        u = torch.rand(64, 32, 1, dtype=torch.float64)
        u[:, -1] = 1
        with torch.no_grad():
            values = torch.linalg.svdvals(layer(u @ torch.randn(1, 8, dtype=torch.float64))[:, -1])
        assert int((values > 1e-9 * values[0]).sum()) == rank


def test_mamba3_begins_as_in_the_public_code():
    layer = Mamba3(512, d_state=16, head_dim=2)
    step = softplus(layer.delta_bias)
    assert step.min() >= 1e-3 * 0.999 and step.max() <= 0.1001
    assert step.log().mean().exp().item() == pytest.approx(1e-2, rel=0.25)  # log-uniform
    for name in ("B_bias", "C_bias", "B_norm", "C_norm", "D"):
        assert (getattr(layer, name) == 1).all()
    assert layer.B.abs().max() <= 512**-0.5 and layer.B.var().item() == pytest.approx(1 / 512 / 3, rel=0.05)


def test_rglru_begins_with_rates_that_are_uniform():
    """De et al. 2024: a at an open gate, a^c of the paper, is uniform in [0.9, 0.999]; the gates are as public."""
    layer = RGLRU(4096)
    a = (-8 * softplus(layer.decay_weight)).exp()
    assert 0.9 <= a.min() < 0.901 and 0.998 < a.max() <= 0.9991
    assert a.quantile(torch.tensor([0.25, 0.5, 0.75])).tolist() == pytest.approx([0.92475, 0.9495, 0.97425], abs=3e-3)
    assert layer.gate_weight.var().item() == pytest.approx(1 / 512, rel=0.01) and not layer.gate_bias.any()


def test_a_rate_of_one_has_finite_gradients():
    layer = RGLRU(4, num_blocks=1)
    nn.init.constant_(layer.decay_weight, -200)  # a = 1, hence sqrt(1 - a²) = 0
    layer(torch.randn(1, 5, 4)).sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


def test_a_layer_prints_its_arguments():
    assert repr(B2S6(6, num_blocks=3)) == "B2S6(d_model=6, num_blocks=3)"


def test_roles_that_no_shipped_config_tells_apart():
    """tests/test_optimizer_groups.py has the groups of all configs."""
    assert SSD(4, head_dim=2).optim_roles() == {
        "A_log": "recurrent", "delta_bias": "delta", "delta_weight": "delta", "D": "no_decay",
    }  # fmt: skip
    assert StableSSM(4, form="real", bidirectional=True).optim_roles() == {
        "system.eigenvalue_weight": "recurrent", "system.b": "no_decay",
        "system.reverse.eigenvalue_weight": "recurrent", "system.reverse.b": "no_decay",
    }  # fmt: skip
    assert Mamba3(4, head_dim=2).optim_roles() == {
        "delta_bias": "delta", "delta_weight": "delta", "D": "no_decay", "B_norm": "norm", "C_norm": "norm",
    }  # fmt: skip
    assert DeepLinearSSM(4).optim_roles() == {"eigenvalue_weight": "recurrent"}


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_fixed_B_is_1_and_changes_nothing_else(bidirectional):
    learned, fixed = (S4D(6, 6, bidirectional=bidirectional, learn_B=learn_B).double() for learn_B in (True, False))
    names = {name for name, _ in learned.named_parameters()}
    assert {name for name, _ in fixed.named_parameters()} == names - {"B"}
    assert fixed.B.tolist() == [[[1.0, 0.0]] * 3] * 6 and not fixed.B.requires_grad
    fixed.load_state_dict(learned.state_dict())
    torch.testing.assert_close(fixed(sequences(L=63)), learned(sequences(L=63)))
    assert parameter_roles(fixed) == {name: role for name, role in parameter_roles(learned).items() if name != "B"}


DIVIDES = "d_model 4 it must be a positive whole number"


@pytest.mark.parametrize(("name", "d_model", "settings", "message"), [
    ("B2S6", 10, {"num_blocks": 4}, "d_model 10 is not divisible by num_blocks 4"),
    ("B2S6", 8, {"d_state": 5}, "d_state 5 is odd"),
    ("B2S6", 8, {"complex_A": False, "complex_C": True}, "complex_C needs complex_A"),
    ("SSD", 8, {"head_dim": 3}, "SSD d_model 8 is not divisible by head_dim 3"),
    ("SSD", 8, {"head_dim": 2, "n_groups": 3}, r"SSD has 4 heads .*, no multiple of n_groups 3"),
    ("SSD", 8, {"head_dim": 2, "A_min": 2, "A_max": 1}, "SSD A_min 2, A_max 1: expected 0 < A_min <= A_max"),
    ("Mamba3", 8, {"head_dim": 3}, "Mamba3 d_model 8 is not divisible by head_dim 3"),
    ("Mamba3", 8, {"head_dim": 2, "n_groups": 3}, r"Mamba3 has 4 heads .*, no multiple of n_groups 3"),
    ("Mamba3", 8, {"head_dim": 2, "rope_fraction": 1.5}, "rope_fraction is 1.5; it must be from 0 to 1"),
    ("RGLRU", 8, {"num_blocks": 3}, "RGLRU d_model 8 is not divisible by num_blocks 3"),
    ("RGLRU", 8, {"r_max": 1.0}, "r_min 0.9, r_max 1.0: expected 0 < r_min <= r_max < 1"),
    ("S4D", 8, {"d_state": 5}, "d_state 5 is odd"),
    ("S4D", 8, {"discretization": "euler"}, "S4D discretization is 'euler'; it must be one of zoh, bilinear"),
    ("S6", 8, {"parameterization": "best"}, r"eigenvalue -11 is outside the range of best .*, \[-10, 0\)"),
    ("S6", 8, {"delta_rank": 0}, "delta_rank is 0"),
    ("StableSSM", 8, {"form": "real", "delta": 0.0}, "delta is 0.0; it must be greater than 0"),
    ("StableSSM", 8, {"form": "real", "learn_B": False}, "learn_B is false; only form s4d has a B"),
    ("LRU", 8, {"r_min": 0.9, "r_max": 0.5}, "r_min 0.9, r_max 0.5: the ring needs"),
    ("LRU", 8, {"max_phase": 0.0}, "max_phase is 0.0"),
    ("DeepLinearSSM", 8, {"n_layers": 0}, "n_layers 0, d_state 1: both must be at least 1"),
    ("DeepLinearSSM", 8, {"lambda_max": -1.0}, "lambda_min 0.0, lambda_max -1.0: must be finite, in order"),
    ("S5", 6, {"d_state": 40}, "d_state is 40; it must be a multiple of 2 × num_blocks 8"),
    ("LocalConvolution", 6, {"width": 0}, "LocalConvolution width is 0; it must be at least 1"),
    ("Attention", 8, {"n_heads": 3}, "n_heads is 3; it must divide d_model 8"),
    ("Attention", 8, {"n_heads": 4, "n_kv_heads": 3}, "n_kv_heads is 3; it must divide n_heads 4"),
    ("Attention", 8, {"n_heads": 8}, "heads of 1 channels; rotary positions need an even number"),
    ("Attention", 8, {"n_heads": 4, "positions": "sine"}, "is 'sine'; it must be one of rope, learned, none"),
    ("Attention", 8, {"n_heads": 4, "positions": "learned"}, "max_length belongs to positions='learned'"),
    ("Attention", 8, {"n_heads": 4, "window": 0}, "window is 0; it must be at least 1"),
    ("TransformerBlock", 4, {"layer": S4D, "mlp_factor": 0.3}, f"TransformerBlock mlp_factor 0.3: times {DIVIDES}"),
    ("S5Block", 4, {"layer": S4D, "norm": "group"}, "norm is 'group'; it must be one of batch, batch_"),
    ("S5Block", 4, {"layer": S4D, "norm_momentum": 1.5}, "norm_momentum is 1.5"),
    ("MambaBlock", 4, {"layer": S6, "expand": 1.3}, f"MambaBlock expand 1.3: times {DIVIDES}"),
    ("TiedDropout", 1, {}, "dropout is 1"),
])  # fmt: skip
def test_wrong_settings_are_named(name, d_model, settings, message):
    with pytest.raises(ValueError, match=message):
        getattr(layers, name)(d_model, **settings)


@pytest.mark.parametrize("form", ["exp", "softplus", "best", "relu", "direct", "clip"])
@pytest.mark.parametrize("name", ["s4d", "s6", "ssd", "b2s6", "b2s6-real", "s5", "lru", "stable-real"])
def test_all_parameterizations_start_from_the_same_system_and_train(name, form):
    x, outputs = sequences(L=20).float(), []
    for more in ({}, {"parameterization": form}):
        torch.manual_seed(0)
        layer = LAYERS[name](bidirectional=True, **more)
        outputs.append(layer(x))
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-5)
    outputs[1].square().sum().backward()
    rates = ("A_log", "A_weight", "eigenvalue_weight", "modulus_weight")
    grads = {key: p.grad for key, p in layer.named_parameters() if key.rpartition(".")[2] in rates}
    assert len(grads) == (1 if name in ("s4d", "s5") else 2) and all(grad.abs().sum() > 0 for grad in grads.values())
    assert {part.parameterization.name for part in layer.modules() if hasattr(part, "parameterization")} == {form}


def test_initial_values_are_the_documented_ones():
    torch.manual_seed(0)
    s6, ssd = S6(64), SSD(4096, d_state=4, head_dim=8)
    assert s6.delta_up.shape == (64, 4) and ssd.A_log.shape == ssd.D.shape == (512,) and (ssd.D == 1).all()
    for delta in (softplus(s6.delta_bias), softplus(ssd.delta_bias)):
        assert 1e-3 * 0.99 <= delta.min() and delta.max() <= 1e-1 * 1.01
        assert abs(delta.log().std() - 1.33) < 0.2  # log-uniform over two decades: 4.6 / sqrt(12)
    torch.testing.assert_close(s6.A_log.exp(), torch.arange(1.0, 17).repeat(64, 1))
    A = ssd.A_log.exp()
    assert A.min() >= 1 and A.max() <= 16 and abs(A.mean() - 8.5) < 0.6  # uniform
    for weight in (ssd.B, ssd.C, ssd.delta_weight):  # as nn.Linear's
        assert 0.99 * 4096**-0.5 < weight.abs().max() <= 4096**-0.5 and weight.min() < 0
    b2s6 = B2S6(64, d_state=32)
    assert (torch.view_as_complex(b2s6.B_bias) == 1).all()
    assert b2s6.B_weight.shape == (8, 8, 32) and b2s6.C.shape == (8, 8, 16)
    real = StableSSM(4, d_state=3, form="real").system
    timescales = 1 / (1 - real.parameterization.f(real.eigenvalue_weight))
    torch.testing.assert_close(timescales, torch.tensor([2, 2000**0.5, 1000]), rtol=1e-3, atol=0)
    stable = StableSSM(8, d_state=8).system
    torch.testing.assert_close(stable.A_log.square(), torch.full((8, 4), 1.9))  # -1/(w² + 0.1) = -1/2
    assert torch.equal(stable.A_imag, S4D(8, d_state=8, init="lin").A_imag)
    s4d = S4D(64)
    torch.testing.assert_close(torch.view_as_complex(s4d.C).abs().square().mean(), torch.tensor(1.0), rtol=0.1, atol=0)


def test_lru_starts_on_its_ring():
    torch.manual_seed(0)
    layer = LRU(32, d_state=4000, r_min=0.4, r_max=0.8, max_phase=1.0)
    eigenvalues = layer.eigenvalues()
    modulus, phase = eigenvalues.abs(), eigenvalues.angle()
    assert 0.4 <= modulus.min() and modulus.max() <= 0.8 and 0 <= phase.min() and phase.max() <= 1.0
    # equal density over the ring: |λ|² is uniform
    torch.testing.assert_close(modulus.square().mean(), torch.tensor((0.16 + 0.64) / 2), rtol=0.02, atol=0)
    torch.testing.assert_close(phase.mean(), torch.tensor(0.5), rtol=0.04, atol=0)
    torch.testing.assert_close(layer.gamma_log.exp(), (1 - modulus.square()).sqrt())
    assert (layer.B.square().sum(-1).mean() * 32 - 1).abs() < 0.02 and (layer.C.square().mean() * 4000 - 1).abs() < 0.02


@pytest.mark.parametrize(("trained", "fixed"), [("A", "BC"), ("AB", "C"), ("AC", "B"), ("ABC", "")])
def test_what_a_deep_linear_layer_does_not_train_is_one(trained, fixed):
    layer = DeepLinearSSM(2, d_state=3, trained=trained)
    assert {name for name, _ in layer.named_buffers()} == set(fixed)
    assert all((getattr(layer, name) == 1).all() for name in fixed)
