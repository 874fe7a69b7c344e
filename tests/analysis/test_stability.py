"""StableSSM's perturbation error: definition 2.4."""

import pytest
import torch
from torch import nn

from lra_ssm.analysis import perturbation_error, sobolev_distance


class OneState(nn.Module):
    """h_t = λ h_{t-1} + x_t, λ = f(w)."""

    def __init__(self, eigenvalue, form):
        super().__init__()
        value = torch.tensor([eigenvalue], dtype=torch.float64)
        self.form = form
        self.w = nn.Parameter(value if form == "direct" else (-value.log()).log())

    def forward(self, x):
        eigenvalue = self.w if self.form == "direct" else (-self.w.exp()).exp()
        state, out = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            state = eigenvalue * state + x[:, t]
            out.append(state)
        return torch.stack(out, 1)


def test_distance():
    x = torch.tensor([[[1.0], [0.0]]])
    assert sobolev_distance(x, torch.tensor([[[1.0], [3.0]]]), torch.zeros(1, 2, 1)) == pytest.approx(3 / 2 + 2 / 2)


def test_no_perturbation_leaves_the_approximation_error():
    model, x = OneState(0.9, "direct"), torch.ones(1, 20, 1, dtype=torch.float64)
    assert perturbation_error(model, model, x, 0.0) == 0
    other = OneState(0.8, "direct")
    assert perturbation_error(model, other, x, 0.0) == sobolev_distance(x, model(x), other(x))


def test_an_eigenvalue_that_is_trained_directly_passes_the_boundary():
    """Near 1 the same β blows up the direct form, whose λ passes 1; exp's stays below."""
    x, errors = torch.ones(1, 300, 1, dtype=torch.float64), {}
    for form in ("direct", "exp"):
        model = OneState(0.99, form)
        errors[form] = [
            perturbation_error(model, model, x, beta, generator=torch.Generator().manual_seed(0))
            for beta in (1e-3, 1e-1)
        ]
    assert errors["direct"][1] > 1e10 and errors["exp"][1] < 100
    assert errors["direct"][0] < 100


def test_it_grows_with_beta_and_moves_what_is_named():
    model = nn.Linear(3, 2).double()
    x = torch.randn(4, 10, 3, dtype=torch.float64)
    before = {name: p.clone() for name, p in model.named_parameters()}
    found = [perturbation_error(model, model, x, b, generator=torch.Generator().manual_seed(0)) for b in (0.1, 0.2)]
    assert found[1] == pytest.approx(2 * found[0])  # a linear map
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    bias = perturbation_error(model, model, x, 0.1, parameters=["bias"], generator=torch.Generator().manual_seed(0))
    assert 0 < bias < found[0]
    with pytest.raises(ValueError, match="no parameter 'wieght'"):
        perturbation_error(model, model, x, 0.1, parameters=["wieght"])


@pytest.mark.parametrize(("order", "size"), [(2.0, 0.1), (float("inf"), 0.1 * 4**0.5)])
def test_beta_is_of_the_whole_or_of_each_entry(order, size):
    """Of four states that all read the same: the two norms of one direction differ by its shape alone."""

    class Weights(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(4, dtype=torch.float64))

        def forward(self, x):
            moved.append(self.w.detach().clone())
            return x

    moved, x = [], torch.ones(1, 2, 1, dtype=torch.float64)
    perturbation_error(lambda x: x, Weights(), x, 0.1, perturbations=20, order=order)
    lengths = torch.stack(moved).norm(dim=1)
    assert torch.stack(moved).norm(order, dim=1).sub(0.1).abs().max() < 1e-12
    assert (lengths <= size + 1e-12).all() and (order == 2.0 or (lengths > 0.1).all())


def test_what_is_no_number_is_infinite():
    class Broken(nn.Linear):
        def forward(self, x):
            return super().forward(x) * float("nan")

    x = torch.ones(1, 3, 1)
    assert perturbation_error(lambda x: x, Broken(1, 1), x, 0.1, perturbations=1) == float("inf")
