"""Backend "mamba_ssm": against the reference with a stand-in for the kernel's function, and on the kernel on a GPU."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils._pytree import tree_leaves

from lra_ssm.layers import S6, LayerSpec, MambaBlock
from lra_ssm.ops import backends, record_backends, scan_backends, selective_scan
from lra_ssm.ops.backends import BACKENDS, mamba_ssm_scan
from tests.each import each
from tests.ops.mamba_stand_in import StandIn
from tests.ops.scan_cases import Case, assert_close, leaves, make_inputs, run, widened
from tests.ops.test_selective_scan import CASES
from tests.pairwise import pairwise

SUPPORTED = ("D", "z", "delta_bias", "B_bias")
B2S6 = dict(optional=SUPPORTED, tied_A=True, D=6, dtype=torch.float32)

gpu = pytest.mark.gpu
needs_the_kernel = pytest.mark.skipif(
    not torch.cuda.is_available() or find_spec("selective_scan_cuda") is None,
    reason="needs an NVIDIA GPU and mamba-ssm's extension",
)


@pytest.fixture
def stand_in(monkeypatch):
    function = StandIn()
    monkeypatch.setattr(mamba_ssm_scan, "_kernel", lambda: function)
    monkeypatch.setattr(mamba_ssm_scan, "_refuse_device", lambda device: None)
    return function


def stable_inputs(*form, **options):
    """float32 inputs whose steps are positive without softplus too: states that grow would magnify any rounding."""
    inputs = make_inputs(*form, **{"dtype": torch.float32, **options})
    if "delta_bias" in inputs:
        inputs["delta_bias"] = inputs["delta_bias"].abs()
    return inputs


def compare(inputs, rtol=1e-6, **flags):
    """The backend in float32 against the reference in float64: y, the last state, every gradient of y."""
    actual = run(inputs, "mamba_ssm", use_state=False, y_weights=inputs["u"].dtype, **flags)
    assert {name: x.dtype for name, x in inputs.items()} == {name: actual[name].dtype for name in inputs}
    expected = run(widened(inputs), "reference", use_state=False, y_weights=inputs["u"].dtype, **flags)
    assert actual["last_state"].dtype == (torch.complex64 if inputs["A"].is_complex() else torch.float32)
    for name, want in expected.items():
        tolerance = {torch.bfloat16: 8e-3, torch.float16: 1e-3}.get(actual[name].dtype, rtol)
        assert_close({name: actual[name].cpu().to(want.dtype)}, {name: want}, rtol=tolerance)
    return actual


def case_inputs(case, **changes):
    """A case without what the backend refuses."""
    optional = tuple(name for name in case.optional if name in SUPPORTED)
    inputs = stable_inputs(case.complex_A, case.B, case.C, optional=optional, tied_A=case.tied_A, batch=3, **changes)
    return inputs, dict(delta_softplus=case.softplus)


@each("case", CASES)
def test_forms(case, stand_in):
    inputs, flags = case_inputs(case)
    compare(inputs, **flags)
    if case.zoh or case.reset or "initial_state" in case.optional:
        complete = case.inputs(batch=3, dtype=torch.float32)
        with pytest.raises(ValueError, match="backend: 'mamba_ssm' cannot run this call: (discr|reset|initial_state)"):
            selective_scan(**complete, **case.flags(batch=3), backend="mamba_ssm")


@pytest.mark.parametrize("case, launches", [
    (Case(B="constant", C="constant"), 1),
    (Case(B="3 real", C="3 real"), 1),
    (Case(B="3 real", C="constant"), 1),
    (Case(B="2 real", C="3 real"), 1),  # both with 6 groups
    (Case(B="constant", C="no group real"), 1),
    (Case(B="constant", C="3 real"), 3),
    (Case(B="3 real", C="3 real", optional=SUPPORTED), 1 + 3),
    (Case(B="3 real", C="constant", optional=SUPPORTED), 1 + 1),
    (Case(B="constant", C="3 real", optional=SUPPORTED), 3),  # the bias is part of a constant B
    (Case(complex_A=True, B="constant", C="3 interleaved"), 3),
    (Case(complex_A=True, B="3 real", C="constant"), 3),
    (Case(complex_A=True, B="1 complex", C="no group real"), 1),
    (Case(complex_A=True, B="3 complex", C="3 complex"), 3),
    (Case(complex_A=True, B="2 complex", C="3 complex"), 6),
    (Case(complex_A=True, B="3 complex", C="3 complex", tied_A=True), 1),
    (Case(complex_A=True, B="1 complex", C="3 real", tied_A=True), 1),
    (Case(complex_A=True, B="2 interleaved", C="3 complex", tied_A=True), 1),
    (Case(complex_A=True, B="3 interleaved", C="3 interleaved", tied_A=True, optional=SUPPORTED), 1 + 3),  # B2S6
    (Case(complex_A=True, B="3 interleaved", C="3 interleaved", optional=SUPPORTED), 3 + 3),
    (Case(complex_A=True, B="3 interleaved", C="no group real", tied_A=True, optional=SUPPORTED), 1 + 1),
], ids=str)  # fmt: skip
def test_launches(case, launches, stand_in):
    inputs = case.inputs(D=6, dtype=torch.float32)
    compare(inputs, delta_softplus=True)
    assert len(stand_in.launches) == launches
    assert sum(batch * D for batch, D, _ in stand_in.launches) == 2 * 6 * (
        1 + ("B_bias" in inputs and case.B != "constant")
    )


@each("optional", [(), ("D",), ("z",), ("delta_bias",), ("D", "z", "B_bias"), SUPPORTED])
@each("softplus", [False, True])
@each("form", ["3 real", "3 interleaved"])
def test_options_apply_once(form, softplus, optional, stand_in):
    """D, z, the bias of delta and softplus, in the kernel and where folding or B_bias keeps them out of it."""
    inputs = stable_inputs("inter" in form, form, form, optional=optional, tied_A=True, D=6)
    compare(inputs, delta_softplus=softplus)


@each("form", ["3 real", "3 interleaved"])
@each("L", [1, 2, 63, 128, 257])
def test_lengths(L, form, stand_in):
    compare(make_inputs("inter" in form, form, form, L=L, **B2S6), delta_softplus=True)


@each("tied_A", [False, True])
@each("form", ["3 real", "3 interleaved"])
@each("dtype", [torch.bfloat16, torch.float16])
@each("optional", [("z",), SUPPORTED])
def test_half_precision(optional, dtype, form, tied_A, stand_in):
    """One dtype goes to the kernel as it is; parts that are summed are float32, and rounded once."""
    inputs = make_inputs("inter" in form, form, form, optional=optional, tied_A=tied_A, D=6, dtype=torch.float32)
    for name in ("u", "delta", "B", "C", "z"):
        inputs[name] = inputs[name].to(dtype)
    y = compare(inputs, delta_softplus=True)["y"]
    if "B_bias" in optional:
        expected = run(widened(inputs), "reference", use_state=False, delta_softplus=True)["y"]
        assert ((y - expected).abs() <= torch.finfo(dtype).eps * expected.abs() + 1e-6).all()


@each("complex_A", [False, True])
@each("optional", [("D", "z"), SUPPORTED])
def test_mixed_dtypes(optional, complex_A, stand_in):
    """Mixed dtypes meet in float32, so that y is u's precision away from the truth, and lose nothing on the way."""
    inputs = stable_inputs(complex_A, "2 real", "constant", optional=optional)
    for name, dtype in dict(u=torch.bfloat16, B=torch.float16, z=torch.float16, D=torch.bfloat16).items():
        inputs[name] = inputs[name].to(dtype)
    assert compare(inputs)["y"].dtype == torch.bfloat16


def test_autocast_does_not_reach_the_kernel(stand_in):
    inputs = make_inputs(True, "3 interleaved", "3 interleaved", **B2S6)
    expected = run(inputs, "mamba_ssm", use_state=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_close(run(inputs, "mamba_ssm", use_state=False), expected, rtol=1e-7)


@each(*pairwise(L=[40, 128], complex_A=[False, True], optional=[(), SUPPORTED], rest=False).args)
def test_strides(L, complex_A, optional, stand_in):
    """Transposed, expanded, overlapping, misaligned, conjugated and negated inputs; y keeps u's memory order."""
    form = "3 complex" if complex_A else "3 real"
    original = stable_inputs(complex_A, form, form, optional=optional, tied_A=True, L=L, D=6)
    inputs = dict(original)
    for name in ("u", "B"):
        inputs[name] = inputs[name].transpose(1, -1).contiguous().transpose(1, -1)
    if complex_A:
        for name in ("A", "C"):
            inputs[name] = inputs[name].conj().resolve_conj().conj()
    else:
        inputs["C"] = torch.complex(inputs["C"], -inputs["C"]).conj().imag
        assert inputs["C"].is_neg()
    actual = compare(inputs)
    assert actual["y"].stride() == inputs["u"].stride() and not actual["y"].is_contiguous()

    inputs = dict(original)
    inputs["delta"] = inputs["delta"][:, :1].expand_as(inputs["u"])  # a step size for each block
    inputs["u"] = torch.linspace(-1, 1, 6 + L - 1).unfold(0, L, 1).expand(2, 6, L)  # overlapping rows
    compare(inputs)
    inputs["u"] = original["u"][:1, :, :1].expand(2, 6, L)
    compare(inputs)
    for name in ("u", "delta", "B"):  # views that begin in the middle of 16 bytes
        x = original[name]
        buffer = x.new_zeros(x.numel() + 1)
        inputs[name] = buffer[1:].view(x.shape).copy_(x)
    compare(inputs)


@each("complex_A", [False, True])
def test_lazily_negated_inputs_of_length_one(complex_A, stand_in):
    """The kernel reads memory, where the sign of such a view is not."""
    inputs = stable_inputs(complex_A, "3 real", "constant real", optional=SUPPORTED, L=1, D=6, N=1, tied_A=True)
    for name, x in inputs.items():
        if not x.is_complex():
            inputs[name] = torch.complex(x, -x).conj().imag
            assert inputs[name].is_neg()
    compare(inputs)


@each("shape", ["transposed", "expanded", "part of a longer one"])
def test_strides_of_the_incoming_gradient(shape, stand_in):
    inputs = leaves(make_inputs(False, "2 real", "1 real", L=128, optional=("D",), dtype=torch.float32))
    y = selective_scan(**inputs, backend="mamba_ssm")
    expected = selective_scan(**inputs, backend="reference")
    weights = torch.randn(2, 4, 128)
    weights = {
        "transposed": weights.transpose(1, 2).contiguous().transpose(1, 2),
        "expanded": weights[:1, :1, :1].expand(2, 4, 128),
        "part of a longer one": torch.cat([weights[..., :1], weights], dim=-1)[..., 1:],
    }[shape]
    for x, want in zip(
        torch.autograd.grad(y, list(inputs.values()), weights),
        torch.autograd.grad(expected, list(inputs.values()), weights),
        strict=True,
    ):
        torch.testing.assert_close(x, want, rtol=1e-4, atol=1e-4)


def test_rows_that_share_memory_may_have_gradients_of_their_own(stand_in):
    """A leaf A (D, N) expanded from one row: not folded, for its gradient differs by row."""
    inputs = make_inputs(True, "3 interleaved", "3 interleaved", optional=(), D=6, dtype=torch.float32)
    inputs["A"] = inputs["A"][:1].expand(6, 2)
    compare(inputs)
    assert len(stand_in.launches) == 3
    with torch.no_grad():
        selective_scan(**inputs, backend="mamba_ssm")
    assert len(stand_in.launches) == 4


def test_gradient_through_the_last_state_raises(stand_in):
    inputs = make_inputs(True, "3 interleaved", "1 real", optional=SUPPORTED, dtype=torch.float32, D=6)
    x = leaves(inputs)
    y, state = selective_scan(**x, return_last_state=True, backend="mamba_ssm")
    with pytest.raises(RuntimeError, match="last state: no gradient.*'mamba_ssm'.*'triton'") as error:
        (y.sum() + state.abs().sum()).backward()
    assert "\n" not in str(error.value)
    y, state = selective_scan(**x, return_last_state=True, backend="mamba_ssm")
    (y.sum() + state.detach().abs().sum()).backward()
    assert all(v.grad is not None for v in x.values())
    state_free = {name: v.detach().requires_grad_(name in ("C", "D", "z")) for name, v in inputs.items()}
    y, state = selective_scan(**state_free, return_last_state=True, backend="mamba_ssm")
    assert y.requires_grad and not state.requires_grad
    with torch.no_grad():
        y, state = selective_scan(**x, return_last_state=True, backend="mamba_ssm")
    assert not y.requires_grad and not state.requires_grad


def test_second_derivatives_raise(stand_in):
    inputs = leaves(make_inputs(False, "1 real", "1 real", optional=(), dtype=torch.float32))
    y = selective_scan(**inputs, backend="mamba_ssm")
    with pytest.raises(RuntimeError, match="'mamba_ssm' gives first derivatives alone"):
        torch.autograd.grad(y.sum(), [inputs["u"]], create_graph=True)


def test_y_may_be_changed_in_place(stand_in):
    x = leaves(make_inputs(False, "1 real", "1 real", optional=(), dtype=torch.float32))
    y = selective_scan(**x, backend="mamba_ssm")
    y.mul_(2)
    (grad,) = torch.autograd.grad(y.sum(), [x["u"]])
    (want,) = torch.autograd.grad(2 * selective_scan(**x, backend="reference").sum(), [x["u"]])
    torch.testing.assert_close(grad, want, rtol=1e-4, atol=1e-4)


def vast(batch, D, N, L):
    """Inputs of any size that take no memory."""
    one = torch.zeros(1)
    u = one.expand(batch, D, L)
    return dict(u=u, delta=u, A=one.expand(D, N), B=one.expand(batch, N, L), C=one.expand(D, N))


@each("change, match", [
    (dict(discretization="zoh"), "^discretization 'zoh'.*'triton' or 'cpu'$"),
    (dict(reset=torch.zeros(2, 37, dtype=torch.bool)), "^reset: "),
    (dict(initial_state=torch.zeros(2, 4, 2)), "^initial_state: "),
    (dict(D=torch.zeros(4, dtype=torch.float64)), "^float64: "),
    (vast(2, 4, 257, 8), "^N = 257 states; .*at most 256$"),
    (vast(0, 4, 2, 8), "^batch = 0, "),
    (vast(1, 65536, 1, 1), "D = 65536; .*D <= 65535$"),
    (vast(2**15, 2**10, 1, 2**7), "^too large"),
    (vast(2**15, 2**9, 2**7, 1), "^too large"),
    (vast(2**15, 2**9, 2**7 - 1, 1), None),
])  # fmt: skip
def test_refused_inputs(change, match, stand_in, monkeypatch):
    call = make_inputs(False, "2 real", "1 real", optional=(), dtype=torch.float32) | change
    ran = []
    scan = BACKENDS["mamba_ssm"].scan._replace(run=lambda inputs: (ran.append(inputs), None))
    pretended = BACKENDS["mamba_ssm"]._replace(scan=scan)
    monkeypatch.setitem(BACKENDS, "mamba_ssm", pretended)  # what takes no memory here would take some when run
    if match is None:
        selective_scan(**call, backend="mamba_ssm")
        assert ran
        return
    with pytest.raises(ValueError, match="backend: 'mamba_ssm' cannot run this call") as error:
        selective_scan(**call, backend="mamba_ssm")
    reason = str(error.value).split("cannot run this call: ")[1]
    assert "\n" not in reason
    assert re.search(match, reason)


def test_state_count_at_the_limit(stand_in):
    compare(make_inputs(False, "1 real", "1 real", N=256, L=3, optional=(), dtype=torch.float32))


def test_refused_devices(monkeypatch):
    assert scan_backends("cpu")["mamba_ssm"] == "runs tensors on a CUDA device alone; u is on cpu"
    cuda = torch.device("cuda")
    refuse = mamba_ssm_scan._refuse_installation.__wrapped__  # without the cache
    monkeypatch.setattr(mamba_ssm_scan, "_refuse_installation", refuse)
    monkeypatch.setattr(mamba_ssm_scan, "find_spec", lambda name: None)
    assert "selective_scan_cuda, is not installed" in mamba_ssm_scan.refusal(cuda, None)

    def fail():
        raise ImportError("undefined symbol: _ZN3c10\nmore")

    monkeypatch.setattr(mamba_ssm_scan, "find_spec", lambda name: name)
    monkeypatch.setattr(mamba_ssm_scan, "_kernel", fail)
    reason = mamba_ssm_scan.refusal(cuda, None)
    assert reason == "mamba-ssm is installed but cannot be imported: ImportError: undefined symbol: _ZN3c10"
    monkeypatch.setattr(mamba_ssm_scan, "_kernel", lambda: None)
    assert mamba_ssm_scan.refusal(cuda, None) is None


# The kernel itself.  It is compiled with fast math, so its sine, cosine and exponential are good to about 1e-6 of
# their argument, and it sums gradients in any order: the tolerance is that of mamba-ssm's own tests.


@gpu
@needs_the_kernel
@each("case", CASES)
@each("L", [37, 128, 2500])
def test_forms_on_the_kernel(L, case):
    inputs, flags = case_inputs(case, L=L)
    compare({name: x.cuda() for name, x in inputs.items()}, rtol=1e-3, **flags)


def refusal_of_the_build(dtype):
    """What mamba-ssm's own function says of a dtype that its extension was built without; None where it takes it."""
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    u, A = torch.zeros(1, 8, 8, device="cuda", dtype=dtype), -torch.ones(8, 1, device="cuda")
    try:
        selective_scan_fn(u, u, A, u[:, :1], u[:, :1])
    except RuntimeError as error:
        return f"this mamba-ssm: {error}"
    return None


@gpu
@needs_the_kernel
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@each("form", ["3 real", "3 interleaved"])
@each("optional", [("z",), SUPPORTED])
def test_half_precision_on_the_kernel(optional, form, dtype):
    if dtype == torch.float16 and (reason := refusal_of_the_build(dtype)):
        pytest.skip(reason)
    inputs = make_inputs("inter" in form, form, form, optional=optional, tied_A=True, D=6, dtype=torch.float32)
    for name in ("u", "delta", "B", "C", "z"):
        inputs[name] = inputs[name].to(dtype)
    compare({name: x.cuda() for name, x in inputs.items()}, rtol=2e-2, delta_softplus=True)


@gpu
@needs_the_kernel
@each("L", [128, 2048])
def test_misaligned_inputs_and_gradients_on_the_kernel(L):
    inputs = make_inputs(False, "2 real", "1 real", L=L, optional=("z",), dtype=torch.float32)
    for name in ("u", "delta", "B", "z"):
        x = inputs[name]
        inputs[name] = torch.zeros(x.numel() + 1, device="cuda")[1:].view(x.shape).copy_(x)
    inputs = {name: x.cuda() for name, x in inputs.items()}
    compare(inputs, rtol=1e-3)
    x = leaves(inputs)
    y = selective_scan(**x, backend="mamba_ssm")
    torch.cat([y[..., :1].detach(), y], dim=-1).square().sum().backward()
    torch.cuda.synchronize()


# In a process of its own, for the kernel then writes past the end of its gradients.
WRONG_GRADIENT = """
import torch
from mamba_ssm.ops.selective_scan_interface import selective_scan_fn
from lra_ssm.ops import selective_scan_reference
from tests.ops.mamba_stand_in import StandIn
from tests.ops.scan_cases import make_inputs

for groups in (1, 2):
    form = f"{groups} interleaved"
    inputs = make_inputs(True, form, form, optional=(), batch=3, L=16, dtype=torch.float32)
    x = {name: v.cuda().requires_grad_() for name, v in inputs.items()}
    errors = []
    weights = torch.cos(torch.arange(3 * 4 * 16.0, device="cuda")).view(3, 4, 16)
    found = torch.autograd.grad(selective_scan_fn(**x), [x["B"], x["C"]], weights)
    wanted = torch.autograd.grad(selective_scan_reference(**x), [x["B"], x["C"]], weights)
    for got, want in zip(found, wanted):
        errors.append(((got - want).abs().max() / want.abs().max()).item())
    print(max(errors))
"""


@gpu
@needs_the_kernel
def test_wrong_gradient_of_complex_groups():
    """mamba-ssm's own gradients of B and C with complex A: right for one group, wrong for two.

    When this fails for two groups the kernel is mended, and folding groups into the batch and launching once per group
    can go, for versions from that one on.
    """
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", WRONG_GRADIENT]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=root)
    assert result.returncode == 0, result.stderr
    one_group, two_groups = map(float, result.stdout.split())
    assert one_group < 1e-3
    assert two_groups > 0.1


def order(device, **changes):
    """Of a call that mamba-ssm's kernel computes in one launch, but for the changes."""
    needs_state = changes.pop("needs_state", False)
    call = {"u": SimpleNamespace(device=device), "A": torch.ones(2, 3), "B_bias": None, "discretization": "euler"}
    return tuple(backends._scan_order(SimpleNamespace(**call | changes), needs_state))


def test_what_auto_tries_first():
    gpu = torch.device("cuda")
    assert order(gpu) == ("mamba_ssm", "triton", "eager")
    complex_A = {"A": torch.ones(2, 3, dtype=torch.complex64)}
    for other in (complex_A, {"discretization": "zoh"}, {"B_bias": torch.ones(2, 3)}, {"needs_state": True}):
        assert order(gpu, **other)[0] == "triton", other
    with torch.no_grad():
        assert order(gpu, needs_state=True)[0] == "mamba_ssm"
    assert order(torch.device("cpu")) == ("cpu", "eager")


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("block", [None, MambaBlock])
def test_auto_trains_and_validates_s6_by_this_kernel(block, bidirectional, stand_in, monkeypatch):
    """As on a GPU; a state with a gradient, which the kernel lacks, comes from another backend."""
    monkeypatch.setitem(backends.AUTO_REAL_EULER, "cpu", ("mamba_ssm", "cpu", "eager"))
    torch.manual_seed(0)
    spec = LayerSpec(S6, d_state=4, bidirectional=bidirectional)
    module = spec(6) if block is None else block(6, spec)
    x, lengths, launches = torch.randn(2, 9, 6), torch.tensor([9, 5]), 1 + bidirectional
    with record_backends() as used:
        loss = module(x, lengths).square().sum()
        loss.backward()
    assert used == {"selective scan": {"mamba_ssm": None}} and len(stand_in.launches) == launches
    gradients = {name: p.grad.clone() for name, p in module.named_parameters()}
    with torch.no_grad():
        module(x, lengths)
    assert len(stand_in.launches) == 2 * launches
    if not bidirectional:
        y, state = module(x, lengths, return_last_state=True)
        (y.square().sum() + sum(part.square().sum() for part in tree_leaves(state))).backward()
        assert len(stand_in.launches) == 2 * launches
    monkeypatch.setitem(backends.AUTO_REAL_EULER, "cpu", ("cpu", "eager"))
    module.zero_grad()
    module(x, lengths).square().sum().backward()
    for name, p in module.named_parameters():
        torch.testing.assert_close(p.grad, gradients[name], rtol=1e-4, atol=1e-5)
