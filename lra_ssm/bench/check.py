"""Which operators work here: each, by each of its backends, on a tiny case against its float64 truth, and how fast.

Shapes as in the operators.  (B batch, D channels, N states (conjugate pairs where complex), L length, V vocabulary.)
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lra_ssm.bench.compare import errors_against
from lra_ssm.bench.measure import Call, timer_for
from lra_ssm.bench.s4d import s4d_inputs
from lra_ssm.bench.scan import B2S6, CHANNELS_FIRST, S6, run_backend, scan_inputs
from lra_ssm.bench.work import BOTH, FORWARD, Shape, generator, prepare, random_like
from lra_ssm.ops import (
    causal_convolution,
    causal_convolution_reference,
    causal_depthwise_convolution,
    causal_depthwise_convolution_reference,
    linear_cross_entropy,
    linear_scan,
    rms_norm,
    s4d_kernel,
    scan_backends,
    selective_scan_reference,
    selective_step,
    silu_gate,
)
from lra_ssm.ops.backends import BACKENDS
from lra_ssm.ops.backends.native_build import unavailable

TINY = Shape(batch=1, channels=32, states=8, length=256)
# Of float32 against float64, over the largest value: thirty times what the largest was where this was measured (3e-6 on
# a CPU, of B2S6's gradients).
MOST = 1e-4
_VOCABULARY = 256
_SECONDS = 0.05  # of timing; the calls before it, for the results, pay for what is loaded and compiled

Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Case:
    """An operator: what its float64 truth computes, and what each backend does, of the same inputs by name.

    tokens: positions of a call.  mode: BOTH, or FORWARD where gradients are not what it is for.
    """

    operator: str
    inputs: dict[str, Tensor]
    truth: Function
    by: dict[str, Function]
    tokens: int
    mode: str = BOTH

    def results(self, function: Function, inputs: dict[str, Tensor]) -> tuple[dict[str, Tensor], Call]:
        """y and what else is compared, and what is timed."""
        prepared = prepare(function, inputs, random_like)
        call = prepared.calls[self.mode]
        return (prepared.results() if self.mode == BOTH else {"y": call()}), call


@dataclass(frozen=True)
class Check:
    """What one backend does of one operator: it cannot here (`refused` says why), it fails, or it has run.

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
    """Checks of all operators, one after the other.

    begun: told the operator and the backend before it runs, which compiles what is compiled at its first use.
    """
    reasons = scan_backends(device)
    running = [name for name, reason in reasons.items() if reason is None]
    for backend, reason in reasons.items():
        if reason is not None:
            yield Check("scans", backend, refused=reason)
    for case in _cases(shape, device, running):
        truth: dict[str, Tensor] = {}
        for backend, function in case.by.items():
            begun(case.operator, backend)
            try:
                truth = truth or case.results(case.truth, _double(case.inputs))[0]
                yield _check(case, backend, function, truth, device)
            except Exception as error:  # whatever a compiler, a driver or a kernel says
                if isinstance(error, ValueError) and "cannot run this call" in str(error):
                    yield Check(case.operator, backend, refused=str(error).partition("this call: ")[2])
                else:
                    said = " ".join(f"{type(error).__name__}: {error}".split())
                    yield Check(case.operator, backend, failure=said[:300])


def _check(case: Case, backend: str, function: Function, truth: dict[str, Tensor], device: torch.device) -> Check:
    results, call = case.results(function, case.inputs)
    errors = errors_against(results, truth, "float64")
    timer, seconds = timer_for(device), list[float]()
    end = time.perf_counter() + _SECONDS
    while not seconds or time.perf_counter() < end:
        seconds.append(timer(call, 1))
    speed = case.tokens / statistics.median(seconds)
    return Check(case.operator, backend, error=max(errors.value, errors.worst_gradient or 0.0), tokens_per_s=speed)


def _double(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.to(torch.complex128 if x.is_complex() else torch.float64) for name, x in inputs.items()}


def _cases(shape: Shape, device: torch.device, backends: list[str]) -> Iterator[Case]:
    """backends: of scans, those that run on the device."""
    (B, D, N, L), random = (shape.batch, shape.channels, shape.states, shape.length), generator()
    n = B * L

    def randn(*size: int) -> Tensor:
        return torch.randn(*size, generator=random).to(device)

    for name, kind in (("selective_scan, S6", S6), ("selective_scan, B2S6", B2S6)):
        inputs = scan_inputs(kind, shape, CHANNELS_FIRST, device, torch.float32)
        by_name: dict[str, Function] = {by: partial(run_backend, kind, by) for by in backends}
        yield Case(name, inputs, by_name["reference"], by_name, n)

    a = torch.polar(0.9 + 0.09 * torch.rand(D, generator=random), torch.rand(D, generator=random)).to(device)
    scans: dict[str, Any] = {by: partial(linear_scan, backend=by) for by in backends}
    yield Case("linear_scan", {"a": a, "b": randn(B, D, L)}, scans["reference"], scans, n)

    system = s4d_inputs(shape, device, torch.float32)
    kernels: dict[str, Function] = {
        by: partial(s4d_kernel, L=L, backend=by) for by in backends if BACKENDS[by].s4d_kernel
    }
    inputs = {name: system[name] for name in ("delta", "A", "B", "C")}
    yield Case("s4d_kernel", inputs, kernels["reference"], kernels, L)

    inputs = {"u": system["u"], "k": system["k"]}
    yield Case("causal_convolution", inputs, causal_convolution_reference, {"torch": causal_convolution}, n)

    # These choose between C++ and torch's operations by themselves.
    ours = "cpu" if device.type == "cpu" and unavailable() is None else "torch"
    inputs = {"u": randn(B, D, L), "weight": randn(D, 4), "bias": randn(D)}
    convolution: Function = causal_depthwise_convolution_reference
    yield Case("depthwise_convolution", inputs, convolution, {ours: causal_depthwise_convolution}, n)
    inputs = {"y": randn(B, L, D), "z": randn(B, L, D)}
    yield Case("silu_gate", inputs, lambda y, z: y * F.silu(z), {ours: silu_gate}, n)
    inputs = {"x": randn(B, L, D), "weight": randn(D)}
    yield Case("rms_norm", inputs, lambda x, weight: F.rms_norm(x, weight.shape, weight, 1e-5), {ours: rms_norm}, n)
    targets = torch.randint(_VOCABULARY, (n,), generator=random).to(device)
    inputs = {"x": randn(n, D), "weight": randn(_VOCABULARY, D) / D**0.5}
    losses: Function = partial(linear_cross_entropy, targets=targets)

    def plain(x: Tensor, weight: Tensor) -> Tensor:
        return F.cross_entropy(x @ weight.T, targets, reduction="none")

    yield Case("linear_cross_entropy", inputs, plain, {ours: losses}, n)
    inputs = {name: randn(*size) for name, size in {
        "u": (B, D), "delta": (B, D), "B": (B, 1, N), "C": (B, 1, N), "D": (D,), "delta_bias": (D,), "state": (B, D, N),
    }.items()} | {"A": -torch.rand(D, N, generator=random).to(device)}  # fmt: skip
    yield Case("selective_step", inputs, _step_by_the_reference, {ours: _step}, B, FORWARD)


def _step(**x: Any) -> Tensor:
    """y (B, D) and the state after it (B, D, N) in one tensor."""
    y, state = selective_step(**x)
    return torch.cat([y.flatten(), state.flatten()])


def _step_by_the_reference(**x: Any) -> Tensor:
    scan: dict[str, Any] = {name: x[name] for name in ("A", "D", "delta_bias")}
    scan |= {name: x[name].unsqueeze(-1) for name in ("u", "delta")}
    scan |= {name: x[name].transpose(1, 2) for name in ("B", "C")}
    y, state = selective_scan_reference(**scan, initial_state=x["state"], delta_softplus=True, return_last_state=True)
    return torch.cat([y.flatten(), state.flatten()])
