"""What is particular to short causal convolutions: their definition by hand, and how they continue after a stop."""

from __future__ import annotations

import math

import torch

from lra_ssm.ops import causal_depthwise_convolution, conv_state
from tests.ops.operators import make_depthwise
from tests.pairwise import pairwise


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


@pairwise(W=[1, 2, 4, 6], with_initial=[False, True], with_reset=[False, True])
def test_ragged_prefixes(W, with_initial, with_reset):
    """Sequences of 0 to 9 real positions, each continued by its own next 5 inputs."""
    inputs, lengths = make_depthwise(14, W, batch=10), torch.arange(10)
    initial = inputs["initial"] if with_initial else None
    reset = torch.rand(10, 14, generator=torch.Generator().manual_seed(W)) < (0.15 if with_reset else 0)
    whole = causal_depthwise_convolution(inputs["u"], inputs["weight"], initial=initial, reset=reset)
    next_five = lengths[:, None] + torch.arange(5)
    rows = torch.arange(10)[:, None]
    u_next, expected = (x.transpose(1, 2)[rows, next_five].transpose(1, 2) for x in (inputs["u"], whole))
    prefix, prefix_reset = inputs["u"][..., :9].clone(), reset[:, :9].clone()
    padding = torch.arange(9) >= lengths[:, None]
    prefix.masked_fill_(padding.unsqueeze(1), math.nan)
    prefix_reset |= padding & (torch.arange(9) % 2 == 0)
    for dtype in (torch.int64, torch.int32):
        taps = conv_state(prefix, W, lengths.to(dtype), initial=initial, reset=prefix_reset if with_reset else None)
        assert taps.shape == (10, 5, W - 1)
        y = causal_depthwise_convolution(u_next, inputs["weight"], initial=taps, reset=reset[rows, next_five])
        torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)


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
    assert conv_state(u, 4, lengths, initial=initial, reset=~reset).tolist() == [[[0, 0, 1]]]
    assert conv_state(u.bfloat16(), 4, lengths, initial=initial).dtype == torch.bfloat16
