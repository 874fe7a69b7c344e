"""The selective scan by Triton kernels.

Shapes: u, delta, y (batch, D, L); A (D, N); B, C constant (D, N) or variable (batch, G, N, L); state (batch, D, N).
(D channels, L length, N states, G groups, W = 2 for complex A, else 1: its re and im.)

The kernels compute in float32: in float64 the reference serves a GPU, too, chunk by chunk ("eager").
triton_call.py says how a call is cut into programs; triton_kernels.py, triton_segment_kernels.py and
triton_backward_kernels.py what each does.
"""

from __future__ import annotations

import math
import os
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from lra_ssm.ops.backends import triton_call
from lra_ssm.ops.backends.torch_operators import scan_operator
from lra_ssm.ops.backends.triton_call import Scan
from lra_ssm.ops.inputs import ScanInputs, ScanTensors


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


def _new_checkpoints(u: Tensor, A: Tensor) -> Tensor:
    """Return memory for the state before every chunk: (chunks, batch, W, N, D)."""
    (batch, channels, length), states = u.shape, A.shape[-1]
    chunks, width = math.ceil(length / triton_call.CHUNK), 2 if A.is_complex() else 1
    return u.new_empty((chunks, batch, width, states, channels), dtype=A.dtype.to_real())


def _forward(tensors: ScanTensors, zoh: bool, softplus: bool, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """delta (D,) is the same at every step, softplus taken; B is then constant."""
    u, A = tensors.u, tensors.A
    y, last = torch.empty_like(u), A.new_empty((u.shape[0], *A.shape))
    checkpoints = _new_checkpoints(u, A) if keep else u.new_empty(0)
    if u.shape[0]:
        Scan(tensors, zoh, softplus, False).forward(y, last, checkpoints if keep else None)
    return y, last, checkpoints


def _backward(
    tensors: ScanTensors, zoh: bool, softplus: bool, checkpoints: Tensor, grad_y: Tensor | None,
    grad_last: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    if not tensors.u.shape[0]:
        return [torch.zeros_like(x) for x in tensors[:-1] if x is not None]
    return Scan(tensors, zoh, softplus, True).backward(checkpoints, grad_y, grad_last)


operator = scan_operator("selective_scan_triton", _forward, _backward, _new_checkpoints)


def run(inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """Return (y, last state) for checked inputs without a gate."""
    tensors = inputs.tensors
    if inputs.constant_delta is not None and tensors.B.dim() == 2:
        tensors = tensors._replace(delta=inputs.constant_delta)
    flags = inputs.discretization == "zoh", inputs.delta_softplus, inputs.needs_grad
    y, last_state, _ = operator.forward(*tensors, *flags)
    return y, last_state
