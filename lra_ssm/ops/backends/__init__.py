"""The backends of the selective scan, Mamba-2's scan and S4D's kernel, and the choice among them.

An operation of a backend has two functions: one runs checked inputs; the other returns in one line why the first
cannot run them, or None if it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lra_ssm.ops.backends import (
    cpu_s4d_kernel,
    cpu_scan,
    mamba_ssm_kernels,
    native_build,
    triton_s4d_kernel,
    triton_scan,
)
from lra_ssm.ops.backends.eager import run_eager
from lra_ssm.ops.backends.eager_s4d_kernel import run_eager_kernel
from lra_ssm.ops.backends.eager_ssd import run_eager_ssd
from lra_ssm.ops.inputs import ScanInputs
from lra_ssm.ops.reference import run_kernel_reference, run_reference, run_ssd_reference
from lra_ssm.ops.tensors import without_autocast


class Operation(NamedTuple):
    """run(inputs) -> its result; unsupported_reason(device, inputs) -> why it cannot run there, or None.

    With inputs None, only the device is checked.
    """

    run: Callable[[Any], Any]
    unsupported_reason: Callable[[torch.device, Any], str | None] = lambda device, inputs: None


def _with_gate(run: Callable[[ScanInputs], tuple[Tensor, Tensor]]) -> Callable[[ScanInputs], tuple[Tensor, Tensor]]:
    """Add the gate, y silu(z), to a scan that lacks it."""

    def run_with_gate(inputs: ScanInputs) -> tuple[Tensor, Tensor]:
        u, z = inputs.tensors.u, inputs.z
        if z is None:
            return run(inputs)
        wide = inputs.tensors._replace(u=u.to(inputs.dtype))  # y is rounded once
        y, last_state = run(inputs._replace(tensors=wide, z=None))
        with without_autocast(u.device):
            gated = y * F.silu(z.to(inputs.dtype))
        return torch.empty_like(u).copy_(gated), last_state

    return run_with_gate


# By operation: `ScanInputs` or `SSDInputs` -> (y, last state); `KernelInputs` -> kernel (K, D, L).
SCAN, KERNEL, SSD = "selective scan", "S4D's kernel", "Mamba-2's scan"
BACKENDS: dict[str, dict[str, Operation]] = {
    SCAN: {
        "triton": Operation(_with_gate(triton_scan.run), triton_scan.unsupported_reason),
        "mamba_ssm": Operation(_with_gate(mamba_ssm_kernels.run_scan), mamba_ssm_kernels.scan_unsupported_reason),
        "cpu": Operation(_with_gate(cpu_scan.run), native_build.unsupported_reason),
        "eager": Operation(_with_gate(run_eager)),
        "reference": Operation(run_reference),
    },
    KERNEL: {
        "triton": Operation(triton_s4d_kernel.run, triton_s4d_kernel.unsupported_reason),
        "cpu": Operation(cpu_s4d_kernel.run_kernel, native_build.unsupported_reason),
        "eager": Operation(run_eager_kernel),
        "reference": Operation(run_kernel_reference),
    },
    SSD: {
        "mamba_ssm": Operation(mamba_ssm_kernels.run_ssd, mamba_ssm_kernels.ssd_unsupported_reason),
        "eager": Operation(run_eager_ssd),
        "reference": Operation(run_ssd_reference),
    },
}

# What "auto" tries, in this order, by type of device; triton's interpreter on a CPU is for tests. mamba-ssm's kernel is
# first for Mamba's own scan, which is all it takes: on an H200 it was 1.4 times as fast as ours in float32, 1.8 in
# bfloat16 (medians, forward and backward).
AUTO = {"cpu": ("cpu", "eager"), "cuda": ("mamba_ssm", "triton", "eager")}

_preferred = "auto"
_recorded: dict[str, dict[str, None]] | None = None


@contextmanager
def prefer_backend(name: str) -> Iterator[None]:
    """Make backend "auto" mean this one inside the block, in the whole process. It is an error if it cannot run.

    Where this backend has no S4D's kernel or Mamba-2's scan for a call, these keep the usual "auto".
    """
    global _preferred
    before, _preferred = _preferred, name
    try:
        yield
    finally:
        _preferred = before


@contextmanager
def record_backends() -> Iterator[dict[str, dict[str, None]]]:
    """Record which backends run inside the block, in the whole process: operation -> names, in order of first use.

    What torch.compile traces is recorded only if `torch.compiler.assume_constant_result` has marked `note_backend`.
    """
    global _recorded
    before, _recorded = _recorded, {}
    try:
        yield _recorded
    finally:
        _recorded = before


def note_backend(operation: str, name: str) -> None:
    """Record that a backend runs an operation, while `record_backends` is open."""
    if _recorded is not None:
        _recorded.setdefault(operation, {})[name] = None


def scan_backends(device: torch.device | str = "cpu") -> dict[str, str | None]:
    """Return every backend of `selective_scan`, with None if it runs on the device, else the reason why not."""
    return {name: backend.unsupported_reason(torch.device(device), None) for name, backend in BACKENDS[SCAN].items()}


def scans_constants_natively(name: str, device: torch.device) -> bool:
    """Return whether this backend runs a linear scan with a constant factor in C++."""
    backend = _preferred if name == "auto" else name
    native = backend in ("auto", "cpu") and native_build.unsupported_reason(device) is None
    if native:
        note_backend("linear scan", "cpu")
    return native


def run(operation: str, name: str, device: torch.device, inputs: Any) -> Any:
    """Return an operation's result from the named backend, or for "auto" from the first that supports the call.

    Raises ValueError with the reason if the backend cannot run.
    """
    backends = BACKENDS[operation]
    if name == "auto":
        preferred = backends.get(_preferred)
        supported = preferred is not None and preferred.unsupported_reason(device, inputs) is None
        if operation == SCAN or supported or _preferred not in BACKENDS[SCAN]:
            name = _preferred
    if name == "auto":
        candidates = [key for key in AUTO.get(device.type, ("eager",)) if key in backends]
        name = next(key for key in candidates if backends[key].unsupported_reason(device, inputs) is None)
    if name not in backends:
        raise ValueError(f"backend: {name!r}; expected 'auto' or one of {', '.join(map(repr, sorted(backends)))}")
    reason = backends[name].unsupported_reason(device, inputs)
    if reason is not None:
        raise ValueError(f"backend: {name!r} cannot run this call: {reason}")
    note_backend(operation, name)
    return backends[name].run(inputs)
