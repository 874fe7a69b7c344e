"""mamba-ssm's kernels (https://github.com/state-spaces/mamba), for what they compute: Mamba's own selective scan by a
CUDA kernel, in one launch, and Mamba-2's scan by Triton kernels.

Shapes: u, delta (batch, D, L); A (D, N); B, C constant (D, N) or variable (batch, G, N, L); D, delta_bias (D,); state
(batch, D, N). (D channels, L length, N states, G groups of D/G channels.) For Mamba-2's see ops/ssd_scan.py.

Mamba's own scan has a real A and Euler's rule, without B_bias, initial state and resets.  Its kernel's rules, from its
C++ code:
  - B and C may be variable or constant, but C must have B's groups, and one group if B is constant;
  - u, delta and variable B, C have one dtype; A, constant B and C, D and delta_bias are float32;
  - the last state that it gives lacks a constant B.

The rules of Mamba-2's kernels, from their code (ops/triton/ssd_combined.py):
  - x, B and C have one dtype, in which matrices are multiplied, sums being float32; float32 is rounded to TF32 there,
    so it is refused unless torch's own products may be (`torch.set_float32_matmul_precision`);
  - documents are numbered (`seq_idx`), and the initial state belongs to number 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from lra_ssm.ops.inputs import ScanInputs, SSDInputs
from lra_ssm.ops.tensors import without_autocast, without_nonfinite

CHUNK = 256  # Mamba-2's kernels' own, which they were tuned for


def _scan_kernel() -> Callable[..., Any]:
    if find_spec("selective_scan_cuda") is None:  # some versions import without it, and fail when called
        raise ImportError("its CUDA extension, selective_scan_cuda, is missing")
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    return selective_scan_fn


def _ssd_kernel() -> Callable[..., Any]:
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    return mamba_chunk_scan_combined


@cache
def _refuse_installation(kernel: Callable[[], Any]) -> str | None:
    if find_spec("mamba_ssm") is None:
        return "mamba-ssm is not installed"
    try:
        kernel()
    except Exception as error:  # an ImportError, or what its dependencies raise
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return f"mamba-ssm is installed but cannot be imported: {reason}"
    return None


def _refuse_device(device: torch.device, kernel: Callable[[], Any]) -> str | None:
    if device.type != "cuda":
        return f"runs tensors on a CUDA device only, not on {device}"
    return _refuse_installation(kernel)


def _groups(x: Tensor) -> int:
    return x.shape[1] if x.dim() == 4 else 1


def scan_unsupported_reason(device: torch.device, inputs: ScanInputs | None) -> str | None:
    """Return why the kernel cannot run on the device or cannot run this call; None if it can."""
    reason = _refuse_device(device, _scan_kernel)
    if reason is not None or inputs is None:
        return reason
    u, _, A, B, C, B_bias, _, _, initial_state, reset = inputs.tensors
    if torch.compiler.is_compiling():
        return "torch.compile cannot look into mamba-ssm's kernel"
    if inputs.needs_state:
        return "last state: mamba-ssm's kernel has no gradient of it; torch.no_grad() allows it"
    if A.is_complex():
        return "complex A: this backend has real A only; B2S6 as published runs on backend 'triton' or 'cpu'"
    if inputs.discretization != "euler":
        return "discretization 'zoh': mamba-ssm has 'euler' only"
    for name, x in (("B_bias", B_bias), ("reset", reset), ("initial_state", initial_state)):
        if x is not None:
            return f"{name}: mamba-ssm's kernel has none"
    if inputs.dtype == torch.float64:
        return "float64: mamba-ssm's kernel computes in float32"
    if C.dim() == 4 and _groups(C) != _groups(B):
        return f"{_groups(B)} groups of B, {_groups(C)} of C: mamba-ssm's kernel needs the same number"
    (batch, D, L), N = u.shape, A.shape[1]
    if batch == 0 or D > 65535 or N > 256:  # batch and D are its grid
        limits = "batch >= 1, D <= 65535 and N <= 256"
        return f"batch = {batch}, D = {D}, N = {N} states; mamba-ssm's kernel takes {limits}"
    if batch * L * max(D, _groups(B) * N) >= 2**32 or batch * D * N * math.ceil(L / 2048) >= 2**31:
        return "too large for the 32-bit offsets of mamba-ssm's kernel"
    return None


def ssd_unsupported_reason(device: torch.device, inputs: SSDInputs | None) -> str | None:
    """Return why the kernels cannot run on the device or cannot run this call; None if they can."""
    reason = _refuse_device(device, _ssd_kernel)
    if reason is not None or inputs is None:
        return reason
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


def _rows(x: Tensor) -> Tensor:
    """Return x contiguous, at an address for loads of 16 bytes; the kernel does not check that."""
    x = x.resolve_neg().contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()


def _first_derivatives(gradient: Tensor) -> Tensor:
    """Check the gradient of a kernel's result (a hook): the kernels' backward does not, and records no graph."""
    if torch.is_grad_enabled():
        raise RuntimeError("backend 'mamba_ssm' gives first derivatives only (create_graph=True)")
    return _rows(gradient)


def run_scan(inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """Return (y, last state) for supported inputs without a gate."""
    u, delta, A, B, C, _, D, delta_bias, _, _ = inputs.tensors
    dtypes = {x.dtype for x in (u, delta, B, C) if x.dim() > 2}
    dtype = u.dtype if len(dtypes) == 1 and dtypes <= {torch.float16, torch.bfloat16} else torch.float32
    u_, delta, B_, C = (_rows(x.to(dtype) if x.dim() > 2 else x) for x in (u, delta, B, C))
    D, delta_bias = (None if x is None else _rows(x) for x in (D, delta_bias))
    with without_autocast(u.device):
        y, state = _scan_kernel()(
            u_, delta, A.resolve_neg(), B_, C, D, None, delta_bias, inputs.delta_softplus, return_last_state=True
        )
        if y.requires_grad:
            y.register_hook(_first_derivatives)
        if B.dim() == 2:
            state = state * B
        if y.dtype != u.dtype or y.stride() != torch.empty_like(u, device="meta").stride():
            y = torch.empty_like(u).copy_(y)
        return y, state.detach().clone()  # of the kernel's, a view of a larger buffer


def run_ssd(inputs: SSDInputs) -> tuple[Tensor, Tensor]:
    """Return (y, last state) for supported inputs."""
    x, delta, A, B, C, D, initial, reset, chunk_size, _, _, zero_nonfinite = inputs
    if zero_nonfinite:
        x, delta, B, C = map(without_nonfinite, (x, delta, B, C))
    documents = None if reset is None else reset.cumsum(1, dtype=torch.int32)
    with without_autocast(x.device):
        results = _ssd_kernel()(
            x, delta, A, B.to(x.dtype), C.to(x.dtype), CHUNK if chunk_size is None else chunk_size, D=D,
            initial_states=initial, seq_idx=documents, return_final_states=True,
        )  # fmt: skip
    for result in results:
        if result.requires_grad:
            result.register_hook(_first_derivatives)
    return results
