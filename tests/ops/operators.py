"""The operators along time, each by each of its backends, next to their loops; and inputs for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lra_ssm.ops import (
    causal_depthwise_convolution,
    causal_depthwise_convolution_reference,
    conv_state,
    linear_scan,
    mamba3_scan,
    ssd_scan,
)
from lra_ssm.ops.backends import cpu_pieces, eager, eager_ssd, triton_call, triton_depthwise
from tests.ops.scan_cases import OPTIONAL, Inputs, make_inputs, needs_compiled, on_device, scan

bf16, f16 = torch.bfloat16, torch.float16


class Operator(NamedTuple):
    """An operator by one backend: call and slow take inputs by name, reset and options, and return (y, last state)."""

    call: Callable[..., tuple[Tensor, Tensor]]
    slow: Callable[..., tuple[Tensor, Tensor]]
    make: Callable[..., Inputs]  # of batch, L, dtype, optional and sizes of its own
    along: dict[str, int]  # the inputs that have a time, and in which dimension; the first is what is read, as y is
    low: dict[str, torch.dtype]  # the inputs that may well be in half precision
    forms: list[tuple[dict[str, Any], dict[str, Any]]]  # sizes and options, each for all lengths
    optional: tuple[str, ...] = ("initial_state",)
    state: str = "initial_state"
    infinite: bool = True  # infinities before a reset leave what follows as it is
    finite: tuple[str, ...] = ()  # and these gradients finite
    patches: tuple[tuple[Any, str, Any], ...] = ()  # pieces so small that short inputs cross them
    interpreted: bool = False  # without a GPU, milliseconds a step
    dtype: torch.dtype = torch.float64
    L: int = 50
    marks: tuple[pytest.MarkDecorator, ...] = ()

    @property
    def read(self) -> str:
        return next(iter(self.along))

    @property
    def time(self) -> int:
        return self.along[self.read]

    @property
    def rtol(self) -> float:
        return 3e-6 if self.dtype == torch.float32 else 1e-9

    def cut(self, inputs: Inputs, start: int, stop: int) -> Inputs:
        """Steps start .. stop-1."""
        L = inputs[self.read].shape[self.time]

        def part(x: Tensor, dim: int) -> Tensor:
            each = x.shape[dim] // L  # two where re and im are interleaved
            return x.narrow(dim, each * start, each * (stop - start))

        return {name: part(x, self.along[name]) if name in self.along else x for name, x in inputs.items()}


def selective(backend: str, complex_A: bool, **more: Any) -> Operator:
    forms = ("2 interleaved", "1 complex") if complex_A else ("2 real", "1 real")
    flags = dict(discretization="zoh", delta_softplus=True)
    return Operator(
        scan(backend, **flags), scan("reference", **flags), partial(make_inputs, complex_A, *forms),
        dict.fromkeys(("u", "delta", "z", "B", "C"), -1),
        low=dict(u=bf16, delta=f16, B=bf16, z=f16), optional=OPTIONAL,
        forms=[({}, {}), ({}, dict(discretization="euler"))], finite=("u",), **more,
    )  # fmt: skip


# Which of a, b and initial_state are complex, and whether a is constant.
KINDS = [
    (*of_complex, constant)
    for of_complex in [(0, 0, 0), (1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0)]
    for constant in (True, False)
]


def make_linear(kind=(1, 1, 1, True), *, batch=2, D=7, L=63, optional=("initial_state",), dtype=torch.float64):
    """a: moduli from 0 to 1 and a little more, so that no value explodes; among the real ones every other is < 0."""
    complex_a, complex_b, complex_initial, constant = kind
    generator = torch.Generator().manual_seed(0)

    def randn(*shape, of_complex):
        return torch.randn(*shape, dtype=dtype.to_complex() if of_complex else dtype, generator=generator)

    shape = (D,) if constant else (batch, D, L)
    size = torch.rand(shape, dtype=dtype, generator=generator)
    sizes = torch.tensor([0.0, 0.5, 0.9, 0.99, 1.0, 1 + 1 / max(L, 64), 1e-3], dtype=dtype)
    size = sizes.repeat(1 + D // 7)[:D] if constant else (0.2 * size + 0.85) * (size > 0.1)
    phase = torch.rand(shape, dtype=dtype, generator=generator) * 7
    a = torch.polar(size, phase) if complex_a else size * torch.where(phase < 3.5, 1, -1)
    inputs = {"a": a, "b": randn(batch, D, L, of_complex=complex_b)}
    if optional:
        inputs["initial_state"] = randn(batch, D, of_complex=complex_initial)
    return inputs


def linear(complex_: int, constant: bool, backend: str = "auto", **more: Any) -> Operator:
    kind = (complex_,) * 3 + (constant,)
    kinds = [kind] if backend == "triton" else [k for k in KINDS if k[3] == constant and (complex_ or k == kind)]
    call = on_device(linear_scan) if backend == "triton" else linear_scan
    return Operator(
        partial(call, return_last_state=True, backend=backend),
        partial(linear_scan, return_last_state=True, backend="reference"),
        partial(make_linear, kind=kind), {"b": -1} if constant else {"b": -1, "a": -1},
        low={} if complex_ else dict.fromkeys(("a", "b", "initial_state"), bf16),
        forms=[(dict(kind=kind), {}) for kind in kinds], finite=("b", "initial_state"), **more,
    )  # fmt: skip


def make_ssd(*, batch=2, L=63, H=4, P=3, G=2, N=5, optional=("D", "initial_state"), decay=1.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)

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
    return {name: x for name, x in inputs.items() if name not in ("D", "initial_state") or name in optional}


def ssd(**more: Any) -> Operator:
    fast, slow = (partial(ssd_scan, return_last_state=True, backend=name) for name in ("eager", "reference"))
    return Operator(
        fast, slow, make_ssd,
        dict.fromkeys(("x", "delta", "B", "C"), 1), low=dict.fromkeys(("x", "B", "C"), bf16),
        forms=[
            *((dict(G=G), dict(chunk_size=size)) for G in (1, 2, 4) for size in (None, 1, 16)),
            *((dict(G=G), dict(chunk_size=size, delayed=True)) for G, size in ((1, None), (4, 16))),
        ],
        optional=("D", "initial_state"), infinite=False, **more,
    )  # fmt: skip


def make_mamba3(*, batch=2, L=21, H=3, P=2, N=6, R=2, optional=("D", "initial_state"), decay=1.0, dtype=torch.float64):
    randn = partial(torch.randn, dtype=dtype, generator=torch.Generator().manual_seed(0))
    inputs = {
        "x": randn(batch, L, H, P), "delta": randn(batch, L, H).abs(), "A": -decay * randn(batch, L, H).abs(),
        "trapezoid": randn(batch, L, H).sigmoid(), "angles": 3 * randn(batch, L, R), "B": randn(batch, L, H, N),
        "C": randn(batch, L, H, N), "D": randn(H), "initial_state": randn(batch, H, P + 1, N + 1),
    }  # fmt: skip
    inputs["initial_state"][..., -1, -1] = 0
    return {name: x for name, x in inputs.items() if name not in ("D", "initial_state") or name in optional}


def mamba3_loop(x, delta, A, trapezoid, angles, B, C, D=None, initial_state=None, reset=None, chunk_size=None):
    """Lahoti et al. 2026: h_t = α (h_{t-1} + (1 - λ) Δ B_{t-1} x_{t-1}) + λ Δ B_t x_t, α = exp(Δ (A - iθ)) by pairs."""
    (batch, L, H, P), N = x.shape, B.shape[-1]
    rates = torch.cat([angles, angles.new_zeros(batch, L, N // 2 - angles.shape[2])], -1)

    def pairs(t):
        return torch.complex(t[..., 0::2], t[..., 1::2])

    if initial_state is None:
        initial_state = x.new_zeros(batch, H, P + 1, N + 1)
    h, last_x, last_B = pairs(initial_state[..., :P, :N]), initial_state[..., :P, N], initial_state[..., P, :N]
    outputs = []
    for t in range(L):
        if reset is not None:
            keep = ~reset[:, t, None, None]
            h, last_x, last_B = h * keep[..., None], last_x * keep, last_B * keep
        step, mix = delta[:, t, :, None, None], trapezoid[:, t, :, None, None]
        alpha = torch.exp(step * torch.complex(A[:, t, :, None], -rates[:, t, None])[:, :, None])
        h = alpha * (h + (1 - mix) * step * last_x[..., None] * pairs(last_B)[:, :, None])
        h = h + mix * step * x[:, t, ..., None] * pairs(B[:, t])[:, :, None]
        last_x, last_B = x[:, t], B[:, t]
        y = (h * pairs(C[:, t])[:, :, None].conj()).sum(-1).real
        outputs.append(y if D is None else y + D[:, None] * last_x)
    state = torch.view_as_real(h).flatten(-2)
    state = torch.cat([state, last_x[..., None]], -1)
    corner = torch.cat([last_B, torch.zeros_like(last_B[..., :1])], -1)
    return torch.stack(outputs, 1), torch.cat([state, corner[..., None, :]], -2)


def mamba3(**more: Any) -> Operator:
    return Operator(
        partial(mamba3_scan, return_last_state=True), mamba3_loop, make_mamba3,
        dict.fromkeys(("x", "delta", "A", "trapezoid", "angles", "B", "C"), 1),
        low=dict.fromkeys(("x", "B", "C"), bf16), optional=("D", "initial_state"), infinite=False,
        forms=[(dict(R=R), dict(chunk_size=size)) for R, size in ((2, 4), (3, None), (0, 16))], **more,
    )  # fmt: skip


def make_depthwise(L=37, W=4, *, batch=2, D=5, optional=("bias", "initial"), transposed=False, dtype=torch.float64):
    randn = partial(torch.randn, dtype=dtype, generator=torch.Generator().manual_seed(0))
    u = randn(batch, L, D).transpose(1, 2) if transposed else randn(batch, D, L)
    inputs = {"u": u, "weight": randn(D, W), "bias": randn(D), "initial": randn(batch, D, W - 1)}
    return {name: x for name, x in inputs.items() if name in ("u", "weight") or name in optional}


def depthwise_loop(*inputs: Any, silu: bool = False, **more: Any) -> Tensor:
    y = causal_depthwise_convolution_reference(*inputs, **more)
    return F.silu(y) if silu else y


@on_device
def depthwise_by_triton(u, weight, bias=None, initial=None, reset=None, silu=False):
    return triton_depthwise.convolution(u, weight, bias, initial, reset, silu)


def depthwise(
    function: Callable[..., Tensor], transposed: bool, sizes: dict[int, int], low: torch.dtype = bf16, **more: Any
) -> Operator:
    """sizes: widths of the filter -> numbers of channels."""

    def with_state(function: Callable[..., Tensor], u: Tensor, weight: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
        taps = conv_state(u, weight.shape[-1], initial=given.get("initial"), reset=given.get("reset"))
        return function(u=u, weight=weight, **given), taps

    return Operator(
        partial(with_state, function), partial(with_state, depthwise_loop),
        partial(make_depthwise, transposed=transposed), {"u": -1}, low=dict(u=low, initial=low),
        forms=[(dict(W=W, D=D), dict(silu=silu)) for W, D in sizes.items() for silu in (False, True)],
        optional=("bias", "initial"), state="initial", finite=("u", "initial"), **more,
    )  # fmt: skip


CHUNKS = ((eager, "STEPS", 16),)
SEGMENTS = ((triton_call, "CHUNK", 4), (triton_call, "MIN_SEGMENT", 4), (triton_call, "processors", lambda _: 1000))
PROGRAMS = tuple((triton_depthwise, *of) for of in (("SEGMENT", 8), ("CHANNELS_LAST", 4), ("CHANNELS_FIRST", 4)))
DEPTHWISE = dict(patches=PROGRAMS, interpreted=True, L=10)
TRITON = dict(patches=SEGMENTS, interpreted=True, L=9, dtype=torch.float32)
WITHOUT_CPP = ((cpu_pieces, "supports", lambda *tensors: False),)
SLOW, COMPILED = (pytest.mark.slow,), (needs_compiled,)

OPERATORS = {
    **{f"selective, {c}, reference": selective("reference", c == "complex") for c in ("real", "complex")},
    **{f"selective, {c}, eager": selective("eager", c == "complex", patches=CHUNKS) for c in ("real", "complex")},
    **{f"selective, {c}, C++": selective("cpu", c == "complex", marks=COMPILED) for c in ("real", "complex")},
    "selective, real, Triton": selective("triton", False, **TRITON, marks=SLOW),
    "selective, complex, Triton": selective("triton", True, **TRITON),
    **{f"linear, {c}, {k}": linear(c, k == "constant") for c in (0, 1) for k in ("constant", "varying")},
    **{f"linear, {c}, eager": linear(c, True, "eager", patches=CHUNKS) for c in (0, 1)},
    "linear, 0, Triton": linear(0, True, "triton", **TRITON, marks=SLOW),
    "linear, 1, Triton": linear(1, True, "triton", **TRITON),
    "Mamba-2's": ssd(),
    "Mamba-3's": mamba3(),
    "Mamba-2's, small pieces": ssd(patches=((eager_ssd, "CHUNKS", 3), (eager_ssd, "KEPT", 0))),
    "depthwise, PyTorch": depthwise(causal_depthwise_convolution, False, {1: 5, 2: 37, 4: 16, 6: 5},
                                    patches=WITHOUT_CPP),
    "depthwise, C++": depthwise(causal_depthwise_convolution, True, {1: 5, 2: 300, 3: 37, 4: 600, 6: 5},
                                marks=COMPILED),
    "depthwise, Triton, channels last": depthwise(depthwise_by_triton, True, {5: 3, 4: 5, 2: 6, 1: 5}, **DEPTHWISE),
    "depthwise, Triton, time last": depthwise(depthwise_by_triton, False, {3: 5, 2: 6, 1: 5}, f16, **DEPTHWISE,
                                              marks=SLOW),
}  # fmt: skip


def named(*names: str) -> list[Any]:
    """Parameters for the fixture `of`: operators whose name begins with one of these; all of them without any."""
    chosen = [name for name in OPERATORS if name.startswith(names or "")]
    return [pytest.param(name, marks=OPERATORS[name].marks, id=name) for name in chosen]
