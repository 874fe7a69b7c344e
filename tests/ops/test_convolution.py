"""Long convolutions and S4D's kernels against their definitions: values and gradients."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import lra_ssm.ops.convolution as convolution
from lra_ssm.ops import (
    bidirectional_convolution,
    bidirectional_convolution_reference,
    causal_convolution,
    causal_convolution_reference,
    initialize_A,
    prefer_backend,
    s4d_kernel,
    s4d_kernel_reference,
)
from tests.ops.scan_cases import needs_compiled


@pytest.fixture(params=[pytest.param("auto", marks=needs_compiled), "eager", "triton"])
def path(request, monkeypatch):
    """s4d_kernel by C++, by matrix products, and by Triton's kernels, interpreted where there is no GPU; what has a
    real A takes the second in any case."""
    if request.param == "triton":
        pytest.importorskip("triton")
        request.getfixturevalue("interpreter")
        if torch.cuda.is_available():
            kernel = s4d_kernel
            monkeypatch.setitem(globals(), "s4d_kernel", lambda *x: kernel(*(on_gpu(y) for y in x)).cpu())
    with prefer_backend(request.param):
        yield


def on_gpu(x):
    return x.cuda() if isinstance(x, torch.Tensor) else x


LENGTHS = [1, 2, 63, 128, 257, 1024]


def randn(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def assert_same(fast, slow, *inputs, rtol=1e-10):
    """Values and every gradient of two functions, relative to the largest entry."""
    results = []
    for function in (fast, slow):
        leaves = [x.detach().clone().requires_grad_() for x in inputs]
        y = function(*leaves)
        weights = torch.cos(torch.arange(y.numel(), dtype=torch.float64)).view(y.shape)
        results.append((y, *torch.autograd.grad((y * weights).sum(), leaves)))
    for got, want in zip(*results, strict=True):
        assert got.shape == want.shape and got.dtype == want.dtype
        assert (got - want).abs().max() <= rtol * want.abs().max() + 1e-13


@pytest.mark.parametrize("L", LENGTHS)
def test_causal(L):
    assert_same(causal_convolution, causal_convolution_reference, randn(2, 3, L), randn(3, L, seed=1))


@pytest.mark.parametrize("L", LENGTHS)
def test_bidirectional(L):
    inputs = randn(2, 3, L), randn(3, L, seed=1), randn(3, L, seed=2)
    assert_same(bidirectional_convolution, bidirectional_convolution_reference, *inputs)


@pytest.mark.parametrize("form", [causal_convolution, bidirectional_convolution])
def test_pieces_of_channels(form, monkeypatch):
    """More channels and batch items than one piece takes, and channels next to each other in memory."""
    monkeypatch.setattr(convolution, "_PIECE_BYTES", 1)
    kernels = [randn(37, 65, seed=i) for i in range(1 if form is causal_convolution else 2)]
    slow = causal_convolution_reference if form is causal_convolution else bidirectional_convolution_reference
    assert_same(form, slow, randn(2, 37, 65), *kernels)
    assert_same(lambda u, *k: form(u.transpose(1, 2), *k), lambda u, *k: slow(u.transpose(1, 2), *k),
                randn(2, 65, 37), *kernels)  # fmt: skip
    u, k = randn(2, 37, 65).requires_grad_(), [k.requires_grad_() for k in kernels]
    form(u, *(x.detach() for x in k)).sum().backward()
    form(u.detach(), *k).sum().backward()
    expected = torch.autograd.grad(slow(u, *k).sum(), [u, *k])
    for x, want in zip([u, *k], expected, strict=True):
        torch.testing.assert_close(x.grad, want)


def test_bidirectional_by_hand():
    u = torch.tensor([[[1.0, 10.0, 100.0]]])
    forward, backward = torch.tensor([[2.0, 3.0, 5.0]]), torch.tensor([[7.0, 11.0, 13.0]])
    # y_0 = 2*1 + 7*10 + 11*100; y_1 = 3*1 + 2*10 + 7*100; y_2 = 5*1 + 3*10 + 2*100
    y = bidirectional_convolution(u, forward, backward)
    torch.testing.assert_close(y, torch.tensor([[[1172.0, 723.0, 235.0]]]), rtol=1e-6, atol=0)


def test_dtypes():
    u, k = randn(2, 3, 50), randn(3, 50, seed=1)
    truth = causal_convolution_reference(u, k)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.3), (torch.float16, 0.05)):
        for y in (causal_convolution(u.to(dtype), k.to(dtype)), causal_convolution(u.to(dtype), k.float())):
            assert y.dtype == dtype
            torch.testing.assert_close(y.double(), truth, atol=tolerance, rtol=0)
    assert causal_convolution(u.float(), k).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(causal_convolution(u.float(), k.float()).double(), truth, atol=1e-5, rtol=0)


@pytest.mark.parametrize("u, k, match", [
    (torch.zeros(3, 4), torch.zeros(3, 4), r"u: shape \(3, 4\)"),
    (torch.zeros(2, 3, 4, dtype=torch.int64), torch.zeros(3, 4), "u: .*torch.int64"),
    (torch.zeros(2, 3, 0), torch.zeros(3, 0), "u: .*L >= 1"),
    (torch.zeros(2, 3, 4), torch.zeros(3, 5), r"k\w*: shape \(3, 5\).*expected \(D, L\) = \(3, 4\)"),
    (torch.zeros(2, 3, 4), torch.zeros(3, 4, dtype=torch.complex64), r"k\w*: .*complex64"),
])  # fmt: skip
def test_convolution_errors(u, k, match):
    with pytest.raises(ValueError, match=match):
        causal_convolution(u, k)
    with pytest.raises(ValueError, match=match):
        bidirectional_convolution(u, k, torch.zeros(3, 4))
    if match.startswith("k"):
        with pytest.raises(ValueError, match="k_backward"):
            bidirectional_convolution(u, torch.zeros(3, 4), k)


def kernel_inputs(complex_A, *, tied=False, several=0, D=3, N=4):
    A = -0.1 - torch.rand(N, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    A = A if tied else A * (1 + torch.arange(D, dtype=torch.float64))[:, None]
    dtype = torch.complex128 if complex_A else torch.float64
    A = torch.complex(A, 5 * randn(*A.shape)) if complex_A else A
    B, C = randn(*A.shape, dtype=dtype, seed=1), randn(*((several,) * bool(several)), D, N, dtype=dtype, seed=2)
    return torch.tensor([0.01, 0.1, 0.4], dtype=torch.float64), A, B, C


@pytest.mark.parametrize("discretization", ["zoh", "bilinear"])
@pytest.mark.parametrize("complex_A", [False, True])
@pytest.mark.parametrize("L", LENGTHS)
def test_kernel(L, complex_A, discretization, path):
    inputs = kernel_inputs(complex_A, tied=L % 2 == 1)
    assert_same(*(lambda *x, f=f: f(*x, L, discretization) for f in (s4d_kernel, s4d_kernel_reference)), *inputs)


@pytest.mark.parametrize("complex_A", [False, True])
def test_several_kernels_from_one_table(complex_A, path):
    delta, A, B, C = kernel_inputs(complex_A, several=2)
    assert_same(*(lambda *x, f=f: f(*x, 300) for f in (s4d_kernel, s4d_kernel_reference)), delta, A, B, C)
    both = s4d_kernel(delta, A, B, C, 300)
    assert both.shape == (2, 3, 300)
    torch.testing.assert_close(both, torch.stack([s4d_kernel(delta, A, B, c, 300) for c in C]), rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("N", [1, 8, 33])
def test_numbers_of_states(N, path):
    delta, A, B, C = kernel_inputs(True, several=2, N=N)
    assert_same(*(lambda *x, f=f: f(*x, 200) for f in (s4d_kernel, s4d_kernel_reference)), delta, A, B, C)
    narrow = [x.to(torch.complex64 if x.is_complex() else torch.float32) for x in (delta, A, B, C)]
    truth = s4d_kernel(delta, A, B, C, 200)
    assert (s4d_kernel(*narrow, 200) - truth).abs().max() <= 2e-6 * truth.abs().max()


def test_kernel_with_a_vanishing_pole(path):
    """A = 0, that is A_bar = 1 and B_bar = delta: gradients stay finite and right."""
    delta, A, B, C = kernel_inputs(True)
    A[0, 0] = 0
    assert_same(*(lambda *x, f=f: f(*x, 257) for f in (s4d_kernel, s4d_kernel_reference)), delta, A, B, C)


def test_bilinear_kernel_with_a_vanishing_discrete_pole(path):
    """delta A = -2, that is A_bar = 0. What computes it by way of zero-order hold is right to some 1e-8 there."""
    delta, A, B, C = kernel_inputs(True)
    A[0, 0] = -2 / delta[0]
    truth = partial(s4d_kernel_reference, L=257, discretization="bilinear")
    assert_same(partial(s4d_kernel, L=257, discretization="bilinear", backend="eager"), truth, delta, A, B, C)
    assert_same(partial(s4d_kernel, L=257, discretization="bilinear"), truth, delta, A, B, C, rtol=1e-7)


@pytest.mark.parametrize("name", ["lin", "inv", "legs", "real"])
def test_kernel_in_float32(name, path):
    """From float32 inputs, an error of 1e-6 of the largest value even where l delta Im A is thousands of radians."""
    A = initialize_A(name, 32)
    delta = torch.tensor([1e-3, 1e-2, 1e-1])
    B, C = torch.ones_like(A), randn(3, 32, dtype=A.dtype, seed=3)
    kernel = s4d_kernel(delta, A, B, C, 4096)
    assert kernel.dtype == torch.float32
    wide = [x.to(torch.complex128 if x.is_complex() else torch.float64) for x in (delta, A, B, C)]
    truth = s4d_kernel_reference(*wide, 4096)
    assert (kernel - truth).abs().max() <= 1e-6 * truth.abs().max()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(s4d_kernel(delta, A, B, C, 4096), kernel)


def test_real_B_and_C_beside_complex_A(path):
    delta, A, B, C = kernel_inputs(True)
    got = s4d_kernel(delta, A, B.real, C.real, 70)
    torch.testing.assert_close(got, s4d_kernel(delta, A, B.real + 0j, C.real + 0j, 70))
    assert got.abs().max() > 0


@pytest.mark.parametrize("backend", [pytest.param("cpu", marks=needs_compiled), "eager", "reference"])
@pytest.mark.parametrize("several", [0, 2])
@pytest.mark.parametrize("rule", ["zoh", "bilinear"])
def test_kernel_of_every_backend(backend, several, rule):
    inputs = kernel_inputs(True, several=several)
    ours, truth = (
        (lambda *x: s4d_kernel(*x, 70, rule, backend=backend)),
        (lambda *x: s4d_kernel_reference(*x, 70, rule)),
    )
    assert_same(ours, truth, *inputs)


def test_a_backend_that_makes_no_such_kernel_says_why():
    delta, A, B, C = kernel_inputs(True)
    names = "'cpu', 'eager', 'reference', 'triton'"
    with pytest.raises(ValueError, match=f"backend: 'mamba_ssm'; expected 'auto' or one of {names}"):
        s4d_kernel(delta, A, B, C, 5, backend="mamba_ssm")
    for backend in ("triton", "cpu"):
        with pytest.raises(
            ValueError, match=f"'{backend}' cannot run this call: it computes kernels of a complex A only"
        ):
            s4d_kernel(delta, A.real, B.real, C.real, 5, backend=backend)
    with prefer_backend("mamba_ssm"):  # it has a scan and no kernel: this stays with auto
        assert s4d_kernel(delta, A, B, C, 5).shape == (3, 5)
    with prefer_backend("cpu"):  # nor has this one kernels of a real A
        assert s4d_kernel(delta, A.real, B.real, C.real, 5).shape == (3, 5)


@pytest.mark.parametrize("change, match", [
    (dict(delta=torch.zeros(3, 1)), r"delta: shape \(3, 1\)"),
    (dict(A=torch.zeros(2, 4)), r"A: shape \(2, 4\); expected \(N,\) or \(D, N\) with D = 3"),
    (dict(B=torch.zeros(3, 5)), r"B: shape \(3, 5\)"),
    (dict(C=torch.zeros(2, 3, 5)), r"C: shape \(2, 3, 5\); .*\(K, D, N\)"),
    (dict(C=torch.zeros(3, 4, dtype=torch.complex64)), "C: complex, but A is real"),
    (dict(B=torch.zeros(3, 4, dtype=torch.int32)), "B: dtype torch.int32"),
    (dict(L=0), "L: 0"),
    (dict(discretization="euler"), "discretization: 'euler'; expected 'zoh' or 'bilinear'"),
])  # fmt: skip
def test_kernel_errors(change, match):
    good = dict(delta=torch.zeros(3), A=torch.zeros(3, 4), B=torch.zeros(4), C=torch.zeros(3, 4), L=5)
    for function in (s4d_kernel, s4d_kernel_reference):
        with pytest.raises(ValueError, match=match):
            function(**{**good, **change})
