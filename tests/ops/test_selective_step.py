"""One position at a time against the reference scan, and C++ against plain operations."""

import pytest
import torch

from lra_ssm.ops import selective_scan_reference, selective_step
from lra_ssm.ops.backends import cpu_pieces
from tests.each import each
from tests.ops.scan_cases import needs_compiled

CASES = [(False, "euler"), (False, "zoh"), (True, "euler"), (True, "zoh")]


def inputs(batch: int, D: int, N: int, complex_A: bool = False, dtype: torch.dtype = torch.float64):
    g = torch.Generator().manual_seed(D + N)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=g)

    A = -randn(D, N).abs() - 0.1
    A, kind = (torch.complex(A, 3 * randn(D, N)), dtype.to_complex()) if complex_A else (A, dtype)
    real = {"u": randn(batch, D), "delta": randn(batch, D), "D": randn(D), "delta_bias": randn(D) - 1}
    matrices = {"B": randn(batch, 1, N), "C": randn(batch, 1, N), "state": randn(batch, D, N), "A": A}
    return {k: v.to(dtype) for k, v in real.items()} | {k: v.to(kind) for k, v in matrices.items()}


@each(("complex_A", "rule"), CASES)
def test_is_the_reference_at_length_one(complex_A: bool, rule: str) -> None:
    x = inputs(2, 5, 3, complex_A)
    y, state = selective_step(**x, discretization=rule)
    wanted_y, wanted = selective_scan_reference(
        x["u"][..., None], x["delta"][..., None], x["A"], x["B"].transpose(1, 2), x["C"].transpose(1, 2), x["D"],
        delta_bias=x["delta_bias"], delta_softplus=True, initial_state=x["state"], discretization=rule,
        return_last_state=True,
    )  # fmt: skip
    torch.testing.assert_close(y, wanted_y.squeeze(-1), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state, wanted, rtol=1e-12, atol=1e-12)


@needs_compiled
@pytest.mark.parametrize(("batch", "D", "N"), [(1, 1, 1), (3, 5, 4), (2, 600, 16), (1, 7, 37)])
def test_cpp_is_the_plain_form(batch: int, D: int, N: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, called = inputs(batch, D, N, dtype=torch.float32), []
    x["A"][0, 0], x["delta"][0, 0] = 0.5, 300.0  # growth beyond what a float holds, and a linear softplus
    x["state"][0, 0] = 1.0
    native = cpu_pieces.selective_step
    monkeypatch.setattr(cpu_pieces, "selective_step", lambda *a: called.append(1) or native(*a))
    ours = selective_step(**x)
    assert called
    monkeypatch.setattr(cpu_pieces, "takes", lambda *tensors: False)
    for a, b in zip(ours, selective_step(**x), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-6, atol=2e-6, equal_nan=True)


def test_lower_precision_keeps_the_states() -> None:
    x = inputs(2, 5, 3, dtype=torch.float32)
    low = {k: v if k == "state" else v.bfloat16() for k, v in x.items()}
    y, state = selective_step(**low)
    assert (y.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    exact = selective_step(**{k: v.float() for k, v in low.items()})
    torch.testing.assert_close(state, exact[1], rtol=1e-5, atol=1e-5)
