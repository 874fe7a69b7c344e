"""Initial values against the published formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lra_ssm import ops


def test_lin_real_and_inv():
    """inv: M = 2N = 64 real states: the first frequency is (64/pi) 63, the last is (64/pi) (64/63 - 1) > 0."""
    expected = torch.tensor([-0.5 + 1j * math.pi * n for n in range(5)], dtype=torch.complex64)
    torch.testing.assert_close(ops.initialize_A("lin", 5), expected)
    assert torch.equal(ops.initialize_A("real", 4), torch.tensor([-1.0, -2.0, -3.0, -4.0]))
    A = ops.initialize_A("inv", 32)
    assert A.dtype == torch.complex64 and A.shape == (32,) and (A.real == -0.5).all()
    for n, expected in ((0, 63), (1, 64 / 3 - 1), (31, 64 / 63 - 1)):
        assert A.imag[n].item() == pytest.approx(64 / math.pi * expected, rel=1e-5)


@pytest.mark.parametrize("N", [1, 2, 16, 32])
def test_legs(N):
    """The eigenvalues of HiPPO-LegS plus its rank-one term, by a general eigenvalue solver."""
    M = 2 * N
    n = np.arange(M)
    hippo = -np.tril(np.sqrt(np.outer(2 * n + 1, 2 * n + 1)), -1) - np.diag(n + 1)
    p = np.sqrt(np.arange(M) + 0.5)
    eigenvalues = np.linalg.eigvals(hippo + np.outer(p, p))
    assert np.allclose(eigenvalues.real, -0.5)
    expected = np.sort(eigenvalues.imag[eigenvalues.imag > 0])
    A = ops.initialize_A("legs", N)
    assert A.dtype == torch.complex64 and A.shape == (N,)
    assert (A.real == -0.5).all()
    np.testing.assert_allclose(A.imag.numpy(), expected, rtol=1e-5)
    values, V = ops.hippo_legs_normal(N)  # and what they are the eigenvalues of, from one half of the pairs
    torch.testing.assert_close(values.imag, torch.tensor(expected), rtol=1e-9, atol=1e-12)
    whole = 2 * (V @ torch.diag(values) @ V.mH).real
    torch.testing.assert_close(whole, torch.tensor(hippo + np.outer(p, p)), rtol=0, atol=1e-10)


def test_delta_is_log_uniform():
    delta = ops.log_uniform_delta(20_000, 1e-3, 1e-1, generator=torch.Generator().manual_seed(0))
    assert delta.shape == (20_000,) and delta.dtype == torch.float32
    assert delta.min() >= 1e-3 and delta.max() <= 1e-1
    quantiles = torch.quantile(delta.log10(), torch.tensor([0.25, 0.5, 0.75]))
    torch.testing.assert_close(quantiles, torch.tensor([-2.5, -2.0, -1.5]), atol=0.03, rtol=0)
    again = ops.log_uniform_delta(20_000, 1e-3, 1e-1, generator=torch.Generator().manual_seed(0))
    assert torch.equal(delta, again)


@pytest.mark.parametrize("function, arguments, message", [
    (ops.initialize_A, ("linear", 4), "name: 'linear'; expected one of 'lin', 'inv', 'legs', 'real'"),
    *((ops.log_uniform_delta, (4, *ends), "delta_min, delta_max") for ends in ((0.0, 0.1), (0.1, 0.01), (-1.0, 1.0))),
])  # fmt: skip
def test_errors(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(*arguments)


def test_inverse_softplus():
    x = torch.logspace(-8, 1.5, 200, dtype=torch.float64)
    torch.testing.assert_close(F.softplus(ops.inverse_softplus(x), threshold=100), x, rtol=1e-12, atol=0)
