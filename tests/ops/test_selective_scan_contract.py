"""The rest of the contract of `selective_scan`: resets and states, dtypes, strides, memory, backends, errors."""

from __future__ import annotations

import re

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lra_ssm.ops import prefer_backend, scan_backends, selective_scan
from tests.ops.scan_cases import (
    BACKENDS,
    FAST,
    assert_close,
    check_float32_gradient_of_small_A,
    check_mixed_dtypes,
    leaves,
    make_inputs,
    narrowed,
    run,
    weighted_sum,
    widened,
)

VARIABLE = {False: ("2 real", "1 real"), True: ("2 interleaved", "1 complex")}


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
@pytest.mark.parametrize("softplus", [False, True])
def test_one_delta_for_all_steps(softplus, backend):
    """delta (D,), and its bias's and softplus's gradients, are those of the same delta at every step."""
    inputs = make_inputs(True, *VARIABLE[True], L=50)
    inputs["delta"] = delta = inputs["delta"][0, :, 0].clone()
    inputs["delta_bias"] = inputs["delta_bias"].abs()
    flags = dict(discretization="zoh", delta_softplus=softplus, backend=backend)
    got = run(inputs, **flags)
    expected = run({**inputs, "delta": delta[:, None].expand(2, 4, 50)}, **flags)
    expected["delta"] = expected["delta"].sum((0, 2))
    assert_close(got, expected, rtol=1e-10)


@pytest.mark.parametrize("backend", BACKENDS)
def test_interleaved_equals_complex(backend):
    inputs = make_inputs(True, "2 complex", "1 complex")
    flags = dict(discretization="zoh", delta_softplus=True)
    expected = run(inputs, backend, **flags)
    for name in "BC":
        inputs[name] = torch.view_as_real(inputs[name]).flatten(-2)
        expected[name] = torch.view_as_real(expected[name].resolve_conj()).flatten(-2)
    assert_close(run(inputs, backend, **flags), expected)


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
@pytest.mark.parametrize("complex_A", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
def test_mixed_dtypes(complex_A, backend, autocast):
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        check_mixed_dtypes(complex_A, backend)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize(
    "complex_A, discretization", [(False, "euler"), (True, "zoh"), (True, "euler"), (False, "zoh")]
)
def test_float32_error(complex_A, discretization, backend):
    """Against float64: values and every gradient to a few rounding errors."""
    narrow = narrowed(make_inputs(complex_A, *VARIABLE[complex_A], D=8, N=4, L=1024))
    flags = dict(discretization=discretization, delta_softplus=True)
    assert_close(widened(run(narrow, backend, **flags)), run(widened(narrow), "reference", **flags), 3e-6, by=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("complex_A", [False, True])
def test_float32_gradient_of_small_A(complex_A, backend):
    check_float32_gradient_of_small_A(complex_A, backend, L=200)


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
@pytest.mark.parametrize("name", ["u", "A", "B", "D", "z", "initial_state"])
def test_one_double_input_makes_the_arithmetic_double(name, backend):
    inputs = make_inputs(True, "2 real", "constant", dtype=torch.float32)
    wide = widened(inputs)
    expected = run(wide, "reference", discretization="zoh")["last_state"]
    result = run({**inputs, name: wide[name]}, backend, discretization="zoh")
    assert result["y"].dtype == (torch.float64 if name == "u" else torch.float32)
    assert_close({"state": result["last_state"]}, {"state": expected}, rtol=1e-13)


class _LargestAllocation(TorchDispatchMode):
    def __init__(self, ignore):
        super().__init__()
        self.bytes, self.ignore = 0, {x.untyped_storage().data_ptr() for x in ignore}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in self.ignore:
                self.bytes = max(self.bytes, x.untyped_storage().nbytes())
        return out


@pytest.mark.parametrize("fast", BACKENDS)
@pytest.mark.parametrize("complex_A", [False, True])
def test_memory(complex_A, fast):
    """Nothing of B D L N elements is ever allocated, forward or backward; the reference shows that the test sees it."""
    form = "1 interleaved" if complex_A else "1 real"
    share = {}
    for backend, L in ((fast, 1024), ("reference", 64)):
        x = leaves(make_inputs(complex_A, form, form, D=32, N=32, L=L, dtype=torch.float32))
        with _LargestAllocation(x.values()) as mode:
            y, state = selective_scan(**x, return_last_state=True, discretization="zoh", backend=backend)
            assert mode.bytes >= y.numel() * 4
            if backend == fast:
                torch.autograd.grad(weighted_sum(y, state), list(x.values()))
        share[backend] = mode.bytes / (2 * 32 * L * 32 * (8 if complex_A else 4))
    assert share["reference"] >= 1
    assert share[fast] <= 1 / 8


def test_backends():
    inputs = make_inputs(False, "1 real", "1 real", optional=())
    support = scan_backends()
    assert set(support) == {"triton", "mamba_ssm", "cpu", "eager", "reference"}
    assert support["eager"] is support["reference"] is None
    best = "eager" if support["cpu"] else "cpu"
    assert torch.equal(selective_scan(**inputs), selective_scan(**inputs, backend=best))
    for name, reason in support.items():
        if reason is not None:
            with pytest.raises(ValueError, match=f"'{name}' cannot run this call: {re.escape(reason)}"):
                selective_scan(**inputs, backend=name)
    assert "on a CPU only" in scan_backends("cuda")["cpu"]
    with pytest.raises(ValueError, match="backend: 'fast'.*'cpu'"):
        selective_scan(**inputs, backend="fast")
    meta = {name: x.to("meta") for name, x in inputs.items()}
    with pytest.raises(ValueError, match="backend: 'cpu' cannot run this call.*meta"):
        selective_scan(**meta, backend="cpu")


@pytest.mark.parametrize("complex_A", [False, True])
@pytest.mark.parametrize("backend", ["auto", "eager", "reference"])
def test_the_meta_device_has_the_shapes_of_every_result_and_gradient(complex_A, backend):
    inputs, found = make_inputs(complex_A, "1 real", "constant", N=3, L=70, dtype=torch.float32), []
    for device in ("cpu", "meta"):
        given = {name: x.detach().to(device) for name, x in inputs.items()}
        leaves = [x.requires_grad_() for x in given.values() if x.dtype != torch.bool]
        y, state = selective_scan(**given, discretization="zoh", return_last_state=True, backend=backend)
        (y.sum() + state.abs().sum()).backward()
        found.append([(x.shape, x.dtype) for x in (y, state, *(leaf.grad for leaf in leaves))])
        assert y.device.type == device
    assert found[0] == found[1]


def bad(name, value, match=None, complex_A=False):
    return pytest.param(name, value, match or name, complex_A, id=f"{name}-{match or ''}-{'complex' * complex_A}")


zeros, i = torch.zeros, torch.complex64
NESTED = torch.nested.nested_tensor([zeros(5, 4), zeros(3, 4)], layout=torch.jagged).transpose(1, 2)


@pytest.mark.parametrize("name, value, match, complex_A", [
    bad("u", zeros(2, 4), r"u: shape \(2, 4\); expected \(batch, D, L\)"),
    bad("u", zeros(2, 4, 0), r"u: shape \(2, 4, 0\)"),
    bad("u", zeros(2, 4, 5, dtype=torch.int64), "u: dtype torch.int64"),
    bad("u", zeros(2, 4, 5, dtype=i), "u: dtype torch.complex64"),
    bad("u", None, "u: None"),
    bad("u", 3.0, "u: float"),
    bad("u", zeros(2, 4, 5).to_sparse(), "u: a sparse_coo tensor; expected a dense one$"),
    bad("A", zeros(4, 3).to_sparse(), "A: a sparse_coo tensor"),
    bad("u", NESTED, "u: a nested tensor; expected a dense one, with the sequences padded to one length"),
    bad("delta", zeros(5), r"delta: shape \(5,\); expected \(D,\) = \(4,\)"),
    bad("delta", zeros(2, 4, 6), r"delta: shape \(2, 4, 6\); expected \(batch, D, L\) = \(2, 4, 5\)"),
    bad("A", zeros(3, 3), r"A: shape \(3, 3\); expected \(D, N\) or \(N,\) with D = 4"),
    bad("A", zeros(()), r"A: shape \(\)"),
    bad("A", zeros(4, 0), r"A: shape \(4, 0\)"),
    bad("B", zeros(4, 2), r"B: shape \(4, 2\); expected constant \(D, N\) = \(4, 3\)"),
    bad("B", zeros(2, 3, 10), r"B: shape \(2, 3, 10\); expected .*L = 5$"),
    bad("B", zeros(2, 3, 7), r"B: shape \(2, 3, 7\); expected .*2L = 10", True),
    bad("B", zeros(2, 3, 10, dtype=i), r"B: shape \(2, 3, 10\); expected .*L = 5$", True),
    bad("B", zeros(2, 3, 3, 5), r"B: shape .*G dividing D = 4; G = 3 does not"),
    bad("C", zeros(2, 8, 3, 5), r"C: shape .*G dividing D = 4; G = 8 does not"),
    bad("C", zeros(1, 2, 3, 5), r"C: shape \(1, 2, 3, 5\)"),
    bad("C", zeros(3), r"C: shape \(3,\)"),
    bad("B", zeros(2, 3, 5, dtype=i), "B: dtype torch.complex64, but A is real"),
    bad("C", zeros(4, 3, dtype=i), "C: dtype torch.complex64, but A is real"),
    bad("B_bias", zeros(4, 3, dtype=i), "B_bias: dtype torch.complex64, but A is real"),
    bad("initial_state", zeros(2, 4, 3, dtype=i), "initial_state: dtype torch.complex64, but A is real"),
    bad("C", zeros(2, 3, 5, dtype=torch.bool), "C: dtype torch.bool"),
    bad("D", zeros(3), r"D: shape \(3,\); expected \(D,\) = \(4,\)"),
    bad("D", zeros(4, dtype=i), "D: dtype torch.complex64", True),
    bad("D", 1.0, "D: float; expected a tensor"),
    bad("z", zeros(2, 4), r"z: shape \(2, 4\)"),
    bad("delta_bias", zeros(1), r"delta_bias: shape \(1,\)"),
    bad("B_bias", zeros(3), r"B_bias: shape \(3,\); expected \(D, N\) = \(4, 3\)"),
    bad("initial_state", zeros(4, 3), r"initial_state: shape \(4, 3\); expected \(batch, D, N\) = \(2, 4, 3\)"),
    bad("reset", zeros(2, 5), "reset: torch.float32; expected a bool tensor"),
    bad("reset", zeros(2, 4, dtype=torch.bool), r"reset: shape \(2, 4\); expected \(batch, L\) = \(2, 5\)"),
    bad("A", zeros(4, 3, device="meta"), "A: on meta; expected cpu"),
    bad("discretization", "bilinear", "discretization: 'bilinear'; expected 'euler' or 'zoh'"),
])  # fmt: skip
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_errors(name, value, match, complex_A, backend):
    good = make_inputs(complex_A, "1 real", "1 real", N=3, L=5, optional=(), dtype=torch.float32)
    with pytest.raises(ValueError, match=match) as error:
        selective_scan(**{**good, name: value}, backend=backend)
    assert "\n" not in str(error.value)


def test_a_preferred_backend_is_what_auto_means():
    inputs = make_inputs(False, "2 real", "1 real", dtype=torch.float32)
    with prefer_backend("mamba_ssm"), pytest.raises(ValueError, match="mamba_ssm"):
        selective_scan(**inputs)
    selective_scan(**inputs)
