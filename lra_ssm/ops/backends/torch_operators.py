"""A backend's selective scan, or S4D's kernel, as two torch operators, which autograd and torch.compile know.

Shapes: u, delta, y (batch, D, L), or delta (D,); A (D, N); B, C constant (D, N) or variable (batch, G, N, L); state
(batch, D, N). (D channels, L length, N states, G groups.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lra_ssm.ops.inputs import ScanTensors

_TENSORS = len(ScanTensors._fields)
_ARGUMENTS = ("Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? B_bias, Tensor? D, Tensor? delta_bias, "
              "Tensor? initial_state, Tensor? reset, bool zoh, bool softplus")  # fmt: skip


class Operator(NamedTuple):
    """Torch's operators."""

    forward: Any
    backward: Any


def scan_operator(
    name: str,
    forward: Callable[[ScanTensors, bool, bool, bool], tuple[Tensor, Tensor, Tensor]],
    backward: Callable[[ScanTensors, bool, bool, Tensor, Tensor | None, Tensor | None], list[Tensor]],
    new_checkpoints: Callable[[Tensor, Tensor], Tensor],
    device_types: str | None = None,
) -> Operator:
    """Register `lra_ssm::NAME`, (*tensors, zoh, softplus, keep) -> (y, last state, checkpoints), and NAME_backward.

    Args:
        forward: (tensors, zoh, softplus, keep) -> (y in u's dtype and layout, last state, checkpoints: what backward
            needs of the states if keep, else an empty tensor).
        backward: (tensors, zoh, softplus, checkpoints, y's gradient, the last state's) -> gradients of the tensors that
            are not None, without the reset, in order; a gradient that is None is zero.
        new_checkpoints: (u, A) -> memory for checkpoints.
        device_types: where it runs; anywhere if None.
    """

    def run(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: function(ScanTensors(*arguments[:_TENSORS]), *arguments[_TENSORS:])

    scan = torch.library.custom_op(
        f"lra_ssm::{name}", run(forward), mutates_args=(), device_types=device_types,
        schema=f"({_ARGUMENTS}, bool keep) -> (Tensor, Tensor, Tensor)",
    )  # fmt: skip
    scan_backward = torch.library.custom_op(
        f"lra_ssm::{name}_backward", run(backward), mutates_args=(), device_types=device_types,
        schema=f"({_ARGUMENTS}, Tensor checkpoints, Tensor? grad_y, Tensor? grad_last) -> Tensor[]",
    )  # fmt: skip

    @scan.register_fake
    def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        u, A, keep = arguments[0], arguments[2], arguments[-1]
        checkpoints = new_checkpoints(u, A) if keep else u.new_empty(0)
        return torch.empty_like(u), A.new_empty((u.shape[0], *A.shape)), checkpoints

    @scan_backward.register_fake
    def _(*arguments: Any) -> list[Tensor]:
        *tensors, _ = arguments[:_TENSORS]
        keep_their_layout = {id(x) for x in tensors[:5] if x.dim() > 2}  # u, delta, B, C
        return [torch.empty_like(x) if id(x) in keep_their_layout else x.new_empty(x.shape)
                for x in tensors if x is not None]  # fmt: skip

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        *tensors, zoh, softplus, _ = inputs
        ctx.save_for_backward(*tensors, output[2])
        ctx.flags = zoh, softplus
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[2])

    def gradients(ctx: Any, grad_y: Tensor | None, grad_last: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        *tensors, checkpoints = ctx.saved_tensors
        grads = iter(scan_backward(*tensors, *ctx.flags, checkpoints, grad_y, grad_last))
        return (*(None if x is None else next(grads) for x in tensors[:-1]), None, None, None, None)

    scan.register_autograd(gradients, setup_context=setup_context)
    return Operator(scan, scan_backward)


def s4d_operator(
    name: str, forward: Callable[..., Tensor], backward: Callable[..., list[Tensor]], device_types: str | None = None
) -> Operator:
    """Register `lra_ssm::NAME`, S4D's kernel under zero-order hold, and NAME_backward.

    Args:
        forward: (delta (D,), A (D, N), B (D, N), C (K, D, N), L, double) -> kernel (K, D, L) in float32, or float64 if
            `double`.
        backward: (kernel's gradient, delta, A, B, C) -> the gradients of these four.
        device_types: where it runs; anywhere if None.
    """
    kernel = torch.library.custom_op(
        f"lra_ssm::{name}", forward, mutates_args=(), device_types=device_types,
        schema="(Tensor delta, Tensor A, Tensor B, Tensor C, int L, bool double) -> Tensor",
    )  # fmt: skip
    kernel_backward = torch.library.custom_op(
        f"lra_ssm::{name}_backward", backward, mutates_args=(), device_types=device_types,
        schema="(Tensor grad, Tensor delta, Tensor A, Tensor B, Tensor C) -> Tensor[]",
    )  # fmt: skip

    @kernel.register_fake
    def _(delta: Tensor, A: Tensor, B: Tensor, C: Tensor, L: int, double: bool) -> Tensor:
        return delta.new_empty((*C.shape[:2], L), dtype=torch.float64 if double else torch.float32)

    @kernel_backward.register_fake
    def _(grad: Tensor, *inputs: Tensor) -> list[Tensor]:
        return [x.new_empty(x.shape) for x in inputs]

    kernel.register_autograd(
        lambda ctx, grad: (*kernel_backward(grad, *ctx.saved_tensors), None, None),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs[:4]),
    )
    return Operator(kernel, kernel_backward)
