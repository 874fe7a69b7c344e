"""Trains a small network without a Trainer: batches in a loop, rates by role as everywhere."""

from collections.abc import Callable, Iterator
from itertools import count

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lra_ssm.datamodules.loading.batches import Batch
from lra_ssm.datamodules.synthetic.base import SyntheticDataModule
from lra_ssm.tasks.optim import OptimizerSettings, optimizer_and_schedule

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs, labels) -> ()
Watch = Callable[[int, float], None]  # (step, its loss), with its gradients, before the weights are changed


def batches(data: SyntheticDataModule, split: str = "train", seed: int = 0) -> Iterator[Batch]:
    """Batches of `data.batch_size` without end, every epoch in another order; the last of an epoch may be smaller."""
    examples = data.open_split(split)
    generator = torch.Generator().manual_seed(seed)
    for epoch in count():
        for part in torch.randperm(len(examples), generator=generator).split(data.batch_size):
            yield examples.batch(part.numpy(), epoch)


def train(
    network: nn.Module,
    data: Iterator[Batch],
    steps: int,
    optimizer: OptimizerSettings,
    loss: Loss = F.mse_loss,
    watch: Watch | None = None,
) -> None:
    """`steps` steps of the optimizer on the next batches of `data`, each parameter at the rate of its role."""
    made = optimizer_and_schedule(network, optimizer, steps)
    adam, schedule = made["optimizer"], made["lr_scheduler"]["scheduler"]
    network.train()
    for step in range(steps):
        batch = next(data)
        value = loss(network(batch.inputs), batch.labels)
        adam.zero_grad()
        value.backward()
        if watch is not None:
            watch(step, float(value.detach()))
        adam.step()
        schedule.step()


@torch.no_grad()
def evaluate(network: nn.Module, data: SyntheticDataModule, loss: Loss, split: str = "test") -> float:
    """The mean of `loss` over all examples of a split."""
    network.eval()
    examples, total = data.open_split(split), 0.0
    for part in torch.arange(len(examples)).split(data.batch_size):
        batch = examples.batch(part.numpy(), 0)
        total += len(part) * float(loss(network(batch.inputs), batch.labels))
    return total / len(examples)


def l2_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """The mean of ‖ŷ − y‖₂ over examples: (B, K), (B, K) -> ()."""
    return (outputs - labels).norm(dim=-1).mean()
