"""Naive twins of the fast functions: plain formulas, plain autograd, any amount of memory.  The truth for tests.

Shapes: u, delta, z, y (batch, D, L); states (batch, D, N), and (batch, D, N, L) where they are materialised.
(D channels, L length, N states, G groups.)  Those of Mamba-2's scan are in ops/ssd_scan.py.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lra_ssm.ops.depthwise_convolution import check_depthwise_inputs
from lra_ssm.ops.discretization import bilinear
from lra_ssm.ops.kernel_inputs import KernelInputs, check_kernel_inputs
from lra_ssm.ops.linear_inputs import check_linear_inputs
from lra_ssm.ops.scan_inputs import ScanInputs, check_scan_inputs, is_interleaved
from lra_ssm.ops.ssd_inputs import SSDInputs, check_ssd_inputs
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
    batch, D, L = inputs.u.shape
    if x.dim() == 2:
        return x[None, :, :, None].expand(batch, D, x.shape[1], L)
    if is_interleaved(x, L, inputs.state_dtype):
        x = torch.complex(x[..., 0::2].to(inputs.dtype), x[..., 1::2].to(inputs.dtype))
    return x.to(inputs.state_dtype).repeat_interleave(D // x.shape[1], dim=1)


def run_reference(inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """Return (y, last state) for checked inputs."""
    with without_autocast(inputs.u.device):
        u, delta = inputs.u.to(inputs.dtype), inputs.delta.to(inputs.dtype)
        A = inputs.A[None, :, :, None]
        if inputs.delta_bias is not None:
            delta = delta + inputs.delta_bias[:, None]
        if inputs.delta_softplus:
            delta = F.softplus(delta)
        delta = delta.unsqueeze(2)  # (batch, D, 1, L)
        B, C = _per_channel(inputs.B, inputs), _per_channel(inputs.C, inputs)
        if inputs.B_bias is not None:
            B = B + inputs.B_bias[..., None]
        A_bar = torch.exp(delta * A)
        B_bar = delta * _phi1(delta * A) * B if inputs.discretization == "zoh" else delta * B
        v = B_bar * u.unsqueeze(2)
        x = inputs.initial_state
        if x is None:
            x = torch.zeros_like(v[..., 0])
        outputs = []
        for k, (A_bar_k, v_k, C_k) in enumerate(zip(A_bar.unbind(-1), v.unbind(-1), C.unbind(-1), strict=True)):
            if inputs.reset is not None:
                x = torch.where(inputs.reset[:, k, None, None], torch.zeros_like(x), x)
            x = A_bar_k * x + v_k
            outputs.append((C_k * x).sum(-1))
        y = torch.stack(outputs, dim=-1)
        if y.is_complex():
            y = 2 * y.real
        if inputs.D is not None:
            y = y + inputs.D[:, None] * u
        if inputs.z is not None:
            y = y * F.silu(inputs.z.to(inputs.dtype))
        return y.to(inputs.u.dtype), x


def selective_scan_reference(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    *,
    B_bias: Tensor | None = None,
    discretization: str = "euler",
    initial_state: Tensor | None = None,
    reset: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Run `selective_scan` as a loop over time under plain autograd, which keeps (batch, D, N, L) tensors."""
    inputs = check_scan_inputs(
        u, delta, A, B, C, D, z, delta_bias, delta_softplus, B_bias, discretization, initial_state, reset
    )
    y, last_state = run_reference(inputs)
    return (y, last_state) if return_last_state else y


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


def ssd_scan_reference(
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    *,
    delayed: bool = False,
    initial_state: Tensor | None = None,
    reset: Tensor | None = None,
    return_last_state: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Run `ssd_scan` as a loop over time under plain autograd; see there."""
    y, last_state = run_ssd_reference(check_ssd_inputs(x, delta, A, B, C, D, None, initial_state, reset, delayed))
    return (y, last_state) if return_last_state else y


def linear_scan_reference(
    a: Tensor,
    b: Tensor,
    *,
    initial_state: Tensor | None = None,
    reset: Tensor | None = None,
    return_last_state: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Run `linear_scan` as a loop over time under plain autograd; see there."""
    inputs = check_linear_inputs(a, b, initial_state, reset)
    a, b = inputs.a, inputs.b
    x = torch.zeros_like(b[..., 0]) if inputs.initial is None else inputs.initial
    states = []
    for t in range(b.shape[-1]):
        if reset is not None:
            x = torch.where(reset[:, t, None], torch.zeros_like(x), x)
        x = (a if a.dim() == 1 else a[..., t]) * x + b[..., t]
        states.append(x)
    y = torch.stack(states, dim=-1).to(inputs.dtype)
    return (y, x) if return_last_state else y


def run_kernel_reference(inputs: KernelInputs) -> Tensor:
    """Return the kernel (K, D, L) for checked inputs."""
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
    return (2 * kernel.real if kernel.is_complex() else kernel).to(inputs.dtype)


def s4d_kernel_reference(delta: Tensor, A: Tensor, B: Tensor, C: Tensor, L: int, discretization: str = "zoh") -> Tensor:
    """Run `s4d_kernel` through the whole Vandermonde matrix A_bar^l of shape (D, N, L), one power after the other."""
    kernel = run_kernel_reference(check_kernel_inputs(delta, A, B, C, L, discretization))
    return kernel if C.dim() == 3 else kernel[0]


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
