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
from tests.ops import test_scan
from tests.ops.scan_cases import (
    OPTIONAL,
    assert_close,
    check_float32_gradient_of_small_A,
    check_mixed_dtypes,
    leaves,
    make_inputs,
    narrowed,
    random_reset,
    run,
    weighted_sum,
    widened,
)
from tests.ops.test_selective_scan import CASES

triton = pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.usefixtures("interpreter")


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


@pytest.fixture
def cut(monkeypatch):
    """cut(chunk, segment): chunks of so many steps and as many segments as there can be, of so many steps or more;
    segment None leaves one."""

    def set_sizes(chunk: int = 4, segment: int | None = 4) -> None:
        monkeypatch.setattr(triton_call, "CHUNK", chunk)
        if segment is not None:
            monkeypatch.setattr(triton_call, "MIN_SEGMENT", segment)
            monkeypatch.setattr(triton_call, "processors", lambda device: 1000)

    return set_sizes


def compare(inputs, rtol=3e-6, **flags):
    """The kernels in float32, as they compute, against the reference in float64 of the same numbers."""
    narrow = narrowed(inputs)
    truth = run(widened(narrow), "reference", y_weights=torch.float32, **flags)
    assert_close(widened(run(narrow, "triton", **flags)), truth, rtol, by="by triton")


def on_device(inputs):
    """Leaves in float32, where the kernels run."""
    return leaves({name: x.to(DEVICE) for name, x in narrowed(inputs).items()})


# Interpreted, a case takes seconds: every option by default, with `pytest -m slow` every form of B and C too, and all
# others with `-m trials`.
BY_DEFAULT, SLOW = (1, 8, 16, 21), (4, 5, 7, 12, 13, 15, 18, 19, 20, 22, 23)
ALL_CASES = [
    pytest.param(c, marks=[] if i in BY_DEFAULT else [pytest.mark.slow if i in SLOW else pytest.mark.trials])
    for i, c in enumerate(CASES)
]


@pytest.mark.parametrize("case", ALL_CASES, ids=str)
def test_forms_and_options(case, cut):
    cut()
    batch = 2 if case.reset else 1  # random_reset's first item starts anew, the second goes on from the initial state
    compare(case.inputs(L=6, batch=batch), **case.flags(L=6, batch=batch))


LENGTHS = [
    *((1, False), (2, True)),
    *(slow(*case) for case in ((1, True), (2, False), (63, False), (63, True))),
    *(pytest.param(L, A, marks=pytest.mark.trials) for L in (257, 1024) for A in (False, True)),
]


@pytest.mark.parametrize("L, complex_A", LENGTHS)
def test_lengths(L, complex_A, cut):
    """Several segments, of two chunks of four groups of steps each, from 63 steps on."""
    cut(16, 31)
    inputs = make_inputs(complex_A, "1 real", "1 real", batch=1, D=1, N=1, L=L, optional=("z", "initial_state"))
    flags = dict(discretization="zoh" if complex_A else "euler", delta_softplus=True, reset=random_reset(1, L))
    compare(inputs, 3e-6 if L < 100 else 1e-5, **flags)  # A's gradient is a sum over time, whose terms cancel


ONE_STEP = ("z", "delta_bias", "initial_state")
# What a call is, how it is cut (segment None: into one), and its flags.
CUTS = {
    # As long inputs are cut on a device that batch and channels fill: not at all, but in chunks.
    "one segment, complex": ((True, "1 real", "constant"), dict(D=2, L=19), (8, None), dict(reset=5)),
    "one segment, real": ((False, "1 real", "constant"), dict(D=2, L=70), (64, None), dict(reset=5)),
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


@pytest.mark.parametrize("name", [name if name in CUT_BY_DEFAULT else slow(name) for name in CUTS])
def test_cuts(name, cut, monkeypatch):
    """Chunks, segments, groups and blocks of channels; a reset at one step, and at random ones of a second sequence."""
    forms, sizes, (chunk, segment), flags = CUTS[name]
    cut(chunk, segment)
    if name.startswith("masked"):
        monkeypatch.setattr(triton_call, "BACKWARD_STATE", 32)
        monkeypatch.setattr(triton_call, "MAX_BLOCK", 4)
    flags = {"discretization": "zoh", "delta_softplus": True} | flags
    inputs = make_inputs(*forms, **{"batch": 2 if "reset" in flags else 1, "optional": ("initial_state",)} | sizes)
    if name.startswith("one delta"):
        inputs["delta"] = inputs["delta"][0, :, 0].clone()
    if "reset" in flags:
        L = sizes["L"]
        flags["reset"] = torch.stack([torch.arange(L) == flags["reset"], random_reset(2, L)[1]])
    compare(inputs, **flags)


@pytest.mark.parametrize(
    "complex_A, use_y, use_state",
    [(False, True, False), (True, False, True), slow(True, True, False), slow(False, False, True)],
)
def test_gradient_through_one_result_alone(complex_A, use_y, use_state, cut):
    cut()
    compare(make_inputs(complex_A, "1 real", "constant", batch=1, D=2, L=6), use_y=use_y, use_state=use_state)
    one = on_device(make_inputs(complex_A, "1 real", "1 real", batch=1, L=3))
    y, state = selective_scan(**one, return_last_state=True, backend="triton")
    assert all(g is not None for g in torch.autograd.grad(abs(state).sum(), [one["u"], one["A"]]))


@pytest.mark.parametrize("complex_A", [slow(False), True])
def test_small_A(complex_A):
    """zoh and its gradients stay right as A -> 0, and at A == 0."""
    inputs = make_inputs(complex_A, "1 real", "1 real", batch=1, D=5, L=4, optional=("B_bias",))
    inputs["A"] = torch.tensor([0.0, 1e-30, 1e-6, 1e-3, 1.0], dtype=torch.float64)[:, None] * inputs["A"]
    compare(inputs, discretization="zoh")


@pytest.mark.parametrize("complex_A", [slow(False), True])
def test_strides(complex_A):
    """Transposed, expanded, strided, negated and conjugated inputs; y keeps u's memory order."""
    forms = ("2 interleaved", "1 complex") if complex_A else ("2 real", "1 real")
    inputs = make_inputs(complex_A, *forms, dtype=torch.float32, L=5)
    inputs["z"] = inputs["z"][:1, :, :1].expand_as(inputs["u"])
    inputs["u"] = inputs["u"].transpose(1, 2).contiguous().transpose(1, 2)
    inputs["C"] = inputs["C"].permute(3, 0, 2, 1).contiguous().permute(1, 3, 2, 0)
    inputs["B"] = inputs["B"].transpose(1, 3).contiguous().transpose(1, 3)
    inputs["A"] = torch.stack([inputs["A"]] * 2, dim=-1)[..., 0]
    if complex_A:
        inputs |= {name: inputs[name].conj().resolve_conj().conj() for name in ("A", "C", "initial_state")}
    inputs["delta"] = torch.complex(inputs["delta"], -inputs["delta"]).conj().imag  # a lazy negative
    actual = run(inputs, "triton", discretization="zoh")
    assert actual["y"].stride() == inputs["u"].stride() and not actual["y"].is_contiguous()
    assert all(actual[name].dtype == x.dtype for name, x in inputs.items())
    assert_close(widened(actual), run(widened(inputs), "reference", discretization="zoh"), 3e-6)


@pytest.mark.parametrize("complex_A", [slow(False), True])
def test_mixed_dtypes(complex_A, cut):
    cut()
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        check_mixed_dtypes(complex_A, "triton", batch=1, L=6)


@pytest.mark.parametrize("complex_A", [False, True])
def test_float32_gradient_of_small_A(complex_A):
    check_float32_gradient_of_small_A(complex_A, "triton", batch=1, L=8)


@pytest.mark.parametrize("discretization", ["euler", "zoh"])
def test_large_phases(discretization):
    """delta Im A up to thousands of radians; delta is a power of two, so that the product is not rounded."""
    narrow = narrowed(make_inputs(True, "1 real", "1 real", batch=1, D=4, N=16, L=3, optional=()))
    narrow["delta"] = torch.full_like(narrow["delta"], 0.5)
    narrow["A"] = torch.complex(narrow["A"].real, torch.linspace(-8000, 8000, 64).view(4, 16))
    compare(narrow, rtol=2e-6, discretization=discretization)


def test_errors_of_phases_do_not_add_up():
    """In the mean over steps of different sizes e^(delta A) is right to a third of a rounding, at every frequency: a
    state turns by thousands of steps, and what they have in common of an error grows with their number."""
    D, N, L = 1024, 16, 8
    generator = torch.Generator().manual_seed(0)
    delta = 0.1 + 0.9 * torch.rand(1, D, L, generator=generator)
    A = torch.complex(torch.zeros(N), torch.linspace(0.3, 3, N))
    one = torch.ones(D, N, dtype=torch.complex64)
    x = [v.to(DEVICE) for v in (torch.zeros(1, D, L), delta, A, one, one)]
    _, state = selective_scan(*x, initial_state=one[None].to(DEVICE), discretization="zoh", backend="triton",
                              return_last_state=True)  # fmt: skip
    phase = delta.double().sum(2)[..., None] * A.imag.double()
    error = (state.cpu().to(torch.complex128) / torch.polar(torch.ones_like(phase), phase) - 1) / L
    assert error.mean((0, 1)).abs().max() < 2e-8


@pytest.mark.parametrize(
    "A, delta", [(complex(-1e-4, 1e5), 6.1e3), (complex(-1e-6, 1e7), 3.3e3), (complex(-1, 0), 1e16), (-1.0, math.inf)]
)
def test_beyond_all_phases_the_state_is_bounded(A, delta):
    """A float32 has no phase left there; |A_bar| is at most 1 all the same, and B_bar 2/|A|."""
    x = dict(A=torch.tensor([[A]]), u=torch.ones(1, 1, 5), delta=torch.full((1, 1, 5), delta), B=torch.ones(1, 1, 1, 5),
             C=torch.ones(1, 1, 1, 5))  # fmt: skip
    y = selective_scan(**{name: v.to(DEVICE) for name, v in x.items()}, discretization="zoh", backend="triton")
    assert (y.abs() <= 2 * 5 * 2 / abs(A)).all()


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # by numpy, which the interpreter computes with
@pytest.mark.parametrize("complex_A", [slow(False), True])
def test_reset_drops_what_is_not_finite(complex_A, cut):
    """Infinite inputs before a reset, in the same segment and in one before, leave what follows as it was."""
    cut()
    inputs = narrowed(make_inputs(complex_A, "1 real", "1 real", batch=1, D=1, N=1, L=12, optional=("initial_state",)))
    reset = torch.zeros(1, 12, dtype=torch.bool)
    reset[:, 6] = True
    expected = run(inputs, "triton", reset=reset)
    broken = {name: x.clone() for name, x in inputs.items()}
    broken["u"][..., [1, 5]] = math.inf
    result = run(broken, "triton", reset=reset)
    assert not torch.isfinite(result["y"]).all()
    for name in ("y", "u"):
        assert torch.equal(result[name][..., 6:], expected[name][..., 6:])
    assert torch.equal(result["last_state"], expected["last_state"])
    broken = {**inputs, "initial_state": torch.full_like(inputs["initial_state"], math.nan)}
    reset[:, 0] = True
    result, expected = run(broken, "triton", reset=reset), run(inputs, "triton", reset=reset)
    assert torch.equal(result["y"], expected["y"]) and (result["initial_state"] == 0).all()


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="interpreted, programs run one after the other")
def test_gradients_do_not_vary(cut):
    cut()
    inputs = make_inputs(True, "2 interleaved", "1 real", dtype=torch.float32, L=257)
    first, second = (run(inputs, "triton", discretization="zoh", delta_softplus=True) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_nothing_is_kept_without_gradients(monkeypatch):
    kept, forward = [], triton_call.Scan.forward

    def spy(self, y, last, checkpoints):
        kept.append(0 if checkpoints is None else checkpoints.numel())
        forward(self, y, last, checkpoints)

    monkeypatch.setattr(triton_call.Scan, "forward", spy)
    x = on_device(make_inputs(False, "1 real", "1 real", L=3))
    with torch.no_grad():
        assert not selective_scan(**x, backend="triton").requires_grad
    selective_scan(**{name: value.detach() for name, value in x.items()}, backend="triton")
    assert kept == [0, 0]
    assert selective_scan(**x, backend="triton").requires_grad and kept[2] == 2 * 4 * 2


def test_only_first_derivatives():
    x = on_device(make_inputs(False, "1 real", "1 real", batch=1, D=1, L=2))
    y, state = selective_scan(**x, return_last_state=True, backend="triton")
    (grad,) = torch.autograd.grad(weighted_sum(y, state), [x["u"]], create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(grad.sum(), [x["delta"]])


def test_no_batch():
    result = run(narrowed(make_inputs(False, "1 real", "1 real", batch=0)), "triton")
    assert result["y"].shape == (0, 4, 37) and (result["A"] == 0).all()


def test_plan_fills_the_device(monkeypatch):
    monkeypatch.setattr(triton_call, "processors", lambda device: 132)
    gpu = torch.device("cuda")
    for budget in (triton_call.FORWARD_STATE, triton_call.BACKWARD_STATE):
        backward = budget != triton_call.FORWARD_STATE
        for batch, channels, length in ((16, 1024, 2048), (8, 128, 16384), (1, 128, 65536), (256, 128, 512)):
            p = triton_call.plan(batch, channels, length, channels, 16, 1, budget, gpu, backward)
            assert batch * p.blocks * p.segments >= (3 if p.segments == 1 else 4) * 132
            assert p.blocks * p.block >= channels and p.segments * p.segment >= length > (p.segments - 1) * p.segment
            assert p.segments == 1 or (p.segment >= 256 and p.segment % 64 == 0)
    assert triton_call.plan(16, 1024, 2048, 1024, 16, 1, triton_call.FORWARD_STATE, gpu, False).segments == 1
    # B2S6 on LRA (32 pairs, groups of 16 channels), ListOps and Path-X: 1,024 and 768 programs, none walks twice
    listops = triton_call.plan(32, 128, 2048, 16, 32, 2, triton_call.FORWARD_STATE, gpu, False)
    pathx = triton_call.plan(24, 128, 16384, 16, 32, 2, triton_call.FORWARD_STATE, gpu, False)
    assert (listops.block, listops.segments, pathx.block, pathx.segments) == (4, 1, 4, 1)
    # one state a channel: a lane each, however few programs that makes
    few = triton_call.plan(16, 256, 1024, 256, 1, 1, triton_call.FORWARD_STATE, gpu, False)
    assert (few.block, few.segments) == (32, 4)
    assert triton_call.plan(1, 6, 100, 3, 16, 1, triton_call.BACKWARD_STATE, gpu, True)[:2] == (
        4,
        2,
    )  # two groups, each one block of 4, one masked


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
            selective_scan(**{name: x.to(DEVICE) for name, x in inputs.items()}, discretization="zoh")
        assert list(used["selective scan"]) == [name]
    assert_close(run(wide, "auto"), run(wide, "reference"))
    with pytest.raises(ValueError, match="'triton' cannot run this call: float64: "):
        run(wide, "triton")


@pytest.mark.parametrize("complex_", [slow(0), 1])
def test_the_linear_recurrence_with_a_constant_factor(complex_, cut):
    cut()
    inputs, reset = narrowed(test_scan.make((complex_,) * 3 + (True,), D=3, L=6)), random_reset(2, 6)
    actual = test_scan.run({name: x.to(DEVICE) for name, x in inputs.items()}, "triton", reset=reset.to(DEVICE))
    assert_close(widened(actual), test_scan.run(widened(inputs), "reference", reset=reset), 3e-6)


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
        run({name: value.to(DEVICE) for name, value in x.items()}, backend="triton")
    names = [name for name, *_ in compiled]
    assert {name: names.count(name) for name in names} == dict(
        scan_kernel=4, join_kernel=2, adjoint_kernel=2, gradient_kernel=2
    )
