"""Prop. 2 and eq. 5 of the deep-linear-SSM paper against simulation."""

import pytest
import torch

from lra_ssm.analysis import frequency_response, group_delay, group_delay_of, impulse_response, response_of
from lra_ssm.layers import S4D

OMEGA = torch.linspace(0, 3.1, 40, dtype=torch.float64)


def stack(eigenvalues, B, C, u):
    """K diagonal layers one after the other, position by position: u (T,) -> (T,)."""
    for k in range(len(eigenvalues)):
        state, out = torch.zeros_like(B[k]), []
        for value in u:
            state = eigenvalues[k] * state + B[k] * value
            out.append((C[k] * state).sum())
        u = torch.stack(out)
    return u


def test_frequency_response_is_that_of_the_impulse_response():
    generator = torch.Generator().manual_seed(1)
    eigenvalues = torch.rand(3, 4, dtype=torch.float64, generator=generator) * 1.6 - 0.8
    B, C = torch.randn(2, 3, 4, dtype=torch.float64, generator=generator)
    impulse = torch.zeros(300, dtype=torch.float64)
    impulse[0] = 1
    h = stack(eigenvalues, B, C, impulse)
    torch.testing.assert_close(response_of(OMEGA, h), frequency_response(OMEGA, eigenvalues, B, C))


def test_group_delay_at_zero_is_the_sum_of_the_layers():
    values = torch.tensor([[0.9], [0.5], [-0.3]], dtype=torch.float64)
    one = torch.ones_like(values)
    impulse = torch.zeros(600, dtype=torch.float64)
    impulse[0] = 1
    h = stack(values, one, one, impulse)
    expected = 9 + 1 - 0.3 / 1.3
    assert group_delay(values.flatten()) == pytest.approx(expected)
    assert float(group_delay_of(torch.zeros(1, dtype=torch.float64), h)) == pytest.approx(expected)


def test_group_delay_is_the_derivative_of_the_phase():
    omega = OMEGA.clone().requires_grad_()
    values = torch.tensor([[0.9], [0.7]], dtype=torch.float64)
    phase = frequency_response(omega, values).angle()
    (slope,) = torch.autograd.grad(phase.sum(), omega)
    one = torch.ones_like(values)
    impulse = torch.zeros(500, dtype=torch.float64)
    impulse[0] = 1
    torch.testing.assert_close(group_delay_of(OMEGA, stack(values, one, one, impulse)), -slope)


def test_a_pure_delay_is_delayed_by_it():
    h = torch.zeros(20, dtype=torch.float64)
    h[7] = -2
    torch.testing.assert_close(group_delay_of(OMEGA, h), torch.full_like(OMEGA, 7))


def test_of_a_layer():
    torch.manual_seed(0)
    layer = S4D(3, 8, delta_min=0.1, delta_max=0.3).double()
    h = impulse_response(layer, 400, 3, dtype=torch.float64)  # (3, 400, 3)
    own = h.diagonal(dim1=0, dim2=2).T  # (3, 400): channels do not mix
    u = torch.randn(1, 400, 3, dtype=torch.float64)
    u[:, 100:] = 0
    at = torch.fft.rfft(layer(u), dim=1) / torch.fft.rfft(u, dim=1)
    omega = torch.arange(201, dtype=torch.float64) * 2 * torch.pi / 400
    torch.testing.assert_close(response_of(omega, own), at[0].T.detach(), rtol=1e-4, atol=1e-6)
