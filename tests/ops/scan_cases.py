"""Inputs of the selective scan, and the comparison of any fast operator with its loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from lra_ssm.ops import scan_backends, selective_scan

NOT_COMPILED = scan_backends()["cpu"]
needs_compiled = pytest.mark.skipif(NOT_COMPILED is not None, reason=str(NOT_COMPILED))
BACKENDS = [pytest.param("cpu", marks=needs_compiled), "eager"]  # the fast ones of a CPU
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # of Triton's kernels; on a CPU they are interpreted

Inputs = dict[str, Tensor]
OPTIONAL = ("D", "z", "delta_bias", "B_bias", "initial_state")


def make_inputs(
    complex_A: bool,
    B: str,
    C: str,
    *,
    batch: int = 2,
    D: int = 4,
    N: int = 2,
    L: int = 37,
    tied_A: bool = False,
    optional: tuple[str, ...] = OPTIONAL,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> Inputs:
    """B, C: "constant", "constant real", or "GROUPS real", "GROUPS complex", "GROUPS interleaved", "no group …"."""
    generator = torch.Generator().manual_seed(seed)
    state_dtype = dtype.to_complex() if complex_A else dtype

    def randn(*shape: int, of: torch.dtype = dtype) -> Tensor:
        return torch.randn(*shape, dtype=of, generator=generator)

    def matrix(form: str) -> Tensor:
        if form.startswith("constant"):
            return randn(D, N, of=dtype if "real" in form else state_dtype)
        groups, kind = form.rsplit(" ", 1)
        shape = (batch, N) if groups == "no group" else (batch, int(groups), N)
        if kind == "complex":
            return randn(*shape, L, of=dtype.to_complex())
        return randn(*shape, 2 * L if kind == "interleaved" else L)

    A = -0.2 - torch.rand(*((N,) if tied_A else (D, N)), dtype=dtype, generator=generator)
    inputs = {
        "u": randn(batch, D, L),
        "delta": 0.5 * torch.rand(batch, D, L, dtype=dtype, generator=generator) + 0.01,
        "A": torch.complex(A, 3 * randn(*A.shape)) if complex_A else A,
        "B": matrix(B),
        "C": matrix(C),
        "D": randn(D),
        "z": randn(batch, D, L),
        "delta_bias": randn(D),
        "B_bias": randn(D, N, of=state_dtype),
        "initial_state": randn(batch, D, N, of=state_dtype),
    }
    return {name: x for name, x in inputs.items() if name not in OPTIONAL or name in optional}


class Case(NamedTuple):
    """A form of the call: B and C as in `make_inputs`; options: words of complex_A, zoh, softplus, reset, tied_A."""

    B: str
    C: str
    options: str = ""
    optional: tuple[str, ...] = ()

    def inputs(self, **sizes: object) -> Inputs:
        options = {"optional": self.optional, "tied_A": "tied_A" in self.options, **sizes}
        return make_inputs("complex_A" in self.options, self.B, self.C, **options)

    def flags(self, batch: int = 2, L: int = 37) -> dict[str, object]:
        rule = "zoh" if "zoh" in self.options else "euler"
        reset = random_reset(batch, L) if "reset" in self.options else None
        return dict(discretization=rule, delta_softplus="softplus" in self.options, reset=reset)

    def __str__(self) -> str:
        return "-".join([f"B {self.B}", f"C {self.C}", *self.options.split(), *self.optional])


def leaves(inputs: Inputs) -> Inputs:
    """Leaves that require gradients, with the strides of the inputs."""
    return {name: x.detach().requires_grad_() for name, x in inputs.items()}


def narrowed(inputs: Inputs) -> Inputs:
    """In single precision."""
    return {name: x.to(torch.complex64 if x.is_complex() else torch.float32) for name, x in inputs.items()}


def widened(inputs: Inputs) -> Inputs:
    """In double precision, on the CPU."""
    return {name: x.cpu().to(torch.complex128 if x.is_complex() else torch.float64) for name, x in inputs.items()}


def weighted_sum(*parts: Tensor, y_dtype: torch.dtype | None = None) -> Tensor:
    """A scalar that depends on all of y and the state, real and imaginary parts, with fixed weights.

    y's weights, the first, are rounded to y_dtype, its own by default: y's gradient is.
    """
    total = torch.zeros((), dtype=torch.float64, device=parts[0].device)
    for i, part in enumerate(parts):
        part = torch.view_as_real(part.resolve_conj()) if part.is_complex() else part
        weights = torch.cos(torch.arange(part.numel(), device=part.device, dtype=torch.float64)).view(part.shape)
        total = total + (part.double() * (weights if i else weights.to(y_dtype or part.dtype))).sum()
    return total


def differentiated(
    function: Callable[..., Any],
    inputs: Inputs,
    used: tuple[bool, ...] = (True, True),
    y_dtype: torch.dtype | None = None,
    of: Sequence[str] | None = None,
) -> Inputs:
    """y, the last state where the function gives one, and every gradient (or those of the names in `of`), by name.

    used: whether the gradients' loss depends on y, and on the state.
    """
    x = leaves(inputs) if of is None else inputs
    out = function(**x)
    parts = out if isinstance(out, tuple) else (out,)
    y, *states = (part for part, use in zip(parts, (True, *used[1:]), strict=False) if use)
    loss = weighted_sum(*([y] if used[0] else []), *states, y_dtype=y_dtype)
    names = list(x) if of is None else of
    grads = torch.autograd.grad(loss, [x[name] for name in names], materialize_grads=True)
    found = {name: part.detach() for name, part in zip(("y", "last_state"), parts, strict=False)}
    return found | {name: grad.resolve_conj() for name, grad in zip(names, grads, strict=True)}


HALVES = {torch.bfloat16: 4e-3, torch.float16: 6e-4}  # a rounding of each


def compare(
    fast: Callable[..., Any],
    slow: Callable[..., Any],
    inputs: Inputs,
    rtol: float = 1e-9,
    used: tuple[bool, ...] = (True, True),
    by: str = "",
    halves: float = 1,
) -> Inputs:
    """Check results and gradients, each in its input's dtype, against the loop in float64 on the same numbers.

    halves: how many roundings what is in half precision may be off.
    """
    found = differentiated(fast, inputs, used)
    truth = differentiated(slow, widened(inputs), used, found["y"].dtype.to_real())
    assert {name: found[name].dtype for name in inputs} == {name: x.dtype for name, x in inputs.items()}
    for name, x in found.items():
        tolerance = halves * HALVES[x.dtype] if x.dtype in HALVES else rtol
        assert_close(widened({name: x}), {name: truth[name]}, tolerance, by)
    return found


def on_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function on `DEVICE`, of arguments on the CPU, where the results come back to."""

    def move(x: Any) -> Any:
        return x.to(DEVICE) if isinstance(x, Tensor) else x

    def call(*arguments: Any, **named: Any) -> Any:
        out = function(*map(move, arguments), **{name: move(x) for name, x in named.items()})
        return tuple(part.cpu() for part in out) if isinstance(out, tuple) else out.cpu()

    return call


def scan(backend: str, **flags: object) -> Callable[..., Any]:
    """The selective scan by a backend, with its last state."""
    function = on_device(selective_scan) if backend == "triton" else selective_scan
    return partial(function, return_last_state=True, backend=backend, **flags)


def check_scan(backend: str, inputs: Inputs, rtol: float = 1e-9, **flags: object) -> Inputs:
    """Compare the selective scan by a backend with its reference."""
    return compare(scan(backend, **flags), scan("reference", **flags), inputs, rtol, by=f"by {backend}")


def assert_close(actual: Inputs, expected: Inputs, rtol: float = 1e-9, by: str = "") -> None:
    """Same names, dtypes and shapes; errors within rtol of each tensor's largest entry. by: whose they are."""
    assert actual.keys() == expected.keys()
    for name, want in expected.items():
        got = actual[name]
        assert got.dtype == want.dtype and got.shape == want.shape, f"{name} {by}"
        if not want.numel():  # no batch, or nothing before a convolution of width 1
            continue
        assert torch.isfinite(want).all(), f"{name}: the expected values are not finite"
        error = (got - want).abs().max()
        scale = want.abs().max()
        assert error <= rtol * scale + 1e-14, f"{name} {by}: error {error:.3g}, largest value {scale:.3g}"


def random_reset(batch: int, L: int, seed: int = 1) -> Tensor:
    """About one reset in nine steps, different by batch item, with one at step 0 of the first item."""
    reset = torch.rand(batch, L, generator=torch.Generator().manual_seed(seed)) < 0.11
    reset[0, 0] = True
    return reset
