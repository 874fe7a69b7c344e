"""A linear map of a few rows: C++ against torch's operations."""

import pytest
import torch
from torch.nn import functional as F

from lra_ssm.ops import step_linear
from lra_ssm.ops.backends import cpu_pieces
from tests.ops.scan_cases import needs_compiled


@needs_compiled
@pytest.mark.parametrize("R", range(1, 10))
@pytest.mark.parametrize(("rows", "D"), [(128, 512), (129, 509), (4099, 16), (13109, 5)])
def test_linear_maps_of_a_few_rows(R: int, rows: int, D: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(*shape, dtype=torch.float64) for shape in ((R, 2 * D), (rows, D), (rows,)))
    x, weight = x[:, :D], weight / D**0.5
    called, native = [], cpu_pieces.few_rows
    monkeypatch.setattr(cpu_pieces, "few_rows", lambda *a: called.append(1) or native(*a))
    with torch.no_grad():
        y = step_linear(x.float(), weight.float(), bias.float())
    assert bool(called) == (R <= 8)
    torch.testing.assert_close(y.double(), F.linear(x, weight, bias), rtol=1e-5, atol=1e-5)
    called.clear()
    leaf = weight.float().requires_grad_()  # with gradients, in other precisions and under autocast it is F.linear
    assert step_linear(x.float(), leaf).requires_grad and not called
    torch.testing.assert_close(step_linear(x, weight), F.linear(x, weight))
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert step_linear(x.float(), leaf).dtype == torch.bfloat16 and not called
