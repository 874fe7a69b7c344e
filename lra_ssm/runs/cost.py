"""What a training step of a run costs, counted before anything is trained: memory, kernels, bytes, operations, time.

`fit --estimate` prints it, and a fit warns if a step needs more memory than there is. `CountStep` counts what torch
dispatches. The tensors may be fake: then nothing is computed or allocated, and a model of any size takes seconds.
"""

from __future__ import annotations

import copy
import math
import os
import sys
import weakref
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from lra_ssm.errors import InputError, hint
from lra_ssm.models.backbone import Backbone
from lra_ssm.ops.backends import triton_call, triton_depthwise, triton_losses, triton_s4d_kernel, triton_scan
from lra_ssm.tables import duration, table, terminal_width
from lra_ssm.tasks.base import NetworkTask
from lra_ssm.tasks.optim import optimizer_and_schedule

_DEPENDS_ON_VALUES = (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException)
_BYTES_PER_WIDTH = 32  # about twice what any config of ours keeps
_PER_LAUNCH = 40  # tensors that one kernel of a `_foreach` or fused operator takes, about
_ALLOCATION = 512  # bytes that CUDA's allocator rounds to


# -- counting ---------------------------------------------------------------------------------------------------------


class Kernel(NamedTuple):
    """The kernels of one dispatched call."""

    phase: str  # forward, backward or optimizer
    operator: str
    launches: int
    size: int  # bytes read and written
    flops: int  # operations of matrix products
    dtype: torch.dtype | None  # of the products; None for other kernels


@dataclass
class StepCost:
    """The cost of one training step; memory in bytes."""

    parameters: int = 0  # their number
    resident: int = 0  # parameters, optimizer state, buffers and the batch
    optimizer_state: int = 0  # with averages of the weights
    saved: int = 0  # by forward for backward
    peak: int = 0
    peak_phase: str = ""
    kernels: list[Kernel] = field(default_factory=list)

    def total(self, key: str, value: str) -> Counter[Any]:
        """The sum of the kernels' `value` for each `key`, such as launches by phase, size by operator, flops by dtype.

        Calls without a key (products' dtype) are left out.
        """
        totals: Counter[Any] = Counter()
        for kernel in self.kernels:
            if getattr(kernel, key) is not None:
                totals[getattr(kernel, key)] += getattr(kernel, value)
        return totals


class CountStep(TorchDispatchMode):
    """Count what is dispatched while the mode is on. `cost` is the result; the caller sets `phase`."""

    # Our own operators, whose kernels are counted one by one, with the memory that they allocate in between.
    _OPENED = {"lra_ssm::selective_scan_triton": triton_scan._scan,
               "lra_ssm::selective_scan_triton_backward": triton_scan._scan_backward,
               "lra_ssm::s4d_kernel_triton": triton_s4d_kernel.s4d_kernel_zoh,
               "lra_ssm::s4d_kernel_triton_backward": triton_s4d_kernel.s4d_kernel_zoh_backward,
               "lra_ssm::softmax_losses_triton": triton_losses.softmax_losses,
               "lra_ssm::depthwise_convolution_triton": triton_depthwise.convolution,
               "lra_ssm::depthwise_convolution_triton_backward": triton_depthwise.convolution_backward}  # fmt: skip

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device, self.cost, self.phase = device, StepCost(), "forward"
        self._storages: dict[int, int] = {}
        self.allocated = 0  # bytes

    def reset(self) -> None:
        """Start a new count; what is allocated stays allocated."""
        self.cost = StepCost(peak=self.allocated)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.name().partition(".")[0]
        if name in self._OPENED and isinstance(args[0], FakeTensor):
            with self, patch.object(triton_call, "launch_kernel", self._count_kernel):
                return self._OPENED[name]._init_fn(*args)
        out = func(*args, **kwargs)
        for tensor in tree_leaves(out):
            self.track(tensor)
        tensors = [x for x in tree_leaves((args, kwargs, out)) if isinstance(x, Tensor)]
        if any(x.device.type == self.device.type for x in tensors):
            self._count(name, func, args, kwargs, out, tensors)
        return out

    def track(self, tensor: Any) -> None:
        """Count a tensor's memory until it is freed."""
        if not isinstance(tensor, Tensor) or tensor.device.type != self.device.type:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._storages:
            return
        self._storages[key] = -(-storage.nbytes() // _ALLOCATION) * _ALLOCATION
        self.allocated += self._storages[key]
        if self.allocated > self.cost.peak:
            self.cost.peak, self.cost.peak_phase = self.allocated, self.phase
        weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        self.allocated -= self._storages.pop(key, 0)

    def _count(self, name: str, func: Any, args: Any, kwargs: Any, out: Any, tensors: list[Tensor]) -> None:
        if func.is_view or name in _NO_KERNEL:
            return
        flops, dtype = 0, None
        if func._overloadpacket in flop_registry:
            flops = flop_registry[func._overloadpacket](*args, **kwargs, out_val=out)
            dtype = next(x.dtype for x in reversed(tensors) if x.dtype.is_floating_point or x.dtype.is_complex)
        many = max((len(x) for x in args if isinstance(x, (list, tuple))), default=1)
        several = name.startswith(("aten::_foreach", "aten::_fused"))
        launches = -(-many // _PER_LAUNCH) if several else 2 if name.startswith("aten::_fft") else 1
        size = sum(_bytes(x) for x in tensors) * (2 if name.startswith("aten::_fft") else 1)
        self._add(name, launches, size, flops, dtype)

    def _count_kernel(self, kernel: Any, programs: int, **arguments: Any) -> None:
        size = sum(_bytes(x) for x in arguments.values() if isinstance(x, Tensor))
        self._add(f"triton::{kernel.__name__}", 1, size, 0, None)

    def _add(self, name: str, launches: int, size: int, flops: int, dtype: torch.dtype | None) -> None:
        self.cost.kernels.append(Kernel(self.phase, name, launches, size, flops, dtype))


_NO_KERNEL = ("aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty", "aten::new_empty_strided",
              "aten::resolve_conj", "aten::resolve_neg", "aten::set_", "aten::_local_scalar_dense", "prim::device",
              "aten::lift_fresh", "aten::is_same_size", "aten::detach", "aten::_unsafe_view")  # fmt: skip


def _bytes(x: Tensor) -> int:
    """Bytes of the entries; an expanded one counts once."""
    return x.element_size() * math.prod(n for n, stride in zip(x.shape, x.stride(), strict=True) if stride or n == 0)


class FusedAttention(TorchFunctionMode):
    """Attention by the kernel that a GPU uses, which does not store the weights.

    For a fake tensor torch chooses the plain form. Heads that share keys keep it: in float32 that kernel has no such
    form.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, attention = kwargs or {}, torch.nn.functional.scaled_dot_product_attention
        if func is attention and args and args[0].device.type == "cuda" and not kwargs.get("enable_gqa"):
            return _fused_attention(*args, **kwargs)
        return func(*args, **kwargs)


def _fused_attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    bias = attn_mask
    if bias is not None and bias.dtype == torch.bool:
        bias = torch.zeros_like(bias, dtype=q.dtype).masked_fill_(bias.logical_not(), -math.inf)
    if bias is not None:
        bias = bias.expand(*q.shape[:-1], k.shape[-2])
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    return kernel(q, k, v, bias, True, dropout_p, is_causal, scale=scale)[0]


# -- a task's step -------------------------------------------------------------------------------------------------


def _fake(x: Tensor, mode: FakeTensorMode, device: torch.device) -> FakeTensor:
    """A tensor of the same layout that has no memory."""
    return FakeTensor(mode, torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta"), device)


def _fake_copy(task: NetworkTask, mode: FakeTensorMode, device: torch.device) -> NetworkTask:
    """The task with fake parameters and buffers; shared ones stay shared."""
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
        batch: on the CPU.
        device: the device that is counted for. On "cuda" fake tensors need a build of torch for it, not a GPU.
        precision: the Trainer's: 32-true, bf16-mixed, 16-mixed or bf16-true.
        clip: the Trainer's gradient_clip_val.
        fake: whether tensors are fake; otherwise the step is computed.
        counter: counts more than a `CountStep`.
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
        setattr(task, name, lambda *_, **__: None)  # there is no Trainer

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


def _by_operator(cost: StepCost) -> dict[tuple[Any, ...], Kernel]:
    """Sum the calls of each operator in each phase: loops may make more of them for more examples."""
    totals: dict[tuple[Any, ...], Kernel] = {}
    for kernel in cost.kernels:
        key = (kernel.phase, kernel.operator, kernel.dtype)
        before = totals.get(key, kernel._replace(launches=0, size=0, flops=0))
        sums = {name: getattr(before, name) + getattr(kernel, name) for name in ("launches", "size", "flops")}
        totals[key] = kernel._replace(**sums)
    return totals


def _extrapolate(one: StepCost, two: StepCost, examples: int) -> StepCost:
    """Return the cost of a step on more examples, if each further one costs as much as the second did."""

    def line(a: int, b: int) -> int:
        return a + (b - a) * (examples - 1)

    sizes: dict[str, Any] = {n: line(getattr(one, n), getattr(two, n)) for n in ("resident", "saved", "peak")}
    before, kernels = _by_operator(one), []
    for key, kernel in _by_operator(two).items():
        first = before.get(key, kernel._replace(size=0, flops=0))
        kernels.append(kernel._replace(size=line(first.size, kernel.size), flops=line(first.flops, kernel.flops)))
    return replace(two, **sizes, kernels=kernels)


def largest_step(
    task: NetworkTask, batch: Any, device: torch.device, precision: str = "32-true", clip: float | None = None
) -> StepCost | None:
    """Count a training step on this batch.

    For a GPU, on fake tensors; None if the step depends on their values, as a network that indexes by a mask does, or
    the item() of a tensor. On a CPU, steps of one and of two examples are computed by its own kernels, and each
    further example counts as much as the second; the random state stays as it is.
    """
    if device.type == "cuda":
        with suppress(*_DEPENDS_ON_VALUES):
            return count_step(task, batch, device, precision, clip)
        return None

    def count(examples: int) -> StepCost:
        first = tree_map(lambda x: x[:examples] if isinstance(x, Tensor) else x, batch)
        return count_step(task, first, device, precision, clip, fake=False)

    with isolate_rng(include_cuda=False):
        return _extrapolate(count(1), count(2), len(tree_leaves(batch)[0]))


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
    """A lower bound of a step's time: kernels one after the other, each as long as its bytes or its products need.

    Float32 products run as `compute.matmul_precision` says. Nothing else is counted: a scan's own arithmetic,
    latencies, and the time to launch kernels.
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
        task, batch, precision, clip: as of `largest_step`.
        gpu: one of `GPUS`, for which the time is given.
        matmul_precision: of float32 products.
        steps: of the whole fit.

    Raises:
        InputError: the GPU is unknown, or the step cannot be counted.
    """
    if gpu not in GPUS:
        raise InputError(f"--estimate={gpu}: {hint(gpu, GPUS)}")
    if torch.cuda.is_available():
        device, how, place = torch.device("cuda", torch.cuda.current_device()), "on tensors without memory", "this GPU"
    else:
        device, how, place = torch.device("cpu"), "on 1 and 2 examples, by the CPU's kernels", "this machine"
    cost, available = largest_step(task, batch, device, precision, clip), memory_of(device)
    if cost is None:
        raise InputError("--estimate: the step depends on values of tensors, such as a mask's; it cannot be counted")
    weights = sum(p.numel() * p.element_size() for p in task.parameters())
    parts = [
        (f"{cost.parameters:,} parameters", weights),
        ("gradients, optimizer's states", weights + cost.optimizer_state),
        ("kept by forward for backward", cost.saved),
        (f"peak, in {cost.peak_phase}", cost.peak),
    ]
    flops_by_dtype = cost.total("dtype", "flops").items()
    products = [f"{flops / 1e12:.3g} TFLOP in {str(dtype).removeprefix('torch.')}" for dtype, flops in flops_by_dtype]
    shape = " x ".join(f"{n:,}" for n in tree_leaves(batch)[0].shape[:2])
    seconds = seconds_on(cost, GPUS[gpu], matmul_precision)
    whole = f", {duration(seconds * steps)} for all {steps:,.0f} steps" if steps < math.inf else ""
    lines = [
        f"a training step of {shape}, {precision}; counted {how}",
        table(("memory", "GB"), [(name, f"{size / 1e9:.3f}") for name, size in parts], width=terminal_width()),
        "kernels   " + ", ".join(f"{count:,} {phase}" for phase, count in cost.total("phase", "launches").items()),
        f"moved     {sum(kernel.size for kernel in cost.kernels) / 1e9:.3g} GB",
        f"products  {', '.join(products) or 'none'}",
        f"an {gpu} needs at least {seconds * 1e3:.3g} ms for what is moved and the products{whole}",
    ]
    for name, memory in ((f"an {gpu}", GPUS[gpu].memory), (place, available)):
        verdict = "does not fit" if cost.peak > memory else "fits"
        lines.append(f"{verdict} into {name} ({memory / 1e9:.0f} GB)")
    return "\n".join(lines)


def memory_of(device: torch.device) -> int:
    """Bytes of the GPU, or of the machine."""
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
    cost = largest_step(task, batch, device, trainer.precision, trainer.gradient_clip_val)
    if cost is not None and cost.peak > available:
        remedy = "a smaller --data.batch_size, with --trainer.accumulate_grad_batches"
        backbones = [part for part in task.modules() if isinstance(part, Backbone)]
        if backbones and not backbones[0].activation_checkpointing:
            remedy = f"--compute.recompute_blocks=true, or {remedy}"
        where = "the GPU" if device.type == "cuda" else "this machine"
        needs, has = f"{cost.peak / 1e9:.3g} GB", f"{available / 1e9:.3g} GB"
        print(f"warning: a training step needs about {needs}, and {where} has {has}; {remedy}", file=sys.stderr)
