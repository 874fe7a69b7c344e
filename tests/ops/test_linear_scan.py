"""What is particular to the plain linear recurrence: zero factors, long memories, promotion, its choice of backends."""

from __future__ import annotations

from functools import partial, reduce
from itertools import product

import pytest
import torch

from lra_ssm.ops import linear_scan
from tests.ops.operators import make_linear
from tests.ops.scan_cases import assert_close, compare, differentiated, narrowed, random_reset, widened

scan, loop = (partial(linear_scan, return_last_state=True, backend=name) for name in ("auto", "reference"))
each_kind = pytest.mark.parametrize("kind", [(c, c, c, constant) for c in (0, 1) for constant in (True, False)])


@each_kind
def test_a_is_zero(kind):
    """x is b, and the gradient of a is there: x_{t-1} times what comes to step t."""
    inputs = make_linear(kind)
    inputs["a"] = torch.zeros_like(inputs["a"])
    got = compare(scan, loop, inputs, rtol=1e-13)
    assert (got["a"] != 0).all() and torch.equal(got["y"], inputs["b"])
    narrow = narrowed(inputs)
    assert torch.equal(linear_scan(narrow["a"], narrow["b"]), narrow["b"])


@each_kind
def test_an_infinite_state_before_a_reset_is_in_no_gradient_of_a(kind):
    """What comes to the step of the reset, times the state before it, would be nan there."""
    inputs = make_linear(kind, optional=())
    inputs["b"][..., 32] = torch.inf
    a = inputs["a"].requires_grad_()
    x = linear_scan(a, inputs["b"], reset=torch.arange(63).expand(2, -1) == 33)
    (grad,) = torch.autograd.grad(x[..., 33:].abs().sum(), [a])
    assert torch.isfinite(grad.abs()).all() and (grad != 0).any()


@pytest.mark.parametrize("complex_", [False, True])
def test_float32_error_of_a_long_memory(complex_):
    """|a| = 1 - 1e-5 over 4096 steps: a rounding of |a| or its phase, the same at every step, would show as 1e-4.

    As a varying a, one value throughout is the worst case: the roundings of all its powers lean to one side.
    """
    size = torch.tensor([1 - 1e-5, 1 - 1e-4, 0.99, 1.0], dtype=torch.float64)
    if complex_:
        phases = torch.tensor([0.0, 0.3, 3.1], dtype=torch.float64)[:, None] + 0.05 * size.cos()
        a = torch.polar(size.expand(3, 4), phases).flatten().to(torch.complex64)
    else:
        a = torch.cat([size, -size]).float()
    b = torch.randn(2, len(a), 4096, dtype=a.dtype, generator=torch.Generator().manual_seed(0))
    varying = {"a": a[None, :, None].expand_as(b), "b": b}
    truth = differentiated(loop, widened(varying))
    for inputs, rtol in ((varying, 5e-5), ({"a": a, "b": b}, 5e-6)):
        result = differentiated(scan, inputs)
        if result["a"].dim() == 1:
            truth["a"] = truth["a"].sum((0, 2))
        # a's gradient is a sum over all of time, in some channels of terms that cancel: taken whole, by phases
        for got, want in zip(*(x["a"].split(4, -1 if x["a"].dim() == 1 else 1) for x in (result, truth)), strict=True):
            assert_close({"a": got.to(want.dtype)}, {"a": want}, rtol=rtol)
        for name in ("y", "last_state", "b"):
            for channel in range(len(a)):
                want = truth[name][:, channel]
                assert_close({name: result[name][:, channel].to(want.dtype)}, {name: want}, rtol=rtol)


@pytest.mark.parametrize("complex_", [0, 1])
@pytest.mark.parametrize(("batch", "D", "count"), [(1, 1, 1), (3, 17, 2), (2, 37, 2), (1, 64, 3), (5, 8, 4)])
def test_every_width_and_number_of_threads(batch, D, count, complex_, threads):
    """C++ runs along channels: those that fill no vector, and batch items that are shared among threads."""
    inputs = make_linear((complex_,) * 3 + (True,), batch=batch, D=D, L=33)
    threads(count)
    fast, slow = (partial(function, reset=random_reset(batch, 33)) for function in (scan, loop))
    compare(fast, slow, inputs)
    compare(fast, slow, narrowed(inputs), rtol=2e-6)


DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64)


@pytest.mark.parametrize("constant", [True, False])
def test_promotion(constant):
    inputs = make_linear((0, 0, 0, constant), L=5, dtype=torch.float32)
    for dtypes in product(DTYPES, repeat=3):
        x, last = scan(**{name: inputs[name].to(dtype) for name, dtype in zip(inputs, dtypes, strict=True)})
        assert x.dtype == reduce(torch.promote_types, dtypes)
        assert last.dtype == torch.promote_types(x.dtype, torch.float32)
