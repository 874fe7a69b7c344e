"""The linear recurrence with a constant factor by the C++ of native/, as a torch custom operator.

Shapes: a (D,), b and x (B, L, D), initial and last (B, D), reset (B, L).  (B batch, L length, D channels.)
"""

import ctypes

import torch
from torch import Tensor

from lra_ssm.ops.backends.native_build import call, fields
from lra_ssm.ops.tensors import has_double


class _Arguments(ctypes.Structure):
    """`LinearArguments` of native/linear_scan.cpp, field by field."""

    _fields_ = fields(
        "batch length numbers is_double is_complex threads",
        "a b x grad_x out initial grad_last grad_a grad_initial reset",
    )


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.complex128 if x.is_complex() else torch.float64)


def _call(function: str, like: Tensor, **tensors: Tensor | None) -> None:
    contiguous = {name: None if x is None else x.resolve_conj().contiguous() for name, x in tensors.items()}
    (batch, length, D), numbers = like.shape, 2 if like.is_complex() else 1
    call(function, _Arguments, batch=batch, length=length, numbers=D * numbers, is_double=has_double(like),
         is_complex=like.is_complex(), threads=torch.get_num_threads(), **contiguous)  # fmt: skip


@torch.library.custom_op("lra_ssm::linear_scan_cpu", mutates_args=(), device_types="cpu")
def constant_scan(a: Tensor, b: Tensor, initial: Tensor | None, reset: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return x (B, L, D) and its last state (B, D); a, b and initial have one dtype, real or complex, 32 or 64 bits."""
    x = torch.empty(b.shape, dtype=b.dtype)
    _call("linear_scan_forward", b, a=_wide(a), b=b, out=x, initial=None if initial is None else _wide(initial),
          reset=reset)  # fmt: skip
    return x, x[:, -1].clone()


@constant_scan.register_fake
def _(a, b, initial, reset):  # type: ignore[no-untyped-def]
    return b.new_empty(b.shape), b.new_empty(b[:, 0].shape)


@torch.library.custom_op("lra_ssm::linear_scan_cpu_backward", mutates_args=(), device_types="cpu")
def constant_scan_backward(
    grad_x: Tensor | None, grad_last: Tensor | None, a: Tensor, x: Tensor, initial: Tensor | None, reset: Tensor | None
) -> list[Tensor]:
    """Return the gradients of a, b and initial; that of a missing initial is empty."""
    first = x[:, 0].shape
    grad_b, grad_a = torch.empty(x.shape, dtype=x.dtype), torch.zeros(first, dtype=_wide(a).dtype)
    grad_initial = None if initial is None else torch.zeros_like(grad_a)
    _call(
        "linear_scan_backward", x, a=_wide(a), x=x, grad_x=grad_x, out=grad_b, grad_a=grad_a, grad_initial=grad_initial,
        initial=None if initial is None else _wide(initial), grad_last=None if grad_last is None else _wide(grad_last),
        reset=reset,
    )  # fmt: skip
    return [grad_a.sum(0).to(a.dtype), grad_b, x.new_empty(0) if grad_initial is None else grad_initial.to(x.dtype)]


@constant_scan_backward.register_fake
def _(grad_x, grad_last, a, x, initial, reset):  # type: ignore[no-untyped-def]
    return [a.new_empty(a.shape), x.new_empty(x.shape), x.new_empty(0 if initial is None else initial.shape)]


def _keep_for_backward(ctx, inputs, output):  # type: ignore[no-untyped-def]
    a, _, initial, reset = inputs
    ctx.save_for_backward(a, output[0], initial, reset)
    ctx.set_materialize_grads(False)


def _backward(ctx, grad_x, grad_last):  # type: ignore[no-untyped-def]
    a, x, initial, reset = ctx.saved_tensors
    grad_a, grad_b, grad_initial = constant_scan_backward(grad_x, grad_last, a, x, initial, reset)
    return grad_a, grad_b, None if initial is None else grad_initial, None


constant_scan.register_autograd(_backward, setup_context=_keep_for_backward)
