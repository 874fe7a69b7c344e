"""S4D's convolution kernel by the C++ of native/, as a torch custom operator.

Shapes: delta (D,), A, B (D, N), C (K, D, N), kernel (K, D, L).  (K kernels, D channels, N conjugate pairs, L length.)
"""

import ctypes

import torch
from torch import Tensor

from lra_ssm.ops.backends.native_build import library, unavailable
from lra_ssm.ops.kernel_inputs import KernelInputs


class _Arguments(ctypes.Structure):
    """`KernelArguments` of native/s4d_kernel.cpp, field by field."""

    _fields_ = [
        (name, ctypes.c_int64) for name in ("kernels", "channels", "states", "length", "is_double", "threads")
    ] + [
        (name, ctypes.c_void_p)
        for name in ("delta", "A", "B", "C", "kernel", "grad_delta", "grad_A", "grad_B", "grad_C")
    ]


def _call(function: str, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, kernel: Tensor, *gradients: Tensor) -> None:
    native = library()
    assert not isinstance(native, str), native
    operands = (*(x.contiguous() for x in (delta, A, B, C)), kernel, *gradients)
    double = kernel.dtype == torch.float64
    sizes = (C.shape[0], *A.shape, kernel.shape[-1], double, torch.get_num_threads())
    if getattr(native, function)(ctypes.byref(_Arguments(*sizes, *(x.data_ptr() for x in operands)))):
        raise MemoryError(f"{function}: not enough memory")


@torch.library.custom_op("lra_ssm::s4d_kernel_cpu", mutates_args=(), device_types="cpu")
def s4d_kernel_zoh(delta: Tensor, A: Tensor, B: Tensor, C: Tensor, L: int, double: bool) -> Tensor:
    """Return the kernels (K, D, L) of `lra_ssm.ops.s4d_kernel` under zero-order hold.

    delta (D,) float64; A, B (D, N) and C (K, D, N) complex128.  float32 or, if `double`, float64: the precision of the
    sums over states; powers of exp(delta A) are float64 in any case.
    """
    kernel = torch.empty((*C.shape[:2], L), dtype=torch.float64 if double else torch.float32)
    _call("s4d_kernel_forward", delta, A, B, C, kernel)
    return kernel


@s4d_kernel_zoh.register_fake
def _(delta, A, B, C, L, double):  # type: ignore[no-untyped-def]
    return delta.new_empty((*C.shape[:2], L), dtype=torch.float64 if double else torch.float32)


@torch.library.custom_op("lra_ssm::s4d_kernel_cpu_backward", mutates_args=(), device_types="cpu")
def s4d_kernel_zoh_backward(grad: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> list[Tensor]:
    """Return the gradients of delta, A, B and C."""
    gradients = [torch.zeros(x.shape, dtype=x.dtype) for x in (delta, A, B, C)]
    _call("s4d_kernel_backward", delta, A, B, C, grad.contiguous(), *gradients)
    return gradients


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


def kernel_unsupported_reason(device: torch.device, inputs: KernelInputs | None) -> str | None:
    """Return why C++ cannot make this kernel, or None; with inputs None, only the device is checked."""
    if device.type != "cpu":
        return f"it needs tensors on a CPU, not on {device.type}"
    if inputs is not None and not inputs.A.is_complex():
        return "it computes kernels of a complex A only"
    return unavailable()
