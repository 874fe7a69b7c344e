"""The selective scan by mamba-ssm's CUDA kernel (https://github.com/state-spaces/mamba): Mamba's own, in one launch.

Shapes: u, delta, z, y (batch, D, L); A (D, N); B, C constant (D, N) or variable (batch, G, N, L); D, delta_bias (D,);
state (batch, D, N). (D channels, L length, N states, G groups of D/G channels.)

That form is a real A and Euler's rule, without B_bias, initial state and resets.  Its rules, from its C++ code:
  - B and C may be variable or constant, but C must have B's groups, and one group if B is constant;
  - u, delta, z and variable B, C have one dtype; A, constant B and C, D and delta_bias are float32;
  - the last state that it gives lacks a constant B.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from lra_ssm.ops.scan_inputs import ScanInputs


def _kernel() -> Callable[..., Any]:
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    return selective_scan_fn


@cache
def _refuse_installation() -> str | None:
    # Some versions of mamba_ssm import without the extension and fail when called, others fail to import.
    if find_spec("selective_scan_cuda") is None:
        return "mamba-ssm's CUDA extension, selective_scan_cuda, is not installed"
    try:
        _kernel()
    except Exception as error:  # an ImportError, or what its dependencies raise
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return f"mamba-ssm is installed but cannot be imported: {reason}"
    return None


def _refuse_device(device: torch.device) -> str | None:
    if device.type != "cuda":
        return f"runs tensors on a CUDA device only; u is on {device}"
    return _refuse_installation()


def _groups(x: Tensor) -> int:
    return x.shape[1] if x.dim() == 4 else 1


def _refuse_inputs(inputs: ScanInputs) -> str | None:
    if inputs.A.is_complex():
        return "complex A: this backend has real A only; B2S6 as published runs on backend 'triton' or 'cpu'"
    if inputs.discretization != "euler":
        return "discretization 'zoh': mamba-ssm has 'euler' only"
    for name, reason in (("B_bias", "has none"), ("reset", "has none"), ("initial_state", "starts from zero")):
        if getattr(inputs, name) is not None:
            return f"{name}: mamba-ssm's kernel {reason}"
    if inputs.dtype == torch.float64:
        return "float64: mamba-ssm's kernel computes in float32"
    if inputs.C.dim() == 4 and _groups(inputs.C) != _groups(inputs.B):
        return f"{_groups(inputs.B)} groups of B, {_groups(inputs.C)} of C: mamba-ssm's kernel needs the same number"
    (batch, D, L), N = inputs.u.shape, inputs.A.shape[1]
    if N > 256:
        return f"N = {N} states; mamba-ssm's kernel takes at most 256"
    if batch == 0 or D > 65535:  # they are its grid
        return f"batch = {batch}, D = {D}; mamba-ssm's kernel takes batch >= 1 and D <= 65535"
    largest = batch * L * max(D, _groups(inputs.B) * N)
    if largest >= 2**32 or batch * D * N * math.ceil(L / 2048) >= 2**31:
        return "too large for the 32-bit offsets of mamba-ssm's kernel"
    return None


def unsupported_reason(device: torch.device, inputs: ScanInputs | None) -> str | None:
    """Return why this backend cannot run on the device or cannot run this call; None if it can."""
    reason = _refuse_device(device)
    return reason if reason is not None or inputs is None else _refuse_inputs(inputs)


def _rows(x: Tensor) -> Tensor:
    """Return x, or a copy if the kernel cannot read its last dimension or cannot write its `empty_like`.

    The kernel checks only that the last stride is 1.  It reads 16 bytes at a time where L is a multiple of 128 or more,
    has 32-bit offsets, and gives results the layout that `empty_like` makes of x, where overlapping rows may come out
    in any order.
    """
    x = x.resolve_neg()
    dims = [(size, stride) for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True) if size > 1]
    length, per_load = x.shape[-1], 16 // x.element_size()
    aligned = x.data_ptr() % 16 == 0 and all(stride % per_load == 0 for _, stride in dims)
    if (
        (x.stride(-1) == 1 or length == 1)
        and all(stride >= length for _, stride in dims)
        and (aligned or length % 128 != 0)
        and sum((size - 1) * stride for size, stride in dims) < 2**32 - length
    ):
        return x
    return x.clone(memory_format=torch.contiguous_format)


def _small(x: Tensor) -> Tensor:
    return x.resolve_neg().contiguous()


def _first_derivatives(dy: Tensor) -> Tensor:
    """Check the gradient of the kernel's y, whose backward does not check it and records no graph (a hook)."""
    if torch.is_grad_enabled():
        raise RuntimeError("backend 'mamba_ssm' gives first derivatives only (create_graph=True)")
    return _rows(dy)


class _LastState(torch.autograd.Function):
    """The state as a function of the inputs that it depends on; its backward raises an error."""

    @staticmethod
    def forward(ctx: Any, state: Tensor, *inputs: Tensor) -> Tensor:
        return state.clone()  # the kernel's is a view of a larger buffer

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise RuntimeError(
            "last state: no gradient flows through it in backend 'mamba_ssm'; detach it, or use backend 'triton', "
            "'cpu' or 'eager'"
        )


def run(inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """Return (y, last state) for supported inputs; backward through the last state raises RuntimeError."""
    u, B = inputs.u, inputs.B
    large = {name: getattr(inputs, name) for name in ("u", "delta", "B", "C", "z")}
    dtypes = {x.dtype for x in large.values() if x is not None and x.dim() > 2}
    dtype = u.dtype if len(dtypes) == 1 and dtypes <= {torch.float16, torch.bfloat16} else torch.float32

    def read(x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        return _rows(x.to(dtype)) if x.dim() > 2 else _small(x)

    with torch.autocast(u.device.type, enabled=False):
        given = {name: read(x) for name, x in (large | {"D": inputs.D, "delta_bias": inputs.delta_bias}).items()}
        y, state = _kernel()(
            **given, A=inputs.A.resolve_neg(), delta_softplus=inputs.delta_softplus, return_last_state=True
        )
        if y.requires_grad:
            y.register_hook(_first_derivatives)
        if B.dim() == 2:
            state = state * B
        if y.dtype != u.dtype or y.stride() != torch.empty_like(u, device="meta").stride():
            y = torch.empty_like(u).copy_(y)
        origins = (x for x in (u, inputs.delta, inputs.A, B, inputs.delta_bias) if x is not None)
        # detached: the graph of the kernel's state would give no gradient and no error
        return y, _LastState.apply(state.detach(), *origins)
