"""Which operators work here: each by each backend, on a tiny case against its float64 truth, and how fast.

Shapes as in the operators.  (B batch, D channels, N states, conjugate pairs where complex, L length.)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.benchmark import Timer

from lra_ssm import ops
from lra_ssm.ops.backends import BACKENDS
from lra_ssm.ops.backends.native_build import unavailable


class Shape(NamedTuple):
    batch: int
    channels: int
    states: int
    length: int

    def __str__(self) -> str:
        return f"batch {self.batch}, D = {self.channels}, N = {self.states}, L = {self.length}"


TINY = Shape(batch=1, channels=32, states=8, length=256)
# Of float32 against float64, over the largest value; thirty times what B2S6's gradients have on a CPU.
MOST = 1e-4
_GROUPS, _VOCABULARY = 8, 256
_SECONDS = 0.05  # of timing; the calls before it, for the results, pay for what is loaded and compiled

Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Case:
    """An operator: what its float64 truth computes, and what each backend does, of the same inputs by name.

    positions: of a call.  gradients: whether they are what it is for.
    """

    operator: str
    inputs: dict[str, Tensor]
    truth: Function
    by: dict[str, Function]
    positions: int
    gradients: bool = True

    def results(self, function: Function, dtype: torch.dtype) -> list[Tensor]:
        """y, and the gradient of every input for fixed random weights of y."""
        own = {name: dtype.to_complex() if x.is_complex() else dtype for name, x in self.inputs.items()}
        inputs = {name: x.detach().to(own[name]) for name, x in self.inputs.items()}
        if not self.gradients:
            return [function(**inputs)]
        leaves = {name: x.requires_grad_() for name, x in inputs.items()}
        y = function(**leaves)
        weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y)
        return [y.detach(), *torch.autograd.grad(y, list(leaves.values()), weights)]


@dataclass(frozen=True)
class Check:
    """What one backend does of one operator: it is refused here, it fails, or it has run.

    Attributes:
        error: the largest difference from the truth, of y and of every gradient, over its largest value.
        tokens_per_s: positions of forward and backward per second, B L of them at a time.
    """

    operator: str
    backend: str
    refused: str | None = None
    failure: str | None = None
    error: float = 0.0
    tokens_per_s: float = 0.0

    @property
    def is_wrong(self) -> bool:
        return not self.error <= MOST  # so that NaN is wrong too


def check_operators(
    device: torch.device, shape: Shape = TINY, begun: Callable[[str, str], None] = lambda operator, backend: None
) -> Iterator[Check]:
    """Checks of all operators, one after the other. begun: told operator and backend before each runs."""
    reasons = ops.scan_backends(device)
    running = [name for name, reason in reasons.items() if reason is None]
    for backend, reason in reasons.items():
        if reason is not None:
            yield Check("scans", backend, refused=reason)
    for case in _cases(shape, device, running):
        truth: list[Tensor] = []
        for backend, function in case.by.items():
            begun(case.operator, backend)
            try:
                truth = truth or case.results(case.truth, torch.float64)
                yield _check(case, backend, function, truth)
            except Exception as error:  # whatever a compiler, a driver or a kernel says
                if isinstance(error, ValueError) and "cannot run this call" in str(error):
                    yield Check(case.operator, backend, refused=str(error).partition("this call: ")[2])
                else:
                    said = " ".join(f"{type(error).__name__}: {error}".split())
                    yield Check(case.operator, backend, failure=said[:300])


def _check(case: Case, backend: str, function: Function, truth: list[Tensor]) -> Check:
    found = case.results(function, torch.float32)
    error = max(_error(x, want) for x, want in zip(found, truth, strict=True))
    timer = Timer("results(function, dtype)", globals={
        "results": case.results, "function": function, "dtype": torch.float32,
    })  # fmt: skip
    seconds = statistics.median(timer.blocked_autorange(min_run_time=_SECONDS).times)
    return Check(case.operator, backend, error=error, tokens_per_s=case.positions / seconds)


def _error(x: Tensor, want: Tensor) -> float:
    """The largest, over the truth's largest value; NaN is worse than anything."""
    error = float((x.to(want.dtype) - want).abs().max()) / (float(want.abs().max()) or 1.0)
    return math.inf if math.isnan(error) else error


def _cases(shape: Shape, device: torch.device, backends: list[str]) -> Iterator[Case]:
    """backends: of scans, those that run on the device."""
    B, D, N, L = shape
    random = torch.Generator().manual_seed(0)

    def randn(*size: int) -> Tensor:
        return torch.randn(*size, generator=random).to(device)

    yield from _scans(shape, randn, device, backends)
    yield _ssd(shape, randn, device, backends)
    yield from _s4d(shape, randn, device, backends)
    # It chooses between C++ and torch's operations by itself.
    ours = "cpu" if device.type == "cpu" and unavailable() is None else "torch"
    inputs = {"u": randn(B, D, L), "weight": randn(D, 4), "bias": randn(D)}
    convolution: Function = ops.causal_depthwise_convolution_reference
    yield Case("depthwise_convolution", inputs, convolution, {ours: ops.causal_depthwise_convolution}, B * L)
    targets = torch.randint(_VOCABULARY, (B * L,), generator=random).to(device)
    inputs = {"x": randn(B * L, D), "weight": randn(_VOCABULARY, D) / D**0.5}

    def plain(x: Tensor, weight: Tensor) -> Tensor:
        return F.cross_entropy(x @ weight.T, targets, reduction="none")

    losses: Function = partial(ops.linear_cross_entropy, targets=targets)
    yield Case("linear_cross_entropy", inputs, plain, {"torch": losses}, B * L)
    inputs = {name: randn(*size) for name, size in {
        "u": (B, D), "delta": (B, D), "B": (B, 1, N), "C": (B, 1, N), "D": (D,), "delta_bias": (D,), "state": (B, D, N),
    }.items()} | {"A": -torch.rand(D, N, generator=random).to(device)}  # fmt: skip
    yield Case("selective_step", inputs, _step_by_the_reference, {"torch": _step}, B, gradients=False)


def _scans(shape: Shape, randn: Callable[..., Tensor], device: torch.device, backends: list[str]) -> Iterator[Case]:
    """S6's selective scan, B2S6's, and the linear scan."""
    B, D, N, L = shape
    sequences = {
        "u": randn(B, D, L),
        "delta": 0.1 * randn(B, D, L),
        "D": randn(D),
        "delta_bias": _delta_bias(D, device),
    }
    A = ops.initialize_A("real", N).repeat(D, 1).to(device)
    s6 = {"A": A, "B": randn(B, 1, N, L), "C": randn(B, 1, N, L)}
    real, imaginary, C = (randn(B, _GROUPS, N, L) for _ in range(3))
    b2s6 = {"A": ops.initialize_A("legs", N).to(device), "B": torch.complex(real, imaginary), "C": C}
    b2s6["B_bias"] = torch.complex(randn(D, N), randn(D, N))
    for name, own, discretization in (("S6", s6, "euler"), ("B2S6", b2s6, "zoh")):
        by = _by(ops.selective_scan, backends, delta_softplus=True, discretization=discretization)
        yield Case(f"selective_scan, {name}", sequences | own, by["reference"], by, B * L)
    a = torch.polar(0.9 + 0.09 * torch.rand(D), torch.rand(D)).to(device)
    by = _by(ops.linear_scan, backends)
    yield Case("linear_scan", {"a": a, "b": randn(B, D, L)}, by["reference"], by, B * L)


def _ssd(shape: Shape, randn: Callable[..., Tensor], device: torch.device, backends: list[str]) -> Case:
    """Mamba-2's scan, heads of 4 channels in one group."""
    B, D, N, L = shape
    H = D // 4
    inputs = {"x": randn(B, L, H, 4), "delta": 0.1 * randn(B, L, H).abs(), "A": -1 - randn(H).abs(), "D": randn(H)}
    inputs |= {name: randn(B, L, 1, N) for name in ("B", "C")}
    by = _by(ops.ssd_scan, [name for name in backends if BACKENDS[name].ssd])
    return Case("ssd_scan", inputs, by["reference"], by, B * L)


def _s4d(shape: Shape, randn: Callable[..., Tensor], device: torch.device, backends: list[str]) -> Iterator[Case]:
    """S4D's kernel and its convolution."""
    B, D, N, L = shape
    delta = F.softplus(_delta_bias(D, device))
    A = ops.initialize_A("legs", N).to(torch.complex64).repeat(D, 1).to(device)
    C = torch.complex(randn(D, N), randn(D, N))
    system = {"delta": delta, "A": A, "B": torch.ones_like(A), "C": C}
    kernels = _by(ops.s4d_kernel, [backend for backend in backends if BACKENDS[backend].s4d_kernel], L=L)
    yield Case("s4d_kernel", system, kernels["reference"], kernels, L)
    inputs = {"u": randn(B, D, L), "k": kernels["reference"](**system)}
    by: dict[str, Function] = {"torch": ops.causal_convolution}
    yield Case("causal_convolution", inputs, ops.causal_convolution_reference, by, B * L)


def _by(operator: Callable[..., Any], backends: list[str], **given: Any) -> dict[str, Function]:
    return {backend: partial(operator, backend=backend, **given) for backend in backends}


def _delta_bias(D: int, device: torch.device) -> Tensor:
    return ops.inverse_softplus(torch.logspace(-3, -1, D)).to(device)


def _step(**x: Any) -> Tensor:
    """y (B, D) and the state after it (B, D, N) in one tensor."""
    y, state = ops.selective_step(**x)
    return torch.cat([y.flatten(), state.flatten()])


def _step_by_the_reference(**x: Any) -> Tensor:
    scan: dict[str, Any] = {name: x[name] for name in ("A", "D", "delta_bias")}
    scan |= {name: x[name].unsqueeze(-1) for name in ("u", "delta")}
    scan |= {name: x[name].transpose(1, 2) for name in ("B", "C")}
    scan |= {"initial_state": x["state"], "delta_softplus": True, "return_last_state": True}
    y, state = ops.selective_scan_reference(**scan)
    return torch.cat([y.flatten(), state.flatten()])
