"""One position at a time against the reference scan."""

import pytest
import torch

from lra_ssm.ops import selective_scan_reference, selective_step

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


@pytest.mark.parametrize(("complex_A", "rule"), CASES)
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


def test_lower_precision_keeps_the_states() -> None:
    x = inputs(2, 5, 3, dtype=torch.float32)
    low = {k: v if k == "state" else v.bfloat16() for k, v in x.items()}
    y, state = selective_step(**low)
    assert (y.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    exact = selective_step(**{k: v.float() for k, v in low.items()})
    torch.testing.assert_close(state, exact[1], rtol=1e-5, atol=1e-5)
