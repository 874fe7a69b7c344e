"""What is particular to the C++ backend: threads, tiles, conversions, and its place among torch's operators."""

from __future__ import annotations

import pytest
import torch

from lra_ssm.layers import B2S6, LRU, S4D, S6, DeepLinearSSM, StableSSM
from lra_ssm.ops import prefer_backend, selective_scan
from lra_ssm.ops.backends import cpu_scan
from tests.ops.scan_cases import (
    check_scan,
    differentiated,
    make_inputs,
    narrowed,
    needs_compiled,
    random_reset,
    scan,
)

pytestmark = needs_compiled


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("batch, D, B, C", [(1, 12, "1 complex", "3 real"), (2, 8, "2 interleaved", "8 complex")])
def test_threads(batch, D, B, C, count, threads):
    """Tasks that share a group of B or C add up to the same gradients."""
    inputs = make_inputs(True, B, C, batch=batch, D=D, N=3, L=70)
    flags = dict(discretization="zoh", delta_softplus=True, reset=random_reset(batch, 70))
    threads(count)
    first, second = check_scan("cpu", inputs, **flags), differentiated(scan("cpu", **flags), inputs)
    assert all(torch.equal(x, second[name]) for name, x in first.items()), "not deterministic"


@pytest.mark.parametrize("complex_A", [False, True])
@pytest.mark.parametrize("N", [1, 3, 8, 9, 17, 40])
def test_numbers_of_states(N, complex_A):
    """Half-filled vectors, several vectors per channel, and the longer tiles of many states; float32 too."""
    B, C = ("1 interleaved", "2 complex") if complex_A else ("1 real", "2 real")
    inputs = make_inputs(complex_A, B, C, N=N, L=150)
    flags = dict(discretization="zoh", delta_softplus=True)
    check_scan("cpu", inputs, **flags)
    check_scan("cpu", narrowed(inputs), 3e-6, **flags)


@pytest.mark.parametrize("layout", ["channels first", "channels last"])
@pytest.mark.parametrize("D", [5, 16, 37])
def test_layouts_in_float32(D, layout):
    """Whole blocks that are transposed at once, and what is left over of them."""
    wide = make_inputs(True, "1 complex", "1 real", D=D, N=16, L=100)
    if layout == "channels last":
        for name in ("u", "delta"):
            wide[name] = wide[name].transpose(1, 2).contiguous().transpose(1, 2)
        for name in "BC":
            wide[name] = wide[name].permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
    check_scan("cpu", narrowed(wide), 3e-6, discretization="zoh", delta_softplus=True)


def test_small_steps():
    """Steps of 1e-3 out of a softplus, times frequencies up to 50."""
    inputs = make_inputs(True, "1 real", "1 real", D=16, N=16, L=1024, tied_A=True, optional=("delta_bias",))
    inputs["A"] = torch.complex(torch.full((16,), -0.5), 3.14 * torch.arange(16)).to(torch.complex128)
    inputs["delta_bias"] -= 7.5
    check_scan("cpu", narrowed(inputs), 2e-6, delta_softplus=True, discretization="zoh")


@pytest.mark.parametrize("A", [1e-3, -1e-3])
def test_growing_steps_leave_unused_lanes_alone(A):
    """delta of -100 with |A| = 1e-3 is harmless; lanes beyond N must not overflow on it."""
    one = torch.ones(1, 1, 3)
    check_scan("cpu", dict(u=one, delta=-100 * one, A=torch.full((1, 1), A), B=one[0, :, :1], C=one[0, :, :1]), 1e-6)


def test_too_little_memory_is_an_error(monkeypatch):
    monkeypatch.setattr(cpu_scan, "tile_steps", lambda A: 1 << 45)
    with pytest.raises(MemoryError, match="selective_scan_forward: not enough memory for the buffers of"):
        selective_scan(**make_inputs(False, "1 real", "1 real"), backend="cpu")


def test_exponentials_near_overflow():
    """exp(delta A) from 2^126 to 2^128 on one step from an initial state of 1."""
    exponents = torch.linspace(126, 127.9, 40)
    A = (exponents * 0.6931471805599453).view(-1, 1)
    one, zero = torch.ones(1, 40, 1), torch.zeros(40, 1)
    y = selective_scan(0 * one, one, A, zero, zero + 1, initial_state=torch.ones(1, 40, 1), backend="cpu")
    want = torch.exp2(exponents.double()).float().view(1, -1, 1)
    low = (exponents < 127.49).view(1, -1, 1)
    torch.testing.assert_close(y[low], want[low], rtol=2e-5, atol=0)  # A is a float: 127 roundings of its own
    assert not y.isnan().any() and (y[exponents.view(1, -1, 1) > 127.51] == torch.inf).all()


def test_nan_is_not_hidden():
    inputs = make_inputs(True, "1 real", "1 real", dtype=torch.float32, optional=(), L=70)
    for name in ("u", "delta", "A", "B"):
        broken = {**inputs, name: inputs[name].clone()}
        broken[name].view(-1)[0] = float("nan")
        y = selective_scan(**broken, backend="cpu", discretization="zoh")
        assert y[0, 0, 3:].isnan().all(), name
        assert y[1, 1].isfinite().all(), name
    grown = {**inputs, "A": inputs["A"] + 1000}
    assert not selective_scan(**grown, backend="cpu").isfinite().all()


OTHERS = [pytest.param(layer, "auto", marks=pytest.mark.slow) for layer in (S6, StableSSM, DeepLinearSSM)]
WITHOUT_CPP = pytest.param(S4D, "eager", marks=pytest.mark.slow)


@pytest.mark.parametrize("layer, backend", [(B2S6, "auto"), (S4D, "auto"), (LRU, "auto"), *OTHERS, WITHOUT_CPP])
def test_compiles_as_one_graph(layer, backend):
    torch._dynamo.reset()
    torch.manual_seed(0)
    module, x = layer(16), torch.randn(2, 40, 16)
    with prefer_backend(backend):
        compiled = torch.compile(module, backend="aot_eager" if layer is B2S6 else "eager", fullgraph=True)
        found = [(y, torch.autograd.grad(y.sum(), list(module.parameters()))) for y in (compiled(x), module(x))]
    torch.testing.assert_close(*found)
