"""What is particular to short causal convolutions: their definition and what they keep, by hand."""

from __future__ import annotations

import torch

from lra_ssm.ops import causal_depthwise_convolution, conv_state
from tests.ops.operators import make_depthwise


def test_by_hand():
    u, weight = torch.tensor([[[1.0, 10.0, 100.0]]]), torch.tensor([[2.0, 3.0]])
    y = causal_depthwise_convolution(u, weight, torch.tensor([0.5]), initial=torch.tensor([[[7.0]]]))
    assert y.tolist() == [[[17.5, 32.5, 320.5]]]  # 2*7 + 3*1, 2*1 + 3*10, 2*10 + 3*100, and 0.5 each
    reset = torch.tensor([[False, False, True]])
    assert causal_depthwise_convolution(u, weight, reset=reset).tolist() == [[[3.0, 32.0, 300.0]]]


def test_a_double_parameter_makes_the_arithmetic_double():
    inputs = make_depthwise()
    mixed = {name: x.float() for name, x in inputs.items()} | {"weight": inputs["weight"]}
    wide = causal_depthwise_convolution(**{name: x.double() for name, x in mixed.items()})
    assert torch.equal(causal_depthwise_convolution(**mixed), wide.float())


def test_conv_state_by_hand():
    u = torch.tensor([[[1.0, 2.0, 3.0]]]).requires_grad_()
    initial = torch.tensor([[[-3.0, -2.0, -1.0]]]).requires_grad_()
    lengths = torch.tensor([1])
    assert conv_state(u, 6).tolist() == [[[0, 0, 1, 2, 3]]]
    taps = conv_state(u, 4, lengths, initial=initial)
    assert taps.tolist() == [[[-2, -1, 1]]]
    grads = torch.autograd.grad(taps, [u, initial], torch.tensor([[[5.0, 6.0, 7.0]]]))
    assert [g.tolist() for g in grads] == [[[[7, 0, 0]]], [[[0, 5, 6]]]]
    reset = torch.tensor([[False, True, False]])
    assert conv_state(u, 4, initial=initial, reset=reset).tolist() == [[[0, 2, 3]]]
    assert conv_state(u, 4, lengths, initial=initial, reset=reset).tolist() == [[[-2, -1, 1]]]
    assert conv_state(u, 4, lengths.int(), initial=initial, reset=~reset).tolist() == [[[0, 0, 1]]]
    # a sequence of no positions, whatever its padding holds
    assert conv_state(u * torch.nan, 4, lengths - 1, initial=initial, reset=~reset).tolist() == [[[-3, -2, -1]]]
    assert conv_state(u.bfloat16(), 4, lengths, initial=initial).dtype == torch.bfloat16
