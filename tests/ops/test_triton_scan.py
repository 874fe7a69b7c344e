"""The Triton backend of the selective scan against the reference.

Without an NVIDIA GPU the kernels run in Triton's interpreter, milliseconds a step: the inputs here are tiny and chunks
and segments are made so short that they are crossed all the same.
"""

from __future__ import annotations

import math

import pytest
import torch

from lra_ssm.ops import backends, record_backends, selective_scan
from lra_ssm.ops.backends import triton_call, triton_scan
from tests.ops.operators import SEGMENTS
from tests.ops.scan_cases import (
    DEVICE,
    OPTIONAL,
    check_scan,
    differentiated,
    leaves,
    make_inputs,
    narrowed,
    on_device,
    random_reset,
    scan,
)

pytestmark = pytest.mark.usefixtures("interpreter")


STATE, ONE_STEP = ("initial_state",), ("z", "delta_bias", "initial_state")
# What a call is, how it is cut (segment None: into one), and its flags.
CUTS = {
    # As long inputs are cut on a device that batch and channels fill: not at all, but in chunks.
    "one segment, complex": ((True, "1 real", "constant"), dict(D=2, L=19), (8, None), dict(reset=5)),
    "one segment, real": ((False, "1 real", "constant"), dict(D=2, L=70), (64, None), dict(reset=5)),
    # Several segments, of two chunks of four groups of steps each.
    **{f"{L} steps, {kind}": ((kind == "complex", "1 real", "1 real"), dict(D=1, N=1, L=L, optional=("z", *STATE)),
                              (16, 31), dict(reset=5)) for L in (63, 257, 1024) for kind in ("real", "complex")},
    # More than the four that are joined at a time, the last of one step.
    "many segments": ((False, "1 real", "1 real"), dict(D=1, N=1, L=21), (4, 4),
                      dict(discretization="euler", reset=14)),
    # With a constant B the system is discretized once, and the kernels see no delta.
    "one delta, complex": ((True, "constant", "constant"), dict(D=2, L=11, optional=ONE_STEP), (4, 5), dict(reset=3)),
    "one delta, real": ((False, "constant", "constant"), dict(D=2, L=11, optional=ONE_STEP), (4, 5),
                        dict(discretization="euler", reset=3)),
    "one delta, one segment": ((True, "constant", "constant"), dict(D=2, L=11, optional=ONE_STEP), (4, None),
                               dict(reset=3)),
    "one delta, variable B": ((True, "1 real", "constant"), dict(D=2, L=6, optional=ONE_STEP), (4, 4), dict(reset=3)),
    # Neither D nor N a power of two, B and C in different groups, blocks that do not divide a group.
    "groups, real": ((False, "2 real", "3 real"), dict(D=6, N=3, L=3, optional=OPTIONAL), (4, 4), {}),
    "groups, complex": ((True, "2 real", "3 interleaved"), dict(D=6, N=3, L=8, optional=OPTIONAL), (4, 4), {}),
    "masked channels, complex": ((True, "1 real", "1 real"), dict(D=5, N=5, L=5, optional=OPTIONAL), (4, 4), {}),
    "masked channels, real": ((False, "1 real", "1 real"), dict(D=5, N=5, L=8, optional=OPTIONAL), (4, 4), {}),
    # One row of A, as B2S6 gives it, which kernels read once if lanes have a state each; padded channels and states.
    "one A, complex B": ((True, "2 complex", "1 real"), dict(D=6, N=17, L=11, tied_A=True, optional=OPTIONAL), (4, 4),
                         {}),
    "one A, few states": ((True, "2 complex", "1 real"), dict(D=6, L=11, N=3, tied_A=True), (4, 4), {}),
    "one A, real": ((False, "1 real", "1 real"), dict(D=6, N=17, L=11, tied_A=True), (4, 4), {}),
    "one A, constant B": ((True, "constant", "1 real"), dict(D=6, N=17, L=11, tied_A=True), (4, 4), {}),
    "one A, euler": ((True, "1 complex", "1 real"), dict(D=6, N=17, L=11, tied_A=True), (4, 4),
                     dict(discretization="euler")),
}  # fmt: skip
CUT_BY_DEFAULT = ("one segment, complex", "many segments", "one delta, complex", "groups, real",
                  "masked channels, complex", "one A, complex B")  # fmt: skip


def cost(name):
    mark = pytest.mark.trials if name.startswith(("257", "1024")) else pytest.mark.slow
    return pytest.param(name, marks=() if name in CUT_BY_DEFAULT else mark)


@pytest.mark.parametrize("name", map(cost, CUTS))
def test_cuts(name, monkeypatch):
    """Chunks, segments (as many as there can be, of so many steps or more), groups and blocks of channels; a reset at
    one step, and at random ones of a second sequence."""
    forms, sizes, (chunk, segment), flags = CUTS[name]
    monkeypatch.setattr(triton_call, "CHUNK", chunk)
    if segment is not None:
        monkeypatch.setattr(triton_call, "MIN_SEGMENT", segment)
        monkeypatch.setattr(triton_call, "processors", lambda device: 1000)
    if name.startswith("masked"):
        monkeypatch.setattr(triton_call, "BACKWARD_STATE", 32)
        monkeypatch.setattr(triton_call, "MAX_BLOCK", 4)
    flags = {"discretization": "zoh", "delta_softplus": True} | flags
    inputs = make_inputs(*forms, **{"batch": 2 if "reset" in flags else 1, "optional": STATE} | sizes)
    if name.startswith("one delta"):
        inputs["delta"] = inputs["delta"][0, :, 0].clone()
    if "reset" in flags:
        L = sizes["L"]
        flags["reset"] = torch.stack([torch.arange(L) == flags["reset"], random_reset(2, L)[1]])
    # A's gradient is a sum over time, of terms that cancel
    check_scan("triton", narrowed(inputs), 3e-6 if sizes["L"] < 100 else 1e-5, **flags)


@pytest.mark.parametrize("discretization", ["euler", "zoh"])
def test_large_phases(discretization):
    """delta Im A up to thousands of radians; delta is a power of two, so that the product is not rounded."""
    narrow = narrowed(make_inputs(True, "1 real", "1 real", batch=1, D=4, N=16, L=3, optional=()))
    narrow["delta"] = torch.full_like(narrow["delta"], 0.5)
    narrow["A"] = torch.complex(narrow["A"].real, torch.linspace(-8000, 8000, 64).view(4, 16))
    check_scan("triton", narrow, 2e-6, discretization=discretization)


def test_errors_of_phases_do_not_add_up():
    """In the mean over steps of different sizes e^(delta A) is right to a third of a rounding, at every frequency: a
    state turns by thousands of steps, and what they have in common of an error grows with their number."""
    D, N, L = 1024, 16, 8
    generator = torch.Generator().manual_seed(0)
    delta = 0.1 + 0.9 * torch.rand(1, D, L, generator=generator)
    A = torch.complex(torch.zeros(N), torch.linspace(0.3, 3, N))
    one = torch.ones(D, N, dtype=torch.complex64)
    x = dict(u=torch.zeros(1, D, L), delta=delta, A=A, B=one, C=one, initial_state=one[None])
    _, state = scan("triton", discretization="zoh")(**x)
    phase = delta.double().sum(2)[..., None] * A.imag.double()
    error = (state.to(torch.complex128) / torch.polar(torch.ones_like(phase), phase) - 1) / L
    assert error.mean((0, 1)).abs().max() < 2e-8


@pytest.mark.parametrize(
    "A, delta", [(complex(-1e-4, 1e5), 6.1e3), (complex(-1e-6, 1e7), 3.3e3), (complex(-1, 0), 1e16), (-1.0, math.inf)]
)
def test_beyond_all_phases_the_state_is_bounded(A, delta):
    """A float32 has no phase left there; |A_bar| is at most 1 all the same, and B_bar 2/|A|."""
    x = dict(A=torch.tensor([[A]]), u=torch.ones(1, 1, 5), delta=torch.full((1, 1, 5), delta), B=torch.ones(1, 1, 1, 5),
             C=torch.ones(1, 1, 1, 5))  # fmt: skip
    y, _ = scan("triton", discretization="zoh")(**x)
    assert (y.abs() <= 2 * 5 * 2 / abs(A)).all()


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="interpreted, programs run one after the other")
def test_gradients_do_not_vary(monkeypatch):
    for module, name, value in SEGMENTS:
        monkeypatch.setattr(module, name, value)
    inputs = make_inputs(True, "2 interleaved", "1 real", dtype=torch.float32, L=257)
    call = scan("triton", discretization="zoh", delta_softplus=True)
    first, second = (differentiated(call, inputs) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) and torch.isfinite(first[name]).all() for name in first)


def test_nothing_is_kept_without_gradients(monkeypatch):
    kept, forward = [], triton_call.Scan.forward

    def spy(self, y, last, checkpoints):
        kept.append(0 if checkpoints is None else checkpoints.numel())
        forward(self, y, last, checkpoints)

    monkeypatch.setattr(triton_call.Scan, "forward", spy)
    inputs = narrowed(make_inputs(False, "1 real", "1 real", L=3))
    x = leaves(inputs)
    with torch.no_grad():
        scan("triton")(**x)
    scan("triton")(**inputs)
    scan("triton")(**x)
    assert kept == [0, 0, 2 * 4 * 2]


def test_plan_fills_the_device(monkeypatch):
    monkeypatch.setattr(triton_call, "processors", lambda device: 132)
    gpu = torch.device("cuda")
    for batch, channels, length in ((16, 1024, 2048), (8, 128, 16384), (1, 128, 65536), (256, 128, 512)):
        for budget, backward in ((triton_call.FORWARD_STATE, False), (triton_call.BACKWARD_STATE, True)):
            p = triton_call.plan(batch, channels, length, channels, 16, 1, budget, gpu, backward)
            assert batch * p.blocks * p.segments >= (3 if p.segments == 1 else 4) * 132
            assert p.blocks * p.block >= channels and p.segments * p.segment >= length > (p.segments - 1) * p.segment
            assert p.segments == 1 or (p.segment >= 256 and p.segment % 64 == 0)
    # B2S6 on LRA (32 pairs, groups of 16 channels), ListOps and Path-X: 1,024 and 768 programs, none walks twice
    listops = triton_call.plan(32, 128, 2048, 16, 32, 2, triton_call.FORWARD_STATE, gpu, False)
    pathx = triton_call.plan(24, 128, 16384, 16, 32, 2, triton_call.FORWARD_STATE, gpu, False)
    assert (listops.block, listops.segments, pathx.block, pathx.segments) == (4, 1, 4, 1)


def test_refusals(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert triton_scan.unsupported_reason(torch.device("cpu"), None) == "needs an NVIDIA GPU; u is on cpu"
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert triton_scan.unsupported_reason(torch.device("cpu"), None) is None
    assert "meta" in triton_scan.unsupported_reason(torch.device("meta"), None)
    monkeypatch.setattr(triton_scan, "_installed", lambda: False)
    assert triton_scan.unsupported_reason(torch.device("cuda"), None) == "triton is not installed"


def test_the_reference_serves_a_gpu_in_float64(monkeypatch):
    """As "auto" chooses on a GPU: the kernels for float32, for float64 the reference chunk by chunk ("eager")."""
    monkeypatch.setitem(backends.AUTO, DEVICE, backends.AUTO["cuda"])
    wide = make_inputs(True, "1 real", "1 real", batch=1, D=2, L=5)
    for inputs, name in ((narrowed(wide), "triton"), (wide, "eager")):
        with record_backends() as used:
            on_device(selective_scan)(**inputs, discretization="zoh")
        assert list(used["selective scan"]) == [name]
    with pytest.raises(ValueError, match="'triton' cannot run this call: float64: "):
        scan("triton")(**wide)


@pytest.mark.parametrize("complex_A", [False, True])
def test_kernels_compiled_in_an_epoch_of_listops(complex_A, monkeypatch):
    """Batches of any length and a smaller last one: each kernel is compiled for lengths that are a multiple of 16, by
    which loads along time are wide, and for others; for no other number of examples."""
    compiled = set()

    def kind(name, value, fixed):
        if isinstance(value, torch.Tensor):
            return value.dtype
        if isinstance(value, tuple):
            return tuple(kind("", stride, ()) for stride in value)
        # As triton.jit: whether it is 1, whether it is a multiple of 16; names in capitals are constants.
        return value if name.isupper() or value is None else None if name in fixed else (value == 1, value % 16 == 0)

    def compile_only(kernel, programs, **arguments):
        interpreted = getattr(kernel, "kwargs", {})
        fixed = getattr(kernel, "do_not_specialize", None) or interpreted["do_not_specialize"]
        compiled.add((kernel.__name__, *(kind(name, value, fixed) for name, value in arguments.items())))

    monkeypatch.setattr(triton_call, "launch_kernel", compile_only)
    monkeypatch.setattr(triton_call, "processors", lambda device: 132)
    for batch, length in ((32, 1500), (32, 1999), (32, 1584), (17, 1700), (17, 1600)):
        x = make_inputs(complex_A, "8 real", "8 real", batch=batch, D=16, N=16, L=length, dtype=torch.float32)
        for name in ("u", "delta", "z", "B", "C"):  # as the layers give them
            x[name] = x[name].transpose(-1, -2).contiguous().transpose(-1, -2)
        differentiated(scan("triton"), x)
    names = [name for name, *_ in compiled]
    assert {name: names.count(name) for name in names} == dict(
        scan_kernel=4, join_kernel=2, adjoint_kernel=2, gradient_kernel=2
    )
