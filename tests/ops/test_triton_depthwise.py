"""The depthwise convolution by Triton's kernels against its definition: values and every gradient. Without a GPU they
are interpreted."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from lra_ssm.ops import causal_depthwise_convolution_reference
from tests.ops.scan_cases import assert_close, random_reset
from tests.ops.test_depthwise_convolution import OPTIONAL, make, run
from tests.pairwise import pairwise

triton = pytest.importorskip("triton")
from lra_ssm.ops.backends import triton_depthwise  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.usefixtures("interpreter")


@pytest.fixture(autouse=True)
def several_programs(monkeypatch):
    """Also for few channels and steps."""
    monkeypatch.setattr(triton_depthwise, "SEGMENT", 32)
    monkeypatch.setattr(triton_depthwise, "CHANNELS_LAST", 4)
    monkeypatch.setattr(triton_depthwise, "CHANNELS_FIRST", 4)


def by_triton(u, weight, bias=None, initial=None, reset=None, silu=False):
    given = [x if x is None else x.to(DEVICE) for x in (u, weight, bias, initial, reset)]
    return triton_depthwise.convolution(*given, silu).to(u.device)


def by_definition(silu, **inputs):
    y = causal_depthwise_convolution_reference(**inputs)
    return F.silu(y) if silu else y


CASES = pairwise(
    L=[1, 2, 63, 257],
    W=[1, 2, 4, 5],
    transposed=[False, True],
    with_reset=[False, True],
    optional=[(), ("bias",), OPTIONAL],
    silu=[False, True],
    rest=False,
)
CHOSEN = [(1, 2, True, False, OPTIONAL, True), (33, 3, True, True, OPTIONAL, True), (9, 5, False, True, (), False)]


@pytest.mark.parametrize(
    CASES.args[0], [*CHOSEN, *(pytest.param(*case.values, marks=pytest.mark.trials) for case in CASES.args[1])]
)
def test_against_the_definition(L, W, transposed, with_reset, optional, silu):
    inputs = make(L, W, batch=2, optional=optional, transposed=transposed)
    reset = random_reset(2, L) if with_reset else None
    actual = run(inputs, lambda **x: by_triton(**x, silu=silu), reset)
    assert_close(actual, run(inputs, lambda **x: by_definition(silu, **x), reset))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_and_strides(dtype):
    """Sequences of one dtype beside parameters of another: float32 arithmetic, each gradient in its input's dtype."""
    inputs = make(40, batch=2, D=6, dtype=torch.float32)
    inputs["u"], inputs["initial"] = inputs["u"].to(dtype)[:, ::2, ::3], inputs["initial"].to(dtype)[:, ::2]
    inputs["weight"], inputs["bias"] = inputs["weight"][::2], inputs["bias"][::2]
    double = {name: x.double() for name, x in inputs.items()}
    actual = run(inputs, lambda **x: by_triton(**x, silu=True), y_weights=dtype)
    expected = run(double, lambda **x: by_definition(True, **x), y_weights=dtype)
    for name, x in actual.items():
        assert x.dtype == (dtype if name in ("y", "u", "initial") else torch.float32)
        close = torch.finfo(x.dtype).eps * 4
        torch.testing.assert_close(
            x.double(), expected[name], rtol=close, atol=close * float(expected[name].abs().max())
        )


def test_nothing_crosses_a_reset():
    """inf and nan neither, backwards neither."""
    inputs, reset = make(12), torch.zeros(3, 12, dtype=torch.bool)
    expected = by_definition(True, **{name: x[..., 6:] if name == "u" else x for name, x in inputs.items()
                                      if name != "initial"})  # fmt: skip
    reset[:, 0] = reset[:, 6] = True
    inputs["initial"].fill_(math.nan)
    inputs["u"][..., 5] = math.inf
    leaves = {name: x.requires_grad_() for name, x in inputs.items()}
    y = by_triton(**leaves, reset=reset, silu=True)
    torch.testing.assert_close(y[..., 6:], expected)
    of_u, of_initial = torch.autograd.grad(y[..., 6:].sum(), [leaves["u"], leaves["initial"]])
    assert (of_u[..., 6:] != 0).all()
    before = torch.cat([of_initial.flatten(), of_u[..., :5].flatten()])
    assert (before[before.isfinite()] == 0).all()
