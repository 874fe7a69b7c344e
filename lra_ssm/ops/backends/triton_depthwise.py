"""The depthwise convolution with bias, SiLU and resets in one Triton kernel forward and one backward, as operators that
autograd and torch.compile know.

Shapes: u, y (batch, D, L); weight (D, W); bias (D,); initial (batch, D, W-1); reset (batch, L). (D channels, L length,
W width of the filter.)

Both keep only inputs: backward computes SiLU's input again. Each program sums the gradients of weight and bias over its
segment; the programs' sums are then added in a fixed order.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lra_ssm.ops.backends import triton_call, triton_scan

SEGMENT = 64  # steps of a program
# Channels of a program where channels, or steps, lie next to each other.
CHANNELS_LAST, CHANNELS_FIRST = 64, 32


def supports(u: Tensor) -> bool:
    """Return whether the kernels support u: on a GPU, also under torch.compile."""
    return bool(u.numel()) and triton_scan.unsupported_reason(u.device, None) is None


def _arguments(
    u: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None, reset: Tensor | None, silu: bool
) -> tuple[int, dict[str, Any]]:
    """Return the number of programs, and the arguments of both kernels."""
    import triton.language as tl

    (batch, channels, length), segments = u.shape, math.ceil(u.shape[2] / SEGMENT)
    block_d = min(CHANNELS_LAST if u.stride(1) <= u.stride(2) else CHANNELS_FIRST, triton_call._power_of_two(channels))
    starts = None if reset is None else reset.view(torch.uint8)
    double = any(x is not None and x.dtype == torch.float64 for x in (u, weight, bias, initial))
    return batch * segments * math.ceil(channels / block_d), dict(
        u=u, weight=weight.contiguous(), bias=None if bias is None else bias.contiguous(), initial=initial,
        reset=starts, u_strides=u.stride(), initial_strides=(0, 0, 0) if initial is None else initial.stride(),
        reset_strides=(0, 0) if starts is None else starts.stride(), length=length, channels=channels,
        segments=segments, SEGMENT=SEGMENT, BLOCK_D=block_d, W=weight.shape[1], SILU=silu,
        TYPE=tl.float64 if double else tl.float32,
    )  # fmt: skip


@torch.library.custom_op("lra_ssm::depthwise_convolution_triton", mutates_args=())
def convolution(
    u: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None, reset: Tensor | None, silu: bool
) -> Tensor:
    """Return y, in u's dtype and layout; with `silu`, SiLU of it."""
    from lra_ssm.ops.backends.triton_depthwise_kernels import convolution_kernel

    y = torch.empty_like(u)
    programs, arguments = _arguments(u, weight, bias, initial, reset, silu)
    triton_call.launch_kernel(convolution_kernel, programs, **arguments, y=y, y_strides=y.stride())
    return y


@convolution.register_fake
def _(u, weight, bias, initial, reset, silu):  # type: ignore[no-untyped-def]
    return torch.empty_like(u)


@torch.library.custom_op("lra_ssm::depthwise_convolution_triton_backward", mutates_args=())
def convolution_backward(
    grad_y: Tensor, u: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None, reset: Tensor | None,
    silu: bool,
) -> list[Tensor]:  # fmt: skip
    """Return the gradients of u and weight, and of bias and initial unless they are None."""
    from lra_ssm.ops.backends.triton_depthwise_kernels import convolution_gradient_kernel

    (batch, channels, _), W = u.shape, weight.shape[1]
    programs, arguments = _arguments(u, weight, bias, initial, reset, silu)
    dtype = torch.float64 if arguments["TYPE"].name == "fp64" else torch.float32
    grad_u = torch.empty_like(u)
    taps = triton_call._power_of_two(W + 1)
    sums = torch.empty((batch, arguments["segments"], channels, taps), dtype=dtype, device=u.device)
    grad_initial = None if initial is None else torch.empty(initial.shape, dtype=initial.dtype, device=u.device)
    triton_call.launch_kernel(
        convolution_gradient_kernel, programs, **arguments, TAPS=taps, grad_y=grad_y, grad_u=grad_u,
        grad_taps=sums, grad_initial=grad_initial, grad_y_strides=grad_y.stride(), grad_u_strides=grad_u.stride(),
    )  # fmt: skip
    total = sums[..., : W + 1].sum((0, 1))
    grads = [grad_u, total[:, :W].to(weight.dtype, copy=True)]
    grads += [] if bias is None else [total[:, W].to(bias.dtype, copy=True)]
    return grads if grad_initial is None else [*grads, grad_initial]


@convolution_backward.register_fake
def _(grad_y, u, weight, bias, initial, reset, silu):  # type: ignore[no-untyped-def]
    small = [x.new_empty(x.shape) for x in (weight, bias, initial) if x is not None]
    return [torch.empty_like(u), *small]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.silu = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, reset = ctx.saved_tensors
    grads = iter(convolution_backward(grad_y, *tensors, reset, ctx.silu))
    return (*(None if x is None else next(grads) for x in tensors), None, None)


convolution.register_autograd(_backward, setup_context=_setup_context)
