"""Mamba-2's scan: by matrix products and as a loop, values, last state and every gradient."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from lra_ssm.ops import prefer_backend, selective_scan, ssd_scan
from tests.ops.operators import make_ssd as make
from tests.ops.scan_cases import assert_close, compare, differentiated, narrowed, random_reset


def scan(backend, **flags):
    return partial(ssd_scan, return_last_state=True, backend=backend, **flags)


loop = scan("reference")


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
    expected, last = loop(**inputs, reset=reset)
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


@pytest.mark.parametrize("decay", [1e-6, 1e3, 1e8])
def test_any_decay_is_finite_and_right_in_float32(decay):
    """No exponential of a positive number, and nothing of 0 times infinity, in either direction."""
    inputs = make(L=300, decay=decay)
    wide = differentiated(scan("reference"), inputs)
    assert all(x.isfinite().all() for x in wide.values())
    low = differentiated(scan("eager"), narrowed(inputs))
    rtol = 1e-4 if decay < 1 else 2e-6  # states that never forget add 300 rounded terms
    for name, expected in wide.items():
        if expected.abs().max() > 1e-30:  # of A, where no state is left to decay
            assert_close({name: low[name].double()}, {name: expected}, rtol)


def test_a_strong_decay_takes_no_precision_from_what_follows_it():
    inputs = make(L=64, optional=())
    inputs["delta"][:, ::16] = 1e4
    compare(scan("eager"), scan("reference"), narrowed(inputs), 5e-6)


def test_a_preferred_backend_without_it_leaves_the_choice():
    inputs = make(L=5)
    for name in ("cpu", "reference", "mamba_ssm"):
        with prefer_backend(name):
            torch.testing.assert_close(ssd_scan(**inputs), loop(**inputs)[0])


class StandIn:
    """mamba-ssm's mamba_chunk_scan_combined: what it takes, checks and gives, written as the reference in float64."""

    kernel = "_ssd_kernel"

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
        y, state = loop(*wide[:6], initial_state=wide[6], reset=reset)
        return (y.to(x.dtype), state.float()) if return_final_states else y.to(x.dtype)


@pytest.mark.parametrize("optional", [(), ("D", "initial_state")])
@pytest.mark.parametrize("with_reset", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mamba_ssm_by_a_stand_in(optional, with_reset, dtype, stand_in, monkeypatch):
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    inputs = make(L=37, optional=optional, dtype=torch.float32)
    inputs["x"] = inputs["x"].to(dtype)  # B and C are brought to its dtype, in which their values are here
    inputs |= {name: inputs[name].to(dtype).float() for name in "BC"}
    reset = random_reset(2, 37) if with_reset else None
    rtol = 1e-6 if dtype == torch.float32 else 2e-2
    compare(scan("mamba_ssm", reset=reset), scan("reference", reset=reset), inputs, rtol)
    assert vars(stand_in.calls[-1]) == {"chunk_size": 256, "dtype": dtype}
    ssd_scan(**inputs | {"x": inputs["x"].bfloat16()}, backend="mamba_ssm", chunk_size=64)
    assert stand_in.calls[-1].chunk_size == 64


def test_mamba_ssm_is_refused_where_it_would_be_wrong(stand_in):
    wide = make(L=5)
    single = narrowed(wide)
    empty = {name: x[:0].bfloat16() if x.dim() > 1 else x for name, x in single.items()}
    for inputs, said in ((wide, "float64: "), (single, "float32: .*TF32"), (empty, "batch = 0")):
        with pytest.raises(ValueError, match=f"backend: 'mamba_ssm' cannot run this call: {said}"):
            ssd_scan(**inputs, backend="mamba_ssm")
    x = {name: value.bfloat16().requires_grad_() for name, value in single.items()}
    y = ssd_scan(**x, backend="mamba_ssm")
    with pytest.raises(RuntimeError, match="'mamba_ssm' gives first derivatives only"):
        torch.autograd.grad(y.float().square().sum(), x["x"], create_graph=True)
