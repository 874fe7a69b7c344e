"""A backend's selective scan as two torch operators, which autograd and torch.compile know.

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


class ScanOperator(NamedTuple):
    """Torch's operators: scan(*tensors, zoh, softplus, keep) -> (y, last state, checkpoints), and its backward."""

    scan: Any
    backward: Any


def scan_operator(
    name: str,
    forward: Callable[[ScanTensors, bool, bool, bool], tuple[Tensor, Tensor, Tensor]],
    backward: Callable[[ScanTensors, bool, bool, Tensor, Tensor | None, Tensor | None], list[Tensor]],
    new_checkpoints: Callable[[Tensor, Tensor], Tensor],
    device_types: str | None = None,
) -> ScanOperator:
    """Register `lra_ssm::NAME` and `lra_ssm::NAME_backward`.

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
    return ScanOperator(scan, scan_backward)
