"""The selective scan by every backend: forms of the call, precision, memory, and the choice among backends."""

from __future__ import annotations

import re

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lra_ssm.ops import prefer_backend, scan_backends, selective_scan
from lra_ssm.ops.backends import eager, triton_call
from tests.ops.scan_cases import (
    BACKENDS,
    OPTIONAL,
    Case,
    assert_close,
    check_scan,
    differentiated,
    leaves,
    make_inputs,
    narrowed,
    needs_compiled,
    scan,
    weighted_sum,
    widened,
)

# A covering set: every form of B and C and every option in some combination, different groups for B and C.
CASES = [
    Case("constant", "constant"),
    Case("constant", "2 real", "softplus reset", OPTIONAL),
    Case("2 real", "constant", "softplus tied_A", ("D", "B_bias")),
    Case("no group real", "no group real", "softplus", ("D", "z", "delta_bias")),
    Case("1 real", "4 real", "softplus reset", ("B_bias", "initial_state")),
    Case("4 real", "2 real", "reset tied_A", OPTIONAL),
    Case("constant", "constant", "zoh softplus reset tied_A", OPTIONAL),
    Case("no group real", "2 real", "zoh", ("initial_state",)),
    Case("2 real", "no group real", "zoh softplus reset", OPTIONAL),
    Case("2 real", "constant", "zoh softplus", ("z", "B_bias")),
    Case("4 real", "1 real", "zoh softplus tied_A", ("D", "z", "delta_bias")),
    Case("constant", "constant", "complex_A tied_A"),
    Case("constant real", "2 complex", "complex_A softplus reset", OPTIONAL),
    Case("constant", "4 interleaved", "complex_A softplus", ("delta_bias", "B_bias")),
    Case("2 interleaved", "constant", "complex_A softplus reset", OPTIONAL),
    Case("no group interleaved", "no group interleaved", "complex_A softplus", ("D", "z", "delta_bias")),
    Case("1 real", "2 complex", "complex_A reset", ("B_bias",)),
    Case("4 complex", "no group real", "complex_A softplus reset tied_A", OPTIONAL),
    Case("2 interleaved", "4 real", "complex_A zoh softplus tied_A", OPTIONAL),
    Case("2 real", "constant real", "complex_A zoh softplus reset", ("D", "z", "delta_bias", "initial_state")),
    Case("constant", "constant", "complex_A zoh softplus reset", OPTIONAL),
    Case("constant real", "1 interleaved", "complex_A zoh tied_A", ("B_bias", "initial_state")),
    Case("no group complex", "2 interleaved", "complex_A zoh softplus reset", OPTIONAL),
    Case("4 interleaved", "4 complex", "complex_A zoh reset", ("z",)),
]
# Interpreted, a case takes seconds: every option by default, with `pytest -m slow` every form of B and C too, and all
# others with `-m trials`.
BY_DEFAULT, SLOW = (1, 8, 16, 21), (4, 5, 7, 12, 13, 15, 18, 19, 20, 22, 23)
INTERPRETED = [
    pytest.param("triton", case, marks=() if i in BY_DEFAULT else pytest.mark.slow if i in SLOW else pytest.mark.trials)
    for i, case in enumerate(CASES)
]
BY_CASE = [pytest.param("cpu", case, marks=needs_compiled) for case in CASES] + [("eager", case) for case in CASES]


@pytest.mark.parametrize("backend, case", [*BY_CASE, *INTERPRETED], indirect=["backend"], ids=str)
def test_forms_and_options(backend, case, monkeypatch):
    """In pieces so short that the inputs cross them."""
    if backend != "triton":
        monkeypatch.setattr(eager, "STEPS", 16)
        check_scan(backend, case.inputs(batch=3), **case.flags(batch=3))
        return
    for name, value in (("CHUNK", 4), ("MIN_SEGMENT", 4), ("processors", lambda device: 1000)):
        monkeypatch.setattr(triton_call, name, value)
    # random_reset's first item starts anew, the second goes on from the initial state
    sizes = dict(L=6, batch=2 if "reset" in case.options else 1)
    check_scan(backend, narrowed(case.inputs(**sizes)), 3e-6, **case.flags(**sizes))


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"], indirect=True)
def test_by_hand(backend):
    """Two steps, one channel, one state, computed by hand."""
    ln2 = torch.log(torch.tensor(2.0, dtype=torch.float64))
    u = torch.tensor([[[3.0, 5.0]]], dtype=torch.float64)
    delta, A = torch.ones_like(u) * ln2, -torch.ones(1, 1, dtype=torch.float64)  # A_bar = 1/2
    B, C = torch.tensor([[[2.0, 7.0]]], dtype=torch.float64), torch.tensor([[[1.0, 10.0]]], dtype=torch.float64)
    y, state = selective_scan(u, delta, A, B, C, discretization="zoh", return_last_state=True, backend=backend)
    # B_bar = (1/2 - 1)/(-1) = 1/2: x_0 = 2*3/2 = 3, x_1 = 3/2 + 7*5/2 = 19
    torch.testing.assert_close(y, torch.tensor([[[3.0, 190.0]]], dtype=torch.float64))
    torch.testing.assert_close(state, torch.tensor([[[19.0]]], dtype=torch.float64))
    y = selective_scan(u, delta, A + 0j, B, C, torch.tensor([1.0], dtype=torch.float64), backend=backend)
    # euler: x_0 = 6 ln2, x_1 = 3 ln2 + 35 ln2; complex: 2 Re; D u
    torch.testing.assert_close(y, torch.stack([12 * ln2 + 3, 760 * ln2 + 5]).view(1, 1, 2))


@pytest.mark.parametrize("discretization", ["euler", "zoh"])
@pytest.mark.parametrize("complex_A", [False, True])
def test_small_A(complex_A, discretization, backend):
    """From A = 0 and 1e-200 to 1; A's gradient entry by entry, where a naive (delta A_bar - B_bar)/A has no digit."""
    batch, L = (1, 8) if backend == "triton" else (2, 200)
    inputs = make_inputs(complex_A, "2 real", "1 real", N=8, batch=batch, L=L, optional=("B_bias",))
    tiny = torch.tensor([0, 1e-200, 1e-30], dtype=torch.float64)
    sizes = torch.cat([tiny, torch.logspace(-12, 0, 29, dtype=torch.float64)]).view(4, 8)
    inputs["A"] = sizes * inputs["A"] / inputs["A"].abs()
    if backend != "triton":
        check_scan(backend, inputs, discretization=discretization)
    narrow = narrowed(inputs)
    error = check_scan(backend, narrow, 3e-6, discretization=discretization)["A"]
    truth = differentiated(scan("reference", discretization=discretization), widened(narrow))["A"]
    error = (error - truth).abs()
    assert (truth != 0).all() and (error <= 3e-5 * truth.abs()).all()


@pytest.mark.parametrize("discretization", ["euler", "zoh"])
@pytest.mark.parametrize("backend", [*BACKENDS, "reference"], indirect=True)
def test_errors_of_phases_do_not_add_up(backend, discretization):
    """An impulse, 2,048 steps of different sizes later, in float32: a frequency that was rounded once, or a sine with
    an error of the same sign everywhere, would leave 7e-5 of it at some frequency."""
    generator = torch.Generator().manual_seed(0)
    one = torch.ones(64, 1, dtype=torch.complex64)
    inputs = {
        "u": torch.eye(2048)[:1].expand(1, 64, 2048),
        "delta": 0.1 + 0.9 * torch.rand(1, 64, 2048, generator=generator),
        "A": torch.complex(torch.full((64, 1), -1e-4), 0.1 + 3 * torch.rand(64, 1, generator=generator)),
        "B": one,
        "C": one,
    }
    _, state = scan(backend, discretization=discretization)(**inputs)
    _, truth = scan("reference", discretization=discretization)(**widened(inputs))
    assert (state / truth - 1).abs().max() < 3e-5


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"], indirect=True)
@pytest.mark.parametrize("softplus", [False, True])
def test_one_delta_for_all_steps(softplus, backend):
    """delta (D,), and its bias's and softplus's gradients, are those of the same delta at every step."""
    inputs = make_inputs(True, "2 interleaved", "1 complex", L=50)
    inputs["delta"] = delta = inputs["delta"][0, :, 0].clone()
    inputs["delta_bias"] = inputs["delta_bias"].abs()
    call = scan(backend, discretization="zoh", delta_softplus=softplus)
    expected = differentiated(call, {**inputs, "delta": delta[:, None].expand(2, 4, 50)})
    expected["delta"] = expected["delta"].sum((0, 2))
    assert_close(differentiated(call, inputs), expected, rtol=1e-10)


def test_interleaved_equals_complex():
    inputs, call = make_inputs(True, "2 complex", "1 complex"), scan("reference", discretization="zoh")
    expected = differentiated(call, inputs)
    for name in "BC":
        inputs[name] = torch.view_as_real(inputs[name]).flatten(-2)
        expected[name] = torch.view_as_real(expected[name].resolve_conj()).flatten(-2)
    assert_close(differentiated(call, inputs), expected)
    # which have no view as complex numbers
    B, by_time = inputs["B"].flatten(), inputs["C"].transpose(-1, -2).contiguous().transpose(-1, -2)
    odd = torch.cat([B[:1], B])[1:].view_as(inputs["B"])
    assert_close(differentiated(call, inputs | {"B": odd, "C": by_time}), expected)


class _LargestAllocation(TorchDispatchMode):
    def __init__(self, ignore):
        super().__init__()
        self.bytes, self.ignore = 0, {x.untyped_storage().data_ptr() for x in ignore}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in self.ignore:
                self.bytes = max(self.bytes, x.untyped_storage().nbytes())
        return out


@pytest.mark.parametrize("fast", BACKENDS)
@pytest.mark.parametrize("complex_A", [False, True])
def test_memory(complex_A, fast):
    """Nothing of B D L N elements is ever allocated, forward or backward; the reference shows that the test sees it."""
    form = "1 interleaved" if complex_A else "1 real"
    share = {}
    for backend, L in ((fast, 1024), ("reference", 64)):
        x = leaves(make_inputs(complex_A, form, form, D=32, N=32, L=L, dtype=torch.float32))
        with _LargestAllocation(x.values()) as mode:
            y, state = scan(backend, discretization="zoh")(**x)
            assert mode.bytes >= y.numel() * 4
            if backend == fast:
                torch.autograd.grad(weighted_sum(y, state), list(x.values()))
        share[backend] = mode.bytes / (2 * 32 * L * 32 * (8 if complex_A else 4))
    assert share["reference"] >= 1
    assert share[fast] <= 1 / 8


def test_the_choice_among_backends():
    inputs = make_inputs(False, "1 real", "1 real", dtype=torch.float32, optional=())
    support = scan_backends()
    assert set(support) == {"triton", "mamba_ssm", "cpu", "eager", "reference"}
    assert support["eager"] is support["reference"] is None
    best = "eager" if support["cpu"] else "cpu"
    assert torch.equal(selective_scan(**inputs), selective_scan(**inputs, backend=best))
    assert "on a CPU only" in scan_backends("cuda")["cpu"]
    with pytest.raises(ValueError, match="backend: 'cpu' cannot run this call.*meta"):
        selective_scan(**{name: x.to("meta") for name, x in inputs.items()}, backend="cpu")
    reason = re.escape(f"'mamba_ssm' cannot run this call: {support['mamba_ssm']}")
    with prefer_backend("mamba_ssm"), pytest.raises(ValueError, match=reason):  # which "auto" then means
        selective_scan(**inputs)
    selective_scan(**inputs)
