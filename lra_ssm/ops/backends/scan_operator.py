"""A backend's selective scan as two torch operators, which autograd and torch.compile know.

Shapes: u, delta, z, y (batch, D, L), or delta (D,); A (D, N); B, C constant (D, N) or variable (batch, G, N, L or 2L);
state (batch, D, N). (D channels, L length, N states, G groups.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lra_ssm.ops.scan_inputs import ScanTensors


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

    @torch.library.custom_op(f"lra_ssm::{name}", mutates_args=(), device_types=device_types)
    def scan(
        u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, B_bias: Tensor | None, D: Tensor | None,
        z: Tensor | None, delta_bias: Tensor | None, initial: Tensor | None, reset: Tensor | None,
        zoh: bool, softplus: bool, keep: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        return forward(ScanTensors(u, delta, A, B, C, B_bias, D, z, delta_bias, initial, reset), zoh, softplus, keep)

    @scan.register_fake
    def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        u, A, keep = arguments[0], arguments[2], arguments[-1]
        checkpoints = new_checkpoints(u, A) if keep else u.new_empty(0)
        return torch.empty_like(u), A.new_empty((u.shape[0], *A.shape)), checkpoints

    @torch.library.custom_op(f"lra_ssm::{name}_backward", mutates_args=(), device_types=device_types)
    def scan_backward(
        u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, B_bias: Tensor | None, D: Tensor | None,
        z: Tensor | None, delta_bias: Tensor | None, initial: Tensor | None, reset: Tensor | None,
        zoh: bool, softplus: bool, checkpoints: Tensor, grad_y: Tensor | None, grad_last: Tensor | None,
    ) -> list[Tensor]:  # fmt: skip
        tensors = ScanTensors(u, delta, A, B, C, B_bias, D, z, delta_bias, initial, reset)
        return backward(tensors, zoh, softplus, checkpoints, grad_y, grad_last)

    @scan_backward.register_fake
    def _(*arguments: Any) -> list[Tensor]:
        tensors = ScanTensors(*arguments[: len(ScanTensors._fields)])
        keep_their_layout = {id(x) for x in (tensors.u, tensors.delta, tensors.B, tensors.C, tensors.z)
                             if x is not None and x.dim() > 2}  # fmt: skip
        return [torch.empty_like(x) if id(x) in keep_their_layout else x.new_empty(x.shape)
                for x in tensors[:-1] if x is not None]  # fmt: skip

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
