"""Prop. 1 of the deep-linear-SSM paper against its own sum and against simulation."""

import pytest
import torch

from lra_ssm.analysis import autocorrelations, latent_variances, output_autocorrelation


@pytest.mark.parametrize("eigenvalues", [[0.9], [0.9] * 10, [0.95, -0.4, 0.0, 0.7]])
@pytest.mark.parametrize("rho", [0.0, 0.4, 0.95])
def test_correlation_through_layers_is_prop_1_again_and_again(eigenvalues, rho):
    expected = [rho ** torch.arange(3000, dtype=torch.float64)]
    for value in eigenvalues:
        expected.append(output_autocorrelation(expected[-1], value))
    R = autocorrelations(eigenvalues, rho, 50)
    torch.testing.assert_close(R, torch.stack(expected)[:, :50], rtol=1e-9, atol=0)
    torch.testing.assert_close(latent_variances(eigenvalues, rho), R[:, 0])


def test_prop_1_is_the_sum_that_it_says():
    generator, value = torch.Generator().manual_seed(0), 0.8
    R = torch.rand(9, dtype=torch.float64, generator=generator)

    def at(lag):
        return R[abs(lag)] if abs(lag) < 9 else 0.0

    expected = [
        (at(lag) + sum(value**k * (at(lag + k) + at(lag - k)) for k in range(1, 30))) / (1 - value**2)
        for lag in range(9)
    ]
    torch.testing.assert_close(output_autocorrelation(R, value), torch.stack(expected))


def test_inputs_that_are_always_the_same():
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


def test_what_has_no_variance_is_refused():
    with pytest.raises(ValueError, match=r"eigenvalue 1\.0"):
        latent_variances([1.0], 0.5)
    with pytest.raises(ValueError, match="rho is 1.5"):
        autocorrelations([0.5], 1.5, 3)
    with pytest.raises(ValueError, match="eigenvalue -2"):
        output_autocorrelation(torch.ones(3), -2)
