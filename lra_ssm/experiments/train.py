"""Trains small networks without a Trainer: batches in a loop, rates by role as everywhere."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lra_ssm.datamodules.batches import Batch
from lra_ssm.datamodules.synthetic.base import SyntheticData
from lra_ssm.tasks.optim import OptimizerSettings, optimizer_and_schedule

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs, labels) -> ()
Watch = Callable[[int, float], None]  # (step, its loss), with its gradients, before the weights are changed


def shuffled(count: int, size: int, seed: int) -> Iterator[tuple[int, Tensor]]:
    """Epochs without end, each in another order: its number and the next `size` of `count` examples, or the rest."""
    generator = torch.Generator().manual_seed(seed)
    for epoch in itertools.count():
        for part in torch.randperm(count, generator=generator).split(size):
            yield epoch, part


def batches(data: SyntheticData, seed: int) -> Iterator[Batch]:
    """Batches of `data.batch_size` training examples, `shuffled`."""
    examples = data.open_split("train")
    for epoch, part in shuffled(len(examples), data.batch_size, seed):
        yield examples.batch(part.numpy(), epoch)


def train(
    network: nn.Module,
    data: Iterator[Batch],
    steps: int,
    optimizer: OptimizerSettings,
    loss: Loss = F.mse_loss,
    watch: Watch | None = None,
) -> list[float]:
    """`descend` on the next batches of `data`, each parameter at the rate of its role."""
    made = optimizer_and_schedule(network, optimizer, steps)
    losses = (loss(network(batch.inputs), batch.labels) for batch in data)
    return descend(network, losses, steps, made["optimizer"], made["lr_scheduler"]["scheduler"], watch)


def descend(
    network: nn.Module, losses: Iterator[Tensor], steps: int, optimizer: Any, schedule: Any = None, watch: Any = None
) -> list[float]:
    """`steps` steps of an optimizer, and of a schedule, on losses that are computed as they are taken: their values."""
    network.train()
    found = []
    for step, loss in zip(range(steps), losses, strict=False):
        network.zero_grad()
        loss.backward()
        found.append(float(loss.detach()))
        if watch is not None:
            watch(step, found[-1])
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return found


@torch.no_grad()
def evaluate(network: nn.Module, data: SyntheticData, loss: Loss) -> float:
    """The mean of `loss` over all test examples."""
    network.eval()
    examples, total = data.open_split("test"), 0.0
    for part in torch.arange(len(examples)).split(data.batch_size):
        batch = examples.batch(part.numpy(), 0)
        total += len(part) * float(loss(network(batch.inputs), batch.labels))
    return total / len(examples)
