"""Naive twins of the fast functions: plain formulas, plain autograd, any amount of memory.  The truth for tests.

The scans and S4D's kernel run these with backend="reference".

Shapes: u, delta, z, y (batch, D, L); states (batch, D, N), and (batch, D, N, L) where they are materialised.
(D channels, L length, N states, G groups.)  Those of Mamba-2's scan are in ops/ssd_scan.py.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lra_ssm.ops.depthwise_convolution import check_depthwise_inputs
from lra_ssm.ops.discretization import bilinear
from lra_ssm.ops.inputs import KernelInputs, LinearInputs, ScanInputs, SSDInputs
from lra_ssm.ops.tensors import without_autocast


def _phi1(z: Tensor) -> Tensor:
    """Return (exp(z) - 1)/z, by its Taylor series near 0, where the quotient and its derivative cancel."""
    small = z.abs() < 0.1
    near = torch.where(small, z, torch.zeros_like(z))
    series = torch.ones_like(z)
    for k in range(14, 0, -1):  # 1 + z/2 (1 + z/3 (1 + z/4 (...)))
        series = 1 + near / (k + 1) * series
    elsewhere = torch.where(small, torch.ones_like(z), z)
    return torch.where(small, series, (torch.exp(elsewhere) - 1) / elsewhere)


def _per_channel(x: Tensor, inputs: ScanInputs) -> Tensor:
    """Return B or C, constant or variable, as (batch, D, N, L) in the state's dtype."""
    batch, D, L = inputs.tensors.u.shape
    if x.dim() == 2:
        return x[None, :, :, None].expand(batch, D, x.shape[1], L)
    return x.to(inputs.state_dtype).repeat_interleave(D // x.shape[1], dim=1)


def run_reference(inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """Return (y, last state) for checked inputs."""
    u, delta, A, B, C, B_bias, D, delta_bias, x, reset = inputs.tensors
    dtype = u.dtype
    with without_autocast(u.device):
        u, delta, A = u.to(inputs.dtype), delta.to(inputs.dtype), A[None, :, :, None]
        if delta_bias is not None:
            delta = delta + delta_bias[:, None]
        if inputs.delta_softplus:
            delta = F.softplus(delta)
        delta = delta.unsqueeze(2)  # (batch, D, 1, L)
        B, C = _per_channel(B, inputs), _per_channel(C, inputs)
        if B_bias is not None:
            B = B + B_bias[..., None]
        A_bar = torch.exp(delta * A)
        B_bar = delta * _phi1(delta * A) * B if inputs.discretization == "zoh" else delta * B
        v = B_bar * u.unsqueeze(2)
        if x is None:
            x = torch.zeros_like(v[..., 0])
        outputs = []
        for k, (A_bar_k, v_k, C_k) in enumerate(zip(A_bar.unbind(-1), v.unbind(-1), C.unbind(-1), strict=True)):
            if reset is not None:
                x = torch.where(reset[:, k, None, None], torch.zeros_like(x), x)
            x = A_bar_k * x + v_k
            outputs.append((C_k * x).sum(-1))
        y = torch.stack(outputs, dim=-1)
        if y.is_complex():
            y = 2 * y.real
        if D is not None:
            y = y + D[:, None] * u
        if inputs.z is not None:
            y = y * F.silu(inputs.z.to(inputs.dtype))
        return y.to(dtype), x


def run_ssd_reference(inputs: SSDInputs) -> tuple[Tensor, Tensor]:
    """Return (y, last state) for checked inputs."""
    x, delta, B, C = (t.to(inputs.dtype) for t in (inputs.x, inputs.delta, inputs.B, inputs.C))
    batch, L, H, P = x.shape
    B, C = (t.repeat_interleave(H // t.shape[2], dim=2) for t in (B, C))  # (batch, L, H, N)
    S = inputs.initial_state
    if S is None:
        S = x.new_zeros(batch, H, P, B.shape[-1])
    outputs = []
    with without_autocast(x.device):
        for k in range(L):
            if inputs.reset is not None:
                S = torch.where(inputs.reset[:, k, None, None, None], torch.zeros_like(S), S)
            decayed = torch.exp(delta[:, k] * inputs.A)[..., None, None] * S
            added = x[:, k] if inputs.delayed else delta[:, k, :, None] * x[:, k]
            S = decayed + added[..., None] * B[:, k, :, None]
            outputs.append(((decayed if inputs.delayed else S) * C[:, k, :, None]).sum(-1))
        y = torch.stack(outputs, dim=1)
        if inputs.D is not None:
            y = y + inputs.D[:, None] * x
    return y.to(inputs.x.dtype), S


def run_linear_reference(inputs: LinearInputs) -> tuple[Tensor, Tensor]:
    """Return (every x, the last one) for checked inputs."""
    a, b, x, reset, dtype = inputs
    if x is None:
        x = torch.zeros_like(b[..., 0])
    states = []
    for t in range(b.shape[-1]):
        if reset is not None:
            x = torch.where(reset[:, t, None], torch.zeros_like(x), x)
        x = (a if a.dim() == 1 else a[..., t]) * x + b[..., t]
        states.append(x)
    return torch.stack(states, dim=-1).to(dtype), x


def run_kernel_reference(inputs: KernelInputs) -> Tensor:
    """Return the kernel (K, D, L) for checked inputs, by the whole Vandermonde matrix A_bar^l, power after power."""
    inputs = inputs.in_double()
    delta, A = inputs.delta.unsqueeze(-1), inputs.A
    if inputs.discretization == "zoh":
        A_bar, B_bar = torch.exp(delta * A), delta * _phi1(delta * A)
    else:
        A_bar, B_bar = bilinear(delta, A)
    powers = [torch.ones_like(A_bar)]
    for _ in range(inputs.L - 1):
        powers.append(powers[-1] * A_bar)
    kernel = ((inputs.C * inputs.B * B_bar).unsqueeze(-1) * torch.stack(powers, dim=-1)).sum(-2)
    return (2 * kernel.real).to(inputs.dtype)


def causal_convolution_reference(u: Tensor, k: Tensor) -> Tensor:
    """Compute `causal_convolution` by its definition: y_t = sum over s <= t of k_{t-s} u_s."""
    L = u.shape[-1]
    return torch.stack([(k[:, : t + 1].flip(-1) * u[..., : t + 1]).sum(-1) for t in range(L)], dim=-1)


def bidirectional_convolution_reference(u: Tensor, k_forward: Tensor, k_backward: Tensor) -> Tensor:
    """Run `bidirectional_convolution` by its definition: causal, plus the sum over s > t of k_backward_{s-t-1} u_s."""
    L = u.shape[-1]
    future = [(k_backward[:, : L - 1 - t] * u[..., t + 1 :]).sum(-1) for t in range(L)]
    return causal_convolution_reference(u, k_forward) + torch.stack(future, dim=-1)


def causal_depthwise_convolution_reference(
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    initial: Tensor | None = None,
    reset: Tensor | None = None,
) -> Tensor:
    """Compute `causal_depthwise_convolution` by its definition, one position and one tap after the other; see there."""
    dtype = check_depthwise_inputs(u, weight, bias, initial, reset)
    (batch, D, L), W = u.shape, weight.shape[1]
    before = u.new_zeros(batch, D, W - 1) if initial is None else initial
    inputs = torch.cat([before.to(dtype), u.to(dtype)], dim=-1)  # the input at t is inputs[..., W - 1 + t]
    outputs = []
    for t in range(L):
        y = torch.zeros_like(inputs[..., 0]) if bias is None else bias.to(dtype).expand(batch, D)
        for j in range(W):
            tap = inputs[..., W - 1 + t - j]
            if reset is not None:
                crosses = reset[:, max(t - j + 1, 0) : t + 1].any(1, keepdim=True)
                tap = torch.where(crosses, torch.zeros_like(tap), tap)
            y = y + weight[:, W - 1 - j].to(dtype) * tap
        outputs.append(y)
    return torch.stack(outputs, dim=-1).to(u.dtype)
