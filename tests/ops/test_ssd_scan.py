"""Mamba-2's scan: by matrix products and as a loop, values, last state and every gradient."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from lra_ssm.ops import prefer_backend, selective_scan, ssd_scan, ssd_scan_reference, ssd_step
from lra_ssm.ops.backends import eager_ssd, mamba_ssm_ssd
from tests.ops.scan_cases import assert_close, differentiated, narrowed, random_reset, weighted_sum, widened
from tests.pairwise import pairwise

OPTIONAL = ("D", "initial_state")


def make(*, batch=2, L=63, H=4, P=3, G=2, N=5, optional=OPTIONAL, decay=1.0, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)

    inputs = {
        "x": randn(batch, L, H, P),
        "delta": 0.3 * randn(batch, L, H).abs() + 0.01,
        "A": -decay * (randn(H).abs() + 0.2),
        "B": randn(batch, L, G, N),
        "C": randn(batch, L, G, N),
        "D": randn(H),
        "initial_state": randn(batch, H, P, N),
    }
    return {name: x for name, x in inputs.items() if name not in OPTIONAL or name in optional}


def run(inputs, backend, **flags):
    """y, the last state and every gradient, by name."""
    return differentiated(partial(ssd_scan, return_last_state=True, backend=backend, **flags), inputs)


def agree(inputs, rtol=1e-9, **flags):
    expected = run(inputs, "reference", **{name: x for name, x in flags.items() if name != "chunk_size"})
    assert_close(run(inputs, "eager", **flags), expected, rtol)


@pairwise(
        L=[1, 2, 63, 64, 257], chunk_size=[None, 1, 16], G=[1, 2, 4], with_reset=[False, True],
        optional=[(), ("D",), OPTIONAL], rest=False,
    )  # fmt: skip
def test_against_the_loop(L, chunk_size, G, with_reset, optional, monkeypatch):
    monkeypatch.setattr(eager_ssd, "CHUNKS", 3)
    inputs = make(L=L, G=G, optional=optional)
    agree(inputs, chunk_size=chunk_size, reset=random_reset(2, L) if with_reset else None)


@pytest.mark.parametrize("with_reset", [False, True])
def test_long(with_reset):
    agree(make(L=1024), reset=random_reset(2, 1024) if with_reset else None)


def test_is_the_selective_scan_with_one_rate_and_step_for_a_head():
    """Which is Mamba's, with A (D, N) and delta (batch, D, L) repeated; groups are the same channels' too."""
    x = make(L=40, optional=("D",))
    P, N = x["x"].shape[-1], x["B"].shape[-1]
    expected, state = selective_scan(
        x["x"].flatten(2).transpose(1, 2),
        x["delta"].repeat_interleave(P, 2).transpose(1, 2),
        x["A"].repeat_interleave(P)[:, None].expand(-1, N),
        *(x[name].permute(0, 2, 3, 1) for name in "BC"),
        D=x["D"].repeat_interleave(P),
        return_last_state=True,
    )
    y, last = ssd_scan(**x, return_last_state=True)
    torch.testing.assert_close(y.flatten(2).transpose(1, 2), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(last.flatten(1, 2), state, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["x", "delta", "B", "C", "initial_state"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_reaches_what_it_reaches_in_the_loop(name, bad):
    """Within its document, from its position on, in its head or group; not beyond a reset, nor into gradients there."""
    inputs = make(L=20)
    inputs[name] = inputs[name].clone()
    inputs[name].view(-1)[inputs[name][0].numel() // 3 if name != "initial_state" else 0] = bad
    reset = torch.zeros(2, 20, dtype=torch.bool)
    reset[:, 9] = True
    expected, last = ssd_scan_reference(**inputs, reset=reset, return_last_state=True)
    y, state = ssd_scan(**inputs, reset=reset, return_last_state=True, backend="eager", chunk_size=4)
    assert not expected.isfinite().all() and expected[:, 9:].isfinite().all()
    seen = expected.isfinite()
    assert torch.equal(y.isfinite().all(-1), seen.all(-1))
    finite = seen.all(-1, keepdim=True).expand_as(y)
    torch.testing.assert_close(y[finite], expected[finite])
    torch.testing.assert_close(state, last)
    for tensor in inputs.values():
        tensor.requires_grad_()
    y, state = ssd_scan(**inputs, reset=reset, return_last_state=True, backend="eager", chunk_size=4)
    (y[:, 9:].sum() + state.sum()).backward()
    assert all(tensor.grad.isfinite().all() for tensor in inputs.values())


@pytest.mark.parametrize("optional", [("initial_state",), OPTIONAL])
def test_steps_are_the_scan(optional):
    x = {name: value.requires_grad_() for name, value in make(L=6, optional=optional).items()}
    y, last = ssd_scan(**x, return_last_state=True)
    state, outputs = x["initial_state"], []
    for k in range(6):
        y_k, state = ssd_step(x["x"][:, k], x["delta"][:, k], x["A"], x["B"][:, k], x["C"][:, k], x.get("D"), state)
        outputs.append(y_k)
    losses = [weighted_sum(*pair) for pair in ((y, last), (torch.stack(outputs, 1), state))]
    grads = [torch.autograd.grad(loss, list(x.values())) for loss in losses]
    assert_close(dict(zip(x, grads[1], strict=True)), dict(zip(x, grads[0], strict=True)))


@pytest.mark.parametrize("decay", [1e-6, 1e3, 1e8])
def test_any_decay_is_finite_and_right_in_float32(decay):
    """No exponential of a positive number, and nothing of 0 times infinity, in either direction."""
    inputs = make(L=300, decay=decay)
    wide = run(inputs, "reference")
    assert all(x.isfinite().all() for x in wide.values())
    low = run(narrowed(inputs), "eager")
    rtol = 1e-4 if decay < 1 else 2e-6  # states that never forget add 300 rounded terms
    for name, expected in wide.items():
        if expected.abs().max() > 1e-30:  # of A, where no state is left to decay
            assert_close({name: low[name].double()}, {name: expected}, rtol)


def test_a_strong_decay_takes_no_precision_from_what_follows_it():
    inputs = make(L=64, optional=())
    inputs["delta"][:, ::16] = 1e4
    wide, low = run(inputs, "reference"), run(narrowed(inputs), "eager")
    assert_close(widened(low), wide, 5e-6)


def test_dtypes_and_autocast():
    wide = make(L=70)
    low = {name: x.bfloat16() if name in ("x", "B", "C") else x.float() for name, x in wide.items()}
    rounded = widened(low)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = run(low, "auto")
    expected = run(rounded, "reference")
    dtypes = {name: x.dtype for name, x in got.items()}
    assert dtypes == {"y": torch.bfloat16, "last_state": torch.float32} | {name: x.dtype for name, x in low.items()}
    for name, want in expected.items():
        assert_close({name: got[name].double()}, {name: want}, 1e-2)
    assert_close({"s": got["last_state"].double()}, {"s": expected["last_state"]}, 1e-6)
    assert ssd_scan(**(low | {"delta": wide["delta"]}), return_last_state=True)[1].dtype == torch.float64


def test_the_meta_device():
    assert ssd_scan(**{name: x.to("meta") for name, x in make(L=33).items()}).shape == (2, 33, 4, 3)


WRONG = [
    ({"x": torch.zeros(2, 5, 4)}, r"x: shape \(2, 5, 4\); expected \(batch, L, H, P\)"),
    ({"B": torch.zeros(2, 5, 3, 5)}, r"B: shape \(2, 5, 3, 5\); expected \(batch, L, G, N\) with G dividing H = 4"),
    ({"C": torch.zeros(2, 5, 1, 5)}, r"C: shape \(2, 5, 1, 5\); expected \(batch, L, G, N\) = \(2, 5, 2, 5\)"),
    ({"A": torch.zeros(4, 5)}, r"A: shape \(4, 5\); expected \(H,\) = \(4,\)"),
    ({"delta": None}, "delta: None; expected a tensor"),
    ({"D": 3.0}, "D: float; expected a tensor"),
    ({"x": torch.zeros(2, 5, 4, 3, dtype=torch.int64)}, "x: dtype torch.int64; expected a real floating dtype"),
    (
        {"initial_state": torch.zeros(2, 4, 5, 3)},
        r"initial_state: shape .*expected \(batch, H, P, N\) =",
    ),
    ({"reset": torch.zeros(2, 5)}, "reset: torch.float32; expected a bool tensor"),
    ({"chunk_size": 0}, "chunk_size: 0; expected at least 1"),
    ({"A": torch.zeros(4, device="meta")}, "A: on meta; expected cpu, where x is"),
    ({"backend": "cpu"}, "backend: 'cpu'; expected 'auto' or one of 'eager', 'mamba_ssm', 'reference'"),
    ({"backend": "mamba_ssm"}, "backend: 'mamba_ssm' cannot run this call: runs tensors on a CUDA device only"),
]


@pytest.mark.parametrize("wrong, message", WRONG)
def test_what_does_not_fit_is_one_line(wrong, message):
    with pytest.raises(ValueError, match=message) as error:
        ssd_scan(**(make(L=5) | wrong))
    assert "\n" not in str(error.value)


def test_a_preferred_backend_without_it_leaves_the_choice():
    inputs = make(L=5)
    for name in ("cpu", "reference", "triton", "mamba_ssm"):
        with prefer_backend(name):
            torch.testing.assert_close(ssd_scan(**inputs), ssd_scan_reference(**inputs))


class StandIn:
    """mamba-ssm's mamba_chunk_scan_combined: what it takes, checks and gives, written as the reference in float64."""

    def __init__(self):
        self.calls = []

    def __call__(self, x, dt, A, B, C, chunk_size, D=None, z=None, dt_bias=None, initial_states=None, seq_idx=None,
                 return_final_states=False):  # fmt: skip
        self.calls.append(SimpleNamespace(chunk_size=chunk_size, dtype=x.dtype))
        assert x.dtype == B.dtype == C.dtype and x.dtype in (torch.float32, torch.float16, torch.bfloat16)
        assert A.dtype == torch.float32 and not torch.is_autocast_enabled(x.device.type) and x.shape[0] > 0
        reset = None
        if seq_idx is not None:  # the initial state is of document 0
            assert seq_idx.dtype == torch.int32 and seq_idx.shape == x.shape[:2]
            reset = seq_idx.diff(dim=1, prepend=torch.zeros_like(seq_idx[:, :1])) != 0
        wide = [None if t is None else t.double() for t in (x, dt, A, B, C, D, initial_states)]
        y, state = ssd_scan_reference(*wide[:6], initial_state=wide[6], reset=reset, return_last_state=True)
        return (y.to(x.dtype), state.float()) if return_final_states else y.to(x.dtype)


@pytest.fixture
def stand_in(monkeypatch):
    function = StandIn()
    monkeypatch.setattr(mamba_ssm_ssd, "_kernel", lambda: function)
    monkeypatch.setattr(mamba_ssm_ssd, "_refuse_device", lambda device: None)
    return function


@pytest.mark.parametrize("optional", [(), OPTIONAL])
@pytest.mark.parametrize("with_reset", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mamba_ssm_by_a_stand_in(optional, with_reset, dtype, stand_in):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        inputs = make(L=37, optional=optional, dtype=torch.float32)
        inputs["x"] = inputs["x"].to(dtype)  # B and C are brought to its dtype
        reset = random_reset(2, 37) if with_reset else None
        got = run(inputs, "mamba_ssm", reset=reset)
        expected = run(widened(inputs), "reference", reset=reset)
    finally:
        torch.set_float32_matmul_precision(before)
    assert {name: x.dtype for name, x in inputs.items()} == {name: got[name].dtype for name in inputs}
    for name, want in expected.items():
        assert_close({name: got[name].double()}, {name: want}, 1e-6 if dtype == torch.float32 else 2e-2)
    assert vars(stand_in.calls[-1]) == {"chunk_size": 256, "dtype": dtype}
    ssd_scan(**inputs | {"x": inputs["x"].bfloat16()}, backend="mamba_ssm", chunk_size=64)
    assert stand_in.calls[-1].chunk_size == 64


def test_mamba_ssm_is_refused_where_it_would_be_wrong(stand_in):
    wide = make(L=5)
    single = {name: x.float() for name, x in wide.items()}
    empty = {name: x[:0].bfloat16() if x.dim() > 1 else x for name, x in single.items()}
    for inputs, said in ((wide, "float64: "), (single, "float32: .*TF32"), (empty, "batch = 0")):
        with pytest.raises(ValueError, match=f"backend: 'mamba_ssm' cannot run this call: {said}"):
            ssd_scan(**inputs, backend="mamba_ssm")
    x = {name: value.bfloat16().requires_grad_() for name, value in single.items()}
    y = ssd_scan(**x, backend="mamba_ssm")
    (grad,) = torch.autograd.grad(y.float().square().sum(), x["x"], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.float().sum().backward()


def test_the_device_and_the_installation_are_looked_at():
    assert "runs tensors on a CUDA device only" in str(mamba_ssm_ssd.unsupported_reason(torch.device("cpu"), None))
    reason = mamba_ssm_ssd.unsupported_reason(torch.device("cuda"), None)
    assert reason is None or reason.startswith("mamba-ssm is ")
