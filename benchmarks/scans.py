"""What operators.py measures: the selective scan and S4D's operator, by the package, by peers, and written in PyTorch.

Shapes: u, delta, y (B, D, L); A (D, N) or (N,); B, C (B, G, N, L) for the scan, (D, N) for S4D; D, delta_bias (D,);
B_bias (D, N). (B batch, D channels, L length, N states (conjugate pairs for complex A), G groups.)
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lra_ssm.ops import (
    causal_convolution,
    initialize_A,
    inverse_softplus,
    log_uniform_delta,
    s4d_kernel,
    selective_scan,
)  # fmt: skip
from measure import Prepared, prepare, seeded

# B2S6: complex A, zero-order hold, 8 blocks of channels, and a bias beside B.
S6, B2S6, WITHOUT_BIAS = "S6", "B2S6", "B2S6 without bias"
MAMBA = "mamba-ssm"
GROUPS = 8


class Shape(NamedTuple):
    B: int
    D: int
    N: int
    L: int


@lru_cache(maxsize=2)  # the contenders of a comparison share them: on a GPU they are gigabytes
def scan_inputs(
    kind: str, shape: Shape, device: torch.device, channels_last: bool = False, half: bool = False
) -> dict[str, Tensor]:
    """The arguments of a scan in float32, the same values for every layout.

    channels_last: the views that layers pass, projections of (B, L, D). half: real sequences in bfloat16 beside complex
    ones and small parameters in float32, as mixed precision has them.
    """
    B, D, N, L = shape
    random = seeded(device=device)
    groups = 1 if kind == S6 else GROUPS

    def randn(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*size, generator=random, dtype=dtype, device=device)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        delta_bias = inverse_softplus(log_uniform_delta(D, 1e-3, 1e-1))
    own = torch.float32 if kind == S6 else torch.complex64
    inputs = {
        "u": randn(B, D, L), "delta": 0.1 * randn(B, D, L),
        "A": initialize_A("real", N).repeat(D, 1) if kind == S6 else initialize_A("legs", N),
        "B": randn(B, groups, N, L, dtype=own), "C": randn(B, groups, N, L),
        "D": randn(D), "delta_bias": delta_bias,
    }  # fmt: skip
    if kind == B2S6:
        inputs["B_bias"] = randn(D, N, dtype=own)
    sequences = ("u", "delta", "B", "C")
    if channels_last:
        inputs |= {name: inputs[name].movedim(-1, 1).contiguous().movedim(1, -1) for name in sequences}
    if half:
        inputs |= {name: inputs[name].bfloat16() for name in sequences if not inputs[name].is_complex()}
    return {name: x.to(device) for name, x in inputs.items()}


def in_float64(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.to(torch.complex128 if x.is_complex() else torch.float64) for name, x in inputs.items()}


def scan(
    kind: str, shape: Shape, by: str, device: torch.device, dtype: torch.dtype = torch.float32, **layout: bool
) -> Prepared:
    """by: a backend, a name of WRITTEN_OUT, or MAMBA.  layout: as in `scan_inputs`."""
    zoh = kind != S6
    if by == MAMBA:
        function: Callable[..., Any] = _mamba_ssm_scan
    elif by in WRITTEN_OUT:
        function = partial(written_out_scan, WRITTEN_OUT[by], zoh=zoh)
    else:
        discretization = "zoh" if zoh else "euler"
        function = partial(selective_scan, delta_softplus=True, discretization=discretization, backend=by)
    inputs = scan_inputs(kind, shape, device, **layout)
    return prepare(function, in_float64(inputs) if dtype == torch.float64 else inputs)


def _mamba_ssm_scan(delta_bias: Tensor, **x: Tensor) -> Tensor:
    """mamba-ssm's own function, called as its users do."""
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    return selective_scan_fn(**x, z=None, delta_bias=delta_bias, delta_softplus=True)


# -- the scan as one writes it in PyTorch --------------------------------------------------------------------------


def written_out_scan(
    recurrence: Callable[[Tensor, Tensor, Tensor], Tensor], u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor,
    D: Tensor, delta_bias: Tensor, B_bias: Tensor | None = None, zoh: bool = False,
) -> Tensor:  # fmt: skip
    """`selective_scan` with softplus, on tensors (B, L, D, N) of everything."""
    delta = F.softplus(delta + delta_bias[:, None]).transpose(1, 2).unsqueeze(-1)
    width = u.shape[1] // B.shape[1]  # of a group
    B, C = (x.repeat_interleave(width, dim=1).permute(0, 3, 1, 2) for x in (B, C))
    if B_bias is not None:
        B = B + B_bias
    A_bar = torch.exp(delta * A)
    step = (A_bar - 1) / A if zoh else delta
    v = step * B * u.transpose(1, 2).unsqueeze(-1)
    y = recurrence(A_bar, v, C).transpose(1, 2)
    if y.is_complex():
        y = 2 * y.real
    return y + D[:, None] * u


def loop(A_bar: Tensor, v: Tensor, C: Tensor) -> Tensor:
    """x_k = A_bar_k x_{k-1} + v_k along the second dimension, one step after the other, and C_k x_k (B, L, D)."""
    x = torch.zeros_like(v[:, 0])
    outputs = []
    for A_bar_k, v_k, C_k in zip(A_bar.unbind(1), v.unbind(1), C.unbind(1), strict=True):
        x = A_bar_k * x + v_k
        outputs.append((x * C_k).sum(-1))
    return torch.stack(outputs, dim=1)


def parallel_scan(A_bar: Tensor, v: Tensor, C: Tensor) -> Tensor:
    return (_ParallelScan.apply(A_bar, v) * C).sum(-1)


class _ParallelScan(torch.autograd.Function):
    """A work-efficient parallel scan (Blelloch 1990) over the whole tensor; backward is a second one."""

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
    """x of `loop` by joining neighbours, then a scan of half the length."""
    L = v.shape[1]
    if L == 1:
        return v
    even, odd, later = slice(0, L - 1, 2), slice(1, L, 2), slice(2, L, 2)
    x_odd = _pairwise(a[:, even] * a[:, odd], a[:, odd] * v[:, even] + v[:, odd])
    x = torch.empty_like(v)
    x[:, 0] = v[:, 0]
    x[:, odd] = x_odd
    x[:, later] = a[:, later] * x_odd[:, : (L - 1) // 2] + v[:, later]
    return x


WRITTEN_OUT: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "loop over time": loop,
    "parallel scan": parallel_scan,
}

# -- S4D -----------------------------------------------------------------------------------------------------------

KERNEL, CONVOLUTION, S4D, NAIVE = "kernel alone", "convolution alone", "kernel and convolution", "naive Vandermonde"


def naive_kernel(delta: Tensor, A: Tensor, B: Tensor, C: Tensor, L: int) -> Tensor:
    """`s4d_kernel` through the whole (D, N, L) Vandermonde matrix, as the public code without its CUDA extension."""
    step = delta.unsqueeze(-1) * A
    weights = C * B * (torch.exp(step) - 1) / A
    times = torch.arange(L, device=delta.device, dtype=delta.dtype)
    return 2 * torch.einsum("dn,dnl->dl", weights, torch.exp(step.unsqueeze(-1) * times)).real


def _kernel_and_convolution(kernel: Callable[..., Tensor], u: Tensor, **system: Tensor) -> Tensor:
    return causal_convolution(u, kernel(**system, L=u.shape[-1]))


def s4d(part: str, shape: Shape, device: torch.device, dtype: torch.dtype = torch.float32) -> Prepared:
    """part: KERNEL, CONVOLUTION, S4D or NAIVE."""
    B, D, N, L = shape
    random = seeded()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        delta = log_uniform_delta(D, 1e-3, 1e-1)
    system = {
        "delta": delta,
        "A": initialize_A("legs", N).to(torch.complex64).repeat(D, 1),
        "B": torch.ones(D, N, dtype=torch.complex64),
        "C": torch.randn(D, N, generator=random, dtype=torch.complex64),
    }
    u = {"u": torch.randn(B, D, L, generator=random)}
    functions: dict[str, tuple[Callable[..., Tensor], dict[str, Tensor]]] = {
        KERNEL: (partial(s4d_kernel, L=L), system),
        CONVOLUTION: (causal_convolution, u),
        S4D: (partial(_kernel_and_convolution, s4d_kernel), u | system),
        NAIVE: (partial(_kernel_and_convolution, naive_kernel), u | system),
    }
    function, inputs = functions[part]
    if part == CONVOLUTION:
        inputs = u | {"k": s4d_kernel(**system, L=L)}
    inputs = {name: x.to(device) for name, x in inputs.items()}
    return prepare(function, in_float64(inputs) if dtype == torch.float64 else inputs)
