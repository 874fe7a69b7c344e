"""`lra-ssm fit --estimate`: what a training step of a run costs, before anything is trained; runs/cost.py counts it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from lra_ssm.analysis.step_cost import StepCost
from lra_ssm.errors import InputError, hint
from lra_ssm.runs.cost import largest_step, memory_of
from lra_ssm.tables import table, terminal_width
from lra_ssm.tasks.base import NetworkTask


class Gpu(NamedTuple):
    """What its maker says of a GPU: bytes, bytes a second, and operations of dense matrix products a second."""

    memory: float
    bandwidth: float
    single: float  # of float32
    tf32: float
    half: float  # of bfloat16 and float16


GPUS = {
    "A100": Gpu(80e9, 2.04e12, 19.5e12, 156e12, 312e12),
    "H100": Gpu(80e9, 3.35e12, 67e12, 495e12, 989e12),
    "H200": Gpu(141e9, 4.8e12, 67e12, 495e12, 989e12),
    "L40S": Gpu(48e9, 0.864e12, 91.6e12, 183e12, 362e12),
    "RTX4090": Gpu(24e9, 1.008e12, 82.6e12, 82.6e12, 165e12),
}


def seconds_on(cost: StepCost, gpu: Gpu, matmul_precision: str) -> float:
    """At least so long a step takes there, with float32 products as `compute.matmul_precision` says: see
    `StepCost.seconds`."""
    single = {"highest": gpu.single, "high": gpu.tf32, "medium": gpu.half}[matmul_precision]
    rates = {torch.float32: single, torch.bfloat16: gpu.half, torch.float16: gpu.half}
    return cost.seconds(gpu.bandwidth, rates)


def estimate(
    task: NetworkTask, batch: Any, precision: str, clip: float | None, gpu: str, matmul_precision: str = "high"
) -> str:
    """What a training step on this batch costs, as text: see `largest_step`.

    Raises InputError: the GPU is none of `GPUS`.
    """
    if gpu not in GPUS:
        raise InputError(f"--estimate={gpu}: {hint(gpu, GPUS)}")
    if torch.cuda.is_available():
        device, how, place = torch.device("cuda", torch.cuda.current_device()), "on tensors without memory", "this GPU"
    else:
        device, how, place = torch.device("cpu"), "on 1 and 2 examples, by the CPU's kernels", "this machine"
    cost, room = largest_step(task, batch, device, precision, clip), memory_of(device)
    weights = sum(p.numel() * p.element_size() for p in task.parameters())
    parts = [
        (f"{cost.parameters:,} parameters", weights),
        ("gradients, optimizer's states", weights + cost.states),
        ("kept by forward for backward", cost.kept),
        (f"peak, in {cost.peak_phase}", cost.peak),
    ]
    products = [f"{flops / 1e12:.3g} TFLOP in {str(d).removeprefix('torch.')}" for d, flops in cost.products.items()]
    milliseconds = seconds_on(cost, GPUS[gpu], matmul_precision) * 1e3
    shape = " x ".join(f"{n:,}" for n in tree_leaves(batch)[0].shape[:2])
    lines = [
        f"a training step of {shape}, {precision}; counted {how}",
        table(("memory", "GB"), [(name, f"{size / 1e9:.3f}") for name, size in parts], width=terminal_width()),
        "kernels   " + ", ".join(f"{count:,} {phase}" for phase, count in cost.launches.items()),
        f"moved     {cost.moved.total() / 1e9:.3g} GB",
        f"products  {', '.join(products) or 'none'}",
        f"an {gpu} takes at least {milliseconds:.3g} ms for what is moved and the products",
    ]
    for name, there in ((f"an {gpu}", GPUS[gpu].memory), (place, room)):
        verdict = "does not fit" if cost.peak > there else "fits"
        lines.append(f"{verdict} into {name} ({there / 1e9:.0f} GB)")
    return "\n".join(lines)
