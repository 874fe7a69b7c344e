"""The parts of a block around the scan, by the C++ of native/, without autograd: the short convolution with SiLU, a
linear map of a few rows, and a whole block at one position.

Each function is for tensors that `supports` accepts; results are contiguous.

Shapes: B batch, L length, D channels, W taps, R rows.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor, nn

from lra_ssm.ops.backends.native_build import call, fields, unavailable

MAX_TAPS, MAX_ROWS = 4, 8
_TILE, _LANES = 256, 16  # channels of the convolution that go through time together, at most; floats of a vector
_WORTH_THREADS = 1 << 13  # numbers
# Weights of in_proj: with fewer, the threads lose more by waiting for each other six times than they gain.
_WORTH_WAITING = 1 << 20


class _Convolution(ctypes.Structure):
    _fields_ = fields(
        "batch length channels taps is_double silu threads tile u_batch u_time out_batch out_time grad_batch grad_time",
        "u weight bias initial reset grad out grad_weight grad_bias grad_initial",
    )


class _MambaStep(ctypes.Structure):
    _fields_ = [
        *fields("rows channels inner states rank taps threads", ""),
        ("epsilon", ctypes.c_double),
        *fields(
            "",
            "x norm in_proj conv_weight conv_bias delta_down delta_up delta_bias A_log B C D out_proj window state "
            "y window_after state_after",
        ),
    ]


class _FewRows(ctypes.Structure):
    _fields_ = fields("rows columns outputs threads", "x weight y")


def supports(first: Tensor, *others: Tensor | None) -> bool:
    """Return whether C++ supports these: plain tensors on a CPU, all float32 or all float64, in a call not traced."""
    if torch.compiler.is_compiling() or first.dtype not in (torch.float32, torch.float64):
        return False
    for x in (first, *others):
        if x is None:
            continue
        if type(x) not in (Tensor, nn.Parameter) or x.device.type != "cpu" or x.dtype != first.dtype:
            return False
        if torch._C._functorch.is_functorch_wrapped_tensor(x):  # of torch.func: no memory to point at
            return False
    return unavailable() is None


def _threads(like: Tensor) -> int:
    return torch.get_num_threads() if like.numel() >= _WORTH_THREADS else 1


def mamba_step(
    x: Tensor, epsilon: float, in_proj: Tensor, delta_up: Tensor, window: Tensor, state: Tensor,
    **weights: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return (y, window, state) of `ops.mamba_step`, for 1 to MAX_ROWS rows; all contiguous, float32."""
    y, window_after, state_after = torch.empty_like(x), torch.empty_like(window), torch.empty_like(state)
    (rows, channels), (_, inner, states) = x.shape, state.shape
    threads = torch.get_num_threads() if in_proj.numel() >= _WORTH_WAITING else 1
    call(
        "mamba_step", _MambaStep, rows=rows, channels=channels, inner=inner, states=states,
        rank=delta_up.shape[1], taps=window.shape[2] + 1, threads=threads, epsilon=epsilon, x=x, in_proj=in_proj,
        delta_up=delta_up, window=window, state=state, y=y, window_after=window_after, state_after=state_after,
        **weights,
    )  # fmt: skip
    return y, window_after, state_after


def few_rows(x: Tensor, weight: Tensor) -> Tensor:
    """Return x weightᵀ: (R, D) and (O, D), contiguous, to (R, O), for 1 to MAX_ROWS rows; float32."""
    (rows, columns), outputs = x.shape, len(weight)
    y, x = x.new_empty(rows, outputs), x.contiguous()
    call("few_rows", _FewRows, rows=rows, columns=columns, outputs=outputs, threads=_threads(weight), x=x,
         weight=weight, y=y)  # fmt: skip
    return y


def _channels_first(x: Tensor) -> Tensor:
    """Return (B, D, L) as (B, L, D) with adjacent channels in memory; a view if x already has that layout."""
    x = x.transpose(1, 2)
    return x if x.stride(2) == 1 else x.contiguous()


def _convolve(
    u: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None, reset: Tensor | None, silu: bool,
    out: Tensor, **more: object,
) -> None:  # fmt: skip
    """Run the convolution; u and out (B, L, D) may have any batch and time strides."""
    (batch, length, channels), threads = u.shape, torch.get_num_threads()
    tiles = -(-channels // _TILE)
    while batch * tiles % threads and channels > tiles * _LANES:  # until all threads have as much to do
        tiles += 1
    size = -(-channels // tiles)
    call("depthwise_convolution", _Convolution, batch=batch, length=length, channels=channels, taps=weight.shape[1],
         is_double=u.dtype == torch.float64, silu=silu, threads=_threads(u), tile=-(-size // _LANES) * _LANES,
         u_batch=u.stride(0), u_time=u.stride(1), out_batch=out.stride(0), out_time=out.stride(1), u=u,
         weight=weight.t().flip(0).contiguous(), bias=None if bias is None else bias.contiguous(),
         initial=None if initial is None else initial.transpose(1, 2).contiguous(),
         reset=None if reset is None else reset.contiguous(), out=out, **more)  # fmt: skip


def convolution(
    u: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None, reset: Tensor | None, silu: bool
) -> Tensor:
    """Return `causal_depthwise_convolution`, with `silu` SiLU of it: (B, D, L), channels next to each other."""
    x = _channels_first(u)
    out = torch.empty(x.shape, dtype=u.dtype)
    _convolve(x, weight, bias, initial, reset, silu, out)
    return out.transpose(1, 2)


def convolution_backward(
    grad: Tensor, u: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None, reset: Tensor | None,
    silu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Return the gradients of u, weight, bias (computed even without a bias) and initial."""
    x, grad = _channels_first(u), _channels_first(grad)
    (batch, _, D), W = x.shape, weight.shape[1]
    grad_u, grad_weight, grad_bias = (
        torch.empty(x.shape, dtype=u.dtype),
        u.new_empty(batch, W, D),
        u.new_empty(batch, D),
    )
    grad_initial = None if initial is None else u.new_empty(batch, W - 1, D)
    _convolve(x, weight, bias, initial, reset, silu, grad_u, grad=grad, grad_batch=grad.stride(0),
              grad_time=grad.stride(1), grad_weight=grad_weight, grad_bias=grad_bias,
              grad_initial=grad_initial)  # fmt: skip
    return (
        grad_u.transpose(1, 2), grad_weight.sum(0).flip(0).t(), grad_bias.sum(0),
        None if grad_initial is None else grad_initial.transpose(1, 2),
    )  # fmt: skip
