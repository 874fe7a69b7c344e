"""Inputs for tests of the selective scan, and the comparison of a backend with the reference."""

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
# The fast backends of this machine's CPU, each compared with "reference": for tests of each, and for loops.
FAST = ["eager"] if NOT_COMPILED else ["cpu", "eager"]
BACKENDS = [pytest.param("cpu", marks=needs_compiled), "eager"]

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
    """A form of the call; B and C as in `make_inputs`."""

    B: str
    C: str
    complex_A: bool = False
    zoh: bool = False
    softplus: bool = False
    reset: bool = False
    optional: tuple[str, ...] = ()
    tied_A: bool = False

    def inputs(self, **sizes: object) -> Inputs:
        return make_inputs(
            self.complex_A, self.B, self.C, **{"optional": self.optional, "tied_A": self.tied_A, **sizes}
        )

    def flags(self, batch: int = 2, L: int = 37) -> dict[str, object]:
        reset = random_reset(batch, L) if self.reset else None
        return dict(discretization="zoh" if self.zoh else "euler", delta_softplus=self.softplus, reset=reset)

    def __str__(self) -> str:
        options = [name for name in ("zoh", "softplus", "reset", "tied_A") if getattr(self, name)]
        A = "complex" if self.complex_A else "real"
        return "-".join([f"{A} A", f"B {self.B}", f"C {self.C}", *options, *self.optional])


def leaves(inputs: Inputs) -> Inputs:
    """Leaves that require gradients, with the strides of the inputs."""
    return {name: x.detach().requires_grad_() for name, x in inputs.items()}


def narrowed(inputs: Inputs) -> Inputs:
    """In single precision."""
    return {name: x.to(torch.complex64 if x.is_complex() else torch.float32) for name, x in inputs.items()}


def widened(inputs: Inputs) -> Inputs:
    """In double precision, on the CPU."""
    return {name: x.cpu().to(torch.complex128 if x.is_complex() else torch.float64) for name, x in inputs.items()}


def weighted_sum(*parts: Tensor, y_weights: torch.dtype = torch.float64) -> Tensor:
    """A scalar that depends on all of y and the state, real and imaginary parts, with fixed weights.

    y's weights, the first, are rounded to y_weights: y's gradient is, when y has that dtype.
    """
    total = torch.zeros((), dtype=torch.float64, device=parts[0].device)
    for i, part in enumerate(parts):
        part = torch.view_as_real(part.resolve_conj()) if part.is_complex() else part
        weights = torch.cos(torch.arange(part.numel(), device=part.device, dtype=torch.float64)).view(part.shape)
        total = total + (part.double() * (weights if i else weights.to(y_weights))).sum()
    return total


def differentiated(
    function: Callable[..., Any],
    inputs: Inputs,
    used: tuple[bool, ...] = (True, True),
    y_weights: torch.dtype = torch.float64,
    of: Sequence[str] | None = None,
) -> Inputs:
    """y, the last state where the function gives one, and every gradient (or those of the names in `of`), by name.

    used: whether the gradients' loss depends on y, and on the state.
    """
    x = leaves(inputs) if of is None else inputs
    out = function(**x)
    parts = out if isinstance(out, tuple) else (out,)
    y, *states = (part for part, use in zip(parts, (True, *used[1:]), strict=False) if use)
    weighted = [y if used[0] else y[..., :0], *states]
    loss = weighted_sum(*weighted, y_weights=y_weights)
    names = list(x) if of is None else of
    grads = torch.autograd.grad(loss, [x[name] for name in names], materialize_grads=True)
    found = {name: part.detach() for name, part in zip(("y", "last_state"), parts, strict=False)}
    return found | {name: grad.resolve_conj() for name, grad in zip(names, grads, strict=True)}


def run(
    inputs: Inputs,
    backend: str,
    use_y: bool = True,
    use_state: bool = True,
    y_weights: torch.dtype = torch.float64,
    **flags: object,
) -> Inputs:
    """Of the selective scan: y, the last state and every gradient, by name. Triton's kernels run on a GPU if there is
    one, from which the results come back; else they are interpreted."""
    if backend == "triton" and torch.cuda.is_available():
        flags = {name: x.cuda() if isinstance(x, Tensor) else x for name, x in flags.items()}
        inputs = {name: x.cuda() for name, x in inputs.items()}
    scan = partial(selective_scan, return_last_state=True, backend=backend, **flags)
    found = differentiated(scan, inputs, (use_y, use_state), y_weights)
    return {name: x.cpu() for name, x in found.items()} if backend == "triton" else found


def check_mixed_dtypes(complex_A: bool, backend: str, **sizes: int) -> None:
    inputs = make_inputs(complex_A, "2 real", "constant", dtype=torch.float32, **sizes)
    inputs["delta_bias"] += 1  # delta mostly positive, as in use: the recurrence is stable and rounding does not grow
    for name, dtype in dict(u=torch.bfloat16, delta=torch.float16, B=torch.bfloat16, z=torch.float16).items():
        inputs[name] = inputs[name].to(dtype)
    result = run(inputs, backend)
    assert result["y"].dtype == torch.bfloat16
    assert result["last_state"].dtype == (torch.complex64 if complex_A else torch.float32)
    assert all(result[name].dtype == x.dtype for name, x in inputs.items())
    truth = run(widened(inputs), "reference", y_weights=torch.bfloat16)
    for name, x in result.items():
        rtol = {torch.bfloat16: 4e-3, torch.float16: 6e-4}.get(x.dtype, 2e-6)
        assert_close(widened({name: x}), {name: truth[name]}, rtol=rtol)


def check_float32_gradient_of_small_A(complex_A: bool, backend: str, **sizes: int) -> None:
    """Entry by entry: A from 0 and 1e-12 to 1, where the naive (delta A_bar - B_bar)/A would lose every digit."""
    wide = make_inputs(complex_A, "2 real", "1 real", N=8, optional=("B_bias",), **sizes)
    direction = wide["A"] / wide["A"].abs()
    wide["A"] = direction * torch.cat([torch.zeros(1), torch.logspace(-12, 0, 31)]).view(4, 8)
    narrow = narrowed(wide)
    truth = run(widened(narrow), "reference", discretization="zoh")["A"]
    error = (run(narrow, backend, discretization="zoh")["A"] - truth).abs()
    assert (truth != 0).all()
    assert (error <= 3e-5 * truth.abs()).all()


def assert_close(actual: Inputs, expected: Inputs, rtol: float = 1e-9, by: str = "") -> None:
    """Same names, dtypes and shapes; errors within rtol of each tensor's largest entry. by: whose they are."""
    assert actual.keys() == expected.keys()
    for name, want in expected.items():
        got = actual[name]
        assert got.dtype == want.dtype and got.shape == want.shape, f"{name} {by}"
        assert torch.isfinite(want).all(), f"{name}: the expected values are not finite"
        error = (got - want).abs().max()
        scale = want.abs().max()
        assert error <= rtol * scale + 1e-14, f"{name} {by}: error {error:.3g}, largest value {scale:.3g}"


def random_reset(batch: int, L: int, seed: int = 1) -> Tensor:
    """About one reset in nine steps, different by batch item, with one at step 0 of the first item."""
    reset = torch.rand(batch, L, generator=torch.Generator().manual_seed(seed)) < 0.11
    reset[0, 0] = True
    return reset
