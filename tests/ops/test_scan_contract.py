"""The rest of the contract of `linear_scan`: backends, strides, dtypes, errors."""

from __future__ import annotations

import pytest
import torch

from lra_ssm.ops import linear_scan, linear_scan_reference, prefer_backend
from tests.ops.scan_cases import assert_close
from tests.ops.test_scan import make, run


def test_backends_for_a_varying_factor():
    inputs = make((1, 1, 1, False))
    expected = run(inputs)
    assert_close(run(inputs, "eager"), expected, rtol=0)
    for backend in ("cpu", "triton", "none"):
        with pytest.raises(ValueError, match=f"backend: '{backend}'; expected 'auto', 'eager' or 'reference' for an a"):
            linear_scan(**inputs, backend=backend)
    with prefer_backend("mamba_ssm"):
        assert_close(run(inputs), expected, rtol=0)
        with pytest.raises(ValueError, match="mamba_ssm"):
            linear_scan(**make())


@pytest.mark.parametrize("constant", [True, False])
def test_dtypes(constant):
    inputs = make((0, 0, 0, constant), dtype=torch.float32)
    half = {name: x.bfloat16() for name, x in inputs.items()}
    truth = run({name: x.double() for name, x in half.items()}, "reference")
    for backend in ("auto", "reference"):
        result = run(half, backend)
        assert result["y"].dtype == torch.bfloat16 and result["last_state"].dtype == torch.float32
        assert all(result[name].dtype == torch.bfloat16 for name in half)
        for name, x in result.items():
            rtol = 2e-6 if name == "last_state" else 8e-3
            assert_close({name: x.double()}, {name: truth[name]}, rtol=rtol)
    single, double, pair = torch.float32, torch.float64, torch.complex64
    for a, b, initial, expected in (
        (torch.bfloat16, torch.bfloat16, None, torch.bfloat16),
        (torch.float16, torch.float16, torch.float16, torch.float16),
        (single, torch.bfloat16, None, single),
        (torch.float16, torch.float16, single, single),
        (torch.float16, torch.bfloat16, None, single),
        (single, double, None, double),
        (single, single, double, double),
        (single, single, pair, pair),
        (pair, torch.bfloat16, None, pair),
        (pair, double, None, torch.complex128),
    ):
        x, last = linear_scan(
            inputs["a"].to(a),
            inputs["b"].to(b),
            initial_state=None if initial is None else inputs["initial_state"].to(initial),
            return_last_state=True,
        )
        assert x.dtype == expected and last.dtype == torch.promote_types(expected, single)


def bad(name, value, match):
    return pytest.param(name, value, match, id=match[:40])


zeros = torch.zeros


NESTED = torch.nested.nested_tensor([zeros(5, 4), zeros(3, 4)], layout=torch.jagged).transpose(1, 2)


@pytest.mark.parametrize("name, value, match", [
    bad("b", None, "b: NoneType; expected a tensor"),
    bad("a", 0.5, "a: float; expected a tensor"),
    bad("b", zeros(2, 5), r"b: shape \(2, 5\); expected \(B, D, L\)"),
    bad("b", zeros(2, 4, 0), r"b: shape \(2, 4, 0\); .*L >= 1"),
    bad("b", zeros(2, 4, 5, dtype=torch.int64), "b: dtype torch.int64; expected a real or complex floating dtype"),
    bad("a", zeros(4, dtype=torch.bool), "a: dtype torch.bool"),
    bad("a", zeros(3), r"a: shape \(3,\); expected \(D,\) = \(4,\) or \(B, D, L\) = \(2, 4, 5\)"),
    bad("a", zeros(4, 5), r"a: shape \(4, 5\)"),
    bad("a", zeros(1, 4, 5), r"a: shape \(1, 4, 5\)"),
    bad("a", zeros(4, device="meta"), "a: on meta; expected cpu, where b is"),
    bad("b", zeros(2, 4, 5).to_sparse(), "b: a sparse_coo tensor; expected a dense one$"),
    bad("b", NESTED, "b: a nested tensor; expected a dense one, with the sequences padded to one length"),
    bad("initial_state", zeros(4), r"initial_state: shape \(4,\); expected \(B, D\) = \(2, 4\)"),
    bad("initial_state", zeros(2, 4, dtype=torch.int32), "initial_state: dtype torch.int32"),
    bad("reset", zeros(2, 5), "reset: torch.float32; expected a bool tensor"),
    bad("reset", zeros(2, 4, dtype=torch.bool), r"reset: shape \(2, 4\); expected \(B, L\) = \(2, 5\)"),
    bad("backend", "fast", "backend: 'fast'; expected 'auto'"),
])  # fmt: skip
@pytest.mark.parametrize("constant", [True, False])
def test_errors(name, value, match, constant):
    good = {"a": zeros(4) if constant else zeros(2, 4, 5), "b": zeros(2, 4, 5)}
    with pytest.raises(ValueError, match=match) as error:
        linear_scan(**{**good, name: value})
    assert "\n" not in str(error.value)
    if name != "backend":
        with pytest.raises(ValueError, match=match):
            linear_scan_reference(**{**good, name: value})
