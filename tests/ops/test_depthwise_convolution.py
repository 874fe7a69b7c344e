"""Short causal convolutions against their definition: values and every gradient; and how they continue after a stop."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch.nn import functional as F

from lra_ssm.ops import causal_depthwise_convolution, causal_depthwise_convolution_reference, conv_state
from lra_ssm.ops.backends import cpu_pieces
from tests.ops.scan_cases import assert_close, differentiated, needs_compiled, random_reset, widened
from tests.pairwise import pairwise

OPTIONAL = ("bias", "initial")


def make(L=37, W=4, *, batch=3, D=5, optional=OPTIONAL, transposed=False, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)

    def randn(*shape):
        return torch.randn(*shape, dtype=dtype, generator=generator)

    u = randn(batch, L, D).transpose(1, 2) if transposed else randn(batch, D, L)
    inputs = {"u": u, "weight": randn(D, W), "bias": randn(D), "initial": randn(batch, D, W - 1)}
    return {name: x for name, x in inputs.items() if name not in OPTIONAL or name in optional}


def run(inputs, function=causal_depthwise_convolution, reset=None, y_weights=torch.float64):
    """y and every gradient, by name."""
    results = differentiated(partial(function, reset=reset), inputs, y_weights=y_weights)
    return {name: x for name, x in results.items() if x.numel() or name != "initial"}  # empty for W = 1


@pairwise(
    L=[1, 2, 3, 63, 257],
    W=[1, 2, 4, 6],
    transposed=[False, True],
    with_reset=[False, True],
    optional=[(), ("bias",), OPTIONAL],
    rest=False,
)
def test_against_the_definition(L, W, transposed, with_reset, optional):
    inputs = make(L, W, optional=optional, transposed=transposed)
    reset = random_reset(3, L) if with_reset else None
    actual, expected = run(inputs, reset=reset), run(inputs, causal_depthwise_convolution_reference, reset)
    assert actual["y"].stride() == inputs["u"].stride() or L == 1
    assert_close(actual, expected, rtol=1e-12)


@pytest.mark.parametrize("native", [pytest.param(True, marks=needs_compiled), False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("with_reset", [False, True])
@pytest.mark.parametrize(("L", "D", "W"), [(1, 5, 4), (2, 37, 3), (63, 300, 4), (300, 16, 2), (40, 600, 4)])
def test_with_silu(L, D, W, with_reset, dtype, native, monkeypatch):
    if not native:
        monkeypatch.setattr(cpu_pieces, "supports", lambda *tensors: False)
    inputs, reset = make(L, W, D=D), random_reset(3, L) if with_reset else None
    inputs["u"] = torch.randn(3, L, 2 * D, dtype=torch.float64)[..., :D].transpose(1, 2)  # a part of a projection
    narrow = {name: x.to(dtype) for name, x in inputs.items()}

    def truth(*, reset, **x):
        return F.silu(causal_depthwise_convolution_reference(**x, reset=reset))

    actual = run(narrow, partial(causal_depthwise_convolution, silu=True), reset, y_weights=dtype)
    expected = run(widened(narrow), truth, reset, y_weights=dtype)
    assert_close(widened(actual), expected, rtol=1e-11 if dtype == torch.float64 else 2e-6)


def test_by_hand():
    u, weight = torch.tensor([[[1.0, 10.0, 100.0]]]), torch.tensor([[2.0, 3.0]])
    y = causal_depthwise_convolution(u, weight, torch.tensor([0.5]), initial=torch.tensor([[[7.0]]]))
    assert y.tolist() == [[[17.5, 32.5, 320.5]]]  # 2*7 + 3*1, 2*1 + 3*10, 2*10 + 3*100, and 0.5 each
    reset = torch.tensor([[False, False, True]])
    assert causal_depthwise_convolution(u, weight, reset=reset).tolist() == [[[3.0, 32.0, 300.0]]]


def test_dtypes():
    inputs, reset = make(63), random_reset(3, 63)
    for dtype, rtol in ((torch.float32, 4e-6), (torch.bfloat16, 4e-3), (torch.float16, 6e-4)):
        narrow = {name: x.to(dtype if name in ("u", "initial") else torch.float32) for name, x in inputs.items()}
        truth = run(widened(narrow), reset=reset, y_weights=dtype)
        result = run(narrow, reset=reset, y_weights=dtype)
        assert result["y"].dtype == dtype and all(result[name].dtype == x.dtype for name, x in narrow.items())
        for name, x in result.items():
            assert_close({name: x.double()}, {name: truth[name]}, rtol=rtol if x.dtype == dtype else 4e-6)
    mixed = {name: x.float() for name, x in inputs.items()} | {"weight": inputs["weight"]}
    wide = run(widened(mixed))["y"]
    result = run(mixed)["y"]
    assert result.dtype == torch.float32 and torch.equal(result, wide.float())


@pairwise(cut=[1, 2, 3, 8, 19], W=[1, 2, 4, 6], with_reset=[False, True])
def test_prefix_and_rest_equal_the_whole(cut, W, with_reset):
    """Values and gradients, through `conv_state` and what came before."""
    inputs = make(20, W)
    reset = torch.rand(3, 20, generator=torch.Generator().manual_seed(W)) < 0.15 if with_reset else None
    expected = run(inputs, reset=reset)

    def in_two(u, weight, bias, initial, reset):
        first, second = (None, None) if reset is None else (reset[:, :cut], reset[:, cut:])
        y = causal_depthwise_convolution(u[..., :cut], weight, bias, initial=initial, reset=first)
        initial = conv_state(u[..., :cut], W, initial=initial, reset=first)
        rest = causal_depthwise_convolution(u[..., cut:], weight, bias, initial=initial, reset=second)
        return torch.cat([y, rest], dim=-1)

    assert_close(run(inputs, in_two, reset), expected, rtol=1e-12)


@pairwise(W=[1, 2, 4, 6], with_initial=[False, True], with_reset=[False, True])
def test_ragged_prefixes(W, with_initial, with_reset):
    """Sequences of 0 to 9 real positions, each continued by its own next 5 inputs."""
    inputs, lengths = make(14, W, batch=10), torch.arange(10)
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
    assert conv_state(u, 4).tolist() == [[[1, 2, 3]]]
    assert conv_state(u, 3).tolist() == [[[2, 3]]]
    assert conv_state(u, 6).tolist() == [[[0, 0, 1, 2, 3]]]
    assert conv_state(u, 1).shape == (1, 1, 0)
    taps = conv_state(u, 4, lengths, initial=initial)
    assert taps.tolist() == [[[-2, -1, 1]]]
    grads = torch.autograd.grad(taps, [u, initial], torch.tensor([[[5.0, 6.0, 7.0]]]))
    assert [g.tolist() for g in grads] == [[[[7, 0, 0]]], [[[0, 5, 6]]]]
    reset = torch.tensor([[False, True, False]])
    assert conv_state(u, 4, initial=initial, reset=reset).tolist() == [[[0, 2, 3]]]
    assert conv_state(u, 4, lengths, initial=initial, reset=reset).tolist() == [[[-2, -1, 1]]]
    assert conv_state(u, 4, lengths, initial=initial, reset=~reset).tolist() == [[[0, 0, 1]]]
    assert conv_state(u.bfloat16(), 4, lengths, initial=initial).dtype == torch.bfloat16


zeros = torch.zeros
WRONG = [
    ("u", zeros(3, 4), r"u: shape \(3, 4\)"),
    ("u", zeros(2, 3, 0), "u: shape .*L >= 1"),
    ("u", zeros(2, 3, 5, dtype=torch.complex64), "u: .*complex64; .*real floating"),
    ("initial", zeros(2, 3, 4), r"initial: shape \(2, 3, 4\).*\(B, D, W-1\) = \(2, 3, 3\)"),
    ("initial", zeros(2, 3, 3, dtype=torch.int64), "initial: .*int64"),
    ("initial", zeros(2, 3, 3, device="meta"), "initial: on meta; expected cpu"),
    ("reset", zeros(2, 5), r"reset: .*float32; expected \(B, L\) = \(2, 5\), bool"),
    ("reset", zeros(2, 4, dtype=torch.bool), r"reset: shape \(2, 4\)"),
]


@pytest.mark.parametrize("name, value, match", [
    *WRONG,
    ("weight", zeros(3), r"weight: shape \(3,\)"),
    ("weight", zeros(3, 0), r"weight: shape \(3, 0\).*W >= 1"),
    ("weight", zeros(3, 1, 4), r"weight: shape \(3, 1, 4\).*expected \(D, W\)"),
    ("weight", zeros(4, 4), r"weight: shape \(4, 4\); expected \(D, W\) with D = 3"),
    ("weight", zeros(3, 4, dtype=torch.complex64), "weight: .*complex64"),
    ("bias", zeros(4), r"bias: shape \(4,\), .*expected \(D,\) = \(3,\)"),
    ("bias", zeros(3, dtype=torch.int32), "bias: .*int32"),
    ("bias", zeros(3, device="meta"), "bias: on meta; expected cpu"),
])  # fmt: skip
def test_errors(name, value, match):
    good = dict(u=zeros(2, 3, 5), weight=zeros(3, 4))
    for function in (causal_depthwise_convolution, causal_depthwise_convolution_reference):
        with pytest.raises(ValueError, match=match) as error:
            function(**{**good, name: value})
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("name, value, match", [
    *WRONG,
    ("W", 0, "W: 0; expected"),
    ("lengths", zeros(2), r"lengths: .*float32; expected \(B,\) = \(2,\), int64 or int32"),
    ("lengths", zeros(3, dtype=torch.int64), r"lengths: shape \(3,\)"),
    ("lengths", zeros(2, dtype=torch.int64, device="meta"), "lengths: on meta"),
])  # fmt: skip
def test_conv_state_errors(name, value, match):
    with pytest.raises(ValueError, match=match) as error:
        conv_state(**{**dict(u=zeros(2, 3, 5), W=4), name: value})
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("optional, with_reset", [((), False), (OPTIONAL, True)])
def test_torch_compile_traces_it_whole(optional, with_reset):
    torch._dynamo.reset()
    inputs, reset = make(9, optional=optional), random_reset(3, 9) if with_reset else None
    compiled = torch.compile(causal_depthwise_convolution, backend="aot_eager", fullgraph=True)
    assert_close(run(inputs, compiled, reset=reset), run(inputs, reset=reset))
