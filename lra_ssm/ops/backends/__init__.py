"""Who can run a selective scan: the table of backends and the choice among them.

A backend is a function that runs checked inputs and one that says why it cannot (one line), or None if it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from lra_ssm.ops.backends import cpu_scan, mamba_ssm_scan, triton_scan
from lra_ssm.ops.backends.eager import run_eager
from lra_ssm.ops.reference import run_reference
from lra_ssm.ops.scan_inputs import ScanInputs


class Backend(NamedTuple):
    """run(inputs) -> (y, last state); refusal(device, inputs) -> why it cannot run there, or None.

    inputs None asks about the device alone.
    """

    run: Callable[[ScanInputs], tuple[Tensor, Tensor]]
    refusal: Callable[[torch.device, ScanInputs | None], str | None]


def _refuse_nothing(device: torch.device, inputs: ScanInputs | None) -> str | None:
    return None


BACKENDS: dict[str, Backend] = {
    "triton": Backend(triton_scan.run, triton_scan.refusal),
    "mamba_ssm": Backend(mamba_ssm_scan.run, mamba_ssm_scan.refusal),
    "cpu": Backend(cpu_scan.run, cpu_scan.refusal),
    "eager": Backend(run_eager, _refuse_nothing),
    "reference": Backend(run_reference, _refuse_nothing),
}

# What "auto" tries, in this order, by type of device; triton's interpreter on a CPU is for tests.
AUTO = {"cpu": ("cpu", "eager"), "cuda": ("triton", "mamba_ssm", "eager")}


_preferred = "auto"


@contextmanager
def prefer_backend(name: str) -> Iterator[None]:
    """Within it, for the whole process, backend "auto" means this one: layers name none.  An error if it cannot run."""
    global _preferred
    before, _preferred = _preferred, name
    try:
        yield
    finally:
        _preferred = before


def scan_backends(device: torch.device | str = "cpu") -> dict[str, str | None]:
    """Every backend of `selective_scan`: None if it runs on the device, else why it does not."""
    return {name: backend.refusal(torch.device(device), None) for name, backend in BACKENDS.items()}


def run_scan(name: str, inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """(y, last state) by the named backend, or by the first that can for "auto"; ValueError saying why not."""
    device = inputs.u.device
    if name == "auto":
        name = _preferred
    if name == "auto":
        candidates = AUTO.get(device.type, ("eager",))
        name = next(key for key in candidates if BACKENDS[key].refusal(device, inputs) is None)
    if name not in BACKENDS:
        raise ValueError(f"backend: {name!r}; expected 'auto' or one of {', '.join(map(repr, sorted(BACKENDS)))}")
    reason = BACKENDS[name].refusal(device, inputs)
    if reason is not None:
        raise ValueError(f"backend: {name!r} cannot run this call: {reason}")
    return BACKENDS[name].run(inputs)
