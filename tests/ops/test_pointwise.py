"""The gate, RMSNorm, and the convolution with SiLU: C++ against torch's operations, values and every gradient."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lra_ssm.ops import (
    causal_depthwise_convolution,
    causal_depthwise_convolution_reference,
    pointwise,
    rms_norm,
    silu_gate,
    step_linear,
)
from lra_ssm.ops.backends import cpu_pieces
from tests.each import each
from tests.ops.scan_cases import needs_compiled, random_reset


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pointwise, "_WORTH_A_CALL", 1)
    monkeypatch.setattr(pointwise, "_WORTH_READING", 1)


WIDTHS = (1, 5, 16, 37, 600)  # less than a vector, whole vectors, more than a tile of the convolution


@pytest.fixture(params=[pytest.param("C++", marks=needs_compiled), "torch"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(cpu_pieces, "takes", lambda *tensors: False)
    return request.param


def randn(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


def compare(function, truth, inputs: dict[str, Tensor], dtype: torch.dtype) -> None:
    """Values and gradients of the function in dtype against the truth's in float64."""
    results = []
    for run, to in ((function, dtype), (truth, torch.float64)):
        leaves = {name: x.to(to).requires_grad_() for name, x in inputs.items()}
        y = run(**leaves)
        assert y.dtype == to
        results.append([y, *torch.autograd.grad((y * randn(*y.shape).to(to)).sum(), list(leaves.values()))])
    tolerance = 1e-11 if dtype == torch.float64 else 2e-6
    for name, ours, theirs in zip(("y", *inputs), *results, strict=True):
        scale = theirs.abs().max().item()
        torch.testing.assert_close(
            ours.double(), theirs, rtol=tolerance, atol=tolerance * scale, msg=lambda m, n=name: f"{n}: {m}"
        )


@each("dtype", [torch.float32, torch.float64])
@each("D", WIDTHS)
def test_gate(path: str, D: int, dtype: torch.dtype) -> None:
    both = randn(2, 7, 2 * D) * 4
    for z in (both[..., D:], both[..., D:].clone(), randn(2, D, 7).transpose(1, 2)):  # a half, whole, transposed
        compare(silu_gate, lambda y, z: y * z / (1 + torch.exp(-z)), {"y": randn(2, 7, D), "z": z}, dtype)


@each("dtype", [torch.float32, torch.float64])
@each("D", WIDTHS[1:])  # of one number nothing but epsilon has a gradient
@each("shape", [(3,), (2, 150), (5, 1)])
def test_rms_norm(path: str, shape: tuple[int, ...], D: int, dtype: torch.dtype) -> None:
    def truth(x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight

    compare(rms_norm, truth, {"x": randn(*shape, D), "weight": randn(D)}, dtype)


@each("dtype", [torch.float32, torch.float64])
@each("with_reset", [False, True])
@each(("L", "D", "W"), [(1, 5, 4), (2, 37, 3), (63, 300, 4), (300, 16, 2)])
def test_convolution_with_silu(path: str, L: int, D: int, W: int, with_reset: bool, dtype: torch.dtype) -> None:
    reset = random_reset(3, L) if with_reset else None
    u = randn(3, L, 2 * D)[..., :D].transpose(1, 2)  # a part of what a projection gives
    inputs = {"u": u, "weight": randn(D, W), "bias": randn(D), "initial": randn(3, D, W - 1)}
    compare(
        lambda **x: causal_depthwise_convolution(**x, reset=reset, silu=True),
        lambda **x: F.silu(causal_depthwise_convolution_reference(**x, reset=reset)),
        inputs, dtype,
    )  # fmt: skip


@needs_compiled
def test_large_numbers_and_nan() -> None:
    z = torch.tensor([-200.0, -100.0, 0.0, 100.0, 3e38, float("inf"), float("nan")])
    torch.testing.assert_close(silu_gate(torch.ones_like(z), z), F.silu(z), equal_nan=True, rtol=1e-6, atol=1e-37)


@needs_compiled
def test_threads_change_nothing_but_time() -> None:
    x, weight, before = randn(64, 300, dtype=torch.float32).requires_grad_(), randn(300), torch.get_num_threads()
    weight = weight.float().requires_grad_()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(torch.autograd.grad(rms_norm(x, weight).square().sum(), [x, weight]))
    finally:
        torch.set_num_threads(before)
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)


def test_what_cpp_cannot_take_is_left_to_torch() -> None:
    x, weight = randn(3, 8), randn(8)
    assert rms_norm(x.float(), weight).dtype == F.rms_norm(x.float(), (8,), weight, 1e-5).dtype  # mixed
    assert silu_gate(x.bfloat16(), x.bfloat16()).dtype == torch.bfloat16
    assert rms_norm(x.to("meta"), weight.to("meta")).shape == (3, 8)
    assert silu_gate(x[:0], x[:0]).shape == (0, 8)
    assert silu_gate(x, x[:1]).shape == (3, 8)
    per_row = torch.func.vmap(torch.func.grad(lambda row: rms_norm(row, weight).square().sum()))(x)
    torch.testing.assert_close(per_row, torch.func.grad(lambda rows: rms_norm(rows, weight).square().sum())(x))


def test_compiles_as_one_graph() -> None:
    x, weight = randn(3, 8), randn(8)

    def both(x: Tensor) -> Tensor:
        return silu_gate(rms_norm(x, weight), x)

    torch.testing.assert_close(torch.compile(both, backend="aot_eager", fullgraph=True)(x), both(x))


@needs_compiled
@each("R", range(1, 10))
@each(("rows", "D"), [(1, 1), (7, 5), (33, 16), (19, 37), (40, 300)])
def test_linear_maps_of_a_few_rows(R: int, rows: int, D: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = randn(R, 2 * D)[:, :D], randn(rows, D), randn(rows)
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
