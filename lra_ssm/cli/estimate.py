"""What a training step of a run costs, before anything is trained: `count_step`; analysis/step_cost.py counts."""

from __future__ import annotations

import copy
import os
from collections import Counter
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from lra_ssm.analysis.step_cost import CountStep, StepCost
from lra_ssm.errors import InputError, hint
from lra_ssm.tables import table, terminal_width
from lra_ssm.tasks.base import NetworkTask
from lra_ssm.tasks.optim import optimizer_and_schedule


def fake(x: Tensor, mode: FakeTensorMode, device: torch.device) -> FakeTensor:
    """A tensor of the same layout that has no memory."""
    return FakeTensor(mode, torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta"), device)


def _make_fake(module: nn.Module, mode: FakeTensorMode, device: torch.device) -> None:
    """All parameters and buffers in place; those that are shared stay shared."""
    made: dict[int, Any] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in made:
                made[id(parameter)] = nn.Parameter(fake(parameter, mode, device), parameter.requires_grad)
            part._parameters[name] = made[id(parameter)]
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = fake(buffer, mode, device)


def count_step(
    task: NetworkTask,
    batch: Any,
    device: torch.device,
    precision: str = "32-true",
    clip: float | None = None,
    fakes: bool = True,
) -> StepCost:
    """The cost of a training step that is not the first: forward, backward, clipping and AdamW.

    Args:
        task: as it was made; afterwards it is fake too.
        batch: on the CPU.
        device: what is counted for. On "cuda" fake tensors need a build of torch for it, not a GPU.
        precision: the Trainer's: 32-true, bf16-mixed, 16-mixed or bf16-true.
        clip: the Trainer's gradient_clip_val.
        fakes: whether tensors are fake; else the step is really done, on the device that the task is on.
    """
    counter, mode = CountStep(device), FakeTensorMode(allow_non_fake_inputs=True)
    lower = torch.bfloat16 if precision == "bf16-true" else None
    task.train()
    if lower is not None:
        task.to(lower)
    if fakes:
        _make_fake(task, mode, device)
    mixed = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(precision)
    for name in ("log", "log_dict"):
        setattr(task, name, lambda *_, **__: None)  # there is no Trainer

    def given(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        x = x.to(lower) if lower is not None and x.is_floating_point() else x
        return fake(x, mode, device) if fakes else x.to(device)

    with mode if fakes else nullcontext(), counter:
        for tensor in (*task.parameters(), *task.buffers()):
            counter.hold(tensor)
        found = optimizer_and_schedule(task.network, task.optimizer_settings, 1000, 100)
        trained, schedule = found["optimizer"], found["lr_scheduler"]["scheduler"]
        several = True if fakes else None  # torch does not take fake parameters together by itself, as it does others
        for group in trained.param_groups:
            group["fused"] = several or group["fused"]
        for parameter in task.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        trained.step()  # makes its states
        trained.zero_grad()
        inputs = tree_map(given, batch)
        for tensor in tree_leaves(inputs):
            counter.hold(tensor)
        counter.restart()
        cost = counter.cost
        cost.resident = counter.now
        with torch.autocast(device.type, mixed) if mixed is not None else nullcontext():
            loss: Any = task.training_step(inputs, 0)
        cost.kept, counter.phase = counter.now - cost.resident, "backward"
        loss.backward()
        counter.phase = "optimizer"
        if clip:
            nn.utils.clip_grad_norm_(task.parameters(), clip, foreach=several)
        trained.step()
        schedule.step()
        trained.zero_grad()
    cost.parameters = sum(p.numel() for p in task.parameters())
    return cost


def _first(batch: Any, examples: int) -> Any:
    return tree_map(lambda x: x[:examples] if isinstance(x, Tensor) else x, batch)


def _grown(one: StepCost, two: StepCost, examples: int) -> StepCost:
    """The cost for so many examples, where each costs what the second did."""

    def line(a: int, b: int) -> int:
        return a + (b - a) * (examples - 1)

    def lines(a: Counter[Any], b: Counter[Any]) -> Counter[Any]:
        return Counter({key: line(a[key], b[key]) for key in b})

    found = StepCost(two.parameters, peak_phase=two.peak_phase, launches=two.launches)
    for name in ("resident", "kept", "peak"):
        setattr(found, name, line(getattr(one, name), getattr(two, name)))
    found.moved, found.products = lines(one.moved, two.moved), lines(one.products, two.products)
    if len(one.per_launch) == len(two.per_launch):
        pairs = zip(one.per_launch, two.per_launch, strict=True)
        found.per_launch = [(line(a[0], b[0]), line(a[1], b[1]), b[2]) for a, b in pairs]
    else:  # loops that are longer for more examples
        found.per_launch = [
            (size * examples // 2, flops * examples // 2, dtype) for size, flops, dtype in two.per_launch
        ]
    return found


# -- what a user is told of it -----------------------------------------------------------------------------------------


class Gpu(NamedTuple):
    """What its maker says of a GPU: bytes, bytes a second, and operations of dense matrix products a second."""

    memory: float
    bandwidth: float
    single: float  # of float32, without TF32
    half: float  # of bfloat16 and float16


GPUS = {
    "A100": Gpu(80e9, 2.04e12, 19.5e12, 312e12),
    "H100": Gpu(80e9, 3.35e12, 67e12, 989e12),
    "H200": Gpu(141e9, 4.8e12, 67e12, 989e12),
    "L40S": Gpu(48e9, 0.864e12, 91.6e12, 362e12),
    "RTX4090": Gpu(24e9, 1.008e12, 82.6e12, 165e12),
}


def seconds_on(cost: StepCost, gpu: Gpu) -> float:
    """At least so long a step takes there: see `StepCost.seconds`."""
    rates = {torch.float32: gpu.single, torch.bfloat16: gpu.half, torch.float16: gpu.half}
    return cost.seconds(gpu.bandwidth, rates)


def estimate(task: NetworkTask, batch: Any, precision: str, clip: float | None, gpu: str) -> str:
    """What a training step on this batch costs, as text; the task cannot be used afterwards.

    With a GPU the step is counted on fake tensors. Without, steps of one and of two examples are done on the CPU, by
    its kernels, and each further one is taken to cost what the second did.

    Raises InputError: the GPU is none of `GPUS`.
    """
    if gpu not in GPUS:
        raise InputError(f"--estimate={gpu}: {hint(gpu, GPUS)}")
    examples = len(tree_leaves(batch)[0])
    if torch.cuda.is_available():
        device, how, place = torch.device("cuda", torch.cuda.current_device()), "on tensors without memory", "this GPU"
        cost = count_step(task, batch, device, precision, clip)
        room = torch.cuda.get_device_properties(device).total_memory
    else:
        device, how, place = torch.device("cpu"), "on 1 and 2 examples, by the CPU's kernels", "this machine"
        one = count_step(copy.deepcopy(task), _first(batch, 1), device, precision, clip, fakes=False)
        two = count_step(task, _first(batch, 2), device, precision, clip, fakes=False)
        cost = _grown(one, two, examples)
        room = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    weights = sum(p.numel() * p.element_size() for p in task.parameters())
    parts = [
        (f"{cost.parameters:,} parameters", weights),
        ("gradients, and AdamW's states", 3 * weights),
        ("kept by forward for backward", cost.kept),
        (f"peak, in {cost.peak_phase}", cost.peak),
    ]
    products = [f"{flops / 1e12:.3g} TFLOP in {str(d).removeprefix('torch.')}" for d, flops in cost.products.items()]
    shape = " x ".join(f"{n:,}" for n in tree_leaves(batch)[0].shape[:2])
    lines = [
        f"a training step of {shape}, {precision}; counted {how}",
        table(("memory", "GB"), [(name, f"{size / 1e9:.3f}") for name, size in parts], width=terminal_width()),
        "kernels   " + ", ".join(f"{count:,} {phase}" for phase, count in cost.launches.items()),
        f"moved     {cost.moved.total() / 1e9:.3g} GB",
        f"products  {', '.join(products) or 'none'}",
        f"an {gpu} takes at least {seconds_on(cost, GPUS[gpu]) * 1e3:.3g} ms for what is moved and the products",
    ]
    for name, there in ((f"an {gpu}", GPUS[gpu].memory), (place, room)):
        verdict = "does not fit" if cost.peak > there else "fits"
        lines.append(f"{verdict} into {name} ({there / 1e9:.0f} GB)")
    return "\n".join(lines)
