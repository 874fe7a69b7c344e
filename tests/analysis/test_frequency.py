"""Prop. 2 and eq. 5 of the deep-linear-SSM paper against simulation."""

import pytest
import torch

from lra_ssm.analysis import frequency_response, group_delay, group_delay_of, response_of

OMEGA = torch.linspace(0, 3.1, 40, dtype=torch.float64)


def impulse(eigenvalues, B=None, C=None, length=600):
    """Return the impulse response of K diagonal layers one after the other, position by position: (length,)."""
    B, C = (torch.ones_like(eigenvalues) if x is None else x for x in (B, C))
    u = torch.zeros(length, dtype=torch.float64)
    u[0] = 1
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
    h = impulse(eigenvalues, B, C, 300)
    torch.testing.assert_close(response_of(OMEGA, h), frequency_response(OMEGA, eigenvalues, B, C))


def test_group_delay_is_the_derivative_of_the_phase_and_at_zero_the_sum_of_the_layers():
    values = torch.tensor([[0.9], [0.5], [-0.3]], dtype=torch.float64)
    h, omega = impulse(values), OMEGA.clone().requires_grad_()
    (slope,) = torch.autograd.grad(frequency_response(omega, values).angle().sum(), omega)
    torch.testing.assert_close(group_delay_of(OMEGA, h), -slope)
    expected = 9 + 1 - 0.3 / 1.3
    assert group_delay(values.flatten()) == pytest.approx(expected)
    assert float(group_delay_of(torch.zeros(1, dtype=torch.float64), h)) == pytest.approx(expected)
    delay = torch.zeros(20, dtype=torch.float64)
    delay[7] = -2
    torch.testing.assert_close(group_delay_of(OMEGA, delay), torch.full_like(OMEGA, 7))
