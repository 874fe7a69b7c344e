"""S4D's convolution kernel under zero-order hold in one Triton kernel forward and one backward, as operators that
autograd and torch.compile know.

Shapes: delta (D,), A, B (D, N), C (K, D, N), kernel (K, D, L). (K kernels, D channels, N conjugate pairs, L length.)

Discretization, and what grows with l, is computed in double whatever the inputs' dtypes are; tables of powers and the
products of them are float32, or float64 where an input is.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lra_ssm.ops.backends import triton_call, triton_scan
from lra_ssm.ops.backends.torch_operators import s4d_operator
from lra_ssm.ops.inputs import KernelInputs

# Rows, columns and states that a program takes at once, 16 at least, and its warps. Not tuned on a GPU yet.
BLOCK_I, BLOCK_J, BLOCK_N = 16, 64, 16
WARPS = 4


def unsupported_reason(device: torch.device, inputs: KernelInputs | None) -> str | None:
    """Return why Triton cannot run on the device, or None."""
    return triton_scan.unsupported_reason(device, None)


def _launch(kernel: Any, programs: int, A: Tensor, B: Tensor, C: Tensor, double: bool, **arguments: Any) -> None:
    """Launch a kernel with the arguments that describe the system to both."""
    import triton.language as tl

    pairs = {name: torch.view_as_real(x.resolve_conj()) for name, x in (("A", A), ("B", B), ("C", C))}
    strides = {f"{name}_strides": ((0,) * (4 - x.dim()) + x.stride()) for name, x in pairs.items()}
    triton_call.launch_kernel(
        kernel, programs, num_warps=WARPS, **pairs, **strides, channels=A.shape[0], states=A.shape[1],
        BLOCK_I=BLOCK_I, BLOCK_J=BLOCK_J, BLOCK_N=BLOCK_N, TYPE=tl.float64 if double else tl.float32, **arguments,
    )  # fmt: skip


def _forward(delta: Tensor, A: Tensor, B: Tensor, C: Tensor, L: int, double: bool) -> Tensor:
    """Return the kernel of delta, A, B and C of any real, and complex, dtypes."""
    from lra_ssm.ops.backends.triton_s4d_kernels import s4d_kernel

    (K, D, _), rows = C.shape, math.ceil(L / (BLOCK_I * BLOCK_J))
    out = torch.empty((K, D, L), dtype=torch.float64 if double else torch.float32, device=A.device)
    _launch(s4d_kernel, K * D * rows, A, B, C, double, delta=delta.contiguous(), out=out, length=L, rows=rows)
    return out


def _backward(grad: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> list[Tensor]:
    from lra_ssm.ops.backends.triton_s4d_kernels import s4d_gradient_kernel

    grads = [x.new_empty(x.shape) for x in (delta, A, B, C)]
    named = {f"grad_{name}": torch.view_as_real(x) for name, x in zip("ABC", grads[1:], strict=True)}
    _launch(
        s4d_gradient_kernel, A.shape[0], A, B, C, grad.dtype == torch.float64, delta=delta.contiguous(),
        grad=grad.contiguous(), grad_delta=grads[0], **named, length=grad.shape[2], kernels=C.shape[0],
    )  # fmt: skip
    return grads


operator = s4d_operator("s4d_kernel_triton", _forward, _backward)


def run(inputs: KernelInputs) -> Tensor:
    """Return the kernel (K, D, L) for checked inputs."""
    inputs = inputs.as_zoh()
    return operator.forward(inputs.delta, inputs.A, inputs.B, inputs.C, inputs.L, inputs.dtype == torch.float64)
