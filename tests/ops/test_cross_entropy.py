"""linear_cross_entropy against F.cross_entropy of F.linear."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lra_ssm.ops import linear_cross_entropy
from lra_ssm.ops.backends import triton_losses
from lra_ssm.ops.cross_entropy import _chunk_bytes

CHUNKS = (1, 7 * 4 * 11, 64 << 20)  # one position at a time, seven, all


def case(n: int = 23, D: int = 5, V: int = 11, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(n + D + V)
    return {
        "x": torch.randn(n, D, generator=g, dtype=dtype).requires_grad_(),
        "weight": torch.randn(V, D, generator=g, dtype=dtype).requires_grad_(),
        "bias": torch.randn(V, generator=g, dtype=dtype).requires_grad_(),
        "targets": torch.randint(0, V, (n,), generator=g),
    }


def plain(x: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.cross_entropy(F.linear(x, weight, bias), targets, reduction="none")


def gradients(loss: Tensor, inputs: dict[str, Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(loss, [x for x in inputs.values() if x.requires_grad]))


def compare(inputs: dict[str, Tensor], reduction: str, of_values: dict[str, float], of_gradients: dict[str, float],
            wanted: Tensor | None = None, function: Any = linear_cross_entropy, **more: Any) -> None:  # fmt: skip
    """Values, and gradients under a weight for each position, with those of the plain form, or of a wanted loss of the
    positions; in double, from the same numbers, where the inputs are single."""
    plainly = inputs
    if wanted is None:
        plainly = {k: v.detach().double().requires_grad_(v.requires_grad) if v.is_floating_point() else v
                   for k, v in inputs.items()}  # fmt: skip
        wanted = plain(**plainly)
    got = function(**inputs, reduction=reduction, **more)
    wanted = wanted if reduction == "none" else wanted.sum()
    scale = torch.linspace(-1, 2, got.numel()) if reduction == "none" else torch.tensor(0.37)
    torch.testing.assert_close(got.to(wanted.dtype), wanted, **of_values)
    ours, theirs = gradients((got * scale).sum(), inputs), gradients((wanted * scale).sum(), plainly)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.to(b.dtype), b, **of_gradients)


EXACT = {"rtol": 1e-7, "atol": 1e-7}  # torch's own for float64


@pytest.mark.parametrize("chunk_bytes", CHUNKS)
@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("with_bias", [True, False])
def test_values_and_gradients_are_those_of_the_plain_form(chunk_bytes: int, reduction: str, with_bias: bool) -> None:
    inputs = case()
    if not with_bias:
        del inputs["bias"]
    inputs["targets"][[0, 5, 22]] = -100
    compare(inputs, reduction, EXACT, EXACT, chunk_bytes=chunk_bytes)


def test_a_gpu_takes_chunks_by_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for memory, chunk in (
        (80 << 30, 640 << 20),
        (4 << 30, 64 << 20),
    ):  # the free memory has no say: results depend on it
        has = SimpleNamespace(total_memory=memory)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, has=has: has)
        assert _chunk_bytes(torch.device("cuda", 0)) == chunk
    assert _chunk_bytes(torch.device("cpu")) == 64 << 20


@pytest.mark.parametrize("V", [11, 37])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_gradient", [True, False])
def test_a_gpus_kernel(V, dtype, with_gradient, interpreter, monkeypatch):
    """Rows of one and of several blocks; ignored ones, and one of scale 0."""
    pytest.importorskip("triton")
    monkeypatch.setattr(triton_losses, "BLOCK", 16)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    g = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(7, V, generator=g, dtype=torch.float64)).to(dtype)
    targets, ignored = torch.randint(V, (7,), generator=g), torch.tensor([0, 1, 0, 0, 0, 0, 1]) > 0
    scale = torch.linspace(-1, 2, 7).to(torch.float64 if dtype == torch.float64 else torch.float32)
    leaf = logits.double().requires_grad_()
    wanted = F.cross_entropy(leaf, targets, reduction="none") * ~ignored
    (slope,) = torch.autograd.grad((wanted * scale).sum(), leaf)
    given = logits.to(device)
    given_scale = scale.to(device) if with_gradient else None
    losses = triton_losses.softmax_losses(given, targets.to(device), ignored.to(device), given_scale)
    torch.testing.assert_close(losses.cpu(), wanted.detach().to(losses.dtype))
    torch.testing.assert_close(given.cpu(), slope.to(dtype) if with_gradient else logits)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_gpu(dtype):
    """Beside the plain form of the same products, in float64 from the logits on."""
    inputs = case(300, 64, 5000, dtype)
    inputs = {name: x.detach().cuda() for name, x in inputs.items() if name != "bias"}
    inputs["targets"][::7] = -100
    leaves = {name: x.requires_grad_() if x.is_floating_point() else x for name, x in inputs.items()}
    loss = linear_cross_entropy(**leaves, reduction="sum", chunk_bytes=100 * 5000 * 4)
    logits = F.linear(leaves["x"], leaves["weight"])
    wanted = F.cross_entropy(logits.double(), leaves["targets"], reduction="sum")
    close = dict(rtol=1e-5, atol=1e-5) if dtype == torch.float32 else dict(rtol=2e-2, atol=2e-3)
    torch.testing.assert_close(loss, wanted.to(loss.dtype), rtol=1e-5, atol=1e-3)
    for ours, theirs in zip(gradients(loss, leaves), gradients(wanted, leaves), strict=True):
        torch.testing.assert_close(ours / theirs.abs().max(), theirs / theirs.abs().max(), **close)


def test_leading_dimensions_and_another_ignore_index() -> None:
    inputs = case(24)
    inputs["targets"][3] = 0
    got = linear_cross_entropy(
        inputs["x"].view(2, 3, 4, 5), inputs["weight"], inputs["targets"].view(2, 3, 4), ignore_index=0
    )
    wanted = plain(inputs["x"], inputs["weight"], inputs["targets"]) * (inputs["targets"] != 0)
    assert got.shape == (2, 3, 4) and got.flatten()[3] == 0
    torch.testing.assert_close(got.flatten(), wanted)


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("n", [0, 4])
def test_nothing_to_score_gives_zeros(n: int, reduction: str) -> None:
    inputs = case(n)
    inputs["targets"][:] = -100
    loss = linear_cross_entropy(**inputs, reduction=reduction)
    assert loss.sum() == 0 and loss.shape == ((n,) if reduction == "none" else ())
    assert all((grad == 0).all() for grad in gradients(loss.sum(), inputs))


@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_huge_logits(reduction: str) -> None:
    # Multiples of powers of two, whose products are exact: what is compared is the softmax.
    rounded = {k: v.detach() for k, v in case().items()}
    rounded["x"] = (rounded["x"] * 1e4).round()
    rounded |= {name: (rounded[name] * 8).round() / 8 for name in ("weight", "bias")}
    assert plain(**rounded).max() > 1e4
    single = {k: v.float().requires_grad_() if v.is_floating_point() else v for k, v in rounded.items()}
    compare(single, reduction, {"rtol": 1e-6, "atol": 0}, {"rtol": 1e-6, "atol": 0})


def test_many_positions_and_a_large_vocabulary() -> None:
    inputs = case(70, 8, 3001, torch.float32)
    compare(inputs, "sum", {"rtol": 1e-6, "atol": 0}, {"rtol": 1e-5, "atol": 2e-6}, chunk_bytes=30 * 3001 * 4)


@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_nan_and_infinite_logits_are_seen(reduction: str) -> None:
    for value in (float("nan"), float("inf")):
        inputs = case(dtype=torch.float32)
        inputs["bias"] = torch.zeros(11).index_fill(0, torch.tensor([3]), value).requires_grad_()
        loss = linear_cross_entropy(**inputs, reduction=reduction).sum()
        assert loss.isnan() == plain(**inputs).sum().isnan()
        assert all(grad.isnan().any() for grad in gradients(loss, inputs))


@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_products_are_bfloat16_under_autocast_and_the_softmax_is_not(reduction: str) -> None:
    inputs = case(64, 32, 50, torch.float32)
    inputs["x"] = (inputs["x"].detach() * 5).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        got = linear_cross_entropy(**inputs, reduction=reduction, chunk_bytes=20 * 50 * 4)
        logits = F.linear(inputs["x"], inputs["weight"]).float() + inputs["bias"]
    wanted = F.cross_entropy(logits, inputs["targets"], reduction="none")
    wanted = wanted if reduction == "none" else wanted.sum()
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(gradients(got.sum(), inputs), gradients(wanted.sum(), inputs), strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02 * theirs.abs().max().item())


def test_mixed_dtypes_multiply_in_that_of_x_and_gradients_are_their_inputs() -> None:
    inputs = case(dtype=torch.float32)
    inputs["x"] = inputs["x"].detach().bfloat16().requires_grad_()
    loss = linear_cross_entropy(**inputs)
    torch.testing.assert_close(
        loss, plain(inputs["x"], inputs["weight"].bfloat16(), inputs["targets"], inputs["bias"].bfloat16()).float(),
        rtol=0.05, atol=0.05,
    )  # fmt: skip
    assert loss.dtype == torch.float32
    assert [grad.dtype for grad in gradients(loss.sum(), inputs)] == [torch.bfloat16, torch.float32, torch.float32]


def test_the_sum_can_be_used_twice_and_without_gradients() -> None:
    inputs = case()
    with torch.no_grad():
        before = [linear_cross_entropy(**inputs, reduction="sum") for _ in range(2)]
    loss = linear_cross_entropy(**inputs, reduction="sum")
    assert before[0] == before[1] == loss
    tensors = [inputs[name] for name in ("x", "weight", "bias")]
    first = torch.autograd.grad(3 * loss, tensors, retain_graph=True)
    second = torch.autograd.grad(-2 * loss, tensors)
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a * (-2 / 3), b)


@pytest.mark.parametrize("wanted", ["x", "weight", "bias"])
@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_gradients_of_one_input_alone(wanted: str, reduction: str) -> None:
    inputs = case()
    for name in ("x", "weight", "bias"):
        inputs[name].requires_grad_(name == wanted)
    compare(inputs, reduction, EXACT, EXACT)


@pytest.mark.parametrize("reduction", ["none", pytest.param("sum", marks=pytest.mark.slow)])
def test_compiles_as_one_graph(reduction: str) -> None:
    compiled = torch.compile(linear_cross_entropy, fullgraph=True, backend="aot_eager")
    compare(case(7), reduction, EXACT, EXACT, function=compiled, chunk_bytes=400)  # two chunks


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": torch.zeros(23, 5, dtype=torch.int64)}, r"^x: .*real floating"),
        ({"weight": torch.zeros(11, 6)}, r"^weight: shape \(11, 6\).*D = 5"),
        ({"bias": torch.zeros(5)}, r"^bias: shape \(5,\).*\(11,\)"),
        ({"targets": torch.zeros(22, dtype=torch.int64)}, r"^targets: shape \(22,\).*expected \(23,\)"),
        ({"targets": torch.zeros(23)}, r"^targets: .*int64"),
        ({"targets": torch.full((23,), 11)}, r"^targets: 11 among them; expected 0 to V-1 = 10, or -100"),
        ({"weight": torch.zeros(11, 5, device="meta")}, r"^weight: on meta; expected cpu"),
        ({"reduction": "mean"}, r"^reduction: 'mean'"),
        ({"chunk_bytes": 0}, r"^chunk_bytes: 0"),
    ],
)
def test_bad_input_is_named_in_one_line(change: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said) as error:
        linear_cross_entropy(**{**case(), **change})  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
