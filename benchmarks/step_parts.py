"""Where the time of a training step goes: self times of torch.profiler, grouped by part.

Some operators serve several parts: a matrix product is a linear layer or an S4D kernel. So the functions of REGIONS are
marked while they run, where the package calls them. Autograd's sequence numbers tell what backward does for them.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from pkgutil import resolve_name
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch.profiler import ProfilerActivity, profile, record_function

_MARK, _BACKWARD, _OPTIMIZER = "part: ", "autograd::engine::evaluate_function", "Optimizer."
OTHER = "other"

# part -> (where functions are called from, below lra_ssm)
REGIONS: dict[str, tuple[str, ...]] = {
    "scan": ("layers.s6.selective_scan", "layers.b2s6.selective_scan", "layers.s4d.selective_scan"),
    "S4D kernel": ("layers.s4d.s4d_kernel",),
    "convolution": (
        "layers.s4d.causal_convolution",
        "layers.s4d.bidirectional_convolution",
        "layers.convolution.causal_depthwise_convolution",
    ),
    "cross-entropy and its head": ("models.language_model.linear_cross_entropy",),
    "norm": ("layers.BatchNorm.forward", "layers.LayerNorm.forward", "layers.RMSNorm.forward"),
}
# part -> beginnings of the names of operators, without "aten::"; the first part that fits takes it
OPERATORS: dict[str, tuple[str, ...]] = {
    "linear layers": ("addmm", "mm", "bmm", "baddbmm", "linear", "einsum", "matmul"),
    "activation, GLU, dropout": ("gelu", "glu", "silu", "sigmoid", "relu", "native_dropout", "bernoulli", "dropout"),
    "copies, transposes, views": (
        "copy_", "clone", "contiguous", "cat", "to", "_to_copy", "flip", "stack", "index", "view", "permute",
        "transpose", "as_strided", "reshape", "select", "expand", "unsqueeze", "squeeze", "slice", "split", "detach",
    ),
}  # fmt: skip


class StepProfile(NamedTuple):
    """parts: part -> ms of one step, the largest first.  counts: what `on_gpu` finds.  kernels: as `kernels_of`."""

    parts: dict[str, float]
    counts: dict[str, float]
    kernels: dict[str, tuple[int, float]]


def parts_of_step(step: Callable[[], Any], device: torch.device) -> StepProfile:
    """The step is run once before."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "9")  # its lines on starting and stopping tell a user nothing
    is_gpu = device.type == "cuda"
    with _marked_regions():
        step()
        with profile(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * is_gpu) as profiler:
            step()
            if is_gpu:
                torch.cuda.synchronize()
    events: list[Any] = list(profiler.events())
    spent = grouped(events, is_gpu)
    largest_first = sorted(spent, key=spent.__getitem__, reverse=True)
    parts = {part: spent[part] for part in largest_first}
    return StepProfile(parts, on_gpu(events), kernels_of(events)) if is_gpu else StepProfile(parts, {}, {})


def kernels_of(events: list[Any], most: int = 25) -> dict[str, tuple[int, float]]:
    """Kernel -> (launches, ms) of those that take a step's GPU longest."""
    found: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for event in events:
        if str(event.device_type).endswith("CUDA") and not event.name.startswith((_MARK, _OPTIMIZER)):
            count, ms = found[event.name]
            found[event.name] = (count + 1, ms + event.time_range.elapsed_us() / 1e3)
    return {name: found[name] for name in sorted(found, key=lambda name: -found[name][1])[:most]}


def on_gpu(events: list[Any]) -> dict[str, float]:
    """Of a step: ms that its kernels and copies take, how many the host launched, and how often it waited.

    Where they take less than the step, the host is the limit.
    """
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


def grouped(events: list[Any], is_gpu: bool) -> dict[str, float]:
    """Part -> ms of self time."""
    events = [event for event in events if str(event.device_type).endswith("CPU")]
    region_of_number: dict[int, str] = {}
    for event in sorted(events, key=lambda e: e.time_range.start):
        if event.sequence_nr >= 0 and not any(e.name.startswith(_BACKWARD) for e in _ancestry(event)):
            # the operation that makes the node is the last one that sees its number
            region_of_number[event.sequence_nr] = _region(event)
    spent: dict[str, float] = defaultdict(float)
    for event in events:
        time = event.self_device_time_total if is_gpu else event.self_cpu_time_total
        if time > 0:
            spent[_part(event, region_of_number)] += time / 1e3
    return dict(spent)


def _part(event: Any, region_of_number: dict[int, str]) -> str:
    if region := _region(event):
        return f"{region}, forward"
    for ancestor in _ancestry(event):
        if ancestor.name.startswith(_OPTIMIZER):
            return "optimizer"
        if ancestor.name.startswith(_BACKWARD):
            region = region_of_number.get(ancestor.sequence_nr)
            if region:
                return f"{region}, backward"
    for ancestor in _ancestry(event):
        name = ancestor.name.removeprefix("aten::")
        for part, beginnings in OPERATORS.items():
            if name.startswith(beginnings):
                return part
    return OTHER


def _ancestry(event: Any) -> Iterator[Any]:
    while event is not None:
        yield event
        event = event.cpu_parent


def _region(event: Any) -> str:
    for ancestor in _ancestry(event):
        if ancestor.name.startswith(_MARK):
            return ancestor.name.removeprefix(_MARK)
    return ""


@contextmanager
def _marked_regions() -> Iterator[None]:
    """While inside, every function of REGIONS shows in a profile as its part."""
    with ExitStack() as stack:
        for part, paths in REGIONS.items():
            for path in paths:
                place, _, name = f"lra_ssm.{path}".rpartition(".")
                owner = resolve_name(place)
                function = getattr(owner, name)
                stack.enter_context(patch.object(owner, name, _marked(part, function)))
        yield


def _marked(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def marked(*arguments: Any, **keywords: Any) -> Any:
        with record_function(_MARK + part):
            return function(*arguments, **keywords)

    return marked
