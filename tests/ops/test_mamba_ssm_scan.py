"""Backend "mamba_ssm" against the reference, with a stand-in for the kernel's function.

`lra-ssm doctor` compares the kernel itself on a GPU.
"""

from __future__ import annotations

import re
from functools import partial
from importlib.util import find_spec

import pytest
import torch

from lra_ssm.layers import S6, LayerSpec, MambaBlock
from lra_ssm.ops import record_backends, selective_scan
from lra_ssm.ops.backends import AUTO, mamba_ssm_kernels
from lra_ssm.ops.inputs import check_scan_inputs
from lra_ssm.ops.reference import run_reference
from tests.ops.scan_cases import assert_close, compare, leaves, make_inputs, widened

SUPPORTED = ("D", "z", "delta_bias")  # the gate z beside the kernel
FORMS = [("constant", "constant"), ("constant", "no group real"), ("no group real", "constant"), ("3 real", "3 real"),
         ("3 real", "constant")]  # fmt: skip


def check_rows(x: torch.Tensor, shape: tuple[int, ...]) -> None:
    """What the kernel needs of a tensor that it reads along time, whether it checks that or not."""
    assert tuple(x.shape) == shape and not x.is_neg() and x.is_contiguous() and x.data_ptr() % 16 == 0


class KernelGraph(torch.autograd.Function):
    """The kernel's place in the graph: its backward takes y's gradient and passes over that of the last state."""

    @staticmethod
    def forward(ctx, y, state):
        return y.clone(), state.clone()

    @staticmethod
    def backward(ctx, dy, dstate):
        check_rows(dy, tuple(dy.shape))
        return dy, None


class StandIn:
    """mamba-ssm's selective_scan_fn: what it takes, checks and gives, written as the reference in float64."""

    kernel = "_scan_kernel"

    def __init__(self):
        self.launches = []  # the shapes of u

    def __call__(self, u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False,
                 return_last_state=False):  # fmt: skip
        self.launches.append(tuple(u.shape))
        assert not torch.is_autocast_enabled(u.device.type)
        (batch, channels, L), N = u.shape, A.shape[1]
        assert u.dtype in (torch.float32, torch.float16, torch.bfloat16) and A.dtype == torch.float32
        assert A.shape == (channels, N) and N <= 256 and batch > 0
        assert z is None
        for x in (u, delta):
            check_rows(x, (batch, channels, L))
        groups = B.shape[1] if B.dim() > 2 else 1
        assert channels % groups == 0
        for x in (B, C):
            if x.dim() == 2:
                assert x.dtype == A.dtype and x.shape == (channels, N)
            else:
                assert x.dtype == u.dtype
                check_rows(x, (batch, groups, N, L))
        assert delta.dtype == u.dtype
        for x in (D, delta_bias):
            assert x is None or (x.dtype == torch.float32 and x.shape == (channels,) and x.is_contiguous())
        wide = [None if x is None else x.double() for x in (u, delta, A, B, C, D, z, delta_bias)]
        y, state = run_reference(check_scan_inputs(*wide, delta_softplus, None, "euler", None, None, True))
        if B.dim() == 2:
            state = state / B  # the kernel's lacks it
        y, state = KernelGraph.apply(torch.empty_like(delta).copy_(y), state.to(A.dtype))
        return (y, state) if return_last_state else y


def make(B="3 real", C="3 real", **options):
    """float32 inputs whose steps are positive without softplus too: states that grow would magnify any rounding."""
    inputs = make_inputs(False, B, C, **{"D": 6, "optional": SUPPORTED, "dtype": torch.float32, **options})
    if "delta_bias" in inputs:
        inputs["delta_bias"] = inputs["delta_bias"].abs()
    return inputs


def check(inputs, **flags):
    """The backend in float32 against the reference in float64: y, every gradient of y, the last state."""
    fast, slow = (partial(selective_scan, backend=name, **flags) for name in ("mamba_ssm", "reference"))
    found = compare(fast, slow, inputs, 1e-6)
    with torch.no_grad():
        _, state = fast(**inputs, return_last_state=True)
        _, expected = slow(**widened(inputs), return_last_state=True)
    assert state.dtype == torch.float32
    assert_close(widened({"last state": state}), {"last state": expected}, 1e-6)
    return found


@pytest.mark.parametrize("softplus", [False, True])
@pytest.mark.parametrize("optional", [(), ("D",), ("z",), ("delta_bias",), SUPPORTED])
@pytest.mark.parametrize(("B", "C"), FORMS)
def test_forms_take_one_launch(B, C, optional, softplus, stand_in):
    check(make(B, C, optional=optional, tied_A=softplus), delta_softplus=softplus)
    assert stand_in.launches == [(2, 6, 37)] * 2


SEQUENCES = ("u", "delta", "B", "C", "z")


@pytest.mark.parametrize("sizes, dtypes", [
    *((dict(L=L), {}) for L in (1, 2, 63, 128, 257, 2500)),
    (dict(B="1 real", C="1 real", N=256, L=3, optional=()), {}),  # the kernel's most
    # One dtype goes to the kernel as it is; mixed ones meet in float32, and lose nothing on the way.
    *((dict(optional=optional), dict.fromkeys(SEQUENCES, dtype))
      for dtype in (torch.bfloat16, torch.float16) for optional in ((), SUPPORTED)),
    *((dict(B="2 real", C="constant", optional=optional),
       dict(u=torch.bfloat16, B=torch.float16, z=torch.float16, D=torch.bfloat16))
      for optional in (("D", "z"), SUPPORTED)),
])  # fmt: skip
def test_sizes_and_dtypes(sizes, dtypes, stand_in):
    inputs = make(**sizes)
    inputs |= {name: inputs[name].to(dtype) for name, dtype in dtypes.items() if name in inputs}
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not dtypes):  # which does not reach the kernel
        check(inputs, delta_softplus=True)


def misaligned(x):
    """A view that begins in the middle of 16 bytes."""
    return x.new_zeros(x.numel() + 1)[1:].view(x.shape).copy_(x)


@pytest.mark.parametrize("L", [40, 128])
def test_strides(L, stand_in):
    """Transposed, overlapping, misaligned and negated inputs; y keeps u's memory order."""
    original = make(L=L)
    inputs = dict(original)
    for name in ("u", "B"):
        inputs[name] = inputs[name].transpose(1, -1).contiguous().transpose(1, -1)
    inputs["C"] = torch.complex(inputs["C"], -inputs["C"]).conj().imag
    assert inputs["C"].is_neg()
    actual = check(inputs)
    assert actual["y"].stride() == inputs["u"].stride() and not actual["y"].is_contiguous()

    rows = torch.linspace(-1, 1, 6 + L - 1)
    check(original | {"u": rows.unfold(0, L, 1).expand(2, 6, L)})  # which overlap
    check(original | {name: misaligned(original[name]) for name in ("u", "delta", "B")})


def test_strides_of_the_incoming_gradient(stand_in):
    """And y, which may be changed in place."""
    inputs = leaves(make(L=128, optional=("D",)))
    weights = misaligned(torch.randn(2, 128, 6)).transpose(1, 2)
    grads = []
    for backend in ("mamba_ssm", "reference"):
        y = selective_scan(**inputs, backend=backend).mul_(2)
        grads.append(torch.autograd.grad(y, list(inputs.values()), weights))
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


def test_no_gradient_through_the_last_state_and_no_second_one(stand_in):
    x = leaves(make())
    with pytest.raises(ValueError, match="last state: mamba-ssm's kernel has no gradient of it"):
        selective_scan(**x, return_last_state=True, backend="mamba_ssm")
    y = selective_scan(**x, backend="mamba_ssm")
    with pytest.raises(RuntimeError, match="'mamba_ssm' gives first derivatives only"):
        torch.autograd.grad(y.sum(), [x["u"]], create_graph=True)


def vast(batch, D, N, L):
    """Inputs of any size that take no memory."""
    one = torch.zeros(1)
    u = one.expand(batch, D, L)
    return dict(u=u, delta=u, A=one.expand(D, N), B=one.expand(batch, N, L), C=one.expand(D, N))


@pytest.mark.parametrize(("change", "match"), [
    (make_inputs(True, "1 real", "1 real", D=6, optional=(), dtype=torch.float32), "^complex A: .*'triton' or 'cpu'$"),
    (dict(discretization="zoh"), "^discretization 'zoh'"),
    (dict(reset=torch.zeros(2, 37, dtype=torch.bool)), "^reset: "),
    (dict(initial_state=torch.zeros(2, 6, 2)), "^initial_state: "),
    (dict(B_bias=torch.zeros(6, 2)), "^B_bias: "),
    (dict(B=torch.zeros(2, 2, 2, 37)), "^2 groups of B, 3 of C: "),
    (dict(B=torch.zeros(6, 2)), "^1 groups of B, 3 of C: "),
    (dict(D=torch.zeros(6, dtype=torch.float64)), "^float64: "),
    (make("1 real", "1 real", N=257, L=3, optional=()), "N = 257 states; .*N <= 256$"),
    (make(batch=0, optional=()), "^batch = 0, "),
    (vast(1, 65536, 1, 1), "D = 65536, .*D <= 65535 "),
    (vast(2**15, 2**10, 1, 2**7), "^too large for the 32-bit offsets"),
    (vast(2**15, 2**9, 2**7, 1), "^too large for the 32-bit offsets"),
])  # fmt: skip
def test_refused_inputs(change, match, stand_in):
    call = make(optional=()) | change
    with pytest.raises(ValueError, match="backend: 'mamba_ssm' cannot run this call") as error:
        selective_scan(**call, backend="mamba_ssm")
    reason = str(error.value).split("cannot run this call: ")[1]
    assert "\n" not in reason
    assert re.search(match, reason)


def test_installations_that_cannot_be_used(monkeypatch):
    refuse = mamba_ssm_kernels._refuse_installation.__wrapped__  # without the cache
    monkeypatch.setattr(mamba_ssm_kernels, "_refuse_installation", refuse)
    if find_spec("mamba_ssm") is None:
        for reason in (mamba_ssm_kernels.scan_unsupported_reason, mamba_ssm_kernels.ssd_unsupported_reason):
            assert reason(torch.device("cuda"), None) == "mamba-ssm is not installed"
    monkeypatch.setattr(mamba_ssm_kernels, "find_spec", lambda name: name)

    def fail():
        raise ImportError("undefined symbol: _ZN3c10\nmore")

    assert refuse(fail) == "mamba-ssm is installed but cannot be imported: ImportError: undefined symbol: _ZN3c10"
    assert refuse(lambda: None) is None


@pytest.mark.parametrize("block", [None, MambaBlock])
def test_auto_trains_and_validates_s6_by_this_kernel(block, stand_in, monkeypatch):
    """As on a GPU; a state with a gradient, which the kernel lacks, comes from another backend."""
    assert AUTO["cuda"] == ("mamba_ssm", "triton", "eager")
    monkeypatch.setitem(AUTO, "cpu", ("mamba_ssm", "cpu", "eager"))
    torch.manual_seed(0)
    spec = LayerSpec(S6, d_state=4)
    module = spec(6) if block is None else block(6, spec)
    x, lengths = torch.randn(2, 9, 6), torch.tensor([9, 5])
    with record_backends() as used:
        loss = module(x, lengths).square().sum()
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    assert used == {"selective scan": {"mamba_ssm": None}} and len(stand_in.launches) == 1
    module(x, lengths, return_last_state=True)
    assert len(stand_in.launches) == 1
    with torch.no_grad():
        module(x, lengths)
        module(x, lengths, return_last_state=True)
    assert len(stand_in.launches) == 3
    monkeypatch.setitem(AUTO, "cpu", ("cpu", "eager"))
    wanted = torch.autograd.grad(module(x, lengths).square().sum(), list(module.parameters()))
    torch.testing.assert_close(gradients, wanted, rtol=1e-4, atol=1e-5)
