"""What every operator along time keeps: states, resets, gradients of some inputs, precision, refusals."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from lra_ssm.ops import (
    causal_depthwise_convolution,
    causal_depthwise_convolution_reference,
    conv_state,
    linear_scan,
    selective_scan,
    ssd_scan,
)
from lra_ssm.ops.backends import eager, eager_ssd
from tests.ops import test_depthwise_convolution, test_scan, test_ssd_scan
from tests.ops.scan_cases import (
    Inputs,
    assert_close,
    differentiated,
    leaves,
    make_inputs,
    needs_compiled,
    random_reset,
    widened,
)


class Operator(NamedTuple):
    call: Callable[..., tuple[Tensor, Tensor]]  # inputs by name, reset -> (y, last state)
    slow: Callable[..., tuple[Tensor, Tensor]]
    make: Callable[..., Inputs]  # of batch, L, dtype
    along: dict[str, int]  # the inputs that have a time, and in which dimension; the first is what is read
    time: int  # y's
    state: str = "initial_state"
    infinite: bool = True  # infinities before a reset leave what follows as it is
    finite: tuple[str, ...] = ()  # and these gradients finite


def selective(backend: str, complex_A: bool) -> Operator:
    forms = ("2 complex", "1 complex") if complex_A else ("2 real", "1 real")
    flags = dict(discretization="zoh", return_last_state=True)
    return Operator(
        lambda **x: selective_scan(**x, **flags, backend=backend),
        lambda **x: selective_scan(**x, **flags, backend="reference"),
        lambda **sizes: make_inputs(complex_A, *forms, **sizes),
        dict.fromkeys(("u", "delta", "z", "B", "C"), -1), -1, finite=("u",),
    )  # fmt: skip


def linear(complex_: int, constant: bool, backend: str = "auto") -> Operator:
    return Operator(
        lambda **x: linear_scan(**x, return_last_state=True, backend=backend),
        lambda **x: linear_scan(**x, return_last_state=True, backend="reference"),
        lambda **sizes: test_scan.make((complex_,) * 3 + (constant,), **sizes),
        {"b": -1} if constant else {"b": -1, "a": -1}, -1, finite=("b", "initial_state"),
    )  # fmt: skip


def depthwise_of(function: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    def call(u: Tensor, weight: Tensor, bias: Tensor, initial: Tensor | None = None, reset: Tensor | None = None):
        taps = conv_state(u, weight.shape[-1], initial=initial, reset=reset)
        return function(u, weight, bias, initial=initial, reset=reset), taps

    return call


OPERATORS = {
    "selective, real, reference": selective("reference", False),
    "selective, complex, reference": selective("reference", True),
    "selective, real, eager": selective("eager", False),
    "selective, complex, eager": selective("eager", True),
    "selective, real, C++": pytest.param(selective("cpu", False), marks=needs_compiled),
    "selective, complex, C++": pytest.param(selective("cpu", True), marks=needs_compiled),
    **{f"linear, {c}, {k}": linear(c, k) for c in (0, 1) for k in (False, True)},
    **{f"linear, {c}, eager": linear(c, True, "eager") for c in (0, 1)},
    "Mamba-2's": Operator(
        lambda **x: ssd_scan(**x, return_last_state=True, backend="eager", chunk_size=16),
        lambda **x: ssd_scan(**x, return_last_state=True, backend="reference"),
        test_ssd_scan.make, dict.fromkeys(("x", "delta", "B", "C"), 1), 1, infinite=False,
    ),
    "depthwise": Operator(
        depthwise_of(causal_depthwise_convolution), depthwise_of(causal_depthwise_convolution_reference),
        test_depthwise_convolution.make, {"u": -1}, -1, "initial", finite=("u", "initial"),
    ),
}  # fmt: skip
every_operator = pytest.mark.parametrize("of", OPERATORS.values(), ids=OPERATORS.keys())


@pytest.fixture(params=[False, True], ids=["large pieces", "small pieces"])
def pieces(request, monkeypatch):
    """Small pieces, so that short inputs cross them."""
    if request.param:
        monkeypatch.setattr(eager, "STEPS", 16)
        monkeypatch.setattr(eager_ssd, "CHUNKS", 1)


def cut(of: Operator, inputs: Inputs, start: int, stop: int) -> Inputs:
    """Steps start .. stop-1."""
    return {name: x.narrow(of.along[name], start, stop - start) if name in of.along else x
            for name, x in inputs.items()}  # fmt: skip


def assert_same(a: Tensor, b: Tensor, rtol: float = 1e-11) -> None:
    torch.testing.assert_close(a, b, rtol=rtol, atol=rtol)


@every_operator
@pytest.mark.parametrize("used", [(True, False), (False, True)])
def test_gradient_through_one_result_alone(of, used, pieces):
    inputs = of.make(L=37)
    assert_close(differentiated(of.call, inputs, used), differentiated(of.slow, inputs, used))


@every_operator
def test_gradients_of_some_inputs_do_not_depend_on_whether_the_others_require_theirs(of, pieces):
    inputs = of.make(L=37)
    expected = differentiated(of.call, inputs, (True, False))
    for name in inputs:
        x = {key: v.detach().requires_grad_(key == name) for key, v in inputs.items()}
        found = differentiated(of.call, x, (True, False), of=[name])
        assert_close({name: found[name]}, {name: expected[name]}, rtol=1e-12)
    assert torch.equal(of.call(**inputs)[0], expected["y"])


@pytest.mark.parametrize("name", [name for name in OPERATORS if "eager" not in name and "C++" not in name])
def test_gradcheck_of_the_reference(name):
    of = OPERATORS[name]
    inputs = of.make(batch=1, L=3)
    inputs = {name: x.requires_grad_() for name, x in inputs.items()}
    reset = torch.tensor([[False, False, True]])
    assert torch.autograd.gradcheck(
        lambda *values: of.slow(**dict(zip(inputs, values, strict=True)), reset=reset), tuple(inputs.values())
    )


@every_operator
def test_prefixes_and_what_follows_them_equal_the_whole(of, pieces):
    inputs = of.make(L=50)
    y, last = of.call(**inputs)
    state, parts = inputs.pop(of.state), []
    for start, stop in ((0, 21), (21, 22), (22, 50)):
        part, state = of.call(**cut(of, inputs, start, stop), **{of.state: state})
        parts.append(part)
    assert_same(torch.cat(parts, of.time), y)
    assert_same(state, last)


@every_operator
def test_reset_equals_separate_runs(of, pieces):
    """Gradients stop there too, and not even an infinite state leaks, forwards or backwards."""
    inputs, read = of.make(batch=2, L=50), next(iter(of.along))
    initial = inputs.pop(of.state)
    reset = torch.zeros(2, 50, dtype=torch.bool)
    reset[:, 17] = reset[:, 33] = True
    whole = leaves(inputs)
    y, last = of.call(**whole, **{of.state: initial}, reset=reset)
    runs = [of.call(**cut(of, inputs, 0, 17), **{of.state: initial})]
    runs += [of.call(**cut(of, inputs, *ends)) for ends in ((17, 33), (33, 50))]
    assert_same(torch.cat([part for part, _ in runs], of.time), y, 1e-12)
    assert_same(last, runs[-1][1], 1e-12)
    (grad,) = torch.autograd.grad(y.narrow(of.time, 33, 17).abs().sum(), [whole[read]])
    grad = grad.movedim(of.along[read], -1)
    assert (grad[..., :33] == 0).all() and (grad[..., 33:] != 0).flatten(0, -2).any(-1).all()
    if not of.infinite:
        return
    broken = {name: x.clone().requires_grad_() for name, x in (inputs | {of.state: initial}).items()}
    with torch.no_grad():
        of_time = broken[read].movedim(of.along[read], -1)
        of_time[..., [20, 32]], of_time[0, :, 30] = math.inf, math.nan
        broken[of.state].fill_(math.inf)
    reset[0, 0] = True  # which drops the initial state
    z, _ = of.call(**broken, reset=reset)
    after = z.narrow(of.time, 33, 17)
    assert torch.equal(after, y.detach().narrow(of.time, 33, 17))
    begin = z.narrow(of.time, 0, 17)[0]
    assert_same(begin, of.call(**cut(of, inputs, 0, 17))[0][0], 1e-12)
    for name in of.finite:
        (grad,) = torch.autograd.grad(after.abs().sum() + begin.abs().sum(), [broken[name]], retain_graph=True)
        assert grad.abs().isfinite().all() and (name != of.state or (grad[0] == 0).all()), name


@every_operator
def test_any_strides(of, pieces, request):
    """Transposed, strided, expanded, negated and conjugated inputs; y keeps the memory order of what is read."""
    inputs, read = of.make(batch=2, L=37), next(iter(of.along))
    reset = random_reset(2, 37)
    expected = differentiated(partial(of.slow, reset=reset), inputs)
    strided = {name: x.transpose(0, -1).contiguous().transpose(0, -1) for name, x in inputs.items()}
    strided[read] = torch.stack([inputs[read]] * 2, -1)[..., 0].transpose(1, 2).contiguous().transpose(1, 2)
    strided = {
        name: x.conj().resolve_conj().conj() if x.is_complex() else torch.complex(x, -x).conj().imag
        for name, x in strided.items()
    }
    assert_close(differentiated(partial(of.call, reset=reset.T.contiguous().T), strided), expected)
    if of.time < 0 and "reference" not in request.node.name:
        assert of.call(**(inputs | {read: inputs[read].transpose(1, 2).contiguous().transpose(1, 2)}))[0].stride(1) == 1
    inputs[read] = inputs[read][:1, :, :1].expand_as(inputs[read])
    assert_close(differentiated(of.call, inputs), differentiated(of.slow, inputs))


ON_A_GPU = {
    **{f"selective, {c}": selective("auto", c) for c in (False, True)},
    **{f"linear, {c}, {k}": linear(c, k) for c in (0, 1) for k in (False, True)},
    **{name: OPERATORS[name] for name in ("Mamba-2's", "depthwise")},
}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("of", ON_A_GPU.values(), ids=ON_A_GPU.keys())
@pytest.mark.parametrize("dtype, rtol", [(torch.float64, 1e-9), (torch.float32, 4e-6)])
def test_on_a_gpu(of, dtype, rtol):
    inputs, reset = of.make(batch=2, L=257, dtype=dtype), random_reset(2, 257)
    expected = differentiated(partial(of.slow, reset=reset), widened(inputs))
    on_gpu = {name: x.cuda() for name, x in inputs.items()}
    assert_close(widened(differentiated(partial(of.call, reset=reset.cuda()), on_gpu)), expected, rtol)


@every_operator
def test_no_batch(of):
    inputs = of.make(batch=0, L=37)
    result = differentiated(of.call, inputs)
    assert result["y"].shape[0] == 0 and all(not x.any() for name, x in result.items() if name in inputs)


@every_operator
def test_autocast_does_not_lower_the_precision(of):
    inputs = of.make(L=37, dtype=torch.float32)
    expected = differentiated(of.call, inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_close(differentiated(of.call, inputs), expected, rtol=1e-7)


@pytest.mark.parametrize("name", ["selective, real, C++", "Mamba-2's"])
def test_second_derivatives_are_an_error_and_not_wrong(name):
    of = OPERATORS[name].values[0] if "C++" in name else OPERATORS[name]
    x = leaves(of.make(L=5))
    first = next(iter(x.values()))
    (grad,) = torch.autograd.grad(of.call(**x)[0].square().sum(), first, create_graph=True)
    with pytest.raises(RuntimeError):
        grad.sum().backward()
