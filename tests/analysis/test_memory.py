"""Impulse response and memory function against the kernels of linear layers; effective memory length."""

import pytest
import torch
from torch import nn

from lra_ssm.analysis import by_lag, effective_memory_length, impulse_response, memory_function
from lra_ssm.layers import S4D, S6
from lra_ssm.ops import as_complex, eigenvalues, s4d_kernel
from tests.helpers import Smooth


def layer_and_kernel(D=3, L=40):
    torch.manual_seed(0)
    layer = S4D(D, 8).double()
    A = eigenvalues(layer.A_log, layer.A_imag)
    kernel = s4d_kernel(layer.log_delta.exp(), A, as_complex(layer.B), as_complex(layer.C[0]), L).detach()
    kernel[:, 0] += layer.D.detach()
    return layer, kernel  # (D, L)


@pytest.mark.parametrize("amplitude", [1.0, -30.0])
def test_impulse_response_of_s4d_is_its_kernel(amplitude):
    layer, kernel = layer_and_kernel()
    background = torch.randn(40, 3, dtype=torch.float64)
    h = impulse_response(layer, 40, 3, amplitude=amplitude, background=background)
    torch.testing.assert_close(h, torch.diag_embed(kernel.T).transpose(0, 1))
    later = impulse_response(layer, 40, 3, channels=[1], position=10, dtype=torch.float64)
    torch.testing.assert_close(later[0, 10:, 1], kernel[1, :30])
    assert later[0, :10].abs().max() < 1e-15


def test_impulse_response_of_s6_depends_on_the_background_and_of_a_convolution_is_short():
    torch.manual_seed(0)
    h, layer = impulse_response(Smooth(2).eval(), 9, 2, position=4), S6(4)
    assert h[:, 3:6].abs().min() > 0 and not h[:, :3].any() and not h[:, 6:].any()
    at_rest = impulse_response(layer, 20, 4, amplitude=1e-3)
    moving = impulse_response(layer, 20, 4, amplitude=1e-3, background=torch.randn(20, 4))
    assert (at_rest - moving).abs().max() > 0.01 * moving.abs().max()


def test_memory_function_of_a_linear_layer_is_its_impulse_response():
    layer, kernel = layer_and_kernel(D=1)
    M = memory_function(layer, torch.tensor([[1.0], [-2.0], [1e9]], dtype=torch.float64), 40)
    torch.testing.assert_close(M, kernel[0].abs(), rtol=1e-6, atol=1e-9)
    half = memory_function(layer, torch.ones(1, 1, dtype=torch.float64), 40)
    torch.testing.assert_close(half, kernel[0].abs() / 2)


def test_memory_function_subtracts_the_response_to_zeros():
    class Biased(nn.Module):
        def forward(self, x):
            return x.cumsum(1).tanh() + torch.arange(x.shape[1], dtype=x.dtype)[:, None]

    M = memory_function(Biased(), torch.tensor([[1.0]]), 5)
    sums = torch.arange(1, 6).float().tanh()
    torch.testing.assert_close(M, torch.diff(sums, prepend=torch.zeros(1)) / 2, rtol=1e-3, atol=1e-6)


def test_effective_memory_length():
    weights = torch.tensor([[1.0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 1], [8, 1, 0.5, 0.5]])
    assert effective_memory_length(weights).tolist() == [1, 4, 4, 3]
    assert effective_memory_length(weights, 0.75).tolist() == [1, 3, 4, 1]
    decay = 0.9 ** torch.arange(2000, dtype=torch.float64)
    assert effective_memory_length(decay) == 29  # 1 - 0.9^n >= 0.95 from n = 28.4 on


def test_by_lag_adds_both_sides():
    assert by_lag(torch.tensor([1, 2, 4, 8, 16, 32]), 2).tolist() == [4, 10, 17, 32]
    assert by_lag(torch.tensor([1, 2, 4]), 2).tolist() == [4, 2, 1]
