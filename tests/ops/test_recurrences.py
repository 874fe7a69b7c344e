"""What every operator along time keeps: values and gradients of its loop, states, resets, strides, precision."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise as pairs

import pytest
import torch

from tests.ops.operators import OPERATORS, linear, named, selective
from tests.ops.scan_cases import assert_close, compare, differentiated, leaves, random_reset, widened
from tests.pairwise import pairwise

ALL = named()
EAGER = [name.values[0] for name in ALL if not any(word in name.values[0] for word in ("C++", "Triton"))]
IN_TORCH = [name for name in ALL if "Triton" not in name.values[0]]


def less_interpreted(values, *marks):
    """Operator and value; an interpreted one has the first only, with these marks."""
    every = [pytest.param(*name.values, value, marks=name.marks) for value in values for name in IN_TORCH]
    interpreted = [name for name in ALL if name not in IN_TORCH]
    return every + [pytest.param(*name.values, values[0], marks=[*name.marks, *marks]) for name in interpreted]


pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered")  # by numpy, which interprets kernels


@pytest.fixture(params=ALL)
def of(request, monkeypatch):
    """An operator by one of its backends, ready to run here."""
    operator = OPERATORS[request.param]
    if operator.interpreted:
        request.getfixturevalue("interpreter")
    for patch in operator.patches:
        monkeypatch.setattr(*patch)
    return operator


def assert_same(of, a, b, rtol=1e-12):
    rtol = of.rtol if of.dtype == torch.float32 else rtol
    torch.testing.assert_close(a, b, rtol=rtol, atol=rtol)


def lengths():
    """Every operator at every length with every form and option, each two of them together; interpreted ones less."""
    cases = []
    for name, of in OPERATORS.items():
        optional = dict.fromkeys([(), of.optional[:1], of.optional])
        L = [of.L, 2, 1] if of.interpreted else [1, 2, 63, 128, 257]
        forms = range(len(of.forms))
        covering = pairwise(L=L, with_reset=[False, True], optional=optional, form=forms, rest=False).args[1]
        chosen = [case.values for case in covering]
        if not of.interpreted:
            chosen.append((1024, True, of.optional, 0))
        for i, case in enumerate(chosen):
            marks = [*of.marks, *([pytest.mark.slow] if of.interpreted and i > 1 else [])]
            cases.append(pytest.param(name, *case, marks=marks))
    return cases


@pytest.mark.parametrize("of, L, with_reset, optional, form", lengths(), indirect=["of"])
def test_against_the_loop(of, L, with_reset, optional, form):
    sizes, flags = of.forms[form]
    inputs = of.make(L=L, optional=optional, dtype=of.dtype, **sizes)
    flags = flags | {"reset": random_reset(2, L) if with_reset else None}
    compare(partial(of.call, **flags), partial(of.slow, **flags), inputs, of.rtol)


ONE_RESULT = [
    *less_interpreted([(False, True), (True, False)]),
    ("linear, 1, Triton", (True, False)),
    pytest.param("selective, complex, Triton", (True, False), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("of, used", ONE_RESULT, indirect=["of"])
def test_gradient_through_one_result_only(of, used):
    compare(of.call, of.slow, of.make(L=of.L, dtype=of.dtype), of.rtol, used)


@pytest.mark.parametrize("of", IN_TORCH, indirect=True)
def test_gradients_of_some_inputs_do_not_depend_on_whether_the_others_require_theirs(of):
    inputs = of.make(L=37)
    expected = differentiated(of.call, inputs, (True, False))
    for name in inputs:
        x = {key: v.detach().requires_grad_(key == name) for key, v in inputs.items()}
        found = differentiated(of.call, x, (True, False), of=[name])
        assert_close({name: found[name]}, {name: expected[name]}, rtol=1e-12)
    assert torch.equal(of.call(**inputs)[0], expected["y"])


@pytest.mark.parametrize("of, form", less_interpreted([0, -1], pytest.mark.slow), indirect=["of"])
def test_prefixes_and_what_follows_them_equal_the_whole(of, form):
    """Values and gradients, through the state."""
    (sizes, flags), reset = of.forms[form], random_reset(2, of.L)
    cuts = [0, *(() if of.interpreted else (1, 3)), of.L // 2, of.L]

    def in_parts(**x):
        state, parts = x.pop(of.state), []
        for start, stop in pairs(cuts):
            given = of.cut(x, start, stop) | {of.state: state, "reset": reset[:, start:stop]}
            y, state = of.call(**given, **flags)
            parts.append(y)
        return torch.cat(parts, of.time), state

    inputs = of.make(L=of.L, dtype=of.dtype, **sizes)
    whole = differentiated(partial(of.call, reset=reset, **flags), inputs)
    assert_close(differentiated(in_parts, inputs), whole, of.rtol if of.dtype == torch.float32 else 1e-11)


def test_reset_equals_separate_runs(of):
    """Gradients stop there too, and not even an infinite state leaks, forwards or backwards."""
    inputs, (first, second, L) = of.make(L=of.L, dtype=of.dtype), (of.L // 3, 2 * of.L // 3, of.L)
    initial = inputs.pop(of.state)
    reset = torch.zeros(2, L, dtype=torch.bool)
    reset[:, first] = reset[:, second] = True
    whole = leaves(inputs)
    y, last = of.call(**whole, **{of.state: initial}, reset=reset)
    runs = [of.call(**of.cut(inputs, 0, first), **{of.state: initial})]
    runs += [of.call(**of.cut(inputs, *ends)) for ends in ((first, second), (second, L))]
    assert_same(of, torch.cat([part for part, _ in runs], of.time), y)
    assert_same(of, last, runs[-1][1])
    (grad,) = torch.autograd.grad(y.narrow(of.time, second, L - second).abs().sum(), [whole[of.read]])
    grad = grad.movedim(of.time, -1)
    assert (grad[..., :second] == 0).all() and (grad[..., second:] != 0).flatten(0, -2).any(-1).all()
    if not of.infinite:
        return
    broken = {name: x.clone().requires_grad_() for name, x in (inputs | {of.state: initial}).items()}
    with torch.no_grad():
        of_time = broken[of.read].movedim(of.time, -1)
        of_time[..., [first + 1, second - 1]], of_time[0, :, second - 2] = math.inf, math.nan
        broken[of.state].fill_(math.inf)
    reset[0, 0] = True  # which drops the initial state
    z, _ = of.call(**broken, reset=reset)
    after = z.narrow(of.time, second, L - second)
    assert torch.equal(after, y.detach().narrow(of.time, second, L - second))
    begin = z.narrow(of.time, 0, first)[0]
    assert_same(of, begin, of.call(**of.cut(inputs, 0, first))[0][0])
    for name in of.finite:
        (grad,) = torch.autograd.grad(after.abs().sum() + begin.abs().sum(), [broken[name]], retain_graph=True)
        assert grad.abs().isfinite().all() and (name != of.state or (grad[0] == 0).all()), name


def test_any_strides(of, request):
    """Transposed, strided, expanded, negated and conjugated inputs; y keeps the memory order of what is read."""
    inputs, reset = of.make(L=of.L, dtype=of.dtype), random_reset(2, of.L)
    expected = differentiated(partial(of.slow, reset=reset), widened(inputs))
    strided = {name: x.transpose(0, -1).contiguous().transpose(0, -1) for name, x in inputs.items()}
    strided[of.read] = torch.stack([inputs[of.read]] * 2, -1)[..., 0].transpose(1, 2).contiguous().transpose(1, 2)
    strided = {
        name: x.conj().resolve_conj().conj() if x.is_complex() else torch.complex(x, -x).conj().imag
        for name, x in strided.items()
    }
    found = differentiated(partial(of.call, reset=reset.T.contiguous().T), strided)
    assert_close(widened(found), expected, of.rtol)
    if of.time < 0 and "reference" not in request.node.name:
        channels_last = inputs[of.read].transpose(1, 2).contiguous().transpose(1, 2)
        assert of.call(**(inputs | {of.read: channels_last}))[0].stride(1) == 1
    inputs[of.read] = inputs[of.read][:1, :, :1].expand_as(inputs[of.read])
    compare(of.call, of.slow, inputs, of.rtol)


@pytest.mark.parametrize("of, autocast", less_interpreted([True, False]), indirect=["of"])
def test_mixed_dtypes(of, autocast, request):
    """Arithmetic and state are in single precision, autocast or not; y and gradients in that of what they belong to."""
    inputs = of.make(L=of.L, dtype=torch.float32)
    inputs |= {name: inputs[name].to(dtype) for name, dtype in of.low.items()}
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        truncates = of.interpreted and "depthwise" in request.node.name  # as Triton's interpreter rounds to bfloat16
        found = compare(of.call, of.slow, inputs, 2e-6, halves=1 + truncates)
    assert found["y"].dtype == inputs[of.read].dtype
    single = torch.promote_types(inputs[of.state].dtype, torch.float32)
    assert found["last_state"].dtype == (single if of.state != "initial" else inputs[of.read].dtype)


@pytest.mark.parametrize("of", [name for name in IN_TORCH if "depthwise" not in name.values[0]], indirect=True)
def test_one_double_input_makes_the_arithmetic_double(of):
    inputs = of.make(L=37, dtype=torch.float32)
    wide = widened(inputs)
    _, expected = of.slow(**wide)
    for name in inputs:
        y, state = of.call(**{**inputs, name: wide[name]})
        if "b" not in inputs:  # the linear recurrence's y is promoted too
            assert y.dtype == (torch.float64 if name == of.read else torch.float32)
        assert_close({"state": state}, {"state": expected}, rtol=1e-12)


@pytest.mark.parametrize("form", [0, -1])
@pytest.mark.parametrize("of", IN_TORCH, indirect=True)
def test_error_in_single_precision(of, form):
    L, (sizes, flags) = 1024 if of.state != "initial" else 300, of.forms[form]
    inputs, flags = of.make(L=L, dtype=torch.float32, **sizes), flags | {"reset": random_reset(2, L) if form else None}
    compare(partial(of.call, **flags), partial(of.slow, **flags), inputs, 2e-6 if "b" in inputs else 3e-6)


ON_A_GPU = {
    **{f"selective, {c}": selective("auto", c) for c in (False, True)},
    **{f"linear, {c}, {k}": linear(c, k) for c in (0, 1) for k in (False, True)},
    **{name: OPERATORS[name] for name in ("Mamba-2's", "depthwise, PyTorch")},
}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("name", ON_A_GPU)
@pytest.mark.parametrize("dtype, rtol", [(torch.float64, 1e-9), (torch.float32, 4e-6)])
def test_on_a_gpu(name, dtype, rtol):
    of, reset = ON_A_GPU[name], random_reset(2, 257)
    # With SiLU, as in Mamba. Without it, the 514 terms of the gradient of the bias cancel to 1e-4 of their size.
    flags = {"silu": True} if name.startswith("depthwise") else {}
    inputs = of.make(L=257, dtype=dtype)
    expected = differentiated(partial(of.slow, reset=reset, **flags), widened(inputs))
    on_gpu = {name: x.cuda() for name, x in inputs.items()}
    assert_close(widened(differentiated(partial(of.call, reset=reset.cuda(), **flags), on_gpu)), expected, rtol)


def test_no_batch(of):
    inputs = of.make(batch=0, L=37, dtype=of.dtype)
    result = differentiated(of.call, inputs)
    assert result["y"].shape[0] == 0 and all(not x.any() for name, x in result.items() if name in inputs)


@pytest.mark.parametrize("of", EAGER, indirect=True)
def test_the_meta_device_has_the_shapes_of_every_result_and_gradient(of):
    inputs, found = of.make(L=70, dtype=torch.float32), []
    for device in ("cpu", "meta"):
        result = differentiated(of.call, {name: x.to(device) for name, x in inputs.items()})
        assert all(x.device.type == device for x in result.values())
        found.append({name: (x.shape, x.dtype) for name, x in result.items()})
    assert found[0] == found[1]


@pytest.mark.parametrize("of", named("selective, real, C", "selective, complex, T", "Mamba", "linear", "depthwise, C"),
                         indirect=True)  # fmt: skip
def test_second_derivatives_are_an_error_and_not_wrong(of):
    x = leaves(of.make(batch=1, L=2, dtype=of.dtype))
    (grad,) = torch.autograd.grad(of.call(**x)[0].abs().square().sum(), [x[of.read]], create_graph=True)
    with pytest.raises(RuntimeError):
        grad.abs().sum().backward()
