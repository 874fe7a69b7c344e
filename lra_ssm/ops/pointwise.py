"""What looks at one position at a time in a block: a gate, RMSNorm, and a linear map of one position alone.

In C++ on a CPU, one pass over memory each way, and by torch's operations elsewhere: the same to rounding.

Shapes: x, y, z (…, D); weight (D,).  (D channels.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lra_ssm.ops.backends import cpu_pieces

# Numbers; of fewer torch's own operations are done before C++ is called.
_WORTH_A_CALL, _WORTH_READING = 1 << 13, 1 << 16


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, z: Tensor) -> Tensor:
        ctx.save_for_backward(y, z)
        return cpu_pieces.silu_gate(y, z)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return cpu_pieces.silu_gate_backward(grad, *ctx.saved_tensors)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        out, scale = cpu_pieces.rms_norm(x, weight, epsilon)
        ctx.save_for_backward(x, weight, scale)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        return (*cpu_pieces.rms_norm_backward(grad, *ctx.saved_tensors), None)


def silu_gate(y: Tensor, z: Tensor) -> Tensor:
    """y · SiLU(z), shapes alike, in torch's promoted dtype; on a CPU its gradient is not differentiable again."""
    if y.shape == z.shape and y.numel() >= _WORTH_A_CALL and cpu_pieces.takes(y, z):
        return _Gate.apply(y, z)
    return y * F.silu(z)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float = 1e-5) -> Tensor:
    """x / √(mean x² + ε) · weight over the last dimension (Zhang & Sennrich 2019, eq. 4); dtypes as `silu_gate`."""
    if x.numel() >= _WORTH_A_CALL and x.shape[-1:] == weight.shape and cpu_pieces.takes(x, weight):
        return _Norm.apply(x, weight, epsilon)
    return F.rms_norm(x, weight.shape, weight, epsilon)


def step_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear as steps have it, of a few rows and without gradients: x (R, D), weight (O, D), bias (O,) -> (R, O).

    In float32 on a CPU, up to eight rows, about the time of reading the weight, half of what MKL's product takes.
    """
    few = (
        x.dim() == 2
        and weight.numel() >= _WORTH_READING
        and 0 < len(x) <= cpu_pieces.MAX_ROWS
        and x.dtype == torch.float32
        and weight.is_contiguous()
    )
    asked = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    if not few or asked or torch.is_autocast_enabled(x.device.type) or not cpu_pieces.takes(x, weight):
        return F.linear(x, weight, bias)
    y = cpu_pieces.few_rows(x, weight)
    return y if bias is None else y + bias
