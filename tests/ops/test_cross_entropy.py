"""linear_cross_entropy against F.cross_entropy of F.linear."""

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lra_ssm.ops import cross_entropy, linear_cross_entropy
from lra_ssm.ops.backends import triton_losses
from tests.ops.scan_cases import DEVICE, Inputs, compare, differentiated

both_reductions = pytest.mark.parametrize("reduction", ["none", "sum"])


def case(n: int = 23, D: int = 5, V: int = 11, dtype: torch.dtype = torch.float64) -> tuple[Inputs, Tensor]:
    g = torch.Generator().manual_seed(n + D + V)
    inputs = {
        name: torch.randn(*shape, generator=g, dtype=dtype) for name, shape in (("x", (n, D)), ("weight", (V, D)))
    }
    return inputs, torch.randint(0, V, (n,), generator=g)


def plain(x: Tensor, weight: Tensor, targets: Tensor, reduction: str = "none") -> Tensor:
    return F.cross_entropy(F.linear(x, weight), targets, reduction=reduction)


def check(inputs: Inputs, reduction: str, rtol: float = 1e-9, function=linear_cross_entropy, **given):
    """Losses, and gradients of the inputs, with those of the plain form in double; given: what needs no gradient."""
    compare(partial(function, reduction=reduction, **given), partial(plain, reduction=reduction, **given), inputs, rtol)


def chunks(monkeypatch: pytest.MonkeyPatch, positions: int, V: int) -> None:
    """Take so many positions at a time, and one row of them in the cache."""
    monkeypatch.setattr(cross_entropy, "_CHUNK_BYTES", positions * 4 * V)
    monkeypatch.setattr(cross_entropy, "_CACHE_BYTES", 1)


@pytest.mark.parametrize("positions", [1, 7, 100])
@pytest.mark.parametrize("wanted", [("x", "weight"), ("x",), ("weight",)])
@both_reductions
def test_values_and_gradients_are_those_of_the_plain_form(reduction, wanted, positions, monkeypatch):
    chunks(monkeypatch, positions, 11)
    inputs, targets = case()
    targets[[0, 5, 22]] = -100
    given = {name: inputs.pop(name) for name in list(inputs) if name not in wanted}
    check(inputs, reduction, targets=targets, **given)


@pytest.mark.parametrize("V", [11, 37])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_gradient", [True, False])
def test_a_gpus_kernel(V, dtype, with_gradient, interpreter, monkeypatch):
    """Rows of one and of several blocks; ignored ones, and one of scale 0."""
    monkeypatch.setattr(triton_losses, "BLOCK", 16)
    g = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(7, V, generator=g, dtype=torch.float64)).to(dtype)
    targets, ignored = torch.randint(V, (7,), generator=g), torch.tensor([0, 1, 0, 0, 0, 0, 1]) > 0
    scale = torch.linspace(-1, 2, 7).to(torch.float64 if dtype == torch.float64 else torch.float32)
    leaf = logits.double().requires_grad_()
    wanted = F.cross_entropy(leaf, targets, reduction="none") * ~ignored
    (slope,) = torch.autograd.grad((wanted * scale).sum(), leaf)
    given = logits.to(DEVICE)
    given_scale = scale.to(DEVICE) if with_gradient else None
    losses = triton_losses.softmax_losses(given, targets.to(DEVICE), ignored.to(DEVICE), given_scale)
    torch.testing.assert_close(losses.cpu(), wanted.detach().to(losses.dtype))
    torch.testing.assert_close(given.cpu(), slope.to(dtype) if with_gradient else logits)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_gpu(dtype):
    """Beside the plain form of the same products, in float64 from the logits on."""
    inputs, targets = case(300, 64, 5000, dtype)
    inputs, targets = {name: x.cuda() for name, x in inputs.items()}, targets.cuda()
    targets[::7] = -100

    def in_double(x, weight):
        return F.cross_entropy(F.linear(x, weight).double(), targets, reduction="sum")

    ours = differentiated(partial(linear_cross_entropy, targets=targets, reduction="sum"), inputs)
    theirs = differentiated(in_double, inputs)
    close = dict(rtol=1e-5, atol=1e-5) if dtype == torch.float32 else dict(rtol=2e-2, atol=2e-3)
    torch.testing.assert_close(ours.pop("y"), theirs.pop("y").float(), rtol=1e-5, atol=1e-3)
    for name, want in theirs.items():
        torch.testing.assert_close(ours[name] / want.abs().max(), want / want.abs().max(), **close)


def test_leading_dimensions_and_another_ignore_index():
    inputs, targets = case(24)
    targets[3] = 0
    x = inputs["x"].view(2, 3, 4, 5)
    got = linear_cross_entropy(x, inputs["weight"], targets.view(2, 3, 4), ignore_index=0)
    wanted = plain(**inputs, targets=targets) * (targets != 0)
    assert got.shape == (2, 3, 4) and got.flatten()[3] == 0
    torch.testing.assert_close(got.flatten(), wanted)


@both_reductions
@pytest.mark.parametrize("n", [0, 4])
def test_nothing_to_score_gives_zeros(n, reduction):
    inputs, targets = case(n)
    ours = partial(linear_cross_entropy, targets=torch.full_like(targets, -100), reduction=reduction)
    found = differentiated(ours, inputs)
    assert found["y"].shape == ((n,) if reduction == "none" else ())
    assert all((x == 0).all() for x in found.values())


@both_reductions
def test_huge_logits(reduction):
    # Multiples of powers of two, whose products are exact: what is compared is the softmax.
    inputs, targets = case()
    inputs = {"x": (inputs["x"] * 1e4).round(), "weight": (inputs["weight"] * 8).round() / 8}
    assert plain(**inputs, targets=targets).max() > 1e4
    check({name: x.float() for name, x in inputs.items()}, reduction, 1e-6, targets=targets)


def test_many_positions_and_a_large_vocabulary(monkeypatch):
    monkeypatch.setattr(cross_entropy, "_CHUNK_BYTES", 30 * 3001 * 4)
    inputs, targets = case(70, 8, 3001, torch.float32)
    check(inputs, "sum", 2e-6, targets=targets)


@both_reductions
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_nan_and_infinite_logits_are_seen(value, reduction):
    inputs, targets = case(dtype=torch.float32)
    inputs["weight"][3, 0], inputs["x"][:, 0] = value, 1
    found = differentiated(partial(linear_cross_entropy, targets=targets, reduction=reduction), inputs)
    assert found.pop("y").sum().isnan() == plain(**inputs, targets=targets).sum().isnan()
    assert all(grad.isnan().any() for grad in found.values())


@both_reductions
def test_products_are_bfloat16_under_autocast_and_the_softmax_is_not(reduction, monkeypatch):
    chunks(monkeypatch, 20, 50)
    inputs, targets = case(64, 32, 50, torch.float32)
    inputs["x"] *= 5

    def in_single(x, weight):
        return F.cross_entropy(F.linear(x, weight).float(), targets, reduction=reduction)

    ours = partial(linear_cross_entropy, targets=targets, reduction=reduction)
    with torch.autocast("cpu", torch.bfloat16):
        found, wanted = (differentiated(function, inputs) for function in (ours, in_single))
    assert all(x.dtype == torch.float32 for x in found.values())
    torch.testing.assert_close(found.pop("y"), wanted.pop("y"), rtol=1e-5, atol=1e-5)
    for name, theirs in wanted.items():
        torch.testing.assert_close(found[name], theirs, rtol=0.02, atol=0.02 * theirs.abs().max().item())


def test_mixed_dtypes_multiply_in_that_of_x_and_gradients_are_their_inputs():
    inputs, targets = case(dtype=torch.float32)
    inputs["x"] = inputs["x"].bfloat16()
    found = differentiated(partial(linear_cross_entropy, targets=targets), inputs)
    low = {name: x.bfloat16() for name, x in inputs.items()}
    torch.testing.assert_close(found["y"], plain(**low, targets=targets).float(), rtol=0.05, atol=0.05)
    assert all(found[name].dtype == x.dtype for name, x in inputs.items())


def test_the_sum_can_be_used_twice_and_without_gradients():
    inputs, targets = case()
    tensors = [x.requires_grad_() for x in inputs.values()]
    with torch.no_grad():
        before = [linear_cross_entropy(**inputs, targets=targets, reduction="sum") for _ in range(2)]
    loss = linear_cross_entropy(**inputs, targets=targets, reduction="sum")
    assert before[0] == before[1] == loss
    wanted = torch.autograd.grad(plain(**inputs, targets=targets, reduction="sum"), tensors)
    for factor in (3, -2):
        grads = torch.autograd.grad(factor * loss, tensors, retain_graph=True)
        torch.testing.assert_close(grads, tuple(factor * grad for grad in wanted))


@pytest.mark.parametrize("reduction", ["none", pytest.param("sum", marks=pytest.mark.slow)])
def test_compiles_as_one_graph(reduction, monkeypatch):
    chunks(monkeypatch, 4, 11)
    compiled = torch.compile(linear_cross_entropy, fullgraph=True, backend="aot_eager")
    inputs, targets = case(7)
    check(inputs, reduction, function=compiled, targets=targets)
