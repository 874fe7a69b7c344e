"""The obvious PyTorch ways to write a selective scan: what it is compared with.

Shapes: u, delta, y (B, D, L); A (D, N) or (N,); B, C (D, N) or (B, G, N, L); D, delta_bias (D,); B_bias (D, N).
(B batch, D channels, L length, N states (conjugate pairs for complex A), G groups.)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# log A_bar (B, L, D, N), v = B_bar u of the same shape, C that broadcasts to it -> y (B, L, D) before D and 2 Re
Recurrence = Callable[[Tensor, Tensor, Tensor], Tensor]


def baseline_scan(
    recurrence: Recurrence,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    delta_bias: Tensor | None = None,
    B_bias: Tensor | None = None,
    zoh: bool = False,
) -> Tensor:
    """`selective_scan` with softplus, on tensors (B, L, D, N) of everything."""
    if delta_bias is not None:
        delta = delta + delta_bias[:, None]
    delta = F.softplus(delta).transpose(1, 2).unsqueeze(-1)
    B, C = _per_channel(B, u), _per_channel(C, u)
    if B_bias is not None:
        B = B + B_bias
    log_A_bar = delta * A
    step = (torch.exp(log_A_bar) - 1) / A if zoh else delta
    y = recurrence(log_A_bar, step * B * u.transpose(1, 2).unsqueeze(-1), C).transpose(1, 2)
    y = 2 * y.real if y.is_complex() else y
    return y if D is None else y + D[:, None] * u


def _per_channel(x: Tensor, u: Tensor) -> Tensor:
    """B or C as (B, L, D, N)."""
    batch, channels, L = u.shape
    if x.dim() == 2:
        return x.expand(batch, L, *x.shape)
    return x.repeat_interleave(channels // x.shape[1], dim=1).permute(0, 3, 1, 2)


def loop(log_A_bar: Tensor, v: Tensor, C: Tensor) -> Tensor:
    """One step of time after the other: unbind, a list, stack."""
    x = torch.zeros_like(v[:, 0])
    outputs = []
    for A_bar_k, v_k, C_k in zip(torch.exp(log_A_bar).unbind(1), v.unbind(1), C.unbind(1), strict=True):
        x = A_bar_k * x + v_k
        outputs.append((x * C_k).sum(-1))
    return torch.stack(outputs, dim=1)


def parallel_scan(log_A_bar: Tensor, v: Tensor, C: Tensor) -> Tensor:
    """A work-efficient parallel scan (Blelloch 1990) over the whole tensor; backward is a second one."""
    x = _ParallelScan.apply(torch.exp(log_A_bar), v)
    return (x * C).sum(-1)


class _ParallelScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, v: Tensor) -> Tensor:
        x = _pairwise(a, v)
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, x = ctx.saved_tensors
        # The adjoint runs backwards in time: g_k = grad_k + conj(a_{k+1}) g_{k+1}.
        after = torch.cat([a[:, 1:], torch.zeros_like(a[:, :1])], dim=1).conj()
        g = _pairwise(after.flip(1), grad.flip(1)).flip(1)
        before = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1).conj()
        return g * before, g


def _pairwise(a: Tensor, v: Tensor) -> Tensor:
    """x_k = a_k x_{k-1} + v_k along the second dimension: neighbours are joined, then a scan of half the length."""
    L = v.shape[1]
    if L == 1:
        return v
    even, odd, later = slice(0, L - 1, 2), slice(1, L, 2), slice(2, L, 2)
    x_odd = _pairwise(a[:, even] * a[:, odd], a[:, odd] * v[:, even] + v[:, odd])
    x = torch.empty_like(v)
    x[:, 0], x[:, odd] = v[:, 0], x_odd
    x[:, later] = a[:, later] * x_odd[:, : (L - 1) // 2] + v[:, later]
    return x


def log_cumulative_sums(log_A_bar: Tensor, v: Tensor, C: Tensor) -> Tensor:
    """x_k = exp(s_k) sum_{j<=k} exp(log v_j - s_j), s the running sum of log A_bar; positive and negative v apart."""
    if v.is_complex():
        raise ValueError("logarithms of positive and negative parts: for real A alone")
    s, tiny = torch.cumsum(log_A_bar, dim=1), torch.finfo(v.dtype).tiny
    positive, negative = (torch.exp(s + torch.logcumsumexp(part.clamp(min=tiny).log() - s, dim=1)) for part in (v, -v))
    return ((positive - negative) * C).sum(-1)


_CHUNK = 16


def compiled_chunks(log_A_bar: Tensor, v: Tensor, C: Tensor) -> Tensor:
    """The loop, 16 steps of it unrolled and compiled by torch.compile."""
    if v.is_complex() or v.shape[1] % _CHUNK:
        raise ValueError(f"unrolled chunks: for real A and a length that {_CHUNK} divides")
    x, outputs = torch.zeros_like(v[:, 0]), []
    chunks = (whole.split(_CHUNK, dim=1) for whole in (torch.exp(log_A_bar), v, C))
    for A_bar_chunk, v_chunk, C_chunk in zip(*chunks, strict=True):
        y, x = _compiled()(x, A_bar_chunk, v_chunk, C_chunk)
        outputs.append(y)
    return torch.cat(outputs, dim=1)


@cache
def _compiled() -> Callable[..., tuple[Tensor, Tensor]]:
    return torch.compile(_unrolled)


def _unrolled(x: Tensor, A_bar: Tensor, v: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    outputs = []
    for k in range(_CHUNK):
        x = A_bar[:, k] * x + v[:, k]
        outputs.append((x * C[:, k]).sum(-1))
    return torch.stack(outputs, dim=1), x


BASELINES: dict[str, Recurrence] = {
    "loop over time": loop,
    "parallel scan": parallel_scan,
    "cumulative sums of logs": log_cumulative_sums,
    "compiled chunks": compiled_chunks,
}


def mamba_ssm_scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, delta_bias: Tensor | None = None
) -> Tensor:
    """mamba-ssm's own function, called as its users do."""
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    return selective_scan_fn(u, delta, A, B, C, D, None, delta_bias, True)
