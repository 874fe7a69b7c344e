"""Estimate the cost of a training step before a run starts; step_cost.py counts it.

`fit --estimate` prints it, and a fit warns if a step needs more memory than there is.
"""

from __future__ import annotations

import copy
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from lra_ssm.errors import InputError, hint
from lra_ssm.models.backbone import Backbone
from lra_ssm.runs.step_cost import CountStep, FusedAttention, StepCost
from lra_ssm.tables import duration, table, terminal_width
from lra_ssm.tasks.base import NetworkTask
from lra_ssm.tasks.optim import optimizer_and_schedule

_DEPENDS_ON_VALUES = (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException)
_BYTES_PER_WIDTH = 32  # about twice what any config of ours keeps


# -- a task's step -------------------------------------------------------------------------------------------------


def _fake(x: Tensor, mode: FakeTensorMode, device: torch.device) -> FakeTensor:
    """Return a fake tensor with the same layout and no memory."""
    return FakeTensor(mode, torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta"), device)


def _fake_copy(task: NetworkTask, mode: FakeTensorMode, device: torch.device) -> NetworkTask:
    """Return a copy of the task with fake parameters and buffers; shared ones stay shared."""
    fakes: dict[int, Any] = {id(buffer): _fake(buffer, mode, device) for buffer in task.buffers()}
    for parameter in task.parameters():
        fakes[id(parameter)] = nn.Parameter(_fake(parameter, mode, device), parameter.requires_grad)
    return copy.deepcopy(task, fakes)


def count_step(
    task: NetworkTask,
    batch: Any,
    device: torch.device,
    precision: str = "32-true",
    clip: float | None = None,
    fake: bool = True,
    counter: CountStep | None = None,
) -> StepCost:
    """Count a training step after the first: forward, backward, gradient clipping and the optimizer.

    Args:
        task: a copy of it makes the step.
        batch: a batch on the CPU.
        device: the device that is counted for. On "cuda" fake tensors need a build of torch for it, not a GPU.
        precision: the Trainer's: 32-true, bf16-mixed, 16-mixed or bf16-true.
        clip: the Trainer's gradient_clip_val.
        fake: whether tensors are fake; otherwise the step is computed.
        counter: the counter to use; default: a `CountStep`.
    """
    counter = counter or CountStep(device)
    mode = FakeTensorMode(allow_non_fake_inputs=True) if fake else None
    task = copy.deepcopy(task) if mode is None else _fake_copy(task, mode, device)
    task.train()
    lower = torch.bfloat16 if precision == "bf16-true" else None
    if lower is not None:
        with mode or nullcontext():
            task.to(lower)
    mixed = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(precision)
    for name in ("log", "log_dict"):
        setattr(task, name, lambda *_, **__: None)  # the task has no Trainer

    def to_device(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        x = x.to(lower) if x.is_floating_point() else x
        return x.to(device) if mode is None else _fake(x, mode, device)

    with mode or nullcontext(), counter:
        for tensor in (*task.parameters(), *task.buffers()):
            counter.track(tensor)
        both = optimizer_and_schedule(task.network, task.optimizer_settings, 1000, 100, task.width_factors)
        optimizer, schedule = both["optimizer"], both["lr_scheduler"]["scheduler"]
        foreach = True if fake else None  # torch does not group fake parameters by itself
        for group in optimizer.param_groups:
            if "fused" in group:
                group["fused"] = foreach or group["fused"]
        for parameter in task.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        optimizer.step()  # creates its state
        optimizer.zero_grad()
        averages = [] if task.optimizer_settings.ema_decay is None else [p.detach().clone() for p in task.parameters()]
        inputs = tree_map(to_device, batch)
        for tensor in tree_leaves(inputs):
            counter.track(tensor)
        counter.reset()
        cost = counter.cost
        cost.resident = counter.allocated
        states = (x for x in tree_leaves([*optimizer.state.values(), averages]) if isinstance(x, Tensor))
        cost.optimizer_state = sum(x.numel() * x.element_size() for x in states)
        with torch.autocast(device.type, mixed) if mixed is not None else nullcontext():
            with FusedAttention() if fake else nullcontext():
                loss: Any = task.training_step(inputs, 0)
        cost.saved, counter.phase = counter.allocated - cost.resident, "backward"
        loss.backward()
        counter.phase = "optimizer"
        if clip:
            nn.utils.clip_grad_norm_(task.parameters(), clip, foreach=foreach)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    cost.parameters = sum(p.numel() for p in task.parameters())
    return cost


def largest_step(
    task: NetworkTask, batch: Any, device: torch.device, precision: str = "32-true", clip: float | None = None
) -> list[StepCost]:
    """Count a training step on this batch.

    For a GPU, the step itself on fake tensors; torch refuses one that depends on their values, as a network that
    indexes by a mask does, or the item() of a tensor. On a CPU, steps of one and of two examples are computed by its
    own kernels, for `extrapolated`; the random state stays as it is.
    """
    if device.type == "cuda":
        return [count_step(task, batch, device, precision, clip)]

    def count(examples: int) -> StepCost:
        first = tree_map(lambda x: x[:examples] if isinstance(x, Tensor) else x, batch)
        return count_step(task, first, device, precision, clip, fake=False)

    with isolate_rng(include_cuda=False):
        return [count(1), count(2)]


def extrapolated(costs: Sequence[StepCost], batch: Any, quantity: Callable[[StepCost], float]) -> float:
    """Return a quantity of a step on the batch: each further example costs as much as the second did."""
    first, last = (quantity(cost) for cost in (costs[0], costs[-1]))
    return first + (last - first) * (len(tree_leaves(batch)[0]) - 1)


# -- for the user --------------------------------------------------------------------------------------------------


class Gpu(NamedTuple):
    """A GPU's data sheet: bytes, bytes per second, and operations of dense matrix products per second."""

    memory: float
    bandwidth: float
    float32: float
    tf32: float
    half: float  # bfloat16 and float16


GPUS = {
    "A100": Gpu(80e9, 2.04e12, 19.5e12, 156e12, 312e12),
    "H100": Gpu(80e9, 3.35e12, 67e12, 495e12, 989e12),
    "H200": Gpu(141e9, 4.8e12, 67e12, 495e12, 989e12),
    "L40S": Gpu(48e9, 0.864e12, 91.6e12, 183e12, 362e12),
    "RTX4090": Gpu(24e9, 1.008e12, 82.6e12, 82.6e12, 165e12),
}


def seconds_on(cost: StepCost, gpu: Gpu, matmul_precision: str) -> float:
    """Return a lower bound of a step's time: the sum over kernels of the time for their bytes or products.

    Float32 products run as `compute.matmul_precision` says. Arithmetic of scans, latencies and the time to
    launch kernels are not counted.
    """
    single = {"highest": gpu.float32, "high": gpu.tf32, "medium": gpu.half}[matmul_precision]
    rates = {torch.float32: single, torch.bfloat16: gpu.half, torch.float16: gpu.half}
    fastest = max(rates.values())
    seconds = 0.0
    for kernel in cost.kernels:
        rate = fastest if kernel.dtype is None else rates.get(kernel.dtype, fastest)
        seconds += max(kernel.size / gpu.bandwidth, kernel.flops / rate)
    return seconds


def planned_steps(trainer: Mapping[str, Any], data: Any) -> float:
    """Return the optimizer steps of a fit on one device, by its Trainer's arguments.

    Infinite if time ends it, or if epochs do and the data is not prepared.
    """
    limit, epochs = trainer.get("limit_train_batches") or 1.0, trainer.get("max_epochs")
    steps = trainer.get("max_steps") or -1
    planned = steps if steps > 0 else math.inf
    if epochs is None or epochs < 1 or not data.is_prepared():
        return planned
    batches = data.train_batches(1)
    batches = min(batches, limit) if isinstance(limit, int) else int(batches * limit)
    return min(planned, epochs * math.ceil(batches / (trainer.get("accumulate_grad_batches") or 1)))


def estimate(
    task: NetworkTask,
    batch: Any,
    precision: str,
    clip: float | None,
    gpu: str,
    matmul_precision: str = "high",
    steps: float = math.inf,
) -> str:
    """Describe the cost of a training step on this batch, and of all steps: the text of `fit --estimate`.

    Args:
        task, batch, precision, clip: as in `largest_step`.
        gpu: one of `GPUS`, for which to estimate the time.
        matmul_precision: the precision of float32 products.
        steps: the steps of the whole fit.

    Raises:
        InputError: the GPU is unknown.
    """
    if gpu not in GPUS:
        raise InputError(f"--estimate={gpu}: {hint(gpu, GPUS)}")
    if torch.cuda.is_available():
        device, how, place = torch.device("cuda", torch.cuda.current_device()), "on tensors without memory", "this GPU"
    else:
        device, how, place = torch.device("cpu"), "on 1 and 2 examples, by the CPU's kernels", "this machine"
    costs, available = largest_step(task, batch, device, precision, clip), memory_of(device)

    def total(quantity: Callable[[StepCost], float]) -> float:
        return extrapolated(costs, batch, quantity)

    weights = sum(p.numel() * p.element_size() for p in task.parameters())
    peak = total(lambda cost: cost.peak)
    parts = [
        (f"{costs[0].parameters:,} parameters", weights),
        ("gradients, optimizer's states", weights + costs[0].optimizer_state),
        ("kept by forward for backward", total(lambda cost: cost.saved)),
        (f"peak, in {costs[-1].peak_phase}", peak),
    ]
    shape = " x ".join(f"{n:,}" for n in tree_leaves(batch)[0].shape[:2])
    seconds = total(lambda cost: seconds_on(cost, GPUS[gpu], matmul_precision))
    known = f"{duration(seconds * steps)} for all {steps:,.0f} steps"
    whole = known if steps < math.inf else "the whole run is known once its data is prepared"
    lines = [
        f"a training step of {shape}, {precision}; counted {how}",
        table(("memory", "GB"), [(name, f"{size / 1e9:.3f}") for name, size in parts], width=terminal_width()),
        f"an {gpu} needs at least {seconds * 1e3:.3g} ms a step (memory traffic, products); {whole}",
    ]
    for name, memory in ((f"an {gpu}", GPUS[gpu].memory), (place, available)):
        lines.append(f"{'does not fit' if peak > memory else 'fits'} into {name} ({memory / 1e9:.0f} GB)")
    return "\n".join(lines)


def memory_of(device: torch.device) -> int:
    """Return the memory of the GPU or of the machine, in bytes."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def warn_of_memory(trainer: Trainer, task: LightningModule, data: Any) -> None:
    """Warn in one line, before the first step, if a step needs more memory than there is.

    The step is counted, which takes seconds, only if the widths of the network's matrices make it likely. Not for FSDP,
    where no device computes the whole step.
    """
    whole = trainer.is_global_zero and isinstance(trainer.strategy, (SingleDeviceStrategy, DDPStrategy))
    if not whole or not isinstance(task, NetworkTask) or not hasattr(data, "largest_batch"):
        return
    device, batch = trainer.strategy.root_device, data.largest_batch()
    available, inputs = memory_of(device), tree_leaves(batch)[0]
    positions = inputs.numel() // (inputs.shape[-1] if inputs.is_floating_point() else 1)
    widths = sum(sum(p.shape[:2]) for p in task.parameters() if p.dim() > 1)
    if positions * widths * _BYTES_PER_WIDTH < available:
        return
    peak = 0.0
    with suppress(*_DEPENDS_ON_VALUES):
        costs = largest_step(task, batch, device, trainer.precision, trainer.gradient_clip_val)
        peak = extrapolated(costs, batch, lambda cost: cost.peak)
    if peak > available:
        remedy = "a smaller --data.batch_size, with --trainer.accumulate_grad_batches"
        backbones = [part for part in task.modules() if isinstance(part, Backbone)]
        if backbones and not backbones[0].activation_checkpointing:
            remedy = f"--compute.recompute_blocks=true, or {remedy}"
        where = "the GPU" if device.type == "cuda" else "this machine"
        needs, has = f"{peak / 1e9:.3g} GB", f"{available / 1e9:.3g} GB"
        print(f"warning: a training step needs about {needs}, and {where} has {has}; {remedy}", file=sys.stderr)
