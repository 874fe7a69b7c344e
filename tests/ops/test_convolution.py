"""Long convolutions and S4D's kernels against their definitions: values and gradients."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import lra_ssm.ops.convolution as convolution
from lra_ssm import ops
from tests.ops.scan_cases import compare, narrowed, needs_compiled, on_device, widened


@pytest.fixture(params=[pytest.param("auto", marks=needs_compiled), "eager", "triton"])
def kernel(request):
    """s4d_kernel by C++, by matrix products, and by Triton's kernels, interpreted where there is no GPU."""
    if request.param == "triton":
        request.getfixturevalue("interpreter")
    with ops.prefer_backend(request.param):
        yield on_device(ops.s4d_kernel) if request.param == "triton" else ops.s4d_kernel


LENGTHS = [1, 2, 63, 128, 257, 1024]
reference = partial(ops.s4d_kernel, backend="reference")


def randn(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("L", LENGTHS)
def test_against_the_definition(L):
    u, k, backward = randn(2, 3, L), randn(3, L, seed=1), randn(3, L, seed=2)
    compare(ops.causal_convolution, ops.causal_convolution_reference, dict(u=u, k=k), 1e-10)
    inputs = dict(u=u, k_forward=k, k_backward=backward)
    compare(ops.bidirectional_convolution, ops.bidirectional_convolution_reference, inputs, 1e-10)


@pytest.mark.parametrize(("fast", "slow", "names"), [
    (ops.causal_convolution, ops.causal_convolution_reference, ["k"]),
    (ops.bidirectional_convolution, ops.bidirectional_convolution_reference, ["k_forward", "k_backward"]),
])  # fmt: skip
def test_pieces_of_channels(fast, slow, names, monkeypatch):
    """More channels and batch items than one piece takes, and channels next to each other in memory."""
    monkeypatch.setattr(convolution, "_PIECE_BYTES", 1)
    kernels = {name: randn(37, 65, seed=i) for i, name in enumerate(names)}
    for u in (randn(2, 37, 65), randn(2, 65, 37).transpose(1, 2)):
        compare(fast, slow, {"u": u, **kernels}, 1e-10)
        for given, rest in ((kernels, {"u": u}), ({"u": u}, kernels)):  # only some need gradients
            compare(partial(fast, **given), partial(slow, **given), rest, 1e-10)


def test_bidirectional_by_hand():
    u = torch.tensor([[[1.0, 10.0, 100.0]]])
    forward, backward = torch.tensor([[2.0, 3.0, 5.0]]), torch.tensor([[7.0, 11.0, 13.0]])
    # y_0 = 2*1 + 7*10 + 11*100; y_1 = 3*1 + 2*10 + 7*100; y_2 = 5*1 + 3*10 + 2*100
    y = ops.bidirectional_convolution(u, forward, backward)
    torch.testing.assert_close(y, torch.tensor([[[1172.0, 723.0, 235.0]]]), rtol=1e-6, atol=0)


def test_dtypes():
    u, k = randn(2, 3, 50), randn(3, 50, seed=1)
    truth = ops.causal_convolution_reference(u, k)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.3), (torch.float16, 0.05)):
        for y in (ops.causal_convolution(u.to(dtype), k.to(dtype)), ops.causal_convolution(u.to(dtype), k.float())):
            assert y.dtype == dtype
            torch.testing.assert_close(y.double(), truth, atol=tolerance, rtol=0)
    assert ops.causal_convolution(u.float(), k).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(ops.causal_convolution(u.float(), k.float()).double(), truth, atol=1e-5, rtol=0)


def kernel_inputs(*, tied=False, several=0, D=3, N=4):
    A = -0.1 - torch.rand(N, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    A = A if tied else A * (1 + torch.arange(D, dtype=torch.float64))[:, None]
    A = torch.complex(A, 5 * randn(*A.shape))
    B = randn(*A.shape, dtype=A.dtype, seed=1)
    C = randn(*((several,) * bool(several)), D, N, dtype=A.dtype, seed=2)
    return {"delta": torch.tensor([0.01, 0.1, 0.4], dtype=torch.float64), "A": A, "B": B, "C": C}


def compare_kernels(kernel, inputs, rtol=1e-10, **arguments):
    compare(partial(kernel, **arguments), partial(reference, **arguments), inputs, rtol)


@pytest.mark.parametrize("discretization", ["zoh", "bilinear"])
@pytest.mark.parametrize("L", LENGTHS)
def test_kernel(L, discretization, kernel):
    """One kernel or, of the longer ones, two from one table."""
    inputs = kernel_inputs(tied=L % 2 == 1, several=2 * (L > 100))
    compare_kernels(kernel, inputs, L=L, discretization=discretization)


@pytest.mark.slow
@pytest.mark.parametrize("N", [1, 8, 33])
def test_numbers_of_states(N, kernel):
    inputs = kernel_inputs(several=2, N=N)
    compare_kernels(kernel, inputs, L=200)
    truth = kernel(**inputs, L=200)
    assert (kernel(**narrowed(inputs), L=200) - truth).abs().max() <= 2e-6 * truth.abs().max()


def test_kernel_with_a_vanishing_pole(kernel):
    """A = 0, that is A_bar = 1 and B_bar = delta: gradients stay finite and right. By the bilinear rule delta A = -2,
    that is A_bar = 0: what computes it by way of zero-order hold is right to some 1e-8 there."""
    inputs = kernel_inputs()
    inputs["A"][0, 0] = 0
    compare_kernels(kernel, inputs, L=257)
    inputs["A"][0, 0] = -2 / inputs["delta"][0]
    compare_kernels(partial(ops.s4d_kernel, backend="eager"), inputs, L=257, discretization="bilinear")
    compare_kernels(kernel, inputs, L=257, discretization="bilinear", rtol=1e-7)


@pytest.mark.parametrize("name", ["lin", "inv", "legs"])
def test_kernel_in_float32(name, kernel):
    """From float32 inputs, an error of 1e-6 of the largest value even where l delta Im A is thousands of radians."""
    A = ops.initialize_A(name, 32)
    inputs = {"delta": torch.tensor([1e-3, 1e-2, 1e-1]), "A": A, "B": torch.ones_like(A)}
    inputs["C"] = randn(3, 32, dtype=A.dtype, seed=3)
    k = kernel(**inputs, L=4096)
    assert k.dtype == torch.float32
    truth = reference(**widened(inputs), L=4096)
    assert (k - truth).abs().max() <= 1e-6 * truth.abs().max()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(kernel(**inputs, L=4096), k)


def test_real_B_and_C_beside_complex_A(kernel):
    delta, A, B, C = kernel_inputs().values()
    got = kernel(delta, A, B.real, C.real, 70)
    torch.testing.assert_close(got, kernel(delta, A, B.real + 0j, C.real + 0j, 70))
    assert got.abs().max() > 0
