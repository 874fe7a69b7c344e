"""K linear layers, the one layer that equals them, and its eigenbasis: to 1e-10 in float64."""

import pytest
import torch

from lra_ssm.layers import DeepLinearSSM
from lra_ssm.ops.deep_linear import diagonal, eigenvectors, one_layer


def stack(K, N):
    """Distinct eigenvalues of both signs, and any B and C."""
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(K * N, generator=generator)
    rates = torch.linspace(-0.6, 0.97, K * N, dtype=torch.float64)[order].reshape(K, N)
    return rates, *torch.randn(2, K, N, dtype=torch.float64, generator=generator)


def run_one(A, B, C, u):
    """A layer, its A a matrix or diagonal: (y (T,), states)."""
    state, states = torch.zeros_like(B), []
    for value in u:
        state = (A @ state if A.dim() == 2 else A * state) + B * value
        states.append(state)
    return torch.stack(states) @ C, torch.stack(states)


def run_stack(rates, B, C, u):
    """Eq. 6, one layer after the other: (y (T,), states (T, K, N))."""
    every = []
    for layer in zip(rates, B, C, strict=True):
        u, states = run_one(*layer, u)
        every.append(states)
    return u, torch.stack(every, 1)


def assert_equal(a, b):
    error, size = (a - b).abs().max().item(), b.abs().max().item()
    assert error <= 1e-10 * max(1.0, size)


@pytest.mark.parametrize(("K", "N"), [(1, 1), (1, 3), (2, 1), (4, 1), (3, 2), (6, 4), (12, 1)])
def test_one_layer_has_the_outputs_and_states_of_the_stack_and_so_has_its_eigenbasis(K, N):
    layers, u = stack(K, N), torch.randn(400, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y, states = run_stack(*layers, u)
    A, B, C = one_layer(*layers)
    got, own = run_one(A, B, C, u)
    assert_equal(got, y)
    assert_equal(own, states.flatten(1))
    P, rates = eigenvectors(*layers), layers[0].flatten()
    scale = P.abs().amax(0)  # 12 layers of one state: entries up to 1e8
    assert ((A @ P - P * rates).abs() <= 1e-10 * scale).all()
    torch.testing.assert_close(C @ P, torch.ones_like(rates))
    system = diagonal(*layers)
    assert system.A.tolist() == rates.tolist()
    if K <= 4:  # else P is ill-conditioned
        assert_equal(run_one(*system, u)[0], y)


def test_one_layer_is_equation_8_where_b_and_c_are_1():
    rates = torch.tensor([0.9, 0.4, 0.7], dtype=torch.float64)[:, None]
    A, B, C = one_layer(rates, torch.ones_like(rates), torch.ones_like(rates))
    assert A.tolist() == [[0.9, 0.0, 0.0], [0.9, 0.4, 0.0], [0.9, 0.4, 0.7]]
    assert B.tolist() == [1.0, 1.0, 1.0] and C.tolist() == [0.0, 0.0, 1.0]


def test_equations_10_and_11_with_their_signs_put_right():
    """P_ik = Π_{m>i} (λ_k - λ_m)/λ_k for i >= k, else 0. In print are S P, but for one entry, and P⁻¹ S with
    S = diag(1, -1, 1, 1)."""
    a, b, c, d = values = torch.tensor([0.9, 0.5, -0.3, 0.7], dtype=torch.float64)
    ones = torch.ones(4, 1, dtype=torch.float64)
    P, S = eigenvectors(values[:, None], ones, ones), torch.diag(torch.tensor([1.0, -1, 1, 1], dtype=torch.float64))
    for i in range(4):
        assert_equal(P[i], ((values - values[i + 1 :, None]) / values).prod(0) * (torch.arange(4) <= i))
    printed_P = [
        [(a - b) * c * (d - a) / a**3 - (a * a - a * b - a * d + b * d) / a**2, 0, 0, 0],
        [-(a * a - a * c - a * d + c * d) / a**2, -(b * b - b * c - b * d + c * d) / b**2, 0, 0],
        [-(d - a) / a, -(d - b) / b, -(d - c) / c, 0],
        [1, 1, 1, 1],
    ]
    differs = (torch.tensor(printed_P, dtype=torch.float64) - S @ P).abs() > 1e-9
    assert differs.nonzero().tolist() == [[0, 0]]
    printed_inverse = [
        [a**3 / ((a - b) * (a - c) * (a - d)), 0, 0, 0],
        [-a * b**2 / ((a - b) * (b - c) * (b - d)), -(b**2) / ((b - c) * (b - d)), 0, 0],
        [-a * c**2 / ((a - c) * (c - b) * (c - d)), b * c / ((b - c) * (c - d)), c / (c - d), 0],
        [-a * d**2 / ((a - d) * (d - b) * (d - c)), b * d / ((b - d) * (d - c)), -c / (c - d), 1],
    ]
    assert_equal(torch.tensor(printed_inverse, dtype=torch.float64), torch.linalg.inv(P) @ S)


def test_the_weights_of_the_modes():
    """P⁻¹ B = Π_{m≠i} λ_i/(λ_i - λ_m): proportional to λ, inversely to the gaps (section 3.3)."""
    rates = torch.tensor([0.9, 0.2, 0.6, 0.4, 0.75], dtype=torch.float64)
    ones = torch.ones(5, 1, dtype=torch.float64)
    gaps = torch.where(torch.eye(5, dtype=torch.bool), rates[:, None], rates[:, None] - rates)
    assert_equal(diagonal(rates[:, None], ones, ones).B, (rates[:, None] / gaps).prod(-1))


@pytest.mark.parametrize("normalize", [False, True])
def test_the_layer_equals_its_one_layer(normalize):
    torch.manual_seed(0)
    layer = DeepLinearSSM(3, n_layers=4, d_state=2, normalize=normalize).double()
    x = torch.randn(1, 200, 3, dtype=torch.float64)
    layers = [part.transpose(0, 1) for part in layer._system()]
    y, system, modes = layer(x)[0], one_layer(*layers), diagonal(*layers)
    torch.testing.assert_close(modes.C, torch.ones_like(modes.A))
    for channel in range(3):
        by_one, by_modes = (run_one(*(part[channel] for part in of), x[0, :, channel])[0] for of in (system, modes))
        assert_equal(by_one, y[:, channel])
        torch.testing.assert_close(by_modes, y[:, channel], rtol=1e-6, atol=1e-6)  # eigenvalues lie close to each other


def test_normalization_is_the_one_of_figure_2():
    """Ten layers with λ = 0.9: the response to an impulse is greatest late, and smaller where it is normalized."""
    layers = [DeepLinearSSM(1, n_layers=10, trained="A", normalize=on, lambda_min=0.9, lambda_max=0.9) for on in (0, 1)]
    impulse = torch.zeros(1, 300, 1)
    impulse[0, 0] = 1
    plain, normalized = (layer(impulse)[0, :, 0] for layer in layers)
    torch.testing.assert_close(normalized, plain * 0.19**5, rtol=1e-4, atol=1e-6)
    assert plain.argmax() == normalized.argmax()
    assert 75 < plain.argmax() < 90  # of (t + 9 choose 9) 0.9^t


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r, B, C: eigenvectors(torch.full_like(r, 0.5), B, C), "two layers share an eigenvalue"),
        (lambda r, B, C: eigenvectors(r, B, torch.zeros_like(C)), "never reaches the output"),
        (lambda r, B, C: eigenvectors(r * torch.tensor([[0.0], [1], [1]]), B, C), "never reaches the output"),
    ],
)
def test_what_has_no_equivalent_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(*stack(3, 1))
