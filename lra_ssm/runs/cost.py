"""What a training step of a run costs, before anything is trained; analysis/step_cost.py counts."""

from __future__ import annotations

import copy
import os
import sys
from collections import Counter
from contextlib import nullcontext
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from lra_ssm.analysis.step_cost import CountStep, FusedAttention, StepCost
from lra_ssm.models.backbone import Backbone
from lra_ssm.tasks.base import NetworkTask
from lra_ssm.tasks.optim import optimizer_and_schedule

_BYTES_PER_WIDTH = 32  # about twice what any config of ours keeps


def _fake(x: Tensor, mode: FakeTensorMode, device: torch.device) -> FakeTensor:
    """A tensor of the same layout that has no memory."""
    return FakeTensor(mode, torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta"), device)


def _fake_copy(task: NetworkTask, mode: FakeTensorMode, device: torch.device) -> NetworkTask:
    """The task with parameters and buffers that have no memory; what is shared stays shared."""
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
    fakes: bool = True,
) -> StepCost:
    """The cost of a training step that is not the first: forward, backward, clipping and the optimizer's.

    Args:
        task: a copy of it makes the step.
        batch: on the CPU.
        device: what is counted for. On "cuda" fake tensors need a build of torch for it, not a GPU.
        precision: the Trainer's: 32-true, bf16-mixed, 16-mixed or bf16-true.
        clip: the Trainer's gradient_clip_val.
        fakes: whether tensors are fake; else the step is really done.
    """
    counter, mode = CountStep(device), FakeTensorMode(allow_non_fake_inputs=True)
    lower = torch.bfloat16 if precision == "bf16-true" else None
    task = _fake_copy(task, mode, device) if fakes else copy.deepcopy(task)
    task.train()
    if lower is not None:
        with mode if fakes else nullcontext():
            task.to(lower)
    mixed = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(precision)
    for name in ("log", "log_dict"):
        setattr(task, name, lambda *_, **__: None)  # there is no Trainer

    def given(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        x = x.to(lower) if lower is not None and x.is_floating_point() else x
        return _fake(x, mode, device) if fakes else x.to(device)

    with mode if fakes else nullcontext(), counter:
        for tensor in (*task.parameters(), *task.buffers()):
            counter.hold(tensor)
        found = optimizer_and_schedule(task.network, task.optimizer_settings, 1000, 100, task.width_factors)
        trained, schedule = found["optimizer"], found["lr_scheduler"]["scheduler"]
        several = True if fakes else None  # torch does not take fake parameters together by itself, as it does others
        for group in trained.param_groups:
            if "fused" in group:
                group["fused"] = several or group["fused"]
        for parameter in task.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        trained.step()  # makes its states
        trained.zero_grad()
        averages = [] if task.optimizer_settings.ema_decay is None else [p.detach().clone() for p in task.parameters()]
        inputs = tree_map(given, batch)
        for tensor in tree_leaves(inputs):
            counter.hold(tensor)
        counter.restart()
        cost = counter.cost
        cost.resident = counter.now
        held = (x for x in tree_leaves([*trained.state.values(), averages]) if isinstance(x, Tensor))
        cost.states = sum(x.numel() * x.element_size() for x in held)
        with torch.autocast(device.type, mixed) if mixed is not None else nullcontext():
            with FusedAttention() if fakes else nullcontext():
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

    found = StepCost(two.parameters, states=two.states, peak_phase=two.peak_phase, launches=two.launches)
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


def largest_step(
    task: NetworkTask, batch: Any, device: torch.device, precision: str = "32-true", clip: float | None = None
) -> StepCost:
    """The cost of a training step on this batch.

    On a GPU it is counted on fake tensors. On a CPU steps of one and of two examples are done, by its kernels, and each
    further one is taken to cost what the second did; no random number is drawn of it.
    """
    if device.type == "cuda":
        return count_step(task, batch, device, precision, clip)
    with isolate_rng(include_cuda=False):
        one = count_step(task, _first(batch, 1), device, precision, clip, fakes=False)
        two = count_step(task, _first(batch, 2), device, precision, clip, fakes=False)
    return _grown(one, two, len(tree_leaves(batch)[0]))


def memory_of(device: torch.device) -> int:
    """Bytes of the GPU, or of the machine."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def warn_of_memory(trainer: Trainer, task: LightningModule, data: Any) -> None:
    """Says in one line, before the first step, that a step needs more memory than there is.

    It is counted, for seconds, where the matrices of the network take and give so much at all positions of a batch.
    Not for FSDP, under which no device does the whole step.
    """
    whole = trainer.is_global_zero and isinstance(trainer.strategy, (SingleDeviceStrategy, DDPStrategy))
    if not whole or not isinstance(task, NetworkTask) or not hasattr(data, "largest_batch"):
        return
    device, batch = trainer.strategy.root_device, data.largest_batch()
    room, inputs = memory_of(device), tree_leaves(batch)[0]
    positions = inputs.numel() // (inputs.shape[-1] if inputs.is_floating_point() else 1)
    widths = sum(sum(p.shape[:2]) for p in task.parameters() if p.dim() > 1)
    if positions * widths * _BYTES_PER_WIDTH < room:
        return
    peak = largest_step(task, batch, device, trainer.precision, trainer.gradient_clip_val).peak
    if peak > room:
        remedy = "a smaller --data.batch_size, with --trainer.accumulate_grad_batches"
        backbones = [part for part in task.modules() if isinstance(part, Backbone)]
        if backbones and not backbones[0].activation_checkpointing:
            remedy = f"--compute.recompute_blocks=true, or {remedy}"
        where = "the GPU" if device.type == "cuda" else "this machine"
        needs = f"warning: a training step needs about {peak / 1e9:.3g} GB, and {where} has {room / 1e9:.3g} GB"
        print(f"{needs}; {remedy}", file=sys.stderr)
