"""Prop. 1 of the deep-linear-SSM paper: its own sum, layer by layer, and simulated noise."""

import pytest
import torch

from lra_ssm.analysis import autocorrelations, latent_variances


def prop_1(R, value):
    """Eq. 2: 1/(1 - λ²) (R(Δ) + Σ_{k≥1} λ^k (R(Δ + k) + R(Δ - k))), R counted as 0 beyond its last lag."""
    lags, T = torch.arange(1 - len(R), len(R)), len(R)
    powers = value ** (lags - torch.arange(T)[:, None]).abs().double()  # of λ, by Δ and by the lag of R
    return powers @ R[lags.abs()] / (1 - value**2)


@pytest.mark.parametrize("eigenvalues", [[0.6], [0.5] * 4, [0.6, -0.4, 0.0, 0.3]])
@pytest.mark.parametrize("rho", [0.0, 0.4])
def test_correlation_through_layers_is_prop_1_applied_repeatedly(eigenvalues, rho):
    expected = [rho ** torch.arange(120, dtype=torch.float64)]
    for value in eigenvalues:
        expected.append(prop_1(expected[-1], value))
    R = autocorrelations(eigenvalues, rho, 20)
    torch.testing.assert_close(R, torch.stack(expected)[:, :20], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(latent_variances(eigenvalues, rho), R[:, 0])


def test_constant_inputs():
    assert latent_variances([0.95, 0.4], 1.0).tolist() == pytest.approx([1, 400, 400 / 0.36])
    near = latent_variances([0.95, 0.4], 1 - 1e-6)
    torch.testing.assert_close(near, latent_variances([0.95, 0.4], 1.0), rtol=1e-3, atol=0)


def test_simulated_noise_has_this_correlation():
    generator, values = torch.Generator().manual_seed(0), (0.9, 0.6)
    x = torch.randn(400, 1200, dtype=torch.float64, generator=generator)
    for value in values:
        y = x.clone()
        for t in range(1, y.shape[1]):
            y[:, t] += value * y[:, t - 1]
        x = y
    x = x[:, 200:]
    measured = torch.stack([(x[:, : 1000 - lag] * x[:, lag:]).mean() for lag in range(0, 30, 5)])
    expected = autocorrelations(values, 0.0, 30)[-1, ::5]
    assert ((measured - expected).abs() < 0.02 * expected[0]).all()


def test_infinite_variances_are_refused():
    for eigenvalues, rho, message in (([1.0], 0.5, r"eigenvalue 1\.0"), ([0.5], 1.5, "rho is 1.5")):
        with pytest.raises(ValueError, match=message):
            autocorrelations(eigenvalues, rho, 3)
