"""Prop. 2 and eq. 5 of the deep-linear-SSM paper against simulation."""

import pytest
import torch

from lra_ssm.analysis import frequency_response, group_delay, group_delay_of, response_of
from tests.ops.test_deep_linear import run_stack

OMEGA = torch.linspace(0, 3.1, 40, dtype=torch.float64)


def impulse(eigenvalues, B, C):
    """Return the impulse response of K diagonal layers one after the other, position by position: (600,)."""
    return run_stack(eigenvalues, B, C, torch.eye(600, dtype=torch.float64)[0])[0]


def test_frequency_response_is_that_of_the_impulse_response():
    generator = torch.Generator().manual_seed(1)
    eigenvalues = torch.rand(3, 4, dtype=torch.float64, generator=generator) * 1.6 - 0.8
    B, C = torch.randn(2, 3, 4, dtype=torch.float64, generator=generator)
    h = impulse(eigenvalues, B, C)
    torch.testing.assert_close(response_of(OMEGA, h), frequency_response(OMEGA, eigenvalues, B, C))


def test_group_delay_is_the_derivative_of_the_phase_and_at_zero_the_sum_of_the_layers():
    values = torch.tensor([[0.9], [0.5], [-0.3]], dtype=torch.float64)
    ones, omega = torch.ones_like(values), OMEGA.clone().requires_grad_()
    h = impulse(values, ones, ones)
    (slope,) = torch.autograd.grad(frequency_response(omega, values).angle().sum(), omega)
    torch.testing.assert_close(group_delay_of(OMEGA, h), -slope)
    expected = 9 + 1 - 0.3 / 1.3
    assert group_delay(values.flatten()) == pytest.approx(expected)
    assert float(group_delay_of(torch.zeros(1, dtype=torch.float64), h)) == pytest.approx(expected)
    delay = torch.zeros(20, dtype=torch.float64)
    delay[7] = -2
    torch.testing.assert_close(group_delay_of(OMEGA, delay), torch.full_like(OMEGA, 7))
