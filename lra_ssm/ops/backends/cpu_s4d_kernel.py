"""S4D's convolution kernel by the C++ of native/, as a torch custom operator.

Shapes: z (D, N), w (K, D, N), kernel (K, D, L).  (K kernels, D channels, N conjugate pairs, L length.)
"""

import ctypes

import torch
from torch import Tensor

from lra_ssm.ops.backends.native_build import library


class _Arguments(ctypes.Structure):
    """`KernelArguments` of native/s4d_kernel.cpp, field by field."""

    _fields_ = [
        (name, ctypes.c_int64) for name in ("kernels", "channels", "states", "length", "is_double", "threads")
    ] + [(name, ctypes.c_void_p) for name in ("z", "w", "kernel", "grad_z", "grad_w")]


def _call(function: str, z: Tensor, w: Tensor, kernel: Tensor, *gradients: Tensor) -> None:
    native = library()
    assert not isinstance(native, str), native
    kept = (z.contiguous(), w.contiguous(), kernel, *gradients)
    double = kernel.dtype == torch.float64
    sizes = (w.shape[0], *z.shape, kernel.shape[-1], double, torch.get_num_threads())
    if getattr(native, function)(ctypes.byref(_Arguments(*sizes, *(x.data_ptr() for x in kept)))):
        raise MemoryError(f"{function}: not enough memory")


@torch.library.custom_op("lra_ssm::s4d_kernel_cpu", mutates_args=(), device_types="cpu")
def exponential_sums(z: Tensor, w: Tensor, L: int, double: bool) -> Tensor:
    """k_l = 2 Re sum_n w_n exp(z_n l), l = 0..L-1: z (D, N) and w (K, D, N) complex128 -> (K, D, L), float32 or, if
    `double`, float64 (the precision of the sums; powers of exp(z) are always taken in float64)."""
    kernel = torch.empty((*w.shape[:2], L), dtype=torch.float64 if double else torch.float32)
    _call("s4d_kernel_forward", z, w, kernel)
    return kernel


@exponential_sums.register_fake
def _(z, w, L, double):  # type: ignore[no-untyped-def]
    return w.new_empty((*w.shape[:2], L), dtype=torch.float64 if double else torch.float32)


@torch.library.custom_op("lra_ssm::s4d_kernel_cpu_backward", mutates_args=(), device_types="cpu")
def exponential_sums_backward(grad: Tensor, z: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of z and w."""
    grad_z, grad_w = torch.zeros(z.shape, dtype=z.dtype), torch.empty(w.shape, dtype=w.dtype)
    _call("s4d_kernel_backward", z, w, grad.contiguous(), grad_z, grad_w)
    return grad_z, grad_w


@exponential_sums_backward.register_fake
def _(grad, z, w):  # type: ignore[no-untyped-def]
    return torch.empty_like(z), torch.empty_like(w)


def _keep_for_backward(ctx, inputs, output):  # type: ignore[no-untyped-def]
    ctx.save_for_backward(inputs[0], inputs[1])


def _backward(ctx, grad):  # type: ignore[no-untyped-def]
    return (*exponential_sums_backward(grad, *ctx.saved_tensors), None, None)


exponential_sums.register_autograd(_backward, setup_context=_keep_for_backward)
