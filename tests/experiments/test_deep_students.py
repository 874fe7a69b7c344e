"""Students that train through their impulse responses: as the layer, autograd and torch's Adam have it."""

import numpy as np
import pytest
import torch

from lra_ssm.experiments import deep_students
from lra_ssm.experiments.deep_students import Students, gradients, noise, noise_grams, responses, training
from lra_ssm.layers import DeepLinearSSM


def outputs(targets, u):
    """h * u of every student: (D, T), (B, T) -> (B, T, D)."""
    T = u.shape[-1]
    moved = torch.stack([torch.nn.functional.pad(u, (lag, 0))[:, :T] for lag in range(T)])
    return torch.einsum("dk,kbt->btd", targets, moved)


def made(K, N, count, largest=1.1, **options):
    torch.manual_seed(0)
    return DeepLinearSSM(count, K, N, lambda_min=-0.5, lambda_max=largest, **options).double()


@pytest.mark.parametrize(("K", "N"), [(1, 4), (2, 2), (3, 2), (5, 1), (12, 1)])
def test_the_loss_and_every_gradient_are_those_of_running_the_layer_on_the_batch(K, N):
    layer, T = made(K, N, 3), 24
    u, targets = torch.randn(3, T, dtype=torch.float64), torch.randn(3, T, dtype=torch.float64)
    loss = (layer(u.unsqueeze(-1).expand(-1, -1, 3)) - outputs(targets, u)).square().mean((0, 1))
    expected = torch.autograd.grad(loss.sum(), [layer.eigenvalue_weight, layer.B, layer.C])
    students, gram = Students.of(layer), noise_grams(u[None].numpy())[0]
    found = responses(students, T)
    difference = found.h - targets.numpy()
    np.testing.assert_allclose((difference * (difference @ gram)).sum(-1), loss.detach(), rtol=1e-10)
    for a, b in zip(gradients(students, found, 2 * difference @ gram), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-9 * float(b.abs().max()))


@pytest.mark.parametrize("trained", ["AB", "ABC"])
def test_training_is_that_of_the_layer_with_torchs_adam(trained, monkeypatch):
    monkeypatch.setattr(deep_students, "BATCHES", 3)
    layer, T = made(2, 2, 2, largest=0.9, trained=trained), 16
    students, teacher = Students.of(layer), torch.rand(2, T, dtype=torch.float64)
    adam = torch.optim.Adam(layer.parameters(), lr=1e-2)
    for step in range(7):
        u = torch.from_numpy(noise(T)[step % 3]).double()
        y = layer(u.unsqueeze(-1).expand(-1, -1, 2))
        adam.zero_grad()
        (y - outputs(teacher, u)).square().mean((0, 1)).sum().backward()
        adam.step()
    list(training(students, teacher.numpy(), trained, 7, 1e-2))
    for a, b in zip(students, Students.of(layer), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7)


def test_a_student_that_diverges_leaves_the_others_alone():
    students, ends = Students.of(made(2, 2, 2).float()), []
    students.rates[:, 1] = 1e20  # its response is beyond numbers
    alone = Students(*(x[:, :1].copy() for x in students))
    for some in (students, alone):
        teacher = np.full((some.B.shape[1], 32), 0.1, np.float32)
        ends += [errors[0] for _, errors in training(some, teacher, "ABC", 20, 1e-3)]
    np.testing.assert_allclose(ends[:21], ends[21:], rtol=1e-4)
    assert not np.isfinite(students.rates[:, 1]).any() and np.isfinite(students.rates[:, 0]).all()
