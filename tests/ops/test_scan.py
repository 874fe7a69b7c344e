"""The plain linear recurrence against its loop: values, last state and every gradient."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from lra_ssm.ops import linear_scan
from tests.ops.scan_cases import BACKENDS, assert_close, differentiated, narrowed, random_reset, widened
from tests.pairwise import pairwise

# Which of a, b and initial_state are complex, and whether a is constant.
KINDS = [
    (complex_a, complex_b, complex_initial, constant)
    for complex_a, complex_b, complex_initial in [(0, 0, 0), (1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0)]
    for constant in (True, False)
]


def make(kind=(1, 1, 1, True), *, batch=2, D=7, L=63, initial=True, dtype=torch.float64, seed=0):
    """a: moduli from 0 to 1 and a little more, so that no value explodes; among the real ones every other is < 0."""
    complex_a, complex_b, complex_initial, constant = kind
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape, of_complex):
        return torch.randn(*shape, dtype=dtype.to_complex() if of_complex else dtype, generator=generator)

    shape = (D,) if constant else (batch, D, L)
    size = torch.rand(shape, dtype=dtype, generator=generator)
    sizes = torch.tensor([0.0, 0.5, 0.9, 0.99, 1.0, 1 + 1 / max(L, 64), 1e-3], dtype=dtype)[:D]
    size = sizes if constant else (0.2 * size + 0.85) * (size > 0.1)
    phase = torch.rand(shape, dtype=dtype, generator=generator) * 7
    a = torch.polar(size, phase) if complex_a else size * torch.where(phase < 3.5, 1, -1)
    inputs = {"a": a, "b": randn(batch, D, L, of_complex=complex_b)}
    if initial:
        inputs["initial_state"] = randn(batch, D, of_complex=complex_initial)
    return inputs


def run(inputs, backend="auto", **flags):
    """x, by the name y, the last state and every gradient, by name."""
    return differentiated(partial(linear_scan, return_last_state=True, backend=backend, **flags), inputs)


SHORT = pairwise(kind=KINDS, L=[1, 2, 63], initial=[False, True], with_reset=[False, True], rest=False)
LONG = [(kind, L, True, True) for kind in KINDS[:4] for L in (257, 1024)]  # real and complex alike, constant or not


@pytest.mark.parametrize(SHORT.args[0], [*SHORT.args[1], *LONG])
def test_against_the_loop(kind, L, initial, with_reset):
    inputs = make(kind, L=L, initial=initial)
    reset = random_reset(2, L) if with_reset else None
    assert_close(run(inputs, reset=reset), run(inputs, "reference", reset=reset))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("with_reset", [False, True])
@pytest.mark.parametrize("complex_", [0, 1])
def test_backends_for_a_constant(complex_, with_reset, backend):
    inputs = make((complex_, complex_, complex_, True), L=257)
    reset = random_reset(2, 257) if with_reset else None
    assert_close(run(inputs, backend, reset=reset), run(inputs, "reference", reset=reset))


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("complex_", [0, 1])
def test_a_is_zero(complex_, constant):
    """x is b, and the gradient of a is there: x_{t-1} times what comes to step t."""
    inputs = make((complex_, complex_, complex_, constant))
    inputs["a"] = torch.zeros_like(inputs["a"])
    got = run(inputs)
    assert_close(got, run(inputs, "reference"), rtol=1e-13)
    assert (got["a"] != 0).all() and torch.equal(got["y"], inputs["b"])
    a, b = (inputs[name].to(torch.complex64 if complex_ else torch.float32) for name in "ab")
    assert torch.equal(linear_scan(a, b), b)


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("complex_", [0, 1])
def test_an_infinite_state_before_a_reset_is_in_no_gradient_of_a(complex_, constant):
    """What comes to the step of the reset, times the state before it, would be nan there."""
    inputs = make((complex_, complex_, complex_, constant), initial=False)
    inputs["b"][..., 32] = torch.inf
    a = inputs["a"].requires_grad_()
    x = linear_scan(a, inputs["b"], reset=torch.arange(63).expand(2, -1) == 33)
    (grad,) = torch.autograd.grad(x[..., 33:].abs().sum(), [a])
    assert torch.isfinite(grad.abs()).all() and (grad != 0).any()


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("complex_", [0, 1])
def test_float32_error(complex_, constant):
    narrow = make((complex_, complex_, complex_, constant), L=1024, dtype=torch.float32)
    reset = random_reset(2, 1024)
    result = run(narrow, reset=reset)
    truth = run(widened(narrow), "reference", reset=reset)
    assert all(result[name].dtype == x.dtype for name, x in narrow.items())
    assert_close(widened(result), truth, rtol=2e-6)


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
    truth = run(widened(varying), "reference")
    for inputs, rtol in ((varying, 5e-5), ({"a": a, "b": b}, 5e-6)):
        result = run(inputs)
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
@pytest.mark.parametrize(("batch", "D", "threads"), [(1, 1, 1), (3, 17, 2), (2, 37, 2), (1, 64, 3), (5, 8, 4)])
def test_every_width_and_number_of_threads(batch, D, threads, complex_):
    """C++ runs along channels: those that fill no vector, and batch items that are shared among threads."""
    generator = torch.Generator().manual_seed(0)
    kind = torch.complex128 if complex_ else torch.float64
    a = torch.rand(D, dtype=kind, generator=generator) * 0.7
    shape = (batch, D, 33)
    inputs = {"a": a, "b": torch.randn(shape, dtype=kind, generator=generator)}
    inputs["initial_state"] = torch.randn(shape[:2], dtype=kind, generator=generator)
    reset, before = random_reset(batch, 33), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        got = run(inputs, reset=reset)
    finally:
        torch.set_num_threads(before)
    assert_close(got, run(inputs, "reference", reset=reset))
    assert_close(widened(run(narrowed(inputs), reset=reset)), got, rtol=2e-6)
