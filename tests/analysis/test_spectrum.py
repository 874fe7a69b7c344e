"""Eigenvalues measured by steps, compared with those of the parameters."""

import pytest
import torch
from torch import nn

from lra_ssm.analysis import eigenvalues, mean_timescales, step_sizes, timescales
from lra_ssm.analysis.spectrum import MAX_STATES
from lra_ssm.layers import B2S6, LRU, RGLRU, S4D, S6, SSD, DeepLinearSSM, Mamba2Block, Mamba3, StableSSM
from lra_ssm.ops import eigenvalues as continuous
from tests.helpers import Smooth

LAYERS = [
    S4D(6, 8, bidirectional=True), S6(6, 4), B2S6(6, num_blocks=2, d_state=4), StableSSM(6, 8),
    B2S6(6, num_blocks=3, d_state=4, complex_A=False, bidirectional=True),
]  # fmt: skip


@pytest.mark.parametrize("layer", LAYERS)
def test_eigenvalues_are_exp_of_delta_times_A(layer):
    x, system = torch.randn(5, 6), getattr(layer, "system", layer)  # StableSSM's is an S4D
    found = eigenvalues(layer, x)
    A = continuous(system.A_log, getattr(system, "A_imag", None), system.parameterization).detach()
    delta = step_sizes(layer, x[None])[0]  # (5, 6)
    expected = (delta[..., None].detach() * A).exp().flatten(1)
    assert found.dtype == torch.complex128 and found.shape == (5, 6 * A.shape[-1])
    torch.testing.assert_close(found, expected.to(torch.complex128), rtol=1e-5, atol=1e-6)
    assert system.D.dtype == torch.float32  # the layer itself is left alone


def test_a_head_of_ssd_has_one_also_in_its_block():
    layer, x = SSD(6, d_state=3, head_dim=2, bidirectional=True), torch.randn(5, 6)
    found, delta = eigenvalues(layer, x), step_sizes(layer, x[None])[0]
    expected = (-delta.detach() * layer.A_log.detach().exp()).exp()
    assert found.shape == delta.shape == (5, 3)
    torch.testing.assert_close(found, expected.to(torch.complex128), rtol=1e-5, atol=1e-6)
    inside = Mamba2Block(4, lambda width: SSD(width, d_state=3, head_dim=2)).layer
    x = torch.randn(5, 8 + 2 * 3 + 4)  # x, B and C, and the steps of 4 heads
    expected = (-torch.nn.functional.softplus(x[:, -4:] + inside.delta_bias) * inside.A_log.exp()).exp()
    torch.testing.assert_close(eigenvalues(inside, x).real.float(), expected.detach(), rtol=1e-5, atol=1e-6)


def test_those_that_mamba3_gives_are_those_of_its_steps(monkeypatch):
    layer, x = Mamba3(4, d_state=6, head_dim=2), torch.randn(2, 4)
    given = eigenvalues(layer, x)
    assert given.shape == (2, 2 * 2)  # two heads of one rotating pair and of states that stay
    monkeypatch.delattr(Mamba3, "eigenvalues_at")
    for found, row in zip(eigenvalues(layer, x), given, strict=True):
        found = found[found.abs() > 1e-6]  # the last x and B are forgotten after one step
        assert len(found) == 2 * 2 * 6  # of every channel
        distance = (found[:, None] - torch.cat([row, row.conj()])).abs()
        assert distance.min(0).values.max() < 1e-6 and distance.min(1).values.max() < 1e-6


def test_those_of_rglru_are_its_gates():
    layer, x = RGLRU(6, num_blocks=2).double(), torch.randn(5, 6, dtype=torch.float64)
    r = torch.einsum("phk,hkm->phm", x.view(5, 2, 3), layer.gate_weight[..., :3]).flatten(1).sigmoid()
    expected = (-8 * r * torch.nn.functional.softplus(layer.decay_weight)).exp()
    torch.testing.assert_close(eigenvalues(layer, x).real, expected.detach())


def test_layers_without_step_sizes():
    x, lru, real = torch.randn(2, 4), LRU(4, 6), StableSSM(4, 5, form="real")
    expected = lru.eigenvalues().detach().to(torch.complex128).expand(2, -1)
    torch.testing.assert_close(eigenvalues(lru, x), expected, rtol=1e-5, atol=1e-6)
    expected = -1 / (1 - 1 / torch.logspace(0.30103, 3, 5, dtype=torch.float64)).log()
    torch.testing.assert_close(timescales(eigenvalues(real, x))[0], expected, rtol=1e-3, atol=0)
    assert step_sizes(lru, x[None]) is None and step_sizes(real, x[None]) is None


def test_a_stack_of_layers_has_the_eigenvalues_of_all():
    torch.manual_seed(0)
    stack = DeepLinearSSM(2, n_layers=3, d_state=1, lambda_min=0.2, lambda_max=0.9)
    expected = stack.eigenvalue_weight.detach().flatten().double().sort().values
    found = eigenvalues(stack, torch.randn(1, 2))[0]
    torch.testing.assert_close(found.real.sort().values, expected, rtol=1e-4, atol=1e-5)
    assert found.imag.abs().max() < 1e-6


class Mixing(nn.Module):
    """A user's layer: a state of 3 that a full matrix mixes."""

    def __init__(self, matrix):
        super().__init__()
        self.matrix = nn.Parameter(matrix)

    def initial_state(self, batch_size):
        return torch.zeros(batch_size, 3, dtype=self.matrix.dtype)

    def step(self, x_t, state):
        state = state @ self.matrix.T + x_t
        return state, state

    def forward(self, x, lengths=None):
        return x


def test_a_transition_that_is_not_diagonal():
    matrix = torch.tensor([[0.5, 0.4, 0.0], [-0.4, 0.5, 0.0], [0.1, 0.2, 0.9]])
    found = eigenvalues(Mixing(matrix), torch.randn(2, 3))
    expected = torch.tensor([0.5 - 0.4j, 0.5 + 0.4j, 0.9], dtype=torch.complex128)
    for row in found:
        torch.testing.assert_close(row[row.imag.argsort()], expected[expected.imag.argsort()], rtol=1e-6, atol=1e-7)


def test_layers_without_eigenvalues():
    assert eigenvalues(Smooth(4), torch.zeros(1, 4)) is None and step_sizes(Smooth(4), torch.zeros(1, 1, 4)) is None
    wide = Mixing(torch.ones(2, 2))
    wide.initial_state = lambda batch_size: (torch.zeros(batch_size, 2), None)
    assert eigenvalues(wide, torch.randn(1, 2)) is None  # a state of two parts
    wide.initial_state = lambda batch_size: torch.zeros(batch_size, MAX_STATES + 1, dtype=torch.float64)
    wide.step = lambda x_t, state: (x_t, state.flip(1))
    assert eigenvalues(wide, torch.randn(1, 2)) is None


def test_timescales():
    values = torch.tensor([0.5, -0.9, 0.6 + 0.6j, 1.0, 1.1, 0.0], dtype=torch.complex128)
    found = timescales(values).tolist()
    assert found[:2] == pytest.approx([1.442695, 9.491222]) and found[2] == pytest.approx(1 / 0.1642520)
    assert found[3:5] == [float("inf")] * 2 and found[5] < 0.01
    both = torch.tensor([[0.9], [0.4]], dtype=torch.complex128)
    assert float(mean_timescales(both)) == pytest.approx(float(timescales(torch.tensor([0.36**0.5 + 0j]))))
