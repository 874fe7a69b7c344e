"""What is specific to B2S6; test_contract.py has what all layers share."""

import math

import pytest
import torch

from lra_ssm.layers import B2S6, S4D
from tests.layers import naive
from tests.layers.cases import sequences


@pytest.mark.parametrize("L", [1, 2, 63])
def test_one_real_block_without_bias_is_the_papers_s6(L):
    """Outputs, last state, and the gradients of both in the input and in every parameter."""
    torch.manual_seed(0)
    layer = B2S6(6, num_blocks=1, d_state=3, bias=False, complex_A=False, delta_min=0.05, delta_max=0.5).double()
    assert layer.A_log.exp().tolist() == pytest.approx([1, 2, 3])  # S4D-Real
    x = sequences(L=L).requires_grad_()
    A, w, b = -layer.A_log.exp(), layer.delta_weight[0], layer.delta_bias
    expected, last = naive.paper_s6(A, w, b, layer.B_weight[0].T, layer.C[0], x)
    expected = expected + layer.D * x  # our skip, which the paper leaves out
    y, state = layer(x, return_last_state=True)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(state, last)
    inputs = {"x": x, **dict(layer.named_parameters())}
    assert inputs.keys() == {"x", "A_log", "delta_weight", "delta_bias", "B_weight", "C", "D"}
    for ours, theirs in ((y, expected), (state, last)):
        slopes = torch.cos(theirs.detach())
        got, wanted = (
            torch.autograd.grad((out * slopes).sum(), list(inputs.values()), retain_graph=True, materialize_grads=True)
            for out in (ours, theirs)
        )
        for name, one, other in zip(inputs, got, wanted, strict=True):
            torch.testing.assert_close(one, other, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize(("name", "rank"), [("S4D", 8), ("S6", 1), ("B2S6 blocks", 2), ("B2S6 bias", 8)])
def test_how_many_different_numbers_the_channels_compute(name, rank):
    """Theorems 1 and 4: the rank of the last outputs over inputs, with Δ fixed, u_L = 1 and 8 channels.

    All channels of S6 end in the same quadratic form of the inputs; each block of B2S6, and each channel with its bias,
    has its own.
    """
    for seed in range(3):
        torch.manual_seed(seed)
        layer = {
            "S4D": lambda: S4D(8, d_state=32, tie_A=True),
            "S6": lambda: B2S6(8, 1, 32, bias=False, complex_A=False),
            "B2S6 blocks": lambda: B2S6(8, d_state=32, num_blocks=2, bias=False),
            "B2S6 bias": lambda: B2S6(8, d_state=32, num_blocks=1),
        }[name]().double()
        fixed = {"D": 0.0, "delta_weight": 0.0, "log_delta": math.log(0.1), "delta_bias": math.log(math.expm1(0.1))}
        for parameter, weight in layer.named_parameters():
            if parameter in fixed:
                torch.nn.init.constant_(weight, fixed[parameter])
            elif parameter in ("B", "C", "B_weight", "B_bias"):
                torch.nn.init.normal_(weight)
        u = torch.rand(64, 32, 1, dtype=torch.float64)
        u[:, -1] = 1
        with torch.no_grad():
            values = torch.linalg.svdvals(layer(u @ torch.randn(1, 8, dtype=torch.float64))[:, -1])
        assert int((values > 1e-9 * values[0]).sum()) == rank
