"""Where the time of a training step goes: self times of torch.profiler, grouped by part.

Some operators serve several parts (a matrix product is a linear layer or an S4D kernel), so the functions and modules
of REGIONS are marked while they run, and what backward does for them is found by autograd's sequence numbers.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
from torch.profiler import ProfilerActivity, profile, record_function

_MARK = "part: "

# part -> where the functions and methods that make it up are called from
REGIONS: dict[str, tuple[str, ...]] = {
    "scan": tuple(f"lra_ssm.layers.{layer}.selective_scan" for layer in ("s6", "b2s6", "s4d")),
    "S4D kernel": ("lra_ssm.layers.s4d.s4d_kernel",),
    "convolution": (
        "lra_ssm.layers.s4d.causal_convolution",
        "lra_ssm.layers.s4d.bidirectional_convolution",
        "lra_ssm.layers.convolution.causal_depthwise_convolution",
    ),
    "gate": ("lra_ssm.layers.blocks.silu_gate",),
    "cross-entropy and its head": ("lra_ssm.models.language_model.linear_cross_entropy",),
    "norm": (
        "lra_ssm.layers.norms.BatchNorm.forward",
        "lra_ssm.layers.norms.LayerNorm.forward",
        "lra_ssm.layers.norms.RMSNorm.forward",
    ),
}

# part -> beginnings of the names of operators, without "aten::"; the first part that fits takes it
OPERATORS: dict[str, tuple[str, ...]] = {
    "linear layers": ("addmm", "mm", "bmm", "baddbmm", "linear", "einsum", "matmul"),
    "norm": ("native_batch_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm", "batch_norm"),
    "activation, GLU, dropout": ("gelu", "glu", "silu", "sigmoid", "relu", "native_dropout", "bernoulli", "dropout"),
    "copies, transposes, views": (
        "copy_", "clone", "contiguous", "cat", "to", "_to_copy", "flip", "stack", "index", "view", "permute",
        "transpose", "as_strided", "reshape", "select", "expand", "unsqueeze", "squeeze", "slice", "split", "detach",
    ),
}  # fmt: skip
OTHER = "other"


@contextmanager
def marked_regions() -> Iterator[None]:
    """While inside, every function of REGIONS shows in a profile as its part."""
    with ExitStack() as stack:
        for part, paths in REGIONS.items():
            for path in paths:
                module, names = _split(path)
                owner: Any = import_module(module)
                for name in names[:-1]:
                    owner = getattr(owner, name)
                stack.enter_context(patch.object(owner, names[-1], _marked(part, getattr(owner, names[-1]))))
        yield


def _split(path: str) -> tuple[str, list[str]]:
    """Module and the names below it: a class begins with a capital, a module does not."""
    parts = path.split(".")
    first = next((i for i, part in enumerate(parts) if part[0].isupper()), len(parts) - 1)
    return ".".join(parts[:first]), parts[first:]


def _marked(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def marked(*arguments: Any, **keywords: Any) -> Any:
        with record_function(_MARK + part):
            return function(*arguments, **keywords)

    return marked


def profile_step(step: Callable[[], Any], device: torch.device) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """(part -> milliseconds and share of one step, the largest first; what `on_device` finds). The step is run once
    before."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "9")  # its lines on starting and stopping tell a user nothing
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    with marked_regions():
        step()
        with profile(activities=activities) as profiler:
            step()
            if device.type == "cuda":
                torch.cuda.synchronize()
    events = list(profiler.events())
    seconds = grouped(events, device.type)
    total = sum(seconds.values())
    parts = {
        part: {"ms": spent / 1e3, "share": spent / total}
        for part, spent in sorted(seconds.items(), key=lambda item: -item[1])
    }
    return parts, on_device(events) if device.type == "cuda" else {}


def on_device(events: list[Any]) -> dict[str, float]:
    """Of a step on a GPU: ms that its kernels and copies take, how many the host launched, how often it waited for
    them. Where they take less than the step, the host is the limit."""
    found = {"ms on the GPU": 0.0, "launches": 0, "waits": -1}  # one wait is the profile's own
    for event in events:
        if str(event.device_type).endswith("CUDA"):
            if not event.name.startswith((_MARK, _OPTIMIZER)):  # marks span the kernels within them
                found["ms on the GPU"] += event.time_range.elapsed_us() / 1e3
        elif event.name.startswith(("cudaLaunch", "cuLaunch", "cudaGraphLaunch")):
            found["launches"] += 1
        elif event.name.startswith("cuda") and event.name.endswith("Synchronize"):
            found["waits"] += 1
    return found


def grouped(events: list[Any], device_type: str) -> dict[str, float]:
    """Part -> microseconds of self time."""
    events = [event for event in events if str(event.device_type).endswith("CPU")]
    region_of_number: dict[int, str] = {}
    for event in sorted(events, key=lambda e: e.time_range.start):
        if event.sequence_nr >= 0 and not any(e.name.startswith(_BACKWARD) for e in _ancestry(event)):
            # the operation that makes the node is the last one that sees its number
            region_of_number[event.sequence_nr] = _region(event) or ""
    spent: dict[str, float] = defaultdict(float)
    for event in events:
        time = event.self_cpu_time_total if device_type == "cpu" else event.self_device_time_total
        if time > 0:
            spent[_part(event, region_of_number)] += time
    return dict(spent)


_BACKWARD = "autograd::engine::evaluate_function"
_OPTIMIZER = "Optimizer."


def _ancestry(event: Any) -> Iterator[Any]:
    while event is not None:
        yield event
        event = event.cpu_parent


def _region(event: Any) -> str | None:
    return next((e.name.removeprefix(_MARK) for e in _ancestry(event) if e.name.startswith(_MARK)), None)


def _part(event: Any, region_of_number: dict[int, str]) -> str:
    if region := _region(event):
        return f"{region}, forward"
    for ancestor in _ancestry(event):
        if ancestor.name.startswith(_OPTIMIZER):
            return "optimizer"
        if ancestor.name.startswith(_BACKWARD) and (region := region_of_number.get(ancestor.sequence_nr)):
            return f"{region}, backward"
    for ancestor in _ancestry(event):
        name = ancestor.name.removeprefix("aten::")
        for part, beginnings in OPERATORS.items():
            if name.startswith(beginnings):
                return part
    return OTHER
