"""B2S6's eq. 6, theorems 2, 3 and 5, and StableSSM's gradient over weight."""

import math

import pytest
import torch
from torch import nn

from lra_ssm.analysis import (
    delta_gradient_ratios,
    delta_gradients,
    gradient_over_weight,
    jacobian_norms,
    relative_gradient,
)
from lra_ssm.layers import B2S6, S4D, S6, LayerSpec
from lra_ssm.models import Classifier
from tests.helpers import Smooth

NETWORK = Classifier(LayerSpec(S6), num_classes=3, d_input=4, d_model=8, n_layers=2).eval()


@pytest.mark.parametrize("layer", [S6(4), S4D(4, bidirectional=True), Smooth(4), NETWORK])
@pytest.mark.parametrize("position", [-1, 3])
def test_relative_gradient_against_the_whole_jacobian(layer, position):
    layer, x = layer.double(), torch.randn(2, 9, 4, dtype=torch.float64)
    found = relative_gradient(layer, x, position)
    at = () if layer is NETWORK else (position,)
    for row in range(2):
        J = torch.autograd.functional.jacobian(lambda u: layer(u[None])[(0, *at)], x[row])  # (outputs, 9, 4)
        norms = J.square().sum((0, 2)).sqrt()
        torch.testing.assert_close(found[row], norms / norms.sum())
        torch.testing.assert_close(jacobian_norms(layer, x, position)[row], norms)


def test_probes_estimate_the_norm():
    torch.manual_seed(0)
    layer, x = S6(64).double(), torch.randn(1, 20, 64, dtype=torch.float64)
    exact = jacobian_norms(layer, x)
    guess = jacobian_norms(layer, x, probes=32, generator=torch.Generator().manual_seed(0))
    assert (guess / exact - 1).abs().max() < 0.5 and (guess / exact).mean() == pytest.approx(1, abs=0.1)
    torch.testing.assert_close(jacobian_norms(layer, x, probes=64), exact)  # as many as there are outputs: exact


def shares(layer, sign, scales, d=4, L=9, k0=4):
    """Return S_k before, at and after an input at two scales, and the slopes of their logarithms: (2, 3), (3,)."""
    x, found = 0.3 * torch.randn(1, L, d, dtype=torch.float64), []
    for c in scales:
        x[:, k0] = sign * c
        S = relative_gradient(layer, x)[0]
        found.append(torch.stack([S[:k0].max(), S[k0], S[k0 + 1 :].sum()]))
    return torch.stack(found), ((found[1] / found[0]).log() / math.log(scales[1] / scales[0])).tolist()


def test_theorem_2_of_s6_and_s4d_does_not_depend_on_its_inputs():
    torch.manual_seed(3)
    layer, scales = B2S6(4, 1, 4, bias=False, complex_A=False, delta_min=0.05, delta_max=0.1).double(), (300, 1000)
    layer.delta_weight.data.fill_(0.25)  # wᵀu has the sign of u
    (grows, slopes), (ignored, slopes_ignored) = shares(layer, 1.0, scales), shares(layer, -1.0, scales)
    assert grows[1, 0] < 1e-30  # before a large input with wᵀu > 0 everything is forgotten
    assert slopes[1] == pytest.approx(-1, abs=0.05) and grows[1, 2] > 0.9
    assert ignored[1, 1] < 1e-30  # one with wᵀu < 0 is not seen
    assert slopes_ignored[0] == pytest.approx(0, abs=0.05) and ignored[1, 2] > 0.1
    of_s4d, _ = shares(S4D(4, 8).double(), 1.0, (1, 1000))
    torch.testing.assert_close(of_s4d[0], of_s4d[1])


def test_theorem_5_of_b2s6():
    torch.manual_seed(3)
    layer = B2S6(4, num_blocks=2, d_state=4, delta_min=0.05, delta_max=0.1).double()
    layer.delta_weight.data.copy_(torch.tensor([[0.25, 0.25], [-0.25, -0.25]]))  # one block of either sign
    found, (before, at, _) = shares(layer, 1.0, (3e3, 1e4))
    # The theorem bounds them: no faster than any power, as S6's fall.
    assert -2.1 < before < 0.1 and -1.1 < at < 0.1 and found[1, 2] > 0.01
    assert found[1, 0] > 1e-12


def mean_ratios(trials, count, L, scale=1.0, bias=-4.6, n=4):
    """Return the mean of both ratios of gradients over random units (A, B, C) and `count` normal inputs: (2,)."""
    torch.manual_seed(0)
    u = scale * torch.randn(count, L, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return torch.tensor([delta_gradient_ratios(u, *unit(n), bias) for _ in range(trials)]).mean(0)


def unit(n=4):
    A = torch.complex(-torch.rand(n, dtype=torch.float64) - 0.1, torch.randn(n, dtype=torch.float64))
    return A, *torch.randn(2, n, dtype=torch.complex128)


def test_theorem_3_by_scale_and_by_length():
    growth = (mean_ratios(5, 20, 100, scale=10) / mean_ratios(5, 20, 100)).log10().tolist()
    assert growth == pytest.approx([3, 2], abs=1e-6)  # exactly: both gradients are powers of the input at w = 0
    short, long = (mean_ratios(3, 40, L, bias=-math.log(L))[1] for L in (50, 1600))  # L exp(b) is 1
    assert math.log(long / short, 32) == pytest.approx(0.5, abs=0.12)


def test_delta_gradients_are_derivatives():
    torch.manual_seed(0)
    (A, B, C), u = unit(), torch.randn(3, 30, dtype=torch.float64)

    def outputs(b, w):
        x4 = x6 = torch.zeros(3, len(A), dtype=torch.complex128)
        for k in range(30):
            now = u[:, k, None]
            x4 = (b.exp() * A).exp() * x4 + ((b.exp() * A).exp() - 1) / A * B * now
            delta = nn.functional.softplus(w * now + b)
            x6 = (delta * A).exp() * x6 + ((delta * A).exp() - 1) / A * B * now * now
        return (x4 @ C).real, ((u[:, -1, None] * x6) @ C).real

    found = delta_gradients(u, A, B, C, -2.0, 0.3)
    b_and_w = tuple(torch.tensor([-2.0, 0.3], dtype=torch.float64))
    (of_s4d, _), (by_b, by_w) = torch.autograd.functional.jacobian(outputs, b_and_w)
    torch.testing.assert_close(found, (of_s4d, by_w, by_b))


def test_gradient_over_weight():
    module = nn.Linear(2, 1)
    module.weight.data = torch.tensor([[3.0, 0.0]])
    module.bias.data.zero_()
    module.weight.grad, module.bias.grad = torch.tensor([[6.0, 5.0]]), torch.ones(1)
    found = gradient_over_weight(module)
    assert set(found) == {"weight"}  # of a weight that is all 0 there is no ratio
    assert found["weight"].largest == 2 and found["weight"].norm == pytest.approx(61**0.5 / 3)
    assert gradient_over_weight(nn.Linear(2, 2)) == {}
