"""Inputs for tests of the selective scan, and the comparison of a backend with the reference."""

from __future__ import annotations

from typing import NamedTuple

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


def weighted_sum(y: Tensor, state: Tensor | None, y_weights: torch.dtype = torch.float64) -> Tensor:
    """A scalar that depends on all of y and of the state, real and imaginary parts, with fixed weights.

    y's weights are rounded to y_weights: y's gradient is, when y has that dtype.
    """
    total = torch.zeros((), dtype=torch.float64, device=y.device)
    parts = [y] if state is None else [y, torch.view_as_real(state) if state.is_complex() else state]
    for part in parts:
        weights = torch.cos(torch.arange(part.numel(), device=y.device, dtype=torch.float64)).view(part.shape)
        if part is y:
            weights = weights.to(y_weights)
        total = total + (part.double() * weights).sum()
    return total


def run(
    inputs: Inputs,
    backend: str,
    use_y: bool = True,
    use_state: bool = True,
    y_weights: torch.dtype = torch.float64,
    **flags: object,
) -> Inputs:
    """y, the last state and every gradient, by name."""
    x = leaves(inputs)
    y, state = selective_scan(**x, return_last_state=True, backend=backend, **flags)
    loss = weighted_sum(y if use_y else y[..., :0], state if use_state else None, y_weights)
    grads = torch.autograd.grad(loss, list(x.values()), allow_unused=True)
    grads = tuple(torch.zeros_like(v) if g is None else g for g, v in zip(grads, x.values(), strict=True))
    return {"y": y.detach(), "last_state": state.detach(), **dict(zip(x, grads, strict=True))}


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
