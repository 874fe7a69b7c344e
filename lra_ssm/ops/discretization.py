"""From a continuous-time diagonal system x' = A x + B u to a discrete one x_k = A_bar x_{k-1} + B_bar B u_k.

Shapes: delta and A broadcast against each other, for instance delta (D, 1) and A (D, N), or delta (batch, L, D, 1) and
A (D, N); every result has the broadcast shape.  (L length, D channels, N states.)

A is diagonal and given by its diagonal, real or complex; delta is real.  Each rule returns (A_bar, B_bar), where
B_bar is the factor that multiplies B:

    rule      A_bar                      B_bar
    zoh       exp(delta A)               A^-1 (exp(delta A) - 1)      B2S6 (Yu & Erichson 2025), eq. 1-2 and 8
    bilinear  (1 + delta A/2) / (1 - delta A/2)   delta / (1 - delta A/2)   S4 (Gu et al. 2022), eq. 3

"euler" of the scans follows mamba-ssm: A is discretized exactly and only B by Euler's rule, B_bar = delta; it is not
A_bar = 1 + delta A.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from lra_ssm.ops.tensors import check_tensors

# |z| below which phi1'(z) is summed as a series; the direct formula loses eps / |z| to cancellation.
SERIES_RADIUS = 0.25


def _check(delta: Tensor, A: Tensor) -> None:
    check_tensors({"delta": delta, "A": A}, A="real or complex floating")
    try:
        torch.broadcast_shapes(delta.shape, A.shape)
    except RuntimeError:
        raise ValueError(
            f"delta: shape {tuple(delta.shape)} does not broadcast against A of shape {tuple(A.shape)}"
        ) from None


def _away_from_zero(delta: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:
    """Return (A, 1/A), |A| < tiny replaced by tiny: so small that A_bar and B_bar change by less than a rounding error
    at the largest delta, and large enough for 1/A to be finite."""
    tiny, rounding = (1e-100, 1e-18) if A.dtype in (torch.float64, torch.complex128) else (1e-15, 1e-9)
    largest = delta.abs().max() if delta.numel() else delta.new_ones(())
    smallest = (rounding / largest).clamp(max=tiny)
    A = torch.where(A.abs() < smallest, smallest.to(A.dtype), A)
    # |A|^2, which a complex reciprocal takes, is a number in double.
    return A, (A.to(torch.complex128).reciprocal().to(A.dtype) if A.is_complex() else A.reciprocal())


def _zoh_values(delta: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:
    """Return (A_bar, B_bar) of `zoh` without autograd; A and delta as there, in one precision."""
    A, inverse = _away_from_zero(delta, A)
    if not A.is_complex():
        z = delta * A
        return z.exp(), torch.expm1(z).mul_(inverse)
    # exp(a + ib) - 1 from real parts, no cancellation: expm1(a) - 2 exp(a) sin(b/2)^2 + 2i exp(a) sin(b/2) cos(b/2).
    # (torch.exp of a complex tensor is an order of magnitude slower on a CPU than the three real functions.)
    exponent, half = delta * A.real.contiguous(), delta * (A.imag / 2).contiguous()
    decay, sine = exponent.exp(), half.sin()
    scaled_sine = 2 * decay * sine
    imag, turned = half.cos_() * scaled_sine, sine * scaled_sine
    minus_1 = torch.expm1(exponent).sub_(turned)
    B_bar = torch.complex(minus_1, imag).mul_(inverse)
    # 1 + (exp(z) - 1) rounds least, but what has decayed must not be a difference of ones.
    return torch.complex(torch.where(decay < 0.5, decay - turned, minus_1.add_(1)), imag), B_bar


def phi1_derivative_series(z: Tensor) -> Tensor:
    """Return phi1'(z) for |z| <= SERIES_RADIUS, phi1(z) = (exp(z) - 1)/z:  sum over k of (k+1)/(k+2)! z^k.

    delta^2 phi1'(delta A) is the derivative of zoh's B_bar with respect to A.
    """
    terms = 13 if z.dtype in (torch.float64, torch.complex128) else 7
    coefficients = [(k + 1) / math.factorial(k + 2) for k in range(terms)]
    total = torch.full_like(z, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total.mul_(z).add_(coefficient)
    return total


class _ZOH(torch.autograd.Function):
    @staticmethod
    def forward(ctx, delta, A):  # type: ignore[no-untyped-def]
        A_bar, B_bar = _zoh_values(delta, A)
        ctx.save_for_backward(delta, A, A_bar, B_bar)
        return A_bar, B_bar

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_A_bar, grad_B_bar):  # type: ignore[no-untyped-def]
        delta, A, A_bar, B_bar = ctx.saved_tensors
        grad_delta = grad_A = None
        if ctx.needs_input_grad[0]:  # dA_bar/ddelta = A A_bar, dB_bar/ddelta = A_bar
            grad = grad_A_bar * (A * A_bar).conj() + grad_B_bar * A_bar.conj()
            grad_delta = (grad.real if grad.is_complex() else grad).sum_to_size(delta.shape)
        if ctx.needs_input_grad[1]:  # dA_bar/dA = delta A_bar, dB_bar/dA = (delta A_bar - B_bar)/A = delta^2 phi1'
            safe_A, inverse = _away_from_zero(delta, A)
            z = delta * safe_A
            small = z.abs() < SERIES_RADIUS
            series = delta.square() * phi1_derivative_series(torch.where(small, z, torch.zeros_like(z)))
            derivative = torch.where(small, series, (delta * A_bar - B_bar) * inverse)
            grad_A = (grad_A_bar * (delta * A_bar).conj() + grad_B_bar * derivative.conj()).sum_to_size(A.shape)
        return grad_delta, grad_A


def zoh(delta: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:
    """Apply zero-order hold: A_bar = exp(delta A), B_bar = A^-1 (exp(delta A) - 1) (B2S6, eq. 1-2; S4D, eq. 4).

    delta real and A real or complex, broadcasting; both results have the broadcast shape and the promoted dtype.
    Values and gradients are exact to rounding as delta A -> 0, A == 0 included (B_bar = delta there).  Half precision
    is computed in float32 and returned in its dtype.  The gradient is not differentiable a second time.
    Raises ValueError for a dtype or shapes that do not fit.
    """
    _check(delta, A)
    dtype = torch.promote_types(delta.dtype, A.dtype)
    work = torch.promote_types(dtype, torch.float32)
    real = torch.float64 if work in (torch.float64, torch.complex128) else torch.float32
    A_bar, B_bar = _ZOH.apply(delta.to(real), A.to(work))
    return A_bar.to(dtype), B_bar.to(dtype)


def bilinear(delta: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:
    """Apply the bilinear rule: A_bar = (1 + delta A/2)/(1 - delta A/2), B_bar = delta/(1 - delta A/2) (S4, eq. 3).

    Shapes, dtypes and errors as in `zoh`.  It is singular only at delta A = 2, which no stable A reaches.
    """
    _check(delta, A)
    half = delta * A / 2
    return (1 + half) / (1 - half), delta / (1 - half)


def bilinear_as_zoh(delta: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:
    """Return (A', f) such that zoh(delta, A') = (A_bar, B_bar / f) of the bilinear rule.

    A' = log(A_bar) / delta = (log(1 + delta A/2) - log(1 - delta A/2)) / delta, and f = A'/A, because B_bar is
    (A_bar - 1)/A under both rules. So code for zero-order hold computes the bilinear rule with A' for A and f B
    for B, also where a step is 0 and time stands still.

    delta > 0 real, A real or complex, broadcasting. Both results are complex, in the precision that delta and A promote
    to, computed in double. A_bar = 0, at delta A = -2, has no logarithm: within 2e-8 of it A_bar becomes some 1e-8, and
    values and gradients are right to some 1e-8.
    Raises ValueError as `zoh`.
    """
    _check(delta, A)
    dtype = torch.promote_types(torch.promote_types(delta.dtype, A.dtype), torch.float32).to_complex()
    half = delta.double() * A.to(torch.complex128) / 2
    half = half + 2e-8 * ((1 + half).abs() < 1e-8)
    near = half.abs() < 1e-4  # where the quotient is 0/0, or loses digits
    series = 1 + half.square() / 3 + half.pow(4) / 5
    away = torch.where(near, 0.5, half)
    factor = torch.where(near, series, (torch.log1p(away) - torch.log1p(-away)) / (2 * away))
    return (factor * A).to(dtype), factor.to(dtype)


def step_sizes(delta: Tensor, bias: Tensor, valid: Tensor | None = None) -> dict[str, Any]:
    """Return softplus(delta + bias) as `selective_scan`'s arguments delta, delta_bias and delta_softplus.

    delta (batch, D, L), bias (D,).  The scan does it, unless time stands still somewhere: where valid (batch, L, 1)
    bool is false the step is 0, so that A_bar is 1 and B_bar is 0 under every rule, and the state stays what it is.
    """
    if valid is None:
        return {"delta": delta, "delta_bias": bias, "delta_softplus": True}
    work = torch.promote_types(delta.dtype, torch.float32)
    steps = F.softplus(delta.to(work) + bias.to(work)[:, None])
    return {"delta": steps.masked_fill(~valid.transpose(1, 2), 0)}
