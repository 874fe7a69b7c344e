"""S4D's convolution kernel by the C++ of native/, as a torch custom operator.

Shapes: delta (D,), A, B (D, N), C (K, D, N), kernel (K, D, L).  (K kernels, D channels, N conjugate pairs, L length.)
"""

import ctypes

import torch
from torch import Tensor

from lra_ssm.ops.backends.native_build import call, fields
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


@torch.library.custom_op("lra_ssm::s4d_kernel_cpu", mutates_args=(), device_types="cpu")
def s4d_kernel_zoh(delta: Tensor, A: Tensor, B: Tensor, C: Tensor, L: int, double: bool) -> Tensor:
    """Return the kernels (K, D, L) of `lra_ssm.ops.s4d_kernel` under zero-order hold.

    delta (D,) float64; A, B (D, N) and C (K, D, N) complex128.  float32 or, if `double`, float64: the precision of the
    sums over states; powers of exp(delta A) are float64 in any case.
    """
    kernel = torch.empty((*C.shape[:2], L), dtype=torch.float64 if double else torch.float32)
    _call("s4d_kernel_forward", kernel, delta, A, B, C)
    return kernel


@s4d_kernel_zoh.register_fake
def _(delta, A, B, C, L, double):  # type: ignore[no-untyped-def]
    return delta.new_empty((*C.shape[:2], L), dtype=torch.float64 if double else torch.float32)


@torch.library.custom_op("lra_ssm::s4d_kernel_cpu_backward", mutates_args=(), device_types="cpu")
def s4d_kernel_zoh_backward(grad: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> list[Tensor]:
    """Return the gradients of delta, A, B and C."""
    named = {"grad_delta": delta, "grad_A": A, "grad_B": B, "grad_C": C}
    gradients = {name: torch.zeros(x.shape, dtype=x.dtype) for name, x in named.items()}
    _call("s4d_kernel_backward", grad.contiguous(), delta, A, B, C, **gradients)
    return list(gradients.values())


@s4d_kernel_zoh_backward.register_fake
def _(grad, delta, A, B, C):  # type: ignore[no-untyped-def]
    return [x.new_empty(x.shape) for x in (delta, A, B, C)]


def _keep_for_backward(ctx, inputs, output):  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs[:4])


def _backward(ctx, grad):  # type: ignore[no-untyped-def]
    return (*s4d_kernel_zoh_backward(grad, *ctx.saved_tensors), None, None)


s4d_kernel_zoh.register_autograd(_backward, setup_context=_keep_for_backward)


def run_kernel(inputs: KernelInputs) -> Tensor:
    """Return the kernel (K, D, L) for checked inputs."""
    x = inputs.as_zoh().in_double()
    return s4d_kernel_zoh(x.delta, x.A, x.B, x.C, x.L, x.dtype == torch.float64)
