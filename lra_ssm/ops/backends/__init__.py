"""The backends of the selective scan, Mamba-2's scan and S4D's kernel, and the choice among them.

An operation of a backend has two functions: one runs checked inputs; the other returns in one line why the first
cannot run them, or None if it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lra_ssm.ops.backends import (
    cpu_linear_scan,
    cpu_s4d_kernel,
    cpu_scan,
    mamba_ssm_scan,
    mamba_ssm_ssd,
    triton_s4d_kernel,
    triton_scan,
)
from lra_ssm.ops.backends.eager import run_eager
from lra_ssm.ops.backends.eager_s4d_kernel import run_eager_kernel
from lra_ssm.ops.backends.eager_ssd import run_eager_ssd
from lra_ssm.ops.kernel_inputs import KernelInputs
from lra_ssm.ops.reference import run_kernel_reference, run_reference, run_ssd_reference
from lra_ssm.ops.scan_inputs import ScanInputs
from lra_ssm.ops.ssd_inputs import SSDInputs


def _always_supported(device: torch.device, inputs: object) -> str | None:
    return None


class Operation(NamedTuple):
    """run(inputs) -> its result; unsupported_reason(device, inputs) -> why it cannot run there, or None.

    With inputs None, only the device is checked.
    """

    run: Callable[[Any], Any]
    unsupported_reason: Callable[[torch.device, Any], str | None] = _always_supported


class Backend(NamedTuple):
    """scan: `ScanInputs` -> (y, last state). s4d_kernel: `KernelInputs` -> (K, D, L). ssd: `SSDInputs` -> (y, last
    state). None if the backend does not have the operation."""

    scan: Operation
    s4d_kernel: Operation | None = None
    ssd: Operation | None = None


BACKENDS: dict[str, Backend] = {
    "triton": Backend(
        Operation(triton_scan.run, triton_scan.unsupported_reason),
        Operation(triton_s4d_kernel.run, triton_s4d_kernel.unsupported_reason),
    ),
    "mamba_ssm": Backend(
        Operation(mamba_ssm_scan.run, mamba_ssm_scan.unsupported_reason),
        ssd=Operation(mamba_ssm_ssd.run, mamba_ssm_ssd.unsupported_reason),
    ),
    "cpu": Backend(
        Operation(cpu_scan.run, cpu_scan.unsupported_reason),
        Operation(cpu_s4d_kernel.run_kernel, cpu_s4d_kernel.kernel_unsupported_reason),
    ),
    "eager": Backend(Operation(run_eager), Operation(run_eager_kernel), Operation(run_eager_ssd)),
    "reference": Backend(Operation(run_reference), Operation(run_kernel_reference), Operation(run_ssd_reference)),
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

    Where this backend lacks S4D's kernel or Mamba-2's scan, these keep the usual "auto".
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
    return {name: backend.scan.unsupported_reason(torch.device(device), None) for name, backend in BACKENDS.items()}


def run_scan(name: str, inputs: ScanInputs, needs_state: bool = False) -> tuple[Tensor, Tensor]:
    """Return (y, last state) from the named backend, or for "auto" from the first that supports the call.

    needs_state: the caller needs the last state, hence perhaps its gradient, which mamba-ssm's kernel lacks.

    Raises ValueError with the reason if the backend cannot run.
    """
    operations, order = {key: backend.scan for key, backend in BACKENDS.items()}, _order(inputs.u.device)
    # torch.compile cannot look into mamba-ssm's kernel, which also lacks the last state's gradient.
    if torch.compiler.is_compiling() or (needs_state and torch.is_grad_enabled()):
        order = [key for key in order if key != "mamba_ssm"]
    return _run("selective scan", operations, _preferred if name == "auto" else name, order, inputs.u.device, inputs)


def scans_constants_natively(name: str, device: torch.device) -> bool:
    """Return whether this backend runs a linear scan with a constant factor in C++."""
    backend = _preferred if name == "auto" else name
    native = backend in ("auto", "cpu") and cpu_linear_scan.constant_scan_unsupported_reason(device) is None
    if native:
        note_backend("linear scan", "cpu")
    return native


def run_kernel(name: str, inputs: KernelInputs) -> Tensor:
    """Return S4D's kernel (K, D, L) from a backend chosen as in `run_scan`."""
    operations = {key: backend.s4d_kernel for key, backend in BACKENDS.items() if backend.s4d_kernel is not None}
    return _run_preferred("S4D's kernel", operations, name, inputs.delta.device, inputs)


def run_ssd(name: str, inputs: SSDInputs) -> tuple[Tensor, Tensor]:
    """Return (y, last state) of Mamba-2's scan from a backend chosen as in `run_scan`."""
    operations = {key: backend.ssd for key, backend in BACKENDS.items() if backend.ssd is not None}
    return _run_preferred("Mamba-2's scan", operations, name, inputs.x.device, inputs)


def _run_preferred(
    operation: str, operations: dict[str, Operation], name: str, device: torch.device, inputs: Any
) -> Any:
    """Run an operation that some backends lack: "auto" means the preferred backend if it supports the call."""
    preferred = operations.get(_preferred)
    if name == "auto" and (
        _preferred not in BACKENDS or (preferred and preferred.unsupported_reason(device, inputs) is None)
    ):
        name = _preferred
    return _run(operation, operations, name, _order(device), device, inputs)


def _order(device: torch.device) -> Sequence[str]:
    return AUTO.get(device.type, ("eager",))


def _run(
    operation: str, operations: dict[str, Operation], name: str, order: Sequence[str], device: torch.device, inputs: Any
) -> Any:
    if name == "auto":
        candidates = [key for key in order if key in operations]
        name = next(key for key in candidates if operations[key].unsupported_reason(device, inputs) is None)
    if name not in operations:
        raise ValueError(f"backend: {name!r}; expected 'auto' or one of {', '.join(map(repr, sorted(operations)))}")
    reason = operations[name].unsupported_reason(device, inputs)
    if reason is not None:
        raise ValueError(f"backend: {name!r} cannot run this call: {reason}")
    note_backend(operation, name)
    return operations[name].run(inputs)
