"""What looks at one position at a time in a block: a gate and RMSNorm.

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

_WORTH_A_CALL = 1 << 13  # numbers; of fewer torch's own operations are done before C++ is called


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
