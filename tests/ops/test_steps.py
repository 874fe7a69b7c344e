"""One position at a time, and linear maps of a few rows or by block, against the same by other means."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F

from lra_ssm.ops import block_linear, mamba3_step, selective_step, ssd_step, step_linear
from lra_ssm.ops.backends import cpu_pieces
from tests.ops.operators import OPERATORS
from tests.ops.scan_cases import assert_close, compare, make_inputs, needs_compiled, scan, widened


def test_a_step_is_the_selective_scan_of_one_position():
    x = make_inputs(False, "1 real", "1 real", L=1, optional=("D", "delta_bias", "initial_state"))
    y, state = scan("reference", discretization="euler", delta_softplus=True)(**x)
    x = {name: v[..., 0] if name in ("u", "delta", "B", "C") else v for name, v in x.items()}
    x["state"] = x.pop("initial_state")
    found = dict(zip(("y", "state"), selective_step(**x), strict=True))
    assert_close(found, {"y": y[..., 0], "state": state}, rtol=1e-12)
    low = {name: v.to(torch.bfloat16) for name, v in x.items()}
    low["state"] = x["state"].float()  # which the state stays in
    found = dict(zip(("y", "state"), selective_step(**low), strict=True))
    assert found["y"].dtype == torch.bfloat16 and found["state"].dtype == torch.float32
    _, expected = selective_step(**widened(low))
    assert_close(widened({"state": found["state"]}), {"state": expected}, rtol=1e-5)


@pytest.mark.parametrize("step, name", [(ssd_step, "Mamba-2's"), (mamba3_step, "Mamba-3's")])
def test_steps_are_the_scan(step, name):
    of = OPERATORS[name]

    def in_steps(initial_state, D=None, **x):
        state, outputs = initial_state, []
        for k in range(6):
            at_k = {name: v[:, k] if name in of.along else v for name, v in x.items()}
            y, state = step(**at_k, D=D, state=state)
            outputs.append(y)
        return torch.stack(outputs, 1), state

    for optional in (("initial_state",), of.optional):
        compare(in_steps, of.slow, of.make(L=6, optional=optional))


@pytest.mark.parametrize("step, name", [(ssd_step, "Mamba-2's"), (mamba3_step, "Mamba-3's")])
def test_autocast_does_not_reach_a_step(step, name):
    of = OPERATORS[name]
    x = of.make(L=1, optional=("D", "initial_state"), dtype=torch.float32)
    x["state"] = x.pop("initial_state")
    x = {name: v[:, 0] if name in of.along else v for name, v in x.items()}
    expected = step(**x)
    with torch.autocast("cpu", torch.bfloat16):
        assert all(torch.equal(*pair) for pair in zip(step(**x), expected, strict=True))


@needs_compiled
@pytest.mark.parametrize("R", range(1, 10))
@pytest.mark.parametrize(("rows", "D"), [(128, 512), (129, 509), (4099, 16), (13109, 5)])
def test_linear_maps_of_a_few_rows(R, rows, D, monkeypatch):
    """C++ against torch's operations."""
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


@pytest.mark.parametrize("per_sequence", [False, True, None])
def test_every_block_has_its_own_matrix_with_every_gradient(per_sequence):
    randn = partial(torch.randn, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inputs = {"x": randn(3, 7, 4, 2), "first": randn(4, 2, 5), "second": randn(4, 2, 6)}

    def ours(x, first, second):
        return tuple(block_linear(x, first, second, per_sequence=per_sequence))

    def by_block(x, **weights):
        return tuple(torch.stack([x[:, :, h] @ w[h] for h in range(4)], 2) for w in weights.values())

    compare(ours, by_block, inputs)
