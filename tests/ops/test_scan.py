"""The plain linear recurrence against its loop: values, last state and every gradient."""

from __future__ import annotations

import math

import pytest
import torch

from lra_ssm.ops import linear_scan
from lra_ssm.ops.backends.cpu_linear_scan import constant_scan
from lra_ssm.ops.backends.native_build import unavailable
from tests.each import each
from tests.ops.scan_cases import BACKENDS, assert_close, random_reset, weighted_sum
from tests.pairwise import pairwise

# Which of a, b and initial_state are complex, and whether a is constant.
KINDS = [
    (complex_a, complex_b, complex_initial, constant)
    for complex_a, complex_b, complex_initial in [(0, 0, 0), (1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0)]
    for constant in (True, False)
]
WIDE = {torch.float32: torch.float64, torch.bfloat16: torch.float64, torch.complex64: torch.complex128}


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


def run(inputs, backend="auto", *, use_x=True, use_last=True, **flags):
    """x, the last state and every gradient, by name."""
    leaves = {name: x.detach().requires_grad_() for name, x in inputs.items()}
    x, last = linear_scan(**leaves, return_last_state=True, backend=backend, **flags)
    real = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    loss = weighted_sum(real if use_x else real[..., :0], last if use_last else None)
    grads = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    grads = [g.resolve_conj() for g in grads]
    return {"x": x.detach(), "last": last.detach(), **dict(zip(leaves, grads, strict=True))}


SHORT = pairwise(kind=KINDS, L=[1, 2, 63], initial=[False, True], with_reset=[False, True], rest=False)
LONG = [(kind, L, True, True) for kind in KINDS[:4] for L in (257, 1024)]  # real and complex alike, constant or not


@each(SHORT.args[0], [*SHORT.args[1], *LONG])
def test_against_the_loop(kind, L, initial, with_reset):
    inputs = make(kind, L=L, initial=initial)
    reset = random_reset(2, L) if with_reset else None
    assert_close(run(inputs, reset=reset), run(inputs, "reference", reset=reset))


@each("backend", BACKENDS)
@each("with_reset", [False, True])
@each("complex_", [0, 1])
def test_backends_for_a_constant(complex_, with_reset, backend):
    inputs = make((complex_, complex_, complex_, True), L=257)
    reset = random_reset(2, 257) if with_reset else None
    assert_close(run(inputs, backend, reset=reset), run(inputs, "reference", reset=reset))


@each("use_x, use_last", [(True, False), (False, True)])
@each("constant", [True, False])
def test_gradient_through_one_result_alone(constant, use_x, use_last):
    inputs, flags = make((1, 1, 1, constant)), dict(use_x=use_x, use_last=use_last, reset=random_reset(2, 63))
    assert_close(run(inputs, **flags), run(inputs, "reference", **flags))


@each("constant", [True, False])
def test_gradient_of_a_subset(constant):
    inputs = make((1, 0, 0, constant))
    expected = run(inputs)
    for name in inputs:
        x = {key: v.detach().requires_grad_(key == name) for key, v in inputs.items()}
        y, last = linear_scan(**x, return_last_state=True)
        (grad,) = torch.autograd.grad(weighted_sum(torch.view_as_real(y), last), [x[name]])
        assert_close({name: grad.resolve_conj()}, {name: expected[name]}, rtol=1e-12)
    assert torch.equal(linear_scan(**inputs), expected["x"])


@each("kind", KINDS)
def test_gradcheck_of_the_reference(kind):
    inputs = make(kind, batch=1, D=3, L=4)
    reset = torch.tensor([[False, False, True, False]])

    def f(*values):
        named = dict(zip(inputs, values, strict=True))
        return linear_scan(**named, reset=reset, return_last_state=True, backend="reference")

    assert torch.autograd.gradcheck(f, tuple(x.requires_grad_() for x in inputs.values()))


@each("constant", [True, False])
@each("complex_", [0, 1])
def test_a_is_zero(complex_, constant):
    """x is b, and the gradient of a is there: x_{t-1} times what comes to step t."""
    inputs = make((complex_, complex_, complex_, constant))
    inputs["a"] = torch.zeros_like(inputs["a"])
    got = run(inputs)
    assert_close(got, run(inputs, "reference"), rtol=1e-13)
    assert (got["a"] != 0).all() and torch.equal(got["x"], inputs["b"])
    a, b = (inputs[name].to(torch.complex64 if complex_ else torch.float32) for name in "ab")
    assert torch.equal(linear_scan(a, b), b)


@each("constant", [True, False])
@each("complex_", [0, 1])
def test_reset_equals_separate_runs(complex_, constant):
    """Not even an infinite state leaks, forwards or backwards."""
    inputs = make((complex_, complex_, complex_, constant), L=50)
    initial = inputs.pop("initial_state")
    reset = torch.zeros(2, 50, dtype=torch.bool)
    reset[:, 17] = reset[:, 33] = True

    def cut(start, stop):
        return {name: x if x.dim() == 1 else x[..., start:stop] for name, x in inputs.items()}

    inputs["b"].requires_grad_()
    x, last = linear_scan(**inputs, initial_state=initial, reset=reset, return_last_state=True)
    parts = [linear_scan(**cut(0, 17), initial_state=initial)] + [linear_scan(**cut(*e)) for e in ((17, 33), (33, 50))]
    torch.testing.assert_close(x, torch.cat(parts, dim=-1), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(last, x[..., -1])
    (grad,) = torch.autograd.grad(x[..., 33:].abs().sum(), [inputs["b"]])
    assert (grad[..., :33] == 0).all() and (grad[..., 33:] != 0).any(-1).all()

    b = inputs["b"].detach().clone()
    b[..., 20], b[0, :, 30] = math.inf, math.nan
    reset[0, 0] = True
    broken = {"a": inputs["a"].clone().requires_grad_(), "b": b.requires_grad_()}
    initial = torch.full_like(initial, math.inf).requires_grad_()
    y = linear_scan(**broken, initial_state=initial, reset=reset)
    assert torch.equal(y[..., 33:], x.detach()[..., 33:])
    torch.testing.assert_close(y[0, :, :20], linear_scan(**cut(0, 50), reset=reset)[0, :, :20])
    grads = torch.autograd.grad(y[0, :, :20].abs().sum() + y[..., 33:].abs().sum(), [broken["b"], initial])
    assert torch.isfinite(grads[0][0].abs()).all() and (grads[1][0] == 0).all()
    b = inputs["b"].detach().clone()
    b[..., 32] = math.inf  # what comes to step 33 times the state before it would be nan in the gradient of a
    a, b = inputs["a"].clone().requires_grad_(), b.requires_grad_()
    (grad,) = torch.autograd.grad(linear_scan(a, b, reset=reset)[..., 33:].abs().sum(), [a])
    assert torch.isfinite(grad.abs()).all() and (grad != 0).any()


@each("kind", KINDS)
def test_prefix_and_suffix_equal_the_whole(kind):
    inputs = make(kind, L=50)
    x, last = linear_scan(**inputs, return_last_state=True)
    state, parts = inputs.pop("initial_state"), []
    for start, stop in ((0, 21), (21, 22), (22, 50)):
        cut = {name: v if v.dim() == 1 else v[..., start:stop] for name, v in inputs.items()}
        part, state = linear_scan(**cut, initial_state=state, return_last_state=True)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, dim=-1), x, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(state, last, rtol=1e-11, atol=1e-11)


@each("constant", [True, False])
@each("complex_", [0, 1])
def test_float32_error(complex_, constant):
    narrow = make((complex_, complex_, complex_, constant), L=1024, dtype=torch.float32)
    reset = random_reset(2, 1024)
    result = run(narrow, reset=reset)
    truth = run({name: x.to(WIDE[x.dtype]) for name, x in narrow.items()}, "reference", reset=reset)
    assert all(result[name].dtype == x.dtype for name, x in narrow.items())
    assert_close({name: x.to(truth[name].dtype) for name, x in result.items()}, truth, rtol=2e-6)


@each("complex_", [False, True])
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
    truth = run({name: x.to(WIDE[x.dtype]) for name, x in varying.items()}, "reference")
    for inputs, rtol in ((varying, 5e-5), ({"a": a, "b": b}, 5e-6)):
        result = run(inputs)
        if result["a"].dim() == 1:
            truth["a"] = truth["a"].sum((0, 2))
        # a's gradient is a sum over all of time, in some channels of terms that cancel: taken whole, by phases
        for got, want in zip(*(x["a"].split(4, -1 if x["a"].dim() == 1 else 1) for x in (result, truth)), strict=True):
            assert_close({"a": got.to(want.dtype)}, {"a": want}, rtol=rtol)
        for name in ("x", "last", "b"):
            for channel in range(len(a)):
                want = truth[name][:, channel]
                assert_close({name: result[name][:, channel].to(want.dtype)}, {name: want}, rtol=rtol)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_on_a_gpu(kind):
    for dtype, rtol in ((torch.float64, 1e-9), (torch.float32, 4e-6)):
        inputs, reset = make(kind, L=257, dtype=dtype), random_reset(2, 257)
        wide = {name: x.to(WIDE.get(x.dtype, x.dtype)) for name, x in inputs.items()}
        expected = run(wide, "reference", reset=reset)
        actual = run({name: x.cuda() for name, x in inputs.items()}, reset=reset.cuda())
        assert_close({name: x.cpu().to(expected[name].dtype) for name, x in actual.items()}, expected, rtol=rtol)


@each("complex_", [0, 1])
@each(("batch", "D", "threads"), [(1, 1, 1), (3, 17, 2), (2, 37, 2), (1, 64, 3), (5, 8, 4)])
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
    half = {name: x.to(torch.complex64 if complex_ else torch.float32) for name, x in inputs.items()}
    assert_close({name: x.to(kind) for name, x in run(half, reset=reset).items()}, got, rtol=2e-6)


@pytest.mark.skipif(unavailable() is not None, reason="no C++ compiler")
def test_the_native_operator_is_a_torch_operator():
    a, b = torch.rand(3, dtype=torch.complex128), torch.randn(2, 9, 3, dtype=torch.complex128)
    arguments = (a.requires_grad_(), b.requires_grad_(), b[:, 0].detach().requires_grad_(), random_reset(2, 9))
    torch.library.opcheck(constant_scan, arguments)
