"""The selective scan by Triton kernels, as operators that autograd and torch.compile know.

Shapes: u, delta, z, y (batch, D, L); A (D, N); B, C constant (D, N) or variable (batch, G, N, L or 2L); state
(batch, D, N). (D channels, L length, N states, G groups, W = 2 for complex A, else 1: its re and im.)

The kernels compute in float32: in float64 the reference serves a GPU, too, chunk by chunk ("eager").
triton_call.py says how a call is cut into programs; triton_kernels.py, triton_segment_kernels.py and
triton_backward_kernels.py what each does.
"""

from __future__ import annotations

import math
import os
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from lra_ssm.ops.backends import triton_call
from lra_ssm.ops.backends.triton_call import Scan
from lra_ssm.ops.scan_inputs import ScanInputs, ScanTensors


@cache
def _installed() -> bool:
    return find_spec("triton") is not None


def unsupported_reason(device: torch.device, inputs: ScanInputs | None) -> str | None:
    if not _installed():
        return "triton is not installed"
    if device.type == "cuda":
        if torch.version.cuda is None:
            return "needs an NVIDIA GPU; this PyTorch was built for another kind"
    elif device.type != "cpu" or os.environ.get("TRITON_INTERPRET") != "1":
        return f"needs an NVIDIA GPU; u is on {device}"
    if inputs is not None and inputs.dtype == torch.float64:
        return "float64: its kernels compute in float32; 'eager' runs the reference on a GPU, too"
    return None


@torch.library.custom_op("lra_ssm::selective_scan_triton", mutates_args=())
def _scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, B_bias: Tensor | None, D: Tensor | None,
    z: Tensor | None, delta_bias: Tensor | None, initial: Tensor | None, reset: Tensor | None,
    zoh: bool, softplus: bool, keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(y, last state, checkpoints: the state before every chunk (chunks, batch, W, N, D), empty unless keep).

    delta (D,) is the same at every step, softplus taken; B is constant.
    """
    y, last, checkpoints = _empty_results(u, A, keep)
    if u.shape[0]:
        scan = Scan(ScanTensors(u, delta, A, B, C, B_bias, D, z, delta_bias, initial, reset), zoh, softplus, False)
        scan.forward(y, last, checkpoints if keep else None)
    return y, last, checkpoints


def _empty_results(u: Tensor, A: Tensor, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    (batch, channels, length), states = u.shape, A.shape[-1]
    chunks, width = math.ceil(length / triton_call.CHUNK), 2 if A.is_complex() else 1
    shape = (chunks, batch, width, states, channels) if keep else (0,)
    checkpoints = torch.empty(shape, dtype=A.dtype.to_real(), device=u.device)
    return torch.empty_like(u), A.new_empty((batch, channels, states)), checkpoints


@_scan.register_fake
def _(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, B_bias: Tensor | None, D: Tensor | None,
    z: Tensor | None, delta_bias: Tensor | None, initial: Tensor | None, reset: Tensor | None,
    zoh: bool, softplus: bool, keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _empty_results(u, A, keep)


@torch.library.custom_op("lra_ssm::selective_scan_triton_backward", mutates_args=())
def _scan_backward(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, B_bias: Tensor | None, D: Tensor | None,
    z: Tensor | None, delta_bias: Tensor | None, initial: Tensor | None, reset: Tensor | None,
    zoh: bool, softplus: bool, checkpoints: Tensor, grad_y: Tensor | None, grad_last: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    """Gradients of the tensors that are given, the reset left out, in order."""
    tensors = ScanTensors(u, delta, A, B, C, B_bias, D, z, delta_bias, initial, reset)
    if not u.shape[0]:
        return [torch.zeros_like(x) for x in tensors if x is not None and x is not reset]
    return Scan(tensors, zoh, softplus, True).backward(checkpoints, grad_y, grad_last)


@_scan_backward.register_fake
def _(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, B_bias: Tensor | None, D: Tensor | None,
    z: Tensor | None, delta_bias: Tensor | None, initial: Tensor | None, reset: Tensor | None,
    zoh: bool, softplus: bool, checkpoints: Tensor, grad_y: Tensor | None, grad_last: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    large = [torch.empty_like(x) if x.dim() > 2 else x.new_empty(x.shape) for x in (u, delta, A, B, C)]
    small = [None if x is None else x.new_empty(x.shape) for x in (B_bias, D)]
    gate = None if z is None else torch.empty_like(z)
    rest = [None if x is None else x.new_empty(x.shape) for x in (delta_bias, initial)]
    return [x for x in (*large, *small, gate, *rest) if x is not None]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, zoh, softplus, _ = inputs
    ctx.save_for_backward(*tensors, output[2])
    ctx.call = zoh, softplus
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad_y: Tensor | None, grad_last: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    *tensors, checkpoints = ctx.saved_tensors
    grads = iter(_scan_backward(*tensors, *ctx.call, checkpoints, grad_y, grad_last))
    given = [x is not None for x in tensors[:-1]]
    return (*(next(grads) if here else None for here in given), None, None, None, None)


_scan.register_autograd(_backward, setup_context=_setup_context)


def run(inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """(y, last state) for checked inputs."""
    tensors = inputs.tensors
    if inputs.constant_delta is not None and inputs.B.dim() == 2:
        tensors = tensors._replace(delta=inputs.constant_delta)
    flags = inputs.discretization == "zoh", inputs.delta_softplus, inputs.needs_grad
    y, last_state, _ = _scan(*tensors, *flags)
    return y, last_state
