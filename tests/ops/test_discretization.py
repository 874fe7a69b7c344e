"""Discretizations against their formulas in float64 and their limits, with their gradients."""

from __future__ import annotations

import math

import pytest
import torch

from lra_ssm.ops import bilinear, bilinear_as_zoh, zoh
from lra_ssm.ops.discretization import SERIES_RADIUS


def phi1(z: torch.Tensor, derivative: bool = False) -> torch.Tensor:
    """(exp(z) - 1)/z or its derivative in double: 30 terms of the Taylor series below 1, the quotient above."""
    z = z.to(torch.complex128 if z.is_complex() else torch.float64)
    near, far = torch.where(z.abs() < 1, z, 0), torch.where(z.abs() < 1, 1, z)
    quotient = (torch.exp(far) - 1) / far
    if derivative:
        series = sum(float(k + 1) / math.factorial(k + 2) * near**k for k in range(30))
        return torch.where(z.abs() < 1, series, (torch.exp(far) - quotient) / far)
    return torch.where(z.abs() < 1, sum(1.0 / math.factorial(k + 1) * near**k for k in range(30)), quotient)


def sample_A(complex_A: bool, dtype: torch.dtype) -> torch.Tensor:
    """0, and magnitudes 1e-300 (or what the dtype holds) .. 6, positive and negative, in many directions."""
    tiniest = -300 if dtype == torch.float64 else -37
    exponents = torch.cat([torch.linspace(tiniest, -20, 10), torch.linspace(-19.5, 0.77, 100)]).double()
    magnitude = torch.cat([torch.zeros(1, dtype=torch.float64), 10**exponents])
    angle = torch.linspace(1.6, 4.6, magnitude.numel(), dtype=torch.float64)
    if complex_A:
        return torch.polar(magnitude, angle).to(dtype.to_complex())
    return (magnitude * torch.sign(torch.cos(7 * angle))).to(dtype)


@pytest.mark.parametrize("dtype, rtol", [(torch.float64, 2e-15), (torch.float32, 1e-6)])
@pytest.mark.parametrize("complex_A", [False, True])
def test_zoh_is_exact_as_A_goes_to_zero(complex_A, dtype, rtol):
    """Values and gradients, entry by entry, to a few roundings."""
    A = sample_A(complex_A, dtype).requires_grad_()
    delta = torch.tensor([[1e-3], [0.05], [1.0]], dtype=dtype, requires_grad=True)
    A_bar, B_bar = zoh(delta, A)
    wide_delta = delta.detach().double()
    z = wide_delta * A.detach()
    truth = wide_delta * phi1(z)
    assert ((B_bar - truth).abs() <= rtol * truth.abs()).all()
    assert ((A_bar - torch.exp(z)).abs() <= 3 * rtol * torch.exp(z).abs()).all()
    d_A = torch.autograd.grad(B_bar, A, torch.ones_like(B_bar), retain_graph=True)[0]
    want = (wide_delta**2 * phi1(z, derivative=True)).conj()
    scale = (wide_delta**2 * phi1(z, derivative=True).abs()).sum(0)
    # Above the series' radius the quotient loses up to 1/radius.
    assert ((d_A - want.sum(0)).abs() <= 2 * rtol / SERIES_RADIUS * scale).all()
    d_delta = torch.autograd.grad(B_bar, delta, torch.ones_like(B_bar))[0]
    assert torch.allclose(d_delta.double(), torch.exp(z).real.sum(1, keepdim=True), rtol=10 * rtol)


@pytest.mark.parametrize("complex_A", [False, True])
@pytest.mark.parametrize("rule", [zoh, bilinear])
def test_gradcheck(rule, complex_A):
    A = torch.tensor([-0.3, -2.0, -1e-3, 0], dtype=torch.float64)
    A = torch.complex(A, torch.tensor([0.1, 3.0, 2e-3, 0], dtype=torch.float64)) if complex_A else A
    delta = torch.tensor([[0.5], [0.9]], dtype=torch.float64)
    assert torch.autograd.gradcheck(rule, (delta.requires_grad_(), A.requires_grad_()))


@pytest.mark.parametrize("complex_A", [False, True])
def test_values(complex_A):
    A = sample_A(complex_A, torch.float64)
    A = A[A.abs() > 1e-2]
    delta = torch.tensor([[0.1], [1.3]], dtype=torch.float64)
    z, steps = delta * A, delta.expand(2, len(A)).to(A.dtype)
    torch.testing.assert_close(zoh(delta, A), (torch.exp(z), (torch.exp(z) - 1) / A))
    torch.testing.assert_close(tuple(x * (1 - z / 2) for x in bilinear(delta, A)), (1 + z / 2, steps))


@pytest.mark.parametrize("complex_A", [False, True])
def test_bilinear_as_zero_order_hold(complex_A):
    """Values and every gradient, from A = 0 over the series' radius to A_bar < 0; at A_bar = 0 to 1e-7."""
    A = torch.tensor([0, -1e-9, -1e-5, -1e-3, -0.3, -3.9, -9], dtype=torch.float64)
    A = torch.complex(A, torch.tensor([0, 1e-9, 3e-5, 0.5, -30, 0, 7], dtype=torch.float64)) if complex_A else A
    delta = torch.tensor([[0.01], [0.5]], dtype=torch.float64)

    def through_zoh(delta, A):
        A_prime, factor = bilinear_as_zoh(delta, A)
        A_bar, B_bar = zoh(delta, A_prime)
        return A_bar, factor * B_bar

    def with_gradients(rule):
        inputs = delta.clone().requires_grad_(), A.clone().requires_grad_()
        generator = torch.Generator().manual_seed(0)
        values = [x.to(torch.complex128) for x in rule(*inputs)]
        loss = sum((x * torch.randn(2, 7, dtype=x.dtype, generator=generator)).sum().real for x in values)
        return *values, *torch.autograd.grad(loss, inputs)

    torch.testing.assert_close(with_gradients(through_zoh), with_gradients(bilinear), rtol=1e-9, atol=1e-12)
    assert (bilinear(delta, A)[0].real < 0).any()
    pole = torch.tensor([2.0], dtype=torch.float64), torch.tensor([-1.0], dtype=torch.float64).to(A.dtype)
    torch.testing.assert_close(through_zoh(*pole), bilinear(*pole), rtol=1e-7, atol=1e-7, check_dtype=False)
    single = bilinear_as_zoh(delta.float(), A.to(torch.complex64))
    assert all(x.dtype == torch.complex64 for x in single)
    torch.testing.assert_close(single, bilinear_as_zoh(delta, A), rtol=1e-5, atol=1e-5, check_dtype=False)


def test_half_precision_and_broadcasting():
    delta, A = torch.rand(2, 5, 3, 1, dtype=torch.bfloat16), -torch.rand(3, 4, dtype=torch.bfloat16)
    for rule in (zoh, bilinear):
        A_bar, B_bar = rule(delta, A)
        assert A_bar.shape == B_bar.shape == (2, 5, 3, 4)
        assert A_bar.dtype == B_bar.dtype == torch.bfloat16
    assert zoh(delta.float(), A.to(torch.complex128))[1].dtype == torch.complex128


@pytest.mark.parametrize("rule", [zoh, bilinear, bilinear_as_zoh])
def test_errors(rule):
    with pytest.raises(ValueError, match="A: dtype torch.int64; expected a real or complex floating dtype"):
        rule(torch.zeros(2), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"delta: shape \(2,\) does not broadcast against A of shape \(3,\)"):
        rule(torch.zeros(2), torch.zeros(3))
