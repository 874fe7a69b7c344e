"""Every backend from the smallest steps and rates to the largest: right, or not finite, but never a wrong number.

Each channel has a magnitude of delta and one of A of its own (and, for complex A, an angle from decay to rotation),
and groups of B and C of its own, so that no channel's numbers cover another's.  What is right is the reference in
float64 on the same inputs.  A finite number must be within

    4 times the error of the reference in the backend's own precision (the largest of the channel), and
    256 roundings of the channel's largest value, times 1 + |delta A|: what rounding delta or A does to exp(delta A).

An exp(delta A) below the type's normal numbers may count as 0, whatever it is multiplied with (delta^2 at most).  In
channels where nothing comes near the type's largest number, the backend must be finite wherever the reference in the
same precision is, and within the second bound.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lra_ssm.ops import selective_scan
from tests.ops.scan_cases import BACKENDS, Inputs, leaves, scan, widened

L, N = 5, 2
EXPONENTS = (-12.0, -8, -4, -2, -1, 0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 14)
ANGLES = (0.0, 0.5, 1.4, 1.5707963)  # of -A or A: the last one has a real part of 1e-8 of the imaginary one


def magnitudes(complex_A: bool, groups: bool, dtype: torch.dtype) -> tuple[Inputs, Tensor]:
    """Inputs that are positive, so that no sum cancels, and the largest |delta A| of each channel (D,)."""
    rows = [
        (10**delta, sign * 10**A, angle)
        for delta in EXPONENTS
        for A in EXPONENTS
        for sign in (-1, 1)
        for angle in (ANGLES if complex_A else (0.0,))
        if sign < 0 or delta + A <= 3  # growth to infinity at once is the same everywhere
    ]
    steps, rates, angles = torch.tensor(rows, dtype=torch.float64).T
    generator = torch.Generator().manual_seed(0)

    def positive(*shape: int) -> Tensor:
        return 0.5 + torch.rand(*shape, dtype=torch.float64, generator=generator)

    D = len(rows)
    A = rates[:, None] * positive(D, N)
    form = (1, D, N, L) if groups else (D, N)
    inputs = {
        "u": positive(1, D, L),
        "delta": steps[:, None] * positive(1, D, L),
        "A": torch.polar(A.abs(), angles[:, None] + torch.pi * (A < 0)) if complex_A else A,
        "B": positive(*form),
        "C": positive(*form),
        "initial_state": positive(1, D, N),
    }
    if complex_A:
        inputs |= {name: inputs[name].to(torch.complex128) for name in ("B", "C", "initial_state")}
    inputs = {name: x.to(dtype.to_complex() if x.is_complex() else dtype) for name, x in inputs.items()}
    return inputs, (inputs["delta"].double().amax((0, 2)) * inputs["A"].abs().double().amax(1))


def run(inputs: Inputs, backend: str, discretization: str) -> dict[str, Tensor]:
    """y, the last state and every gradient of a sum without cancellation, by name, each as (D, numbers) in double."""
    x = leaves(inputs)
    y, state = scan(backend, discretization=discretization)(**x)
    grads = torch.autograd.grad((y.double().sum() + state.real.double().sum()), list(x.values()))
    results = widened({"y": y.detach(), "last_state": state.detach(), **dict(zip(x, grads, strict=True))})
    return {name: (v if v.shape[0] == y.shape[1] else v[0]).flatten(1) for name, v in results.items()}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("discretization", ["euler", "zoh"])
@pytest.mark.parametrize("complex_A", [False, True])
def test_right_or_not_finite(complex_A, discretization, groups, dtype, backend):
    inputs, z = magnitudes(complex_A, groups, dtype)
    wide = widened(inputs)
    truth = run(wide, "reference", discretization)
    own = run(inputs, "reference", discretization)
    ours = run(inputs, backend, discretization)
    limits = torch.finfo(dtype)
    underflow = 8 * limits.tiny * (1 + wide["delta"].amax((0, 2))[:, None]) ** 2
    tame = torch.stack([x.abs().amax(1) for x in truth.values()]).amax(0)[:, None] < limits.max**0.5
    for name, want in truth.items():
        scale = want.abs()
        if name == "delta":  # a gradient that is a difference of two terms of this size, in the reference too
            scale = torch.maximum(scale, (truth["u"] * wide["u"][0] / wide["delta"][0]).abs())
        scale = scale.amax(1, keepdim=True)
        rounding = 256 * limits.eps * (1 + z[:, None]) * scale + underflow
        own_error, error = (own[name] - want).abs(), (ours[name] - want).abs()
        own_error = own_error.masked_fill(~own_error.isfinite(), 0)
        wrong = (error > 4 * own_error.amax(1, keepdim=True) + rounding) & error.isfinite()
        gone = ~error.isfinite() & own[name].abs().isfinite() & (own_error <= rounding) & tame
        for kind, at in (("wrong", wrong), ("not finite", gone)):
            rows = at.any(1).nonzero().flatten().tolist()
            assert not rows, f"{name} {kind} in {len(rows)} channels: {ours[name][rows[0]]}, not {want[rows[0]]}"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("A", [-0.9, -9.0, -1e-3 + 2j])
def test_zoh_slope_of_long_steps(A, backend):
    """Far out B_bar is -1/A, and its slope 1/A^2, however long the step: the gradient of A alone shows it."""
    A = torch.tensor([[A]], requires_grad=True)
    one = torch.ones(1, 1, dtype=A.dtype)
    for delta in (1e5, 1e6, 1e8, 1e10, 1e12, 1e15):
        step = torch.full((1, 1, 1), delta)
        y = selective_scan(torch.ones_like(step), step, A, one, one, discretization="zoh", backend=backend)
        (grad,) = torch.autograd.grad(y.sum(), A)
        torch.testing.assert_close(grad, (y.numel() * (2 if A.is_complex() else 1) / A.detach() ** 2).conj())
