"""The scan of Mamba-2 by mamba-ssm's Triton kernels (https://github.com/state-spaces/mamba), for what they compute.

Shapes: x (batch, L, H, P); delta (batch, L, H); A, D (H,); B, C (batch, L, G, N); state (batch, H, P, N).

The kernels' rules, from their code (ops/triton/ssd_combined.py):
  - x, B and C have one dtype, in which matrices are multiplied, sums being float32; float32 is rounded to TF32 there,
    so it is refused unless torch's own products may be (`torch.set_float32_matmul_precision`);
  - documents are numbered (`seq_idx`), and the initial state belongs to number 0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lra_ssm.ops.ssd_inputs import SSDInputs
from lra_ssm.ops.tensors import without_autocast, without_nonfinite

CHUNK = 256  # the kernels' own, which they were tuned for


def _kernel() -> Callable[..., Any]:
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    return mamba_chunk_scan_combined


@cache
def _refuse_installation() -> str | None:
    try:
        _kernel()
    except ModuleNotFoundError as error:
        if error.name == "mamba_ssm":
            return "mamba-ssm is not installed"
        return f"mamba-ssm is installed but cannot be imported: {error}"
    except Exception as error:  # an ImportError, or what its dependencies raise
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return f"mamba-ssm is installed but cannot be imported: {reason}"
    return None


def _refuse_device(device: torch.device) -> str | None:
    if device.type != "cuda":
        return f"runs tensors on a CUDA device only; x is on {device}"
    return _refuse_installation()


def _refuse_inputs(inputs: SSDInputs) -> str | None:
    if torch.compiler.is_compiling():
        return "torch.compile cannot look into mamba-ssm's kernels"
    if inputs.dtype == torch.float64:
        return "float64: mamba-ssm's kernels compute in float32"
    if inputs.x.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest":
        return "float32: mamba-ssm's kernels multiply in TF32, torch.get_float32_matmul_precision() is 'highest'"
    if inputs.delayed:
        return "delayed: mamba-ssm's kernels read x at its own position"
    if inputs.x.shape[0] == 0:
        return "batch = 0; mamba-ssm's kernels take at least 1"
    return None


def unsupported_reason(device: torch.device, inputs: SSDInputs | None) -> str | None:
    """Return why this backend cannot run on the device or cannot run this call; None if it can."""
    reason = _refuse_device(device)
    return reason if reason is not None or inputs is None else _refuse_inputs(inputs)


class _FirstDerivatives(torch.autograd.Function):
    """Raise an error for a second derivative: the kernels' backward records no graph."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return y.view_as(y), state.view_as(state)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor, grad_state: Tensor) -> tuple[Tensor, Tensor]:
        return grad_y.contiguous(), grad_state.contiguous()


def run(inputs: SSDInputs) -> tuple[Tensor, Tensor]:
    """Return (y, last state) for supported inputs."""
    x, delta, A, B, C, D, initial, reset, chunk_size, _, _, zero_nonfinite = inputs
    if zero_nonfinite:
        x, delta, B, C = map(without_nonfinite, (x, delta, B, C))
    documents = None if reset is None else reset.cumsum(1, dtype=torch.int32)
    with without_autocast(x.device):
        y, state = _kernel()(
            x, delta, A, B.to(x.dtype), C.to(x.dtype), CHUNK if chunk_size is None else chunk_size, D=D,
            initial_states=initial, seq_idx=documents, return_final_states=True,
        )  # fmt: skip
        y, state = _FirstDerivatives.apply(y, state)
    return y, state
