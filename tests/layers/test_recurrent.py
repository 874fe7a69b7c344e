"""A recurrent layer without step sizes, on the plain linear scan: the base brings it everything ours have."""

import pytest
import torch
from torch import nn

from lra_ssm.layers import LayerSpec, MambaBlock, RecurrentLayer
from lra_ssm.models import Backbone
from lra_ssm.ops import linear_scan

D = 3


class Leaky(RecurrentLayer):
    """x_t = λ x_{t-1} + b · u_t + bias, complex λ of modulus below 1; y = Re x + u."""

    def __init__(self, d_model: int, bidirectional: bool = False) -> None:
        super().__init__()
        self.state_shape, self.complex_state = (d_model,), True
        self.radius = nn.Parameter(torch.linspace(0.5, 0.95, d_model))
        self.phase = nn.Parameter(torch.linspace(0.1, 2, d_model))
        self.b = nn.Parameter(torch.randn(d_model))
        self.bias = nn.Parameter(torch.randn(d_model))  # input 0 does not leave the state at 0
        if bidirectional:
            self.reverse = Leaky(d_model)

    def scan(self, x, valid=None, reset=None, initial_state=None, return_last_state=False):
        a, b = torch.polar(self.radius, self.phase), (x * self.b + self.bias).transpose(1, 2)
        if valid is not None:
            valid = valid.transpose(1, 2)
            a, b = torch.where(valid, a[:, None], 1), b.masked_fill(~valid, 0)
        states, last = linear_scan(a, b, initial_state=initial_state, reset=reset, return_last_state=True)
        return states.real.transpose(1, 2) + x, last

    def roles(self):
        return {"radius": "recurrent", "phase": "recurrent"}


def build(bidirectional=False):
    torch.manual_seed(0)
    return Leaky(D, bidirectional).double()


def naive(layer, x, state=None):
    a = torch.polar(layer.radius, layer.phase)
    state, outputs = torch.zeros(len(x), D, dtype=a.dtype) if state is None else state, []
    for t in range(x.shape[1]):
        state = a * state + layer.b * x[:, t] + layer.bias
        outputs.append(state.real + x[:, t])
    return torch.stack(outputs, 1), state


def sequences(B=3, L=9):
    return torch.randn(B, L, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("L", [1, 2, 63])
def test_both_directions_equal_the_loop_with_every_gradient(L):
    layer, x = build(bidirectional=True), sequences(L=L).requires_grad_()
    y = layer(x)
    expected = naive(layer, x)[0] + naive(layer.reverse, x.flip(1))[0].flip(1)
    torch.testing.assert_close(y, expected)
    inputs = [x, *layer.parameters()]
    weights = torch.randn_like(y)
    for a, b in zip(*(torch.autograd.grad((out * weights).sum(), inputs) for out in (y, expected)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


def test_padding_holds_the_state_still_whatever_stands_there():
    layer, x, lengths = build(), sequences(), torch.tensor([9, 4, 1])
    before = torch.randn(3, D, dtype=torch.complex128)
    x[1, 4:], x[2, 1:] = 1e3, torch.nan
    y, state = layer(x, lengths, initial_state=before, return_last_state=True)
    for i, n in enumerate(lengths.tolist()):
        own, own_state = naive(layer, x[i : i + 1, :n], before[i : i + 1])
        torch.testing.assert_close(y[i : i + 1, :n], own)
        torch.testing.assert_close(state[i : i + 1], own_state)
        assert (y[i, n:] == 0).all()
    both = build(bidirectional=True)
    y = both(x, lengths)
    for i, n in enumerate(lengths.tolist()):
        torch.testing.assert_close(y[i : i + 1, :n], both(x[i : i + 1, :n]))


def test_lengths_of_any_integer_type():
    layer, x = build(bidirectional=True), torch.randn(2, 300, D, dtype=torch.float64)
    lengths = torch.tensor([255, 3])
    torch.testing.assert_close(layer(x, lengths.to(torch.uint8)), layer(x, lengths))


def test_documents_and_steps():
    layer, x = build(), sequences()
    reset = torch.zeros(3, 9, dtype=torch.bool)
    reset[:, 4] = True
    for one in (layer, build(bidirectional=True)):
        torch.testing.assert_close(one(x, reset=reset), torch.cat([one(x[:, :4]), one(x[:, 4:])], 1))
    state, whole = layer.initial_state(3), layer(x)
    assert state.shape == (3, D) and state.dtype == torch.complex128
    for t in range(9):
        y, state = layer.step(x[:, t], state)
        torch.testing.assert_close(y, whole[:, t])
    assert build(bidirectional=True).optim_roles().keys() == {"radius", "phase", "reverse.radius", "reverse.phase"}


def test_it_stands_in_any_block():
    torch.manual_seed(0)
    model = Backbone(LayerSpec(Leaky), vocab_size=5, d_model=4, n_layers=2, block=MambaBlock).double()
    ids = torch.randint(0, 5, (2, 6))
    y, state = model(ids[:, :5], torch.tensor([5, 2]), return_last_state=True)
    torch.testing.assert_close(model.step(ids[:, 5], state)[0][0], model(ids)[0, 5])
    torch.testing.assert_close(model.step(ids[:, 2], state)[0][1], model(ids)[1, 2])
