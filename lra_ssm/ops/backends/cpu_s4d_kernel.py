"""S4D's convolution kernel by the C++ of native/, as a torch custom operator.

Shapes: delta (D,), A, B (D, N), C (K, D, N), kernel (K, D, L).  (K kernels, D channels, N conjugate pairs, L length.)
"""

import ctypes

import torch
from torch import Tensor

from lra_ssm.ops.backends.native_build import call, fields
from lra_ssm.ops.backends.torch_operators import s4d_operator
from lra_ssm.ops.inputs import KernelInputs


class _Arguments(ctypes.Structure):
    """`KernelArguments` of native/s4d_kernel.cpp, field by field."""

    _fields_ = fields(
        "kernels channels states length is_double threads", "delta A B C kernel grad_delta grad_A grad_B grad_C"
    )


def _call(function: str, kernel: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, **gradients: Tensor) -> None:
    delta, A, B, C = (x.contiguous() for x in (delta, A, B, C))
    call(function, _Arguments, kernels=len(C), channels=A.shape[0], states=A.shape[1], length=kernel.shape[-1],
         is_double=kernel.dtype == torch.float64, threads=torch.get_num_threads(), delta=delta, A=A, B=B, C=C,
         kernel=kernel, **gradients)  # fmt: skip


def _forward(delta: Tensor, A: Tensor, B: Tensor, C: Tensor, L: int, double: bool) -> Tensor:
    """Return the kernel of delta float64; A, B and C complex128.

    `double` is the precision of the sums over states; powers of exp(delta A) are float64 in any case.
    """
    kernel = torch.empty((*C.shape[:2], L), dtype=torch.float64 if double else torch.float32)
    _call("s4d_kernel_forward", kernel, delta, A, B, C)
    return kernel


def _backward(grad: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> list[Tensor]:
    named = {"grad_delta": delta, "grad_A": A, "grad_B": B, "grad_C": C}
    gradients = {name: torch.zeros(x.shape, dtype=x.dtype) for name, x in named.items()}
    _call("s4d_kernel_backward", grad.contiguous(), delta, A, B, C, **gradients)
    return list(gradients.values())


operator = s4d_operator("s4d_kernel_cpu", _forward, _backward, device_types="cpu")


def run_kernel(inputs: KernelInputs) -> Tensor:
    """Return the kernel (K, D, L) for checked inputs."""
    x = inputs.as_zoh().in_double()
    return operator.forward(x.delta, x.A, x.B, x.C, x.L, x.dtype == torch.float64)
